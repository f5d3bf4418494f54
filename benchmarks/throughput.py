"""Samples per second of whole fits, against plain Keras on the same cores, with the accuracy that they reach.

    python benchmarks/throughput.py [--rounds 5] [--epochs 5] [--backend tensorflow jax torch]

MLP 784-128-128-10 with SGD on the 4,000 training images of MNIST-5k repeated 15 times (60,000 float32 rows), 1,000 held
out, batch 32 per worker, 5 epochs. Keras runs alone in a fresh process with no JVM alive; ours is the second fit of its
process (Python workers warm, as in a session at work), in a process of its own too. Contestants alternate; medians.
Time is the wall time of the whole `fit`, sharding included; "without sharding" starts at the first round.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
EPOCHS = int(os.environ.get("ELEPHAS_LIKE_BENCH_EPOCHS", "5"))
REPEATS = 15
CONTESTANTS = {
    "keras, batch 32": {"kind": "keras", "batch": 32},
    "synchronous": {"kind": "ours", "mode": "synchronous"},
    "asynchronous": {"kind": "ours", "mode": "asynchronous"},
    "synchronous, global batch 32": {"kind": "ours", "mode": "synchronous", "global_batch_size": 32},
    "asynchronous, global batch 32": {"kind": "ours", "mode": "asynchronous", "global_batch_size": 32},
    "synchronous, socket server": {"kind": "ours", "mode": "synchronous", "parameter_server_mode": "socket"},
    "synchronous, jobs engine": {"kind": "ours", "mode": "synchronous", "engine": "jobs"},
    "keras, 32 steps per execution": {"kind": "keras", "batch": 32, "steps": 32},
    "CNN: keras, batch 32": {"kind": "keras", "batch": 32, "network": "cnn"},
    "CNN: synchronous": {"kind": "ours", "mode": "synchronous", "network": "cnn"},
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
    chosen = {"mlp": mlp, "cnn": cnn}[network]
    chosen.compile(
        keras.optimizers.SGD(0.01), "sparse_categorical_crossentropy", metrics=["accuracy"], steps_per_execution=steps
    )
    return chosen


def data():
    import numpy as np

    sys.path.insert(0, str(HERE.parent / "examples"))
    from mnist_data import load

    x, y, x_test, y_test = load()
    return np.tile(x, (REPEATS, 1)), np.tile(y, REPEATS), x_test, y_test


def run_keras(batch: int, network: str = "mlp", steps: int = 1) -> dict[str, float]:
    import time

    x, y, x_test, y_test = data()
    for seed in range(2):  # the second fit is measured: tracing and first touches are in the first
        mlp = model(seed, network, steps)
        started = time.perf_counter()
        mlp.fit(x, y, epochs=EPOCHS if seed else 1, batch_size=batch, verbose=0)
        seconds = time.perf_counter() - started
    accuracy = mlp.evaluate(x_test, y_test, verbose=0)[1]
    return {"seconds": seconds, "training": seconds, "accuracy": accuracy, "rows": len(x) * EPOCHS}


def run_ours(network: str = "mlp", **options: object) -> dict[str, float]:
    import time

    from pyspark.sql import SparkSession

    from elephas_like import SparkModel

    x, y, x_test, y_test = data()
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
        spark_model = SparkModel(mlp, num_workers=2, seed=seed, **({"engine": "server"} | options))
        started = time.perf_counter()
        history = spark_model.fit(rdd, epochs=EPOCHS if seed else 1, verbose=0, **batch)
        seconds = time.perf_counter() - started
    training = sum(history.epoch_seconds)
    accuracy = mlp.evaluate(x_test, y_test, verbose=0)[1]
    spark.stop()
    busy = sum(max(worker.seconds for worker in record.workers) for record in history.rounds)
    exchanges = len(history.rounds)
    return {
        "seconds": seconds,
        "training": training,
        "accuracy": accuracy,
        "rows": len(x) * EPOCHS,
        "exchange_ms": 1000 * (training - busy) / exchanges if options["mode"] == "synchronous" else float("nan"),
    }


def child(contestant: dict[str, object], backend: str) -> dict[str, float]:
    """One contestant in a fresh process, whose Keras runs on a backend."""
    environment = os.environ | {
        "KERAS_BACKEND": backend,
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "CUDA_VISIBLE_DEVICES": "-1",
        "PYSPARK_PYTHON": sys.executable,
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
    parser.add_argument("--only", nargs="*", default=None, help="names of contestants; Keras with the MLP always runs")
    parser.add_argument(
        "--backend",
        nargs="+",
        default=["tensorflow"],
        choices=["tensorflow", "jax", "torch"],
        help="of Keras, on both sides",
    )
    parser.add_argument("--child", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        contestant = json.loads(arguments.child)
        kind = contestant.pop("kind")
        print(json.dumps(run_keras(**contestant) if kind == "keras" else run_ours(**contestant)))
        return
    os.environ["ELEPHAS_LIKE_BENCH_EPOCHS"] = str(arguments.epochs)  # the contestants are processes of their own
    chosen = {
        name: contestant
        for name, contestant in CONTESTANTS.items()
        if arguments.only is None or name in arguments.only or name == "keras, batch 32"
    }
    names = {f"{backend}: {name}": (name, backend) for backend in arguments.backend for name in chosen}
    results: dict[str, list[dict[str, float]]] = {name: [] for name in names}
    for _ in range(arguments.rounds):
        for name, (contestant, backend) in names.items():
            results[name].append(child(chosen[contestant], backend))
            print(f"  {name}: {results[name][-1]}", file=sys.stderr, flush=True)

    def median(name: str, field: str) -> float:
        return statistics.median(result.get(field, float("nan")) for result in results[name])

    print(
        "| contestant | samples/s | x Keras | without sharding | x Keras | accuracy | ms per exchange beyond training |"
    )
    print("|---|---|---|---|---|---|---|")
    for name, (_, backend) in names.items():
        base = statistics.median(
            result["rows"] / result["seconds"] for result in results[f"{backend}: keras, batch 32"]
        )
        whole = statistics.median(result["rows"] / result["seconds"] for result in results[name])
        inner = statistics.median(result["rows"] / result["training"] for result in results[name])
        exchange = median(name, "exchange_ms")
        print(
            f"| {name} | {whole:,.0f} | {whole / base:.2f} | {inner:,.0f} | {inner / base:.2f} | "
            f"{100 * median(name, 'accuracy'):.1f} % | {'' if exchange != exchange else f'{exchange:.1f}'} |"
        )


if __name__ == "__main__":
    main()
