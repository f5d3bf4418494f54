"""How long exchanges take with 2 to 256 workers: a model of the one server, from constants that it measures, checked on this machine.

    python benchmarks/scaling.py [--rounds 5]

A synchronous round of K workers and a state of S bytes moves K states (D bytes, as state_codec packs them) out of the driver and K
updates (U bytes, as codec packs them) in, over a link of B bytes a second in each direction:

    t(K) = fixed + K * request + K * D / min(B, c) + K * U / min(B, c) + K * opening + last

fixed, request  what a round costs with a state of nothing: a line through rounds of 1, 2, 4 and 8 workers
c               bytes a second that the server's process moves over loopback, adding included: the slope between two sizes
opening         unpacking an update, seconds a byte times S; the driver does it for one after the other
last            adding the last update and making the next state, and packing the step to it: nothing comes in meanwhile

Workers are threads of other processes, and train nothing. The check prints what the model says beside what was measured, for sizes
and numbers of workers that the constants were not taken from.
"""

from __future__ import annotations

import argparse
import statistics
import time
from dataclasses import dataclass
from multiprocessing.connection import Connection

import numpy as np
from soak import SERVERS, TOKEN, crowd, layout_of, started, state_of

from elephas_like.core.averaging import Round
from elephas_like.core.layout import Layout
from elephas_like.core.strategies import Average
from elephas_like.core.strategies.algebra import Context
from elephas_like.core.strategies.codecs import Codec, Int8
from elephas_like.core.types import Order, Span, Update
from elephas_like.exchange.client import ClientSettings
from elephas_like.exchange.membership import Waits
from elephas_like.exchange.protocol import Sizes
from elephas_like.exchange.round_store import RoundStore

GIGABIT = 1e9 / 8
LINKS = {"1 Gb/s": GIGABIT, "10 Gb/s": 10 * GIGABIT, "25 Gb/s": 25 * GIGABIT}
WORKERS = (2, 8, 32, 64, 128, 256)
STATES = {"1 MB": 1e6, "10 MB": 1e7, "100 MB": 1e8, "1 GB": 1e9}
EPOCH, EXCHANGES = 60.0, 5
"""An epoch's training in seconds, and its exchanges, for the table of shares."""


def serve(pipe: Connection, kind: str, workers: int, layout: Layout, rounds: int) -> None:
    """Serve rounds of the averaging strategy in this process. Send the settings of its clients, then the seconds of each round."""
    sizes = Sizes.of(layout)
    store = RoundStore(workers, layout.hash, waits=Waits(read_ahead=sizes.read_ahead))
    strategy, state, seconds = Average(), state_of(layout), []
    with SERVERS[kind](store, TOKEN, sizes, "127.0.0.1") as server:
        pipe.send(ClientSettings(kind, *server.address, TOKEN, sizes))  # type: ignore[arg-type]
        store.joined()
        for number in range(rounds + 1):
            began = time.perf_counter()
            merged = Round(state, strategy.init(state.weights), layout, strategy, Context(number, workers))
            for update in store.train(Order("train", number, number, Span(0), state)):
                merged.add(update)
            state, _ = merged.finish()
            seconds.append(time.perf_counter() - began)
        store.stop()
        pipe.recv()  # the workers have ended
    pipe.send(seconds[1:])  # connections are opened in the first


def round_seconds(kind: str, workers: int, nbytes: float, rounds: int) -> float:
    """The median round, with the workers as threads of one other process."""
    layout = layout_of(int(nbytes) // 4, 0)
    served = started(serve, kind, workers, layout, rounds)
    busy = started(crowd, served.recv(), layout, list(range(workers)))
    busy.recv()
    served.send("ended")
    return statistics.median(served.recv())


def last_seconds(nbytes: int) -> float:
    """Seconds a byte for adding one update and making the next state."""
    layout = layout_of(nbytes // 4, 0)
    state, delta = state_of(layout), np.ones(nbytes // 4, np.float32)
    none, whole = np.zeros(0, np.float32), np.zeros(0, np.int64)
    update = Update(
        worker=0, number=0, version=0, samples=1, steps=1, delta=delta, statistics=none, slots=none, counters=whole,
        loss_scale=none, seeds=whole, metrics=np.ones(2), seconds=0.0,
    )  # fmt: skip
    found = []
    for _ in range(5):
        merged = Round(state, {}, layout, Average(), Context(0, 2))
        merged.add(update)
        began = time.perf_counter()
        merged.add(update)
        merged.finish()
        found.append(time.perf_counter() - began)
    return statistics.median(found) / nbytes


def packing_seconds(codec: Codec, nbytes: int) -> tuple[float, float]:
    """Seconds a byte for packing and unpacking float32 numbers."""
    numbers = np.random.default_rng(0).standard_normal(nbytes // 4, np.float32)
    packed = codec.pack(numbers)
    found = []
    for call in (lambda: codec.pack(numbers), lambda: codec.unpack(packed, numbers.size)):
        seconds = []
        for _ in range(5):
            began = time.perf_counter()
            call()
            seconds.append(time.perf_counter() - began)
        found.append(statistics.median(seconds) / nbytes)
    return found[0], found[1]


@dataclass(frozen=True)
class Packing:
    """What is packed on the way: the share of bytes that is left, and seconds a byte of packing and unpacking."""

    share: float = 1.0
    pack: float = 0.0
    unpack: float = 0.0

    @classmethod
    def of(cls, codec: Codec) -> Packing:
        """Measure a codec."""
        return cls(codec.nbytes(10**6) / (4 * 10**6), *packing_seconds(codec, 10**8))


class Model:
    """The constants of a transport, and what they say of other sizes."""

    def __init__(self, kind: str, rounds: int) -> None:
        counts = (1, 2, 4, 8)
        small = [round_seconds(kind, count, 4, 4 * rounds) for count in counts]
        self.request, self.fixed = map(float, np.polyfit(counts, small, 1))
        self.last = last_seconds(10**8)
        times = {size: round_seconds(kind, 4, size, rounds) - self.last * size for size in (2e7, 1e8)}
        self.rate = 2 * 4 * (1e8 - 2e7) / (times[1e8] - times[2e7])

    def seconds(
        self, workers: int, nbytes: float, link: float, up: Packing = Packing(), down: Packing = Packing()
    ) -> float:
        """Seconds of a round, with updates (up) and states (down) packed so."""
        moved = nbytes * (up.share + down.share) / min(link, self.rate)
        last = self.last + down.pack + down.unpack
        return self.fixed + workers * (self.request + moved + up.unpack * nbytes) + last * nbytes


def shares(model: Model, up: Packing, down: Packing) -> None:
    """Print which part of an epoch's training time its exchanges take besides."""
    print("| state | link | " + " | ".join(f"{count} workers" for count in WORKERS) + " |")
    print("|---|---|" + "---|" * len(WORKERS))
    for size, nbytes in STATES.items():
        for link, rate in LINKS.items():
            cells = [EXCHANGES * model.seconds(count, nbytes, rate, up, down) / EPOCH for count in WORKERS]
            print(f"| {size} | {link} | " + " | ".join(f"{cell:.1%}" for cell in cells) + " |")


def main() -> None:
    """Print the constants, the check and the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    models = {kind: Model(kind, rounds) for kind in SERVERS}
    print("| server | fixed, ms | a request, ms | moved, GB/s | last update, GB/s |\n|---|---|---|---|---|")
    for kind, model in models.items():
        cells = (1000 * model.fixed, 1000 * model.request, model.rate / 1e9, 1e-9 / model.last)
        print(f"| {kind} | " + " | ".join(f"{cell:.2f}" for cell in cells) + " |", flush=True)
    print("\n| server | workers | state, MB | measured, s | model, s | model / measured |\n|---|---|---|---|---|---|")
    for kind, model in models.items():
        for workers, nbytes in ((1, 1e7), (2, 5e7), (8, 1e7), (8, 5e7)):
            measured = round_seconds(kind, workers, nbytes, rounds)
            said = model.seconds(workers, nbytes, float("inf"))
            print(f"| {kind} | {workers} | {nbytes / 1e6:.0f} | {measured:.3f} | {said:.3f} | {said / measured:.2f} |")
    plain, packed = Packing(), Packing.of(Int8())
    print(f"\nint8: {packed.pack * 1e9:.2f} s to pack 1 GB of float32, {packed.unpack * 1e9:.2f} s to unpack it")
    for title, up, down in (
        ("nothing packed", plain, plain),
        ("updates in int8", packed, plain),
        ("updates and states in int8", packed, packed),
    ):
        print(f"\nExchanges beside {EPOCH:.0f} s of training, {EXCHANGES} an epoch, http, {title}:\n")
        shares(models["http"], up, down)


if __name__ == "__main__":
    main()
