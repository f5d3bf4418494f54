"""Many fits in one application, many models in one process, many clients of one server, and the server's memory under large states.

    python benchmarks/soak.py fits [--fits 200]
    python benchmarks/soak.py models [--models 12]
    python benchmarks/soak.py large [--backend torch]
    python benchmarks/soak.py clients [--clients 64] [--seconds 60]
    python benchmarks/soak.py memory [--workers 8] [--megabytes 300] [--epochs 3]

fits     A tiny model on `local[2]`: the server engine, jobs and asynchronous training in turn. What the driver holds after 20
         fits must be what it holds after the last one.
models   Small MobileNetV2s, then EfficientNetB0s, each with another last layer, are trained two steps one after another, by the programs of an executor (as trials of a
         search are), by Keras' fit in a search's function of the user's, and by Keras' fit: what a process of each holds more after each model,
         beyond the four that executors keep.
large    Three models with 1.2 GiB of weights, trained two steps one after another, by the programs of an executor: its peak memory after each.
clients  NumPy workers in processes of their own exchange a state of 4,000 numbers as fast as they can. Every update adds 1 to
         each weight, so the weights say how many were applied.
memory   Peak memory of a process that does nothing but serve, above what it had before its state was there. The state is one
         third weights and two thirds slots, as with Adam. The workers are threads of another process.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import multiprocessing
import os
import resource
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import psutil

from elephas_like.core.async_loop import fit_asynchronously
from elephas_like.core.async_progress import AsyncProgress, AsyncSchedule
from elephas_like.core.center import LockedCenter
from elephas_like.core.layout import Layout, LayoutEntry
from elephas_like.core.loop import FitPlan, fit_synchronously
from elephas_like.core.progress import FitProgress
from elephas_like.core.strategies import Average, DownPour
from elephas_like.core.types import EpochRecord, Frequency, Joined, Mode, Order, Role, Span, TrainState, Update
from elephas_like.exchange.center_store import CenterStore
from elephas_like.exchange.client import ClientSettings
from elephas_like.exchange.membership import Waits
from elephas_like.exchange.protocol import Sizes
from elephas_like.exchange.round_store import RoundStore
from elephas_like.exchange.server import HttpExchangeServer, TcpExchangeServer

if TYPE_CHECKING:
    from elephas_like.trainer.spec import ModelSpec

SERVERS = {"http": HttpExchangeServer, "socket": TcpExchangeServer}
NONE, WHOLE = np.zeros(0, np.float32), np.zeros(0, np.int64)
TOKEN = "token"
PROCESSES = multiprocessing.get_context("spawn")
SAMPLES = 4


# Models in turn.


def models(count: int) -> None:
    """Print the memory of a process that trains one model after another, of executors and of Keras."""
    print("| models | trained by | MiB after 5 models | MiB after all | MiB a model |\n|---|---|---|---|---|")
    for network in ("MobileNetV2", "EfficientNetB0"):
        for trained_by in ("executor", "a function of the user's", "Keras"):
            sizes: list[int] = started(in_turn, network, trained_by, count).recv()
            rate = (sizes[-1] - sizes[4]) / (len(sizes) - 5)
            print(f"| {network} | {trained_by} | {sizes[4]:,} | {sizes[-1]:,} | {rate:.0f} |", flush=True)


def in_turn(pipe: Connection, network: str, trained_by: str, count: int) -> None:
    """Send the MiB of this process after each of `count` models."""
    os.environ |= {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1"}
    import keras

    from elephas_like.core.structure import flatten
    from elephas_like.trainer.backends.chosen import BACKEND
    from elephas_like.trainer.building import build_optimizer
    from elephas_like.trainer.programs import PROGRAMS
    from elephas_like.trainer.spec import Carry, ModelSpec
    from elephas_like.trainer.tensors import row_numbers, tensors

    if trained_by == "a function of the user's":
        BACKEND.free_graphs_of_fits()  # as where executors call it
    draws, sizes = np.random.default_rng(0), []
    x, y = draws.normal(size=(64, 64, 64, 3)).astype("float32"), draws.integers(0, 3, 64)
    for number in range(count):
        narrow = {"alpha": 0.35} if network == "MobileNetV2" else {}
        application = getattr(keras.applications, network)
        base = application(input_shape=(64, 64, 3), include_top=False, weights=None, pooling="avg", **narrow)
        model = keras.Sequential([base, keras.layers.Dense(8 + number, "relu"), keras.layers.Dense(3, "softmax")])
        model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
        if trained_by != "executor":
            model.fit(x, y, batch_size=32, verbose=0)
            keras.backend.clear_session()
        else:
            build_optimizer(model)
            program = PROGRAMS.borrow(ModelSpec.from_model(model, Carry.NOTHING), (x[:1], y[:1]), 0)
            program.training.run(tensors([x, y]), flatten((x, y))[1], row_numbers(64), 32, 0, 2)
            PROGRAMS.give_back(program)
            del program
        del model
        gc.collect()
        ctypes.CDLL(None).malloc_trim(0)
        sizes.append(psutil.Process().memory_info().rss // 2**20)
    pipe.send(sizes)


# Large models in turn.


def large(backend: str) -> None:
    """Print the peak memory of a process that trains one large model after another, as an executor does."""
    os.environ |= {"KERAS_BACKEND": backend, "CUDA_VISIBLE_DEVICES": "-1", "TF_CPP_MIN_LOG_LEVEL": "3"}
    # Made in processes of their own, as a driver makes them elsewhere.
    specs = [started(ship_large, number).recv() for number in range(3)]
    peaks: list[int] = started(train_in_turn, specs).recv()
    print("| model | peak MiB |\n|---|---|")
    for number, peak in enumerate(peaks, 1):
        print(f"| {number} | {peak:,} |")


def ship_large(pipe: Connection, number: int) -> None:
    """Send a model as executors get it, without its weights."""
    import keras

    from elephas_like.trainer.building import build_optimizer
    from elephas_like.trainer.spec import Carry, ModelSpec

    layers = keras.layers
    model = keras.Sequential([keras.Input((8000,)), layers.Dense(40_000 + number, "relu"), layers.Dense(1)])
    model.compile("sgd", "mse")
    build_optimizer(model)
    pipe.send(ModelSpec.from_model(model, Carry.NOTHING))


def train_in_turn(pipe: Connection, specs: Sequence[ModelSpec]) -> None:
    """Train models, and send the peak memory of this process in MiB after each."""
    from elephas_like.core.structure import flatten
    from elephas_like.trainer.programs import PROGRAMS
    from elephas_like.trainer.tensors import row_numbers, tensors

    x, y = np.ones((8, 8000), np.float32), np.ones((8, 1), np.float32)
    peaks = []
    for spec in specs:
        program = PROGRAMS.borrow(spec, (x[:1], y[:1]), 0)
        program.training.run(tensors([x, y]), flatten((x, y))[1], row_numbers(8), 4, 0, 2)
        PROGRAMS.give_back(program)
        del program
        peaks.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 2**10)
    pipe.send(peaks)


# Workers of NumPy.


def layout_of(weights: int, slots: int) -> Layout:
    return Layout(
        (
            LayoutEntry("kernel", Role.WEIGHT, (weights,), "float32"),
            LayoutEntry("moment", Role.SLOT, (slots,), "float32"),
        )
    )


def state_of(layout: Layout) -> TrainState:
    weights, slots = (np.zeros(layout.size(role), np.float32) for role in (Role.WEIGHT, Role.SLOT))
    return TrainState(weights, NONE, slots, WHOLE, NONE, NONE, WHOLE, NONE)


def work(settings: ClientSettings, layout_hash: str, delta: np.ndarray, slots: np.ndarray, worker: int) -> int:
    """A worker that answers each order with the same update. Return how many were acknowledged by another order."""
    client = settings.connect(worker, 1)
    order, answered = client.join(Joined(worker, 1, "here", SAMPLES, 0, layout_hash)), 0
    while order.kind != "stop":
        number, version = order.number, order.version
        del order  # a worker's own copy of the state would only fill this machine
        numbers = {"worker": worker, "number": number, "version": version, "samples": SAMPLES, "steps": 1}
        arrays = {"delta": delta, "statistics": NONE, "slots": slots, "counters": WHOLE, "loss_scale": NONE}
        order = client.answer(Update(**numbers, **arrays, seeds=WHOLE, metrics=np.array([1.0, SAMPLES])))
        answered += order.kind != "stop"
    client.close()
    return answered


def crowd(pipe: Connection, settings: ClientSettings, layout: Layout, workers: list[int]) -> None:
    """Workers as threads of this process. Send how many updates of each were acknowledged."""
    delta, slots = np.ones(layout.size(Role.WEIGHT), np.float32), np.ones(layout.size(Role.SLOT), np.float32)
    with ThreadPoolExecutor(len(workers)) as threads:
        answered = threads.map(partial(work, settings, layout.hash, delta, slots), workers)
        pipe.send(dict(zip(workers, answered, strict=True)))


def started(target: Callable[..., None], *arguments: object) -> Connection:
    """Start a process that sends what it finds."""
    ours, theirs = PROCESSES.Pipe()
    PROCESSES.Process(target=target, args=(theirs, *arguments), daemon=True).start()
    theirs.close()
    return ours


# Many fits.


def fits(count: int) -> None:
    """Print what the driver holds after 20 fits and after the last."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    import keras
    from pyspark.sql import SparkSession

    from elephas_like import SparkModel

    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(8, "relu"), keras.layers.Dense(1)])
    model.compile("adam", "mse")
    random = np.random.default_rng(0)
    x, y = random.normal(size=(64, 4)).astype("float32"), random.normal(size=(64, 1)).astype("float32")
    ways = ({"engine": "server"}, {"engine": "jobs"}, {"engine": "server", "mode": "asynchronous"})
    with tempfile.TemporaryDirectory(prefix="soak-") as folder:
        os.environ["TMPDIR"] = tempfile.tempdir = folder
        quiet = {"spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false", "spark.local.dir": folder}
        builder = SparkSession.builder.master("local[2]").config(map=quiet)
        spark = builder.getOrCreate()
        spark.sparkContext.setLogLevel("ERROR")
        rows = spark.sparkContext.parallelize(list(zip(x, y, strict=True)), 2).cache()
        print("| fits | threads | open files | sockets | our files on disk | all files on disk | RSS, MB | s |")
        print("|---|---|---|---|---|---|---|---|")
        begun = time.perf_counter()
        for done in range(1, count + 1):
            SparkModel(model, 2, seed=done, **ways[done % len(ways)]).fit(rows, epochs=2, batch_size=8, verbose=0)
            if done in (20, count) or done % 50 == 0:
                print(f"| {done} | {held(Path(folder))} | {time.perf_counter() - begun:.0f} |", flush=True)
        spark.stop()


def held(folder: Path) -> str:
    """What this process holds, as cells of a table."""
    gc.collect()
    process = psutil.Process()
    files = [path for path in folder.rglob("*") if path.is_file()]
    own = [path for path in files if any(part.startswith("elephas_like") for part in path.parts)]
    cells = (
        threading.active_count(),
        process.num_fds(),
        len(process.net_connections()),
        len(own),
        len(files),
        f"{process.memory_info().rss / 1e6:.0f}",
    )
    return " | ".join(map(str, cells))


# Many clients.


def clients(count: int, seconds: float) -> None:
    """Print updates per second of both modes over both transports, each for `seconds`."""
    print("| server | mode | clients | updates | lost | counted twice | updates/s |\n|---|---|---|---|---|---|---|")
    for kind in SERVERS:
        for mode, serve in (("synchronous", serve_rounds), ("asynchronous", serve_center)):
            updates, lost, twice = serve(kind, count, seconds)
            print(
                f"| {kind} | {mode} | {count} | {updates:,} | {lost} | {twice} | {updates / seconds:,.0f} |", flush=True
            )


@contextmanager
def crowds(
    kind: str, store: RoundStore | CenterStore, layout: Layout, count: int
) -> Iterator[Callable[[], dict[int, int]]]:
    """A server with its clients in two processes. Yield what stops it all and returns the clients' counts."""
    sizes = Sizes.of(layout)
    with SERVERS[kind](store, TOKEN, sizes, "127.0.0.1") as server:
        settings = ClientSettings(kind, *server.address, TOKEN, sizes)  # type: ignore[arg-type]
        pipes = [started(crowd, settings, layout, list(range(half, count, 2))) for half in range(2)]
        store.joined()

        def stop() -> dict[int, int]:
            store.stop()
            return {worker: answered for pipe in pipes for worker, answered in pipe.recv().items()}

        yield stop


def serve_rounds(kind: str, count: int, seconds: float) -> tuple[int, int, int]:
    """Synchronous rounds: the updates, how many are missing, and how many came twice."""
    layout = layout_of(4000, 0)
    store = RoundStore(count, layout.hash)
    with crowds(kind, store, layout, count) as stop:
        total, rounds, end = np.zeros(4000), 0, time.perf_counter() + seconds
        while time.perf_counter() < end:
            for update in store.train(Order("train", rounds, rounds, Span(0), state_of(layout))):
                total += update.delta
            rounds += 1
        stop()
    applied = np.unique(total)
    assert applied.size == 1, "an update was taken in part"
    return int(applied[0]), max(0, rounds * count - int(applied[0])), max(0, int(applied[0]) - rounds * count)


def serve_center(kind: str, count: int, seconds: float) -> tuple[int, int, int]:
    """Asynchronous updates: how many are in the weights, and how many of those that were acknowledged are not, or twice.

    The reply to the last update of a client may be the order to stop, whether it was applied or not.
    """
    layout = layout_of(4000, 0)
    store = CenterStore(count, layout.hash)
    with crowds(kind, store, layout, count) as stop:
        center = LockedCenter(state_of(layout), layout, DownPour(), count)
        progress = AsyncProgress(count * SAMPLES, 2**40, AsyncSchedule((1,) * count))
        store.begin(center, progress, lambda epoch: False)
        end = time.perf_counter() + seconds
        while time.perf_counter() < end:
            store.next_epoch()
        answered = stop()
    applied = np.unique(center.snapshot().weights)
    assert applied.size == 1, "an update was applied in part"
    assert int(applied[0]) == len(progress.history) < 2**24
    recorded = progress.exchanges
    lost = sum(max(0, answered[worker] - recorded[worker]) for worker in range(count))
    twice = sum(max(0, recorded[worker] - answered[worker] - 1) for worker in range(count))
    return int(applied[0]), lost, twice


# Memory of the server.


class Quiet:
    """Hooks of a driver without callbacks."""

    def stopped(self) -> bool:
        return False

    def order_given(self) -> None: ...

    def epoch_begin(self, epoch: int, state: TrainState) -> TrainState:
        return state

    def round_end(self, record: object, metrics: object) -> None: ...

    def epoch_end(self, record: EpochRecord) -> TrainState:
        return record.state


def serve(pipe: Connection, kind: str, mode: Mode, workers: int, epochs: int, layout: Layout) -> None:
    """Serve a fit in this process. Send the settings of its clients, then the peak of its memory above its start, in bytes."""
    start, sizes = psutil.Process().memory_info().rss, Sizes.of(layout)
    waits = Waits(read_ahead=sizes.read_ahead)
    synchronous = mode is Mode.SYNCHRONOUS
    store: RoundStore | CenterStore = (
        RoundStore(workers, layout.hash, waits=waits)
        if synchronous
        else CenterStore(workers, layout.hash, waits=waits, lock_free=mode is Mode.HOGWILD)
    )
    plan = FitPlan(
        layout=layout,
        mode=mode,
        strategy=Average() if synchronous else DownPour(),
        frequency=Frequency.EPOCH,
        rounds_per_epoch=2,
        worker_rounds=(2,) * workers,
        num_workers=workers,
        rows=2 * workers * SAMPLES,
        initial_epoch=0,
        epochs=epochs,
        validates=False,
    )
    with SERVERS[kind](store, TOKEN, sizes, "127.0.0.1") as server:
        pipe.send(ClientSettings(kind, *server.address, TOKEN, sizes))  # type: ignore[arg-type]
        store.joined()
        progress = FitProgress(state_of(layout))
        begun = time.perf_counter()
        fit = fit_synchronously if synchronous else fit_asynchronously
        fit(store, plan, Quiet(), progress, lambda metrics: None)  # type: ignore[arg-type, operator]
        seconds = time.perf_counter() - begun
        store.stop()
        pipe.recv()  # the workers have ended
    pipe.send((1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - start, seconds))


def memory(workers: int, megabytes: int, epochs: int) -> None:
    """Print the peak of each mode over each transport, beside the state."""
    layout = layout_of(megabytes * 250_000 // 3, 2 * (megabytes * 250_000 // 3))
    size = state_of(layout).nbytes
    print("| server | mode | workers | state, MB | peak above start, MB | states | s |\n|---|---|---|---|---|---|---|")
    for kind in SERVERS:
        for mode in Mode:
            served = started(serve, kind, mode, workers, epochs, layout)
            busy = started(crowd, served.recv(), layout, list(range(workers)))
            busy.recv()
            served.send("ended")
            peak, seconds = served.recv()
            cells = f"{workers} | {size / 1e6:.0f} | {peak / 1e6:,.0f} | {peak / size:.1f} | {seconds:.0f}"
            print(f"| {kind} | {mode.value} | {cells} |", flush=True)


def main() -> None:
    """Run one of the four."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=["fits", "models", "large", "clients", "memory"])
    parser.add_argument("--fits", type=int, default=200)
    parser.add_argument("--models", type=int, default=12)
    parser.add_argument("--backend", choices=["tensorflow", "jax", "torch"], default="tensorflow")
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--megabytes", type=int, default=300)
    parser.add_argument("--epochs", type=int, default=3)
    options = parser.parse_args()
    if options.part == "fits":
        fits(options.fits)
    elif options.part == "models":
        models(options.models)
    elif options.part == "large":
        large(options.backend)
    elif options.part == "clients":
        clients(options.clients, options.seconds)
    else:
        memory(options.workers, options.megabytes, options.epochs)


if __name__ == "__main__":
    main()
