"""The rows of a fit as the DataFrame that a gang is started on, and how its members read them.

Barrier stages allow no coalesce or union before them, so every kind of rows goes through a shuffle into one partition for each
member, in an order that Spark can recompute.
"""

from __future__ import annotations

import math
import pickle
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import pyarrow as pa
from pyspark import RDD, TaskContext
from pyspark.sql import DataFrame, SparkSession, functions

from elephas_like.core.errors import Failure
from elephas_like.core.structure import flatten, unflatten
from elephas_like.rows.column_files import BATCH_BYTES
from elephas_like.rows.frame_plan import FramePlan
from elephas_like.rows.frame_read import read
from elephas_like.rows.shards import own_rows
from elephas_like.rows.spool import Block
from elephas_like.spark.gang import noted, notes, partition_keys
from elephas_like.spark.remote import new_tag, run_job
from elephas_like.spark.task_input import at_once, said_as_utf8

Read = Callable[[Iterable[pa.RecordBatch]], Iterator[object]]
"""Yields rows, or Blocks of rows, of a member's batches. Picklable."""

_ROW_BATCH = 64
_SENT = ["key", "number", "note"]


@dataclass(frozen=True)
class GangRows:
    """Rows in one partition for each worker, and how a worker's task reads its own."""

    frame: DataFrame
    num_workers: int
    read: Read


def rows_of_frame(df: DataFrame, plan: FramePlan, num_workers: int) -> GangRows:
    """Return the rows of a DataFrame, dealt by Spark's round-robin `repartition`, each worker's in their order in the DataFrame.

    So the shards are the same wherever and however often they are written, as long as the DataFrame's own rows are.
    """
    columns = [*plan.selected(), functions.monotonically_increasing_id().alias("place")]
    dealt = df.select(*columns).repartition(num_workers).sortWithinPartitions("place").drop("place")

    return GangRows(dealt, num_workers, partial(read, plan))


def rows_of_blocks(session: SparkSession, blocks: Sequence[Block]) -> GangRows:
    """Return the rows of arrays on the driver: a block for each worker, sent in slices of a few MiB."""
    pieces = [[pickle.dumps(part, 5) for part in slices(block)] for block in blocks]
    return GangRows(notes(session, pieces), len(blocks), _unpickled)


def rows_of_rdd(session: SparkSession, rdd: RDD) -> GangRows:
    """Return the rows of an RDD of a classic session: partition i, in its order, is worker i's."""
    keys = partition_keys(session, rdd.getNumPartitions())

    def packed(index: int, rows: Iterable[object]) -> Iterator[tuple[int, int, bytearray]]:
        number, batch = 0, list[object]()
        for row in said_as_utf8(rows):
            batch.append(row)
            if len(batch) == _ROW_BATCH or isinstance(row, Block):
                yield keys[index], number, bytearray(pickle.dumps(batch, 5))
                number, batch = number + 1, []
        yield keys[index], number, bytearray(pickle.dumps(batch, 5))

    frame = session.createDataFrame(own_rows(rdd).mapPartitionsWithIndex(packed), "key long, number long, note binary")
    dealt = frame.repartition(len(keys), "key").sortWithinPartitions("number").select("note")

    return GangRows(dealt, len(keys), _one_by_one)


def collected(rows: GangRows) -> list[list[object]]:
    """Return the rows of each worker, here, as a gang of so many would read them.

    Raises:
        WorkerError: an error of reading them.
    """
    of_worker = rows.read

    def send(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context, rest = TaskContext.get(), at_once(batches)
        worker = 0 if context is None else context.partitionId()
        try:
            for number, row in enumerate(of_worker(rest)):
                yield pa.record_batch([[worker], [number], pa.array([pickle.dumps(row, 5)], pa.binary())], names=_SENT)
        except Exception as error:  # as a value: raising it here would cost the process, and Spark would try again
            yield pa.record_batch(
                [[worker], [-1], pa.array([pickle.dumps(Failure.of(worker, error))], pa.binary())], names=_SENT
            )
        for _ in rest:  # read to the end: Spark does not reuse a process that leaves input behind
            pass

    job = rows.frame.mapInArrow(send, "key long, number long, note binary")
    found: list[list[object]] = [[] for _ in range(rows.num_workers)]
    told = run_job(rows.frame.sparkSession, new_tag("rows"), "elephas_like: rows to the driver", math.inf, job.collect)
    for row in sorted(told, key=lambda row: (row.key, row.number)):
        element = pickle.loads(row.note)  # noqa: S301  Spark handed over what this function wrote
        if isinstance(element, Failure):
            raise element.error()
        found[row.key].append(element)
    return found


def _one_by_one(batches: Iterable[pa.RecordBatch]) -> Iterator[object]:
    for batch in _unpickled(batches):
        yield from batch  # type: ignore[misc]  # a list of rows


def _unpickled(batches: Iterable[pa.RecordBatch]) -> Iterator[object]:
    for note in noted(batches):
        yield pickle.loads(note)  # noqa: S301  Spark handed over what this module wrote


def slices(block: Block) -> Iterator[Block]:
    """Yield a block in parts of about 4 MiB, at least one."""
    leaves, structure = flatten(block.columns)
    each = sum(leaf.nbytes for leaf in leaves) // max(1, block.rows)  # type: ignore[attr-defined]  # arrays
    step = max(1, BATCH_BYTES // max(1, each))
    for begin in range(0, max(1, block.rows), step):
        parts = [leaf[begin : begin + step] for leaf in leaves]  # type: ignore[index]  # arrays
        tree = unflatten(structure, parts)
        assert isinstance(tree, tuple)
        yield Block(tree, min(step, block.rows - begin))
