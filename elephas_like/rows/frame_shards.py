"""A DataFrame's partitions written as shards by the Python processes that Spark hands their columns to.

Rows cross from Spark to Python once. As `Frame.blocks` they cross three times: to Python, back to Spark as packed blocks, and through
Spark's pickler to Python again.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Iterator

import pyarrow as pa
from pyspark import RDD, TaskContext

from elephas_like.core.errors import Failure
from elephas_like.core.types import ShardRef
from elephas_like.rows.frame_plan import FramePlan
from elephas_like.rows.frame_read import Frame, read
from elephas_like.rows.shards import DRAIN_SECONDS, SpoolOptions, read_to_the_end, written

_REFERENCE = "reference binary"


def frame_references(frame: Frame, num_workers: int, options: SpoolOptions) -> RDD:
    """Write a DataFrame as shards. Return one element for each: its ShardRef, or the Failure of writing it.

    Args:
        frame: of at least as many partitions as workers, which become one shard or several go together, as in `partitioned`.

    Raises:
        PlainTextError: rows must not be written.
    """
    options.check_disks(frame.df.sparkSession.sparkContext)
    plan = frame.plan

    def write(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        assert context is not None
        result = written_batches(context.partitionId(), plan, batches, options)
        yield pa.record_batch([pa.array([pickle.dumps(result, 5)], pa.binary())], ["reference"])

    columns = frame.columns.coalesce(num_workers)
    return columns.mapInArrow(write, _REFERENCE).rdd.map(_unpacked)


def written_batches(
    index: int, plan: FramePlan, batches: Iterable[pa.RecordBatch], options: SpoolOptions
) -> ShardRef | Failure:
    """Write the rows of one worker's batches as a shard, as `written` does; the batches are read to the end."""
    result = written(index, read(plan, batches), options)
    if isinstance(result, Failure):  # `read` has ended with its error, and not taken the batches after it
        read_to_the_end(batches, DRAIN_SECONDS)
    return result


def _unpacked(row: tuple[bytes]) -> ShardRef | Failure:
    found: ShardRef | Failure = pickle.loads(row[0])  # noqa: S301  Spark handed over what this module wrote
    return found
