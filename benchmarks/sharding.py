"""What mixing rows across workers costs while shards are written: nothing mixed, a tenth, all rows.

    python benchmarks/sharding.py [--rounds 5] [--workers 2] [--docs docs/performance.md]

Contestants alternate in one Spark session; a cell has the median of the rounds in seconds, and the least and the most. Rows are real ones:
MNIST's images (`keras.datasets.mnist`, or `--data PATH` of mnist.npz), and their first 28 pixel columns repeated as a table.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")
os.environ.setdefault("PYSPARK_PYTHON", sys.executable)

import numpy as np
from convergence import put
from pyspark.sql import SparkSession

from elephas_like import shard
from elephas_like.rows.shards import SpoolOptions

CONTESTANTS: dict[str, dict[str, object]] = {
    "as they are": {},
    "mix=0.1": {"mix": 0.1},
    'mix="auto"': {"mix": "auto"},
    "shuffle=True": {"shuffle": True},
}


def seconds(data: object, workers: int, **options: object) -> float:
    """The time in which rows become shards."""
    started = time.perf_counter()
    with shard(data, workers, **options) as dataset:  # type: ignore[arg-type]  # arguments of shard
        found = dataset.references(SpoolOptions(dataset.dataset, "float32", True, {})).collect()
        took = time.perf_counter() - started
    assert all(hasattr(ref, "rows") for ref in found), found
    return took


def main() -> None:
    """Print the table, or write it into a document."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--data", type=Path, help="mnist.npz")
    parser.add_argument("--docs", type=Path, help="a document to write the table into")
    arguments = parser.parse_args()
    if arguments.data:
        with np.load(arguments.data) as file:
            x, y = file["x_train"], file["y_train"]
    else:
        import keras

        (x, y), _ = keras.datasets.mnist.load_data()
    images = (x.reshape(len(x), -1) / 255).astype(np.float32)
    order = np.argsort(y, kind="stable")
    images, labels = images[order], y[order].astype(np.int64)
    table = np.tile(images[:, 300:328], (5, 1))
    parts = 2 * arguments.workers
    builder = SparkSession.builder.master(f"local[{arguments.workers}]").config("spark.ui.enabled", "false")
    spark = builder.config("spark.ui.showConsoleProgress", "false").config("spark.driver.memory", "4g").getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    pairs = spark.sparkContext.parallelize(list(zip(images, labels, strict=True)), parts).cache()
    columns = [f"c{i}" for i in range(28)]
    import pandas as pd

    frame = spark.createDataFrame(pd.DataFrame(table, columns=columns).assign(label=np.tile(labels, 5)))
    frame = frame.repartitionByRange(parts, "label").cache()
    print(pairs.count(), frame.count(), "rows", flush=True)
    sources: dict[str, tuple[object, dict[str, object]]] = {
        "RDD of pairs, 60,000 x 784": (pairs, {}),
        "DataFrame, 300,000 x 28": (frame, {"features_col": columns, "label_col": "label"}),
    }
    lines = [f"| rows | {' | '.join(CONTESTANTS)} |", f"|---|{'---|' * len(CONTESTANTS)}"]
    for name, (data, named) in sources.items():
        seconds(data, arguments.workers, **named)  # starts the Python processes
        took: dict[str, list[float]] = {contestant: [] for contestant in CONTESTANTS}
        for _ in range(arguments.rounds):
            for contestant, options in CONTESTANTS.items():
                took[contestant].append(seconds(data, arguments.workers, **named, **options))
        cells = [f"{statistics.median(each):.1f} ({min(each):.1f} to {max(each):.1f})" for each in took.values()]
        lines.append(f"| {name} | {' | '.join(cells)} |")
        print(lines[-1], flush=True)
    text = "\n".join(lines)
    print(text)
    if arguments.docs:
        put(arguments.docs, sharding=text)


if __name__ == "__main__":
    main()
