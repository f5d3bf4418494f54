"""A DataFrame's columns written as shards where Spark hands them over: the same bytes as by blocks, and every row in one shard."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import functions
from spooling import columns

from elephas_like.core.errors import Failure, PlainTextError
from elephas_like.core.types import Slot
from elephas_like.rows.frame_plan import ColumnChoice
from elephas_like.rows.frame_read import Frame
from elephas_like.rows.frame_schema import plan
from elephas_like.rows.frame_shards import FrameShards, written_batches
from elephas_like.rows.shards import ShardedDataset, SpoolOptions, new_dataset, partitioned, sweep
from elephas_like.spark.versions import versions

pytestmark = pytest.mark.classic


@pytest.fixture
def options(sc):
    """How rows are written; their files go at the end."""
    made = SpoolOptions(new_dataset(), "float32", False, versions())
    yield made
    sweep(sc, "frame-shards", 2, [made.dataset])


def frame_of(df, shape: tuple[int, ...]) -> Frame:
    """The column x, as features."""
    return Frame(df, plan(df.schema, ColumnChoice("x", None), Slot("x", shape), None, floatx="float32", classes=None))


@pytest.mark.parametrize("workers", [2, 5])
def test_the_shards_are_those_of_the_blocks(spark, options: SpoolOptions, workers: int) -> None:
    df = spark.range(0, 1003, 1, 5).select(functions.array(functions.col("id"), -functions.col("id")).alias("x"))
    frame = frame_of(df, (2,))
    direct = FrameShards(frame).references(workers, options).collect()
    with ShardedDataset(partitioned(frame.blocks, workers), workers, new_dataset()) as dataset:
        by_blocks = dataset.references(replace(options, dataset=dataset.dataset)).collect()
    assert [(ref.worker, ref.rows, ref.checksum) for ref in direct] == [
        (ref.worker, ref.rows, ref.checksum) for ref in by_blocks
    ]
    assert [ref.worker for ref in direct] == list(range(workers))
    found = np.concatenate([columns(ref)[0] for ref in direct])
    assert sorted(found[:, 0].tolist()) == list(range(1003))
    assert (found[:, 1] == -found[:, 0]).all()


def test_the_plan_that_told_the_partitions_is_the_one_that_is_written_by(spark, options: SpoolOptions) -> None:
    shards = FrameShards(frame_of(spark.range(0, 9, 1, 3).select(functions.col("id").alias("x")), (1,)))
    assert shards.partitions(options) == 3
    refs = shards.references(3, options)
    assert refs is shards.references(3, options)
    assert [ref.rows for ref in refs.collect()] == [3, 3, 3]
    two = shards.references(2, options)
    assert two is not refs
    assert [ref.rows for ref in two.collect()] == [3, 6]
    finished = shards.references(2, replace(options, take_finished=True))
    assert finished is not two
    assert shards.references(4, options) is None


def test_finished_shards_are_taken(spark, options: SpoolOptions) -> None:
    df = spark.range(0, 6, 1, 2).select(functions.col("id").alias("x"))
    first = FrameShards(frame_of(df, (1,))).references(2, options).collect()
    other = spark.range(10, 16, 1, 2).select(functions.col("id").alias("x"))
    again = FrameShards(frame_of(other, (1,))).references(2, replace(options, take_finished=True))
    assert again.collect() == first


def test_a_bad_row_is_a_failure_that_says_where(spark, options: SpoolOptions) -> None:
    ids = spark.range(0, 200, 1, 2).select("id")
    df = ids.select(functions.when(ids.id != 113, ids.id.cast("double")).alias("x"))
    good, bad = FrameShards(frame_of(df, (1,))).references(2, options).collect()
    assert good.rows == 100
    assert isinstance(bad, Failure)
    assert (bad.type_name, bad.worker) == ("DataError", 1)
    assert "column 'x', partition 1, row 13: expected a value, got null" in bad.message


def test_batches_after_a_bad_row_are_read_for_spark_ends_a_process_that_leaves_some(
    spark, options: SpoolOptions
) -> None:
    batches = iter([pa.record_batch([pa.array([value])], ["x"]) for value in (1.0, None, 3.0, 4.0)])
    made = frame_of(spark.createDataFrame([], "x double"), (1,)).plan
    assert isinstance(written_batches(0, made, batches, options), Failure)
    assert list(batches) == []


def test_rows_are_not_written_where_spark_encrypts_its_files(
    spark, options: SpoolOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(self: SpoolOptions, context: object) -> None:
        raise PlainTextError("no")

    monkeypatch.setattr(SpoolOptions, "check_disks", refused)
    df = spark.range(0, 6, 1, 2).select(functions.col("id").alias("x"))
    with pytest.raises(PlainTextError):
        FrameShards(frame_of(df, (1,))).references(2, options)
