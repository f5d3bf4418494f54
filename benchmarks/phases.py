"""Where the seconds of a whole fit go: before the first epoch, training, after it, and what Spark alone takes to hand over the rows.

    python benchmarks/phases.py [--rounds 5] [--data mnist.npz] [--docs docs/performance.md]

The MLP and the table of bench.py, two workers on `local[2]`, one Spark session; sources alternate, the first round (imports, tracing) does not count; a
cell has the median of the others in seconds, and the least and the most.

rows alone: Spark hands the same rows to two Python tasks that count them, as pairs, as Arrow batches, or (Parquet) PyArrow reads the columns there. It is
the least that "before" can take with that source. before: from the call of `fit` to the first epoch: rows become shards, the model's description
travels, workers start. training: all epochs, exchanges and waiting included. workers: of that, what the slower worker of each round trained.
after: from the last epoch to the end of the call. ShardedDataset: the same fit, where its rows have become shards before.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")
os.environ.setdefault("PYSPARK_PYTHON", sys.executable)

import keras
from bench import images, table, write_files
from contestants import BATCH, EPOCHS, columns, compiled, handed_over, session
from convergence import put

from elephas_like import SparkModel, shard

COLUMNS = ("rows alone", "before", "training", "workers", "after", "whole")


class Marks(keras.callbacks.Callback):
    """When the first epoch began and the last one ended."""

    def __init__(self) -> None:
        super().__init__()
        self.first = self.last = 0.0

    def on_epoch_begin(self, epoch: int, logs: object = None) -> None:
        self.first = self.first or time.perf_counter()

    def on_epoch_end(self, epoch: int, logs: object = None) -> None:
        self.last = time.perf_counter()


def phases(workload: str, seed: int, data: object, **columns: object) -> dict[str, float]:
    """One fit, in phases."""
    marks = Marks()
    model = SparkModel(compiled(workload, seed), 2, batch_size=BATCH[workload], seed=seed)
    began = time.perf_counter()
    history = model.fit(data, epochs=EPOCHS[workload], verbose=0, callbacks=[marks], **columns)  # type: ignore[arg-type]
    ended = time.perf_counter()
    workers = sum(max((worker.seconds for worker in one.workers), default=0.0) for one in history.rounds)
    return {
        "before": marks.first - began,
        "training": marks.last - marks.first,
        "workers": workers,
        "after": ended - marks.last,
        "whole": ended - began,
    }


def sources(
    spark: Any, folder: Path, path: str | None
) -> Iterator[tuple[str, str, object, dict[str, object], Callable[[], int] | None]]:
    """Workload, name, rows, arguments of `fit`, and what hands over the rows alone."""
    context = spark.sparkContext
    for workload, (x, y, *_) in (("mlp", images(path)), ("tabular", table())):
        pairs = context.parallelize(list(zip(x, y, strict=True)), 2).cache()
        yield workload, "RDD of pairs", pairs, {}, handed_over(pairs)
        if workload == "tabular":
            write_files(x, y, folder)
            named = {"features_col": columns(x), "label_col": "label"}
            frame = spark.read.parquet(str(folder)).repartition(2).cache()
            frame.count()
            yield workload, "DataFrame", frame, named, handed_over(frame)
            yield workload, "Parquet files", str(folder), named, handed_over(str(folder))
        yield workload, "ShardedDataset", shard(pairs, 2), {}, None


def cell(values: list[float]) -> str:
    """A median, and the least and the most."""
    return f"{statistics.median(values):.2f} ({min(values):.2f} to {max(values):.2f})" if values else ""


def measured(rounds: int, path: str | None) -> str:
    """The table."""
    spark = session()
    with tempfile.TemporaryDirectory() as folder:
        found = list(sources(spark, Path(folder, "rows"), path))
        seen: dict[tuple[str, str], dict[str, list[float]]] = {
            (one[0], one[1]): {name: [] for name in COLUMNS} for one in found
        }
        for number in range(rounds + 1):
            for workload, name, rows, columns, alone in found:
                began = time.perf_counter()
                if alone is not None:
                    alone()
                told = {"rows alone": time.perf_counter() - began} if alone is not None else {}
                told |= phases(workload, number, rows, **columns)
                if number:
                    for column, seconds in told.items():
                        seen[workload, name][column].append(seconds)
            print(f"round {number} of {rounds}", file=sys.stderr, flush=True)
        for _, _, rows, _, alone in found:
            if alone is None:
                rows.__exit__(None, None, None)  # type: ignore[attr-defined]  # a ShardedDataset
    lines = ["| rows | " + " | ".join(COLUMNS) + " |", "|---" * (len(COLUMNS) + 1) + "|"]
    for (workload, name), by_column in seen.items():
        lines.append(f"| {workload}, {name} | " + " | ".join(cell(by_column[column]) for column in COLUMNS) + " |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Print the table, or write it into a document."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--data", help="MNIST as keras.datasets has it, an .npz file")
    parser.add_argument("--docs", type=Path, help="a document to write the table into")
    arguments = parser.parse_args()
    text = measured(arguments.rounds, arguments.data)
    print(text)
    if arguments.docs:
        put(arguments.docs, phases=text)


if __name__ == "__main__":
    main()
