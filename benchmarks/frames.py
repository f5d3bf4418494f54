"""Seconds to write DataFrame columns down as shards: by the processes that get them as Arrow batches, as SparkModel does where it can; as
blocks, which go through Spark once more; and the rows of `df.rdd`. They alternate.

It prints the table of docs/performance.md. What it measures is the way from Spark to the shard, without training.
"""

from __future__ import annotations

import os
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Iterator

os.environ.setdefault("PYSPARK_PYTHON", sys.executable)

from pyspark import RDD
from pyspark.ml.functions import array_to_vector
from pyspark.sql import DataFrame, SparkSession, functions

from elephas_like.core.types import ShardRef, Slot
from elephas_like.rows.frame_plan import ColumnChoice
from elephas_like.rows.frame_read import Frame
from elephas_like.rows.frame_schema import plan
from elephas_like.rows.frame_shards import FrameShards
from elephas_like.rows.shards import SpoolOptions, new_dataset, references, remove_pair
from elephas_like.spark.versions import versions

ROUNDS = 5
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


def deleted(refs: RDD) -> None:
    """Writes rows down, and deletes them."""

    def delete(refs: Iterable[ShardRef]) -> Iterator[int]:
        for ref in refs:
            remove_pair((ref, None))
            yield ref.rows

    refs.mapPartitions(delete).sum()


def options() -> SpoolOptions:
    """How rows are written, as a dataset of their own."""
    return SpoolOptions(new_dataset(), "float32", False, versions())


def contestants(df: DataFrame, columns: str | list[str], width: int) -> dict[str, Callable[[], None]]:
    """The ways in which a DataFrame becomes shards."""
    made = plan(df.schema, ColumnChoice(columns, None), Slot("x", (width,)), None, floatx="float32", classes=None)
    return {
        "written where Spark hands them over": lambda: deleted(FrameShards(Frame(df, made)).references(2, options())),
        "as blocks": lambda: deleted(references(Frame(df, made).blocks, options())),
        "df.rdd": lambda: deleted(references(df.rdd.map(_features), options())),
    }


def main() -> None:
    spark = (
        SparkSession.builder.master("local[2]").config("spark.driver.memory", "4g").config("spark.ui.enabled", "false")
    ).getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    print(
        "| columns | rows | written where Spark hands them over, s | as blocks, s | df.rdd, s |\n|---|---|---|---|---|"
    )
    for name, (df, columns, width) in tables(spark).items():
        ways = contestants(df, columns, width)
        found: dict[str, list[float]] = {way: [] for way in ways}
        for _ in range(ROUNDS + 1):
            for way, work in ways.items():
                start = time.perf_counter()
                work()
                found[way].append(time.perf_counter() - start)
        cells = [
            f"{statistics.median(times[1:]):.2f} ({min(times[1:]):.2f} to {max(times[1:]):.2f})"
            for times in found.values()
        ]
        print(f"| {name} | {df.count():,} | {' | '.join(cells)} |", flush=True)
    spark.stop()


def _features(row):
    value = row[0] if len(row) == 1 else list(row)
    return value.toArray() if hasattr(value, "toArray") else value


if __name__ == "__main__":
    main()
