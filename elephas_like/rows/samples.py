"""The first rows of an RDD or of some partitions: what can be known in bounded time, without reading all of it."""

from __future__ import annotations

import math
import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from pyspark import RDD

from elephas_like.core.errors import WaitError
from elephas_like.core.structure import flatten, unflatten
from elephas_like.rows.spool import Block
from elephas_like.spark.slots import task_progress
from elephas_like.spark.task_input import said_as_utf8
from elephas_like.spark.waits import Overdue, cancel_and_wait, run_within

MOST_ROWS = 1000
"""Rows of a partition that are counted."""


@dataclass(frozen=True)
class PartitionSample:
    """What the beginning of a partition shows.

    rows: how many were read. complete: whether these are all. first: the first row, or a Block of it; None without rows.
    """

    partition: int
    rows: int
    complete: bool
    first: object | None


def sampled(rdd: RDD, partitions: Sequence[int], seconds: float) -> list[PartitionSample]:
    """Return samples of some partitions.

    A partition behind a shuffle needs all rows before it; `seconds` bounds that, too.

    Raises:
        Overdue: it took longer than `seconds`; the job was cancelled.
        ElephasError: reading raised, or the SparkContext was stopped.
    """
    context, tag = rdd.context, f"elephas_like-sample-{uuid.uuid4().hex[:16]}"
    samples = rdd.mapPartitionsWithIndex(_sample)
    try:
        return run_within(
            seconds,
            context,
            tag,
            "elephas_like check: first rows",
            lambda: context.runJob(samples, list, list(partitions)),
        )
    except BaseException:
        cancel_and_wait(context, tag)
        raise


def first_element(rdd: RDD, seconds: float = math.inf) -> list[object]:
    """Return a list of the first element of an RDD; [] if it has none.

    Raises:
        WaitError: for `seconds` no task started or ended.
        ElephasError: reading raised, or the SparkContext was stopped.
    """
    context, tag = rdd.context, f"elephas_like-first-{uuid.uuid4().hex[:16]}"
    try:
        return run_within(
            seconds,
            context,
            tag,
            "elephas_like: first row",
            lambda: rdd.mapPartitions(said_as_utf8).take(1),
            progress=lambda: task_progress(context, tag),
        )
    except BaseException as error:
        cancel_and_wait(context, tag)
        if isinstance(error, Overdue):
            raise WaitError(
                f"expected the first row, and no task started or ended for timeout={seconds:g} s. Look at what the "
                "rows wait for, and at whether other jobs hold the slots; or give the call a longer timeout."
            ) from None
        raise


def _sample(index: int, rows: Iterable[object]) -> Iterator[PartitionSample]:
    count, first = 0, None
    for row in said_as_utf8(rows):
        if isinstance(row, Block) and not row.rows:
            continue
        if not count:
            first = first_row(row.columns) if isinstance(row, Block) else row
        count += row.rows if isinstance(row, Block) else 1
        if count >= MOST_ROWS:
            yield PartitionSample(index, count, False, first)
            return
    yield PartitionSample(index, count, True, first)


def first_row(columns: tuple[object, ...]) -> Block:
    """Return the first row of arrays, as a block; one without rows where they have none."""
    leaves, structure = flatten(columns)
    first = [np.asarray(leaf)[:1] for leaf in leaves]
    tree = unflatten(structure, first)
    assert isinstance(tree, tuple)
    return Block(tree, len(first[0]))
