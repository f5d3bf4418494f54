"""Rows of every kind reach the members of a gang: each row once, in an order that is always the same."""

from __future__ import annotations

import numpy as np
import pytest
from pyspark import TaskContext

from elephas_like.core.types import Slot
from elephas_like.rows.frame_plan import ColumnChoice
from elephas_like.rows.frame_schema import plan
from elephas_like.rows.gang_rows import GangRows, rows_of_blocks, rows_of_frame, rows_of_rdd
from elephas_like.rows.shards import dealt
from elephas_like.rows.spool import Block


def read_back(rows: GangRows, value) -> list[list]:
    """What each member reads, by rank."""
    read = rows.read

    def collect(batches):
        import pyarrow as pa

        for number, row in enumerate(read(batches)):
            yield pa.record_batch(
                [[TaskContext.get().partitionId()], [number], [str(value(row))]], names=["part", "number", "row"]
            )

    found = rows.frame.mapInArrow(collect, "part long, number long, row string").collect()
    members: list[list] = [[] for _ in range(rows.num_workers)]
    for row in sorted(found, key=lambda row: (row.part, row.number)):
        members[row.part].append(row.row)
    return members


@pytest.mark.parametrize("partitions", [1, 3])
def test_a_partition_of_an_rdd_is_a_members(spark, sc, partitions: int) -> None:
    rdd = sc.parallelize(range(200), partitions)
    expected = [[str(row) for row in part] for part in rdd.glom().collect()]
    assert read_back(rows_of_rdd(spark, rdd), lambda row: row) == expected


def test_a_coalesced_rdd_runs_in_a_barrier_stage(spark, sc) -> None:
    """Spark refuses one whose stage has another number of partitions than its result."""
    rows = rows_of_rdd(spark, sc.parallelize(range(10), 5).coalesce(2))
    found = rows.frame.mapInArrow(lambda batches: batches, "note binary", barrier=True).collect()
    assert len(found) == 2


def test_blocks_arrive_in_slices(spark) -> None:
    x = np.arange(3_000_000, dtype=np.float32).reshape(3000, 1000)  # 12 MB: two slices for each of two members
    found = read_back(
        rows_of_blocks(spark, dealt((x,), 2)), lambda block: (block.rows, block.columns[0][:, 0].tolist())
    )
    for rank, member in enumerate(found):
        assert len(member) == 2
        firsts = [first for text in member for first in eval(text)[1]]
        assert firsts == x[rank::2, 0].tolist()


def test_no_rows_are_an_empty_block(spark) -> None:
    empty = Block((np.zeros((0, 3), np.float32),), 0)
    assert read_back(rows_of_blocks(spark, [empty, empty]), lambda block: block.rows) == [["0"], ["0"]]


def test_a_dataframe_is_dealt_evenly_in_order_and_always_the_same(spark) -> None:
    df = spark.range(0, 1001, 1, 3).selectExpr("CAST(id AS double) AS features")
    read_by = plan(df.schema, ColumnChoice("features", None), Slot("x", (1,)), None, floatx="float32", classes=None)

    def values(row) -> list[float]:
        return row.columns[0].ravel().tolist()

    once, again = (
        [[number for text in member for number in eval(text)] for member in read_back(rows, values)]
        for rows in (rows_of_frame(df, read_by, 2), rows_of_frame(df, read_by, 2))
    )
    assert once == again
    assert sorted(once[0] + once[1]) == list(range(1001))
    assert abs(len(once[0]) - len(once[1])) <= 3  # one for each partition, where dealing begins anew
    assert all(member == sorted(member) for member in once)
