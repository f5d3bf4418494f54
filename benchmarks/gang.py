"""What fits over gangs cost beside the server engine, on a classic session and over Spark Connect.

    python benchmarks/gang.py [--rounds 3] [--connect]

MLP 784-128-128-10 with SGD on the images of MNIST-5k repeated to 20,000 rows, two workers, 6 epochs. In each round every contestant
makes one fit; the first round warms Spark and the Python workers and is not counted. Medians, and the least and the most. A job's cost is what six jobs of one
epoch take longer than one job of six, divided by five. With --connect all run over Spark Connect, which has no server engine.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ["PYSPARK_PYTHON"] = sys.executable

import numpy as np
from throughput import data, model

EPOCHS = 6
CONTESTANTS = {
    "server": {"engine": "server"},
    "gang, one job": {"engine": "gang", "epochs_per_job": EPOCHS},
    "gang, a job an epoch": {"engine": "gang", "epochs_per_job": 1},
}


def session(connect: bool):
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.remote("local[2]") if connect else SparkSession.builder.master("local[2]")
    found = builder.config("spark.ui.enabled", "false").config("spark.ui.showConsoleProgress", "false").getOrCreate()
    if not connect:
        found.sparkContext.setLogLevel("ERROR")
    return found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--connect", action="store_true")
    given = parser.parse_args()
    from elephas_like import SparkModel

    spark = session(given.connect)
    x, y, _, _ = data()
    x, y = x[:20_000].astype("float32"), y[:20_000].astype("int64")
    contestants = {name: how for name, how in CONTESTANTS.items() if not (given.connect and name == "server")}
    seconds: dict[str, list[float]] = {name: [] for name in contestants}
    weights = {}
    for number in range(given.rounds + 1):
        for name, how in contestants.items():
            trained = model(1)
            started = time.perf_counter()
            SparkModel(trained, 2, seed=1, **how).fit(x, y, epochs=EPOCHS, verbose=0)
            if number:
                seconds[name].append(time.perf_counter() - started)
            weights[name] = trained.get_weights()
    spark.stop()
    print(f"{'Spark Connect' if given.connect else 'classic'}, {EPOCHS} epochs of 20,000 rows, {given.rounds} rounds")
    for name, times in seconds.items():
        print(f"  {name:<22} {statistics.median(times):6.2f} s  ({min(times):.2f} to {max(times):.2f})")
    each = (statistics.median(seconds["gang, a job an epoch"]) - statistics.median(seconds["gang, one job"])) / (
        EPOCHS - 1
    )
    print(f"  a job beside its epoch {each:6.2f} s")
    first, *others = weights.values()
    same = all(np.array_equal(a, b) for other in others for a, b in zip(first, other, strict=True))
    print(f"  weights {'equal to the last bit' if same else 'DIFFER'}")


if __name__ == "__main__":
    main()
