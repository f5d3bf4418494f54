"""Barrier stages: who runs, what members are given and answer, and what is said where there are too few slots."""

from __future__ import annotations

import pyspark
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark import TaskContext

from elephas_like.core.errors import CapacityError, WorkerError
from elephas_like.spark.gang import (
    CHUNK_BYTES,
    _seconds,
    check_slots,
    default_parallelism,
    keyed_notes,
    noted,
    notes,
    partition_keys,
    pieces_of,
    run_gang,
)
from elephas_like.spark.waits import Overdue


def run(spark, given, task, seconds: float = 120):
    return run_gang(spark, notes(spark, given), len(given), task, name="gang", title="a gang", seconds=seconds)


@pytest.mark.parametrize("size", [1, 2, 7])
def test_keys_fill_every_partition(spark, size: int) -> None:
    keys = partition_keys(spark, size)
    rows = spark.createDataFrame([(key,) for key in keys], "key long").repartition(size, "key").rdd
    places = rows.mapPartitionsWithIndex(lambda index, found: [(index, row.key) for row in found]).collect()
    assert places == list(enumerate(keys))


def test_members_get_their_pieces_in_order_and_answer_by_rank(spark) -> None:
    def task(member, batches):
        mine = list(noted(batches))
        yield member.all_gather(f"{member.rank} of {member.size}")[1].encode()
        yield b"".join(mine)

    given = [[b"a", b"b" * 3000, b"c"], []]
    found = run(spark, given, task)
    assert [pieces[0] for pieces in found] == [b"1 of 2", b"1 of 2"]
    assert [pieces[1] for pieces in found] == [b"a" + b"b" * 3000 + b"c", b""]


def test_notes_of_a_session_whose_batches_have_no_bound(spark) -> None:
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "0")
    try:
        found = keyed_notes(spark, [(0, 0, b"a"), (1, 0, b"\xff")]).collect()
    finally:
        spark.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")
    assert [(row.key, bytes(row.note)) for row in found] == [(0, b"a"), (1, b"\xff")]


@pytest.mark.parametrize(
    ("batch_rows", "tasks"),
    [
        pytest.param(
            "10000",
            [[400, 600], [1], [3000], [10]],
            marks=pytest.mark.skipif(pyspark.__version__.startswith("3."), reason="Arrow tables came with Spark 4.0"),
        ),
        ("0", [[400], [600], [1], [3000], [10]]),  # rows, 4011 bytes for tasks of 1000: five, of as many rows
    ],
)
def test_notes_are_in_tasks_of_some_mebibytes(
    sc, spark, monkeypatch: pytest.MonkeyPatch, batch_rows: str, tasks: list[list[int]]
) -> None:
    monkeypatch.setattr("elephas_like.spark.gang.TASK_BYTES", 1000)
    settings = {
        "spark.sql.execution.arrow.localRelationThreshold": "0",  # as if there were more than 48 MiB
        "spark.sql.execution.arrow.maxRecordsPerBatch": batch_rows,
    }
    for name, value in settings.items():
        spark.conf.set(name, value)
    try:
        frame = keyed_notes(spark, [(0, number, b"n" * size) for number, size in enumerate([400, 600, 1, 3000, 10])])
        sizes = frame.rdd.mapPartitions(lambda rows: [[len(row.note) for row in rows]]).collect()
    finally:
        for name in settings:
            spark.conf.unset(name)
    assert sizes == tasks


def test_a_members_error_is_the_drivers(spark) -> None:
    def task(member, batches):
        if member.rank == 1:
            raise KeyError("missing")
        member.barrier()
        return []

    with pytest.raises(WorkerError, match="missing") as raised:
        run(spark, [[b""], [b""]], task)
    assert isinstance(raised.value, KeyError)


def test_a_gang_that_takes_too_long_is_cancelled(spark) -> None:
    def task(member, batches):
        while TaskContext.get() is not None:
            member.barrier() if member.rank == 0 else None
        return []

    with pytest.raises(Overdue):
        run(spark, [[b""], [b""]], task, seconds=1)


def test_a_gang_that_waits_for_slots_says_so(sc, spark, caplog: pytest.LogCaptureFixture) -> None:
    run(spark, [[b""], [b""]], lambda member, batches: [])
    assert not caplog.records
    with pytest.raises(Overdue):
        run(spark, [[b""]] * 3, lambda member, batches: [], seconds=0.2)
    (said,) = (record.message for record in caplog.records)
    assert "a gang of 3 needs as many slots, and Spark has 2 now" in said
    assert "looks again every 15s, and gives up after 40 times" in said


@pytest.mark.parametrize(("text", "seconds"), [("15s", 15), ("2min", 120), (" 500ms ", 0.5), ("20", 20), ("1H", 3600)])
def test_times_of_sparks_settings(text: str, seconds: float) -> None:
    assert _seconds(text) == seconds


def test_too_few_slots_are_said_at_once(spark) -> None:
    check_slots(spark, 2)
    with pytest.raises(CapacityError, match="3 workers must run at the same time, and Spark has 2 slots"):
        check_slots(spark, 3)
    assert default_parallelism(spark) == 2


@given(st.binary(max_size=100), st.integers(0, 3))
def test_pieces_put_together_are_what_they_were(text: bytes, times: int) -> None:
    whole = text + b"x" * (times * CHUNK_BYTES)
    pieces = list(pieces_of(whole))
    assert b"".join(pieces) == whole
    assert len(pieces) == max(1, -(-len(whole) // CHUNK_BYTES))
