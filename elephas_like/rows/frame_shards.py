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
from elephas_like.spark.waits import partition_count, readable_errors

_REFERENCE = "reference binary"


class FrameShards:
    """The shards of a DataFrame. Spark plans them once: the plan that has told the number of partitions is the one they are written by."""

    def __init__(self, frame: Frame) -> None:
        self._frame = frame
        self._last: tuple[int | None, SpoolOptions, RDD] | None = None

    def partitions(self, options: SpoolOptions) -> int:
        """Return the number of the DataFrame's partitions, each of which may become a shard."""
        return partition_count(self._planned(None, options))

    def references(self, num_workers: int, options: SpoolOptions) -> RDD | None:
        """Return one element for each worker: the ShardRef of the shard written, or the Failure of writing it.

        Partitions become one shard each, or several go together, as in `partitioned`. None: there are fewer partitions than workers.

        Raises:
            PlainTextError: rows must not be written.
        """
        options.check_disks(self._frame.df.sparkSession.sparkContext)
        refs = self._planned(num_workers, options)
        return refs if partition_count(refs) == num_workers else None

    def _planned(self, num_workers: int | None, options: SpoolOptions) -> RDD:
        """Return the references for so many workers at most. It is the last one where that was for the same options and will do."""
        if self._last is not None:
            known, known_options, refs = self._last
            if known_options == options and (known == num_workers or partition_count(refs) == num_workers):
                return refs
        with readable_errors(self._frame.df.sparkSession.sparkContext):
            refs = _references(self._frame, num_workers, options)
        self._last = num_workers, options, refs
        return refs


def _references(frame: Frame, num_workers: int | None, options: SpoolOptions) -> RDD:
    plan = frame.plan

    def write(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        assert context is not None
        result = written_batches(context.partitionId(), plan, batches, options)
        yield pa.record_batch([pa.array([pickle.dumps(result, 5)], pa.binary())], ["reference"])

    columns = frame.columns if num_workers is None else frame.columns.coalesce(num_workers)
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
