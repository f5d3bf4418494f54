"""Samples per second of whole fits, against plain Keras on the same cores, with the accuracy that they reach.

    python benchmarks/throughput.py [--rounds 5] [--epochs 5] [--backend tensorflow jax torch] [--only synchronous ...] [--gpu]

MLP 784-128-128-10 with SGD (rows "Adam": with Adam) on the 4,000 training images of MNIST-5k repeated 15 times (60,000
float32 rows), 1,000 held out, batch 32 per worker, 5 epochs. Keras runs alone in a fresh process with no JVM alive; ours is the second fit of its
process (Python workers warm, as in a session at work), in a process of its own too. Contestants alternate; medians.
Time is the wall time of the whole `fit`, sharding included; "without sharding" starts at the first round.
Rows "LSTM" train 64 units with Adam on 24,000 of the images, of which they see 20 steps of 32 pixels. "Limit" is the
workers' compiled loop by itself, in two processes of one thread: no Spark, no exchange. CPU seconds are those of all
processes. With --gpu, Keras and the workers compute on the cards that they find.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from contestants import Clock

HERE = Path(__file__).resolve().parent
EPOCHS = int(os.environ.get("ELEPHAS_LIKE_BENCH_EPOCHS", "5"))
REPEATS = 15
LSTM_REPEATS = 6
KERAS, LIMIT = "keras, batch 32", "limit"
CONTESTANTS = {
    "keras, batch 32": {"kind": "keras", "batch": 32},
    "synchronous": {"kind": "ours", "mode": "synchronous"},
    "asynchronous": {"kind": "ours", "mode": "asynchronous"},
    "synchronous, global batch 32": {"kind": "ours", "mode": "synchronous", "global_batch_size": 32},
    "asynchronous, global batch 32": {"kind": "ours", "mode": "asynchronous", "global_batch_size": 32},
    "synchronous, socket server": {"kind": "ours", "mode": "synchronous", "parameter_server_mode": "socket"},
    "synchronous, jobs engine": {"kind": "ours", "mode": "synchronous", "engine": "jobs"},
    "synchronous, one worker": {"kind": "ours", "mode": "synchronous", "workers": 1},
    "keras, 32 steps per execution": {"kind": "keras", "batch": 32, "steps": 32},
    "Adam: keras, batch 32": {"kind": "keras", "batch": 32, "network": "adam"},
    "Adam: synchronous": {"kind": "ours", "mode": "synchronous", "network": "adam"},
    "Adam: limit": {"kind": "limit", "network": "adam"},
    "LSTM: keras, batch 32": {"kind": "keras", "batch": 32, "network": "lstm"},
    "LSTM: synchronous": {"kind": "ours", "mode": "synchronous", "network": "lstm"},
    "LSTM: limit": {"kind": "limit", "network": "lstm"},
    "limit": {"kind": "limit"},
    "CNN: keras, batch 32": {"kind": "keras", "batch": 32, "network": "cnn"},
    "CNN: synchronous": {"kind": "ours", "mode": "synchronous", "network": "cnn"},
    "CNN: synchronous, one worker": {"kind": "ours", "mode": "synchronous", "network": "cnn", "workers": 1},
}


def model(seed: int, network: str = "mlp", steps: int = 1):
    import keras

    keras.utils.set_random_seed(seed)
    layers = keras.layers
    mlp = keras.Sequential(
        [
            keras.Input((784,)),
            layers.Dense(128, activation="relu"),
            layers.Dense(128, activation="relu"),
            layers.Dense(10, activation="softmax"),
        ]
    )
    cnn = keras.Sequential(
        [
            keras.Input((784,)),
            layers.Reshape((28, 28, 1)),
            layers.Conv2D(16, 3, strides=2, activation="relu"),
            layers.Conv2D(32, 3, strides=2, activation="relu"),
            layers.Flatten(),
            layers.Dense(10, activation="softmax"),
        ]
    )
    lstm = keras.Sequential([keras.Input((20, 32)), layers.LSTM(64), layers.Dense(10, activation="softmax")])
    chosen = {"mlp": mlp, "adam": mlp, "cnn": cnn, "lstm": lstm}[network]
    optimizer = keras.optimizers.Adam(0.001) if network in ("adam", "lstm") else keras.optimizers.SGD(0.01)
    chosen.compile(optimizer, "sparse_categorical_crossentropy", metrics=["accuracy"], steps_per_execution=steps)
    return chosen


def data(network: str = "mlp"):
    import numpy as np

    sys.path.insert(0, str(HERE.parent / "examples"))
    from mnist_data import load

    x, y, x_test, y_test = load()
    repeats = REPEATS
    if network == "lstm":
        x, x_test = (images[:, 72:712].reshape(-1, 20, 32) for images in (x, x_test))
        repeats = LSTM_REPEATS
    return np.tile(x, (repeats, *[1] * (x.ndim - 1))), np.tile(y, repeats), x_test, y_test


def run_keras(batch: int, network: str = "mlp", steps: int = 1) -> dict[str, float]:
    from contestants import Clock

    x, y, x_test, y_test = data(network)
    for seed in range(2):  # the second fit is measured: tracing and first touches are in the first
        mlp = model(seed, network, steps)
        with Clock() as clock:
            mlp.fit(x, y, epochs=EPOCHS if seed else 1, batch_size=batch, verbose=0)
    accuracy = mlp.evaluate(x_test, y_test, verbose=0)[1]
    return measured(clock, clock.seconds, accuracy, len(x))


def measured(clock: Clock, training: float, accuracy: float, rows: int) -> dict[str, float]:
    """What a contestant tells."""
    return {
        "seconds": clock.seconds,
        "cpu": clock.cpu,
        "training": training,
        "accuracy": accuracy,
        "rows": rows * EPOCHS,
    }


def run_limit(network: str = "mlp") -> dict[str, float]:
    """The loop alone: on each core a process of one thread trains half of the rows."""
    import multiprocessing

    from contestants import Clock

    rows = len(data(network)[0])
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        parts = [(network, part) for part in range(2)]
        pool.starmap(loop, parts, 1)
        with Clock() as clock:
            seconds = max(pool.starmap(loop, parts, 1))
    return measured(clock, seconds, float("nan"), rows) | {"seconds": seconds}


LOOPS: dict[str, tuple[object, ...]] = {}


def loop(network: str, part: int) -> float:
    """Seconds of all epochs in this process, whose compiled loop is kept from call to call."""
    import time

    import numpy as np

    from elephas_like.trainer.building import build
    from elephas_like.trainer.steps import StepLoop
    from elephas_like.trainer.tensors import limit_threads, row_numbers, tensors

    if network not in LOOPS:
        limit_threads(1)
        x, y, _, _ = data(network)
        mlp = model(part, network)
        build(mlp, (x[:1], y[:1]))
        LOOPS[network] = StepLoop(mlp, mlp.train_step), tensors([x[part::2], y[part::2]]), len(x[part::2])
    steps, columns, count = LOOPS[network]
    started = time.perf_counter()
    for epoch in range(EPOCHS):
        order = row_numbers(np.random.default_rng(epoch).permutation(count))
        steps.run(columns, [0, 1], order, 32, 0, -(-count // 32))
    return time.perf_counter() - started


def run_ours(network: str = "mlp", workers: int = 2, **options: object) -> dict[str, float]:
    from contestants import Clock
    from pyspark.sql import SparkSession

    from elephas_like import SparkModel

    x, y, x_test, y_test = data(network)
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.memory", "3g")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("OFF")
    rdd = spark.sparkContext.parallelize(list(zip(x, y, strict=True)), 2).cache()
    rdd.count()
    global_batch_size = options.pop("global_batch_size", None)
    batch = {"global_batch_size": global_batch_size} if global_batch_size else {"batch_size": 32}
    for seed in range(2):
        mlp = model(seed, network)
        spark_model = SparkModel(mlp, num_workers=workers, seed=seed, **({"engine": "server"} | options))
        with Clock() as clock:
            history = spark_model.fit(rdd, epochs=EPOCHS if seed else 1, verbose=0, **batch)
    training = sum(history.epoch_seconds)
    accuracy = mlp.evaluate(x_test, y_test, verbose=0)[1]
    spark.stop()
    busy = sum(max(worker.seconds for worker in record.workers) for record in history.rounds)
    exchanges = len(history.rounds)
    return measured(clock, training, accuracy, len(x)) | {
        "exchange_ms": 1000 * (training - busy) / exchanges if options["mode"] == "synchronous" else float("nan"),
    }


NO_CARD = {"CUDA_VISIBLE_DEVICES": "-1"}
SHARED_CARD = {"TF_FORCE_GPU_ALLOW_GROWTH": "true", "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
"""The driver and its workers are on one machine: none takes a card's whole memory."""


def child(contestant: dict[str, object], backend: str, *, gpu: bool) -> dict[str, float]:
    """One contestant in a fresh process, whose Keras runs on a backend."""
    environment = os.environ | {
        "KERAS_BACKEND": backend,
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "PYSPARK_PYTHON": sys.executable,
        **(SHARED_CARD if gpu else NO_CARD),
    }
    done = subprocess.run(
        [sys.executable, __file__, "--child", json.dumps(contestant)],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(done.stderr[-4000:])
    return json.loads(done.stdout.strip().splitlines()[-1])


def main() -> None:
    """Runs all contestants in turn and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=EPOCHS, help="of the measured fit; PyTorch takes long for five")
    parser.add_argument(
        "--only", nargs="*", default=None, help="names of contestants; Keras with their networks always runs"
    )
    parser.add_argument(
        "--backend",
        nargs="+",
        default=["tensorflow"],
        choices=["tensorflow", "jax", "torch"],
        help="of Keras, on both sides",
    )
    parser.add_argument(
        "--results", type=Path, help="a file of runs: new ones are added, and the table is of all of them"
    )
    parser.add_argument("--gpu", action="store_true", help="on the cards of this machine")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        contestant = json.loads(arguments.child)
        kind = contestant.pop("kind")
        print(json.dumps({"keras": run_keras, "ours": run_ours, "limit": run_limit}[kind](**contestant)))
        return
    os.environ["ELEPHAS_LIKE_BENCH_EPOCHS"] = str(arguments.epochs)  # the contestants are processes of their own
    wanted = set(CONTESTANTS if arguments.only is None else arguments.only)
    wanted |= {beside(name, KERAS) for name in wanted}
    chosen = {name: contestant for name, contestant in CONTESTANTS.items() if name in wanted}
    names = {f"{backend}: {name}": (name, backend) for backend in arguments.backend for name in chosen}
    results: dict[str, list[dict[str, float]]] = {name: [] for name in names}
    if arguments.results is not None and arguments.results.exists():
        for line in map(json.loads, arguments.results.read_text().splitlines()):
            results.setdefault(line.pop("name"), []).append(line)
    for _ in range(arguments.rounds):
        for name, (contestant, backend) in names.items():
            results[name].append(child(chosen[contestant], backend, gpu=arguments.gpu))
            print(f"  {name}: {results[name][-1]}", file=sys.stderr, flush=True)
            if arguments.results is not None:
                with open(arguments.results, "a") as file:
                    file.write(json.dumps({"name": name} | results[name][-1]) + "\n")

    print(table(results, names))


def beside(contestant: str, other: str) -> str:
    """The name of another contestant with the same network."""
    network = contestant.rpartition(": ")[0]
    return f"{network}: {other}" if network else other


def table(results: dict[str, list[dict[str, float]]], names: dict[str, tuple[str, str]]) -> str:
    """The results in Markdown: medians, (lowest to highest) of samples per second, and CPU seconds."""

    def rates(name: str, field: str = "seconds") -> list[float]:
        return [result["rows"] / result[field] for result in results[name]]

    def median(name: str, field: str) -> float:
        return statistics.median(result.get(field, float("nan")) for result in results[name])

    def times(of: float, name: str) -> str:
        return f"{of / statistics.median(rates(name)):.2f}" if results.get(name) else ""

    lines = [
        "| contestant | runs | samples/s | x Keras | x TensorFlow | without sharding | x Keras | x limit | CPU s | accuracy | "
        "ms per exchange beyond training |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for name, (contestant, backend) in names.items():
        if not results[name]:
            continue
        keras = f"{backend}: {beside(contestant, KERAS)}"
        whole, inner = (statistics.median(rates(name, field)) for field in ("seconds", "training"))
        spread = f"{whole:,.0f} ({min(rates(name)):,.0f} to {max(rates(name)):,.0f})"
        exchange, accuracy = median(name, "exchange_ms"), median(name, "accuracy")
        lines.append(
            f"| {name} | {len(results[name])} | {spread} | {times(whole, keras)} | {times(whole, f'tensorflow: {contestant}')} | {inner:,.0f} | "
            f"{times(inner, keras)} | {times(inner, f'{backend}: {beside(contestant, LIMIT)}')} | {median(name, 'cpu'):.1f} | {'' if accuracy != accuracy else f'{accuracy:.1%}'} | "
            f"{'' if exchange != exchange else f'{exchange:.1f}'} |"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    main()
