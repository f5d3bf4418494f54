"""Work on each partition of a DataFrame without an RDD: predict, evaluate, and runs of searches and ensembles over Spark Connect."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame

from elephas_like.core.errors import Failure, WaitError
from elephas_like.rows.frame_read import Frame, read
from elephas_like.spark.gang import pieces_of
from elephas_like.spark.gpus import GpuTasks, map_on_gpus, take_gpu
from elephas_like.spark.remote import new_tag, run_job, saying_ended_sessions
from elephas_like.spark.task_input import at_once
from elephas_like.spark.waits import Overdue

_ANSWERS = "part long, number long, last boolean, payload binary"

Work = Callable[[int, Iterator[object]], Iterable[object]]
"""Takes the number of a partition and its rows, as Blocks; yields picklable answers."""
BatchWork = Callable[[int, Iterator[pa.RecordBatch]], Iterable[object]]
"""Takes the number of a partition and its batches; yields picklable answers."""


def map_frame(frame: Frame, work: Work, *, title: str, timeout: float, gpus: GpuTasks | None = None) -> list[Any]:
    """Return what `work` yields for all partitions of a DataFrame, in their order.

    Args:
        title: what it does, for errors.
        gpus: how the tasks have a GPU each; None where nothing is asked for.
        timeout: seconds that the whole job may take: Spark Connect shows no task of it.

    Raises:
        WaitError: `timeout` has passed. WorkerError: what `work`, or reading the rows, raised on an executor.
    """
    plan = frame.plan  # the function must not take the DataFrame along: its session is nowhere but here

    def read_work(part: int, batches: Iterator[pa.RecordBatch]) -> Iterable[object]:
        return work(part, read(plan, batches))

    return map_batches(frame.columns, read_work, title=title, timeout=timeout, gpus=gpus)


def map_batches(
    df: DataFrame, work: BatchWork, *, title: str, timeout: float, gpus: GpuTasks | None = None
) -> list[Any]:
    """Return what `work` yields for all partitions of a DataFrame, in their order; arguments and errors as of `map_frame`."""

    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        take_gpu()
        context = TaskContext.get()
        part = 0 if context is None else context.partitionId()
        rest, number = at_once(batches), 0
        for answer in _reported(part, work, rest):
            *first, end = pieces_of(pickle.dumps(answer, 5))
            for piece, last in [*((piece, False) for piece in first), (end, True)]:
                yield pa.record_batch([[part], [number], [last], pa.array([piece], pa.binary())], names=_NAMES)
                number += 1
        for _ in rest:  # read to the end: Spark does not reuse a process that leaves input behind
            pass

    with saying_ended_sessions():
        job = map_on_gpus(df, gpus, run, _ANSWERS)
    try:
        found = run_job(df.sparkSession, new_tag("map"), f"elephas_like: {title}", timeout, job.collect)
    except Overdue:
        raise WaitError(
            f"expected {title} to end within timeout={timeout:g} s. Look at the executors' logs, at whether other jobs hold the "
            "slots, or give a longer timeout."
        ) from None
    answers, pieces = [], list[bytes]()
    for row in sorted(found, key=lambda row: (row.part, row.number)):
        pieces.append(bytes(row.payload))
        if row.last:
            answers.append(pickle.loads(b"".join(pieces)))  # noqa: S301  Spark handed over what a task wrote
            pieces = []
    for answer in answers:
        if isinstance(answer, Failure):
            raise answer.error()
    return answers


_NAMES = [field.split()[0] for field in _ANSWERS.split(", ")]


def _reported(part: int, work: BatchWork, batches: Iterator[pa.RecordBatch]) -> Iterator[object]:
    """Yield the answers; an error as a value, so that Spark neither ends the process nor tries again."""
    try:
        yield from work(part, batches)
    except Exception as error:
        yield Failure.of(part, error)
