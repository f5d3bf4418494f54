"""Seconds to write DataFrame columns down as shards: Arrow batches, as SparkModel does, beside rows of `df.rdd`.

It prints the table of docs/performance.md. What it measures is the way from Spark to the shard, without training.
"""

from __future__ import annotations

import os
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Iterator

os.environ.setdefault("PYSPARK_PYTHON", sys.executable)

from pyspark.ml.functions import array_to_vector
from pyspark.sql import DataFrame, SparkSession, functions

from elephas_like.core.types import ShardRef, Slot
from elephas_like.rows.frame_plan import ColumnChoice, plan
from elephas_like.rows.frame_read import Frame
from elephas_like.rows.shards import SpoolOptions, new_dataset, references, remove_pair
from elephas_like.spark.versions import versions

ROUNDS = 3
WIDE_ROWS, NARROW_ROWS = 10_000, 100_000


def tables(spark: SparkSession) -> dict[str, tuple[DataFrame, list[str] | str, int]]:
    """Cached tables by name, their feature columns, and numbers a row."""
    few = functions.array(*[functions.rand(i).cast("float") for i in range(16)])
    wide = spark.range(0, WIDE_ROWS, 1, 2).select(functions.flatten(functions.array_repeat(few, 49)).alias("x"))
    names = [f"c{i}" for i in range(12)]
    numbers = spark.range(0, NARROW_ROWS, 1, 2).select(*[functions.rand(i).alias(name) for i, name in enumerate(names)])
    vectors = wide.select(array_to_vector("x").alias("x"))
    found = {"array of 784": (wide, "x", 784), "vector of 784": (vectors, "x", 784), "12 columns": (numbers, names, 12)}
    for df, _, _ in found.values():
        df.cache().count()
    return found


def seconds(work: Callable[[], object]) -> float:
    """The median of some runs, after one that does not count."""
    work()
    found = []
    for _ in range(ROUNDS):
        start = time.perf_counter()
        work()
        found.append(time.perf_counter() - start)
    return statistics.median(found)


def spooled(rdd) -> None:
    """Writes an RDD of rows or Blocks down, and deletes it."""
    options = SpoolOptions(new_dataset(), "float32", False, versions())

    def delete(refs: Iterable[ShardRef]) -> Iterator[int]:
        for ref in refs:
            remove_pair((ref, None))
            yield ref.rows

    references(rdd, options).mapPartitions(delete).sum()


def main() -> None:
    spark = (
        SparkSession.builder.master("local[2]").config("spark.driver.memory", "4g").config("spark.ui.enabled", "false")
    ).getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    print("| columns | rows | Arrow, s | df.rdd, s | times |\n|---|---|---|---|---|")
    for name, (df, columns, width) in tables(spark).items():
        made = plan(df.schema, ColumnChoice(columns, None), Slot("x", (width,)), None, floatx="float32", classes=None)
        arrow = seconds(lambda df=df, made=made: spooled(Frame(df, made).blocks))
        rows = seconds(lambda df=df: spooled(df.rdd.map(_features)))
        print(f"| {name} | {df.count():,} | {arrow:.2f} | {rows:.2f} | {rows / arrow:.1f} |", flush=True)
    spark.stop()


def _features(row):
    value = row[0] if len(row) == 1 else list(row)
    return value.toArray() if hasattr(value, "toArray") else value


if __name__ == "__main__":
    main()
