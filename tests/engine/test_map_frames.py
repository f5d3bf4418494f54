"""Work on the partitions of a DataFrame, without an RDD."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from elephas_like.core.errors import WaitError, WorkerError
from elephas_like.core.types import Slot
from elephas_like.engine.map_frames import map_frame
from elephas_like.rows.frame_plan import ColumnChoice
from elephas_like.rows.frame_read import Frame
from elephas_like.rows.frame_schema import plan
from elephas_like.spark.gang import CHUNK_BYTES


@pytest.fixture(scope="module")
def frame(spark) -> Frame:
    df = spark.range(0, 100, 1, 3).selectExpr("CAST(id AS double) AS features")
    return Frame(
        df, plan(df.schema, ColumnChoice("features", None), Slot("x", (1,)), None, floatx="float32", classes=None)
    )


def test_answers_come_in_the_order_of_partitions_and_rows(frame: Frame) -> None:
    def work(part, blocks):
        for block in blocks:
            yield part, block.columns[0].ravel()

    found = map_frame(frame, work, title="read", timeout=60)
    assert [part for part, _ in found] == sorted(part for part, _ in found)
    np.testing.assert_array_equal(np.concatenate([values for _, values in found]), np.arange(100))


def test_an_answer_may_be_larger_than_a_piece(frame: Frame) -> None:
    found = map_frame(frame, lambda part, blocks: [np.full(CHUNK_BYTES, part, np.float32)], title="read", timeout=60)
    assert [(len(each), each[-1]) for each in found] == [(CHUNK_BYTES, 0), (CHUNK_BYTES, 1), (CHUNK_BYTES, 2)]


def test_an_error_is_raised_here_with_its_type(frame: Frame) -> None:
    def work(part, blocks):
        raise LookupError(f"partition {part}")

    with pytest.raises(WorkerError, match="partition 0") as raised:
        map_frame(frame, work, title="read", timeout=60)
    assert isinstance(raised.value, LookupError)


def test_a_job_that_takes_too_long_is_ended(frame: Frame) -> None:
    def work(part, blocks):
        threading.Event().wait(600)
        return []

    with pytest.raises(WaitError, match="expected to wait to end within timeout=1 s"):
        map_frame(frame, work, title="to wait", timeout=1)
