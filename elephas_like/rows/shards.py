"""Rows of any kind as shards: exactly one partition, and so one shard, per worker.

Partitions become workers by `coalesce` without a shuffle; fewer partitions than workers are split by rows. Never by
`repartition`, whose order Spark cannot recompute: a shard that is lost must come back bit for bit.
"""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import TypeVar

import numpy as np
from pyspark import RDD, Broadcast, SparkContext, StorageLevel, TaskContext

from elephas_like.core.errors import ElephasError, Failure, InputCutError, ShardMissing
from elephas_like.core.structure import flatten, unflatten
from elephas_like.core.types import ShardRef
from elephas_like.rows.shard_files import find_shard, local_directories, remove, remove_dataset
from elephas_like.rows.spool import Block, Prepare, spool
from elephas_like.spark.encryption import check_disks
from elephas_like.spark.failures import RefusedError
from elephas_like.spark.job_tags import failed_tasks
from elephas_like.spark.session import is_local, is_on, settings_of
from elephas_like.spark.slots import slots
from elephas_like.spark.task_input import said_as_utf8, whole
from elephas_like.spark.versions import check_versions
from elephas_like.spark.waits import (
    TIDY_SECONDS,
    Overdue,
    cleanup,
    destroy,
    insist,
    outside_groups,
    partition_count,
    readable_errors,
    run_within,
    stopped,
)

log = logging.getLogger(__name__)
Row = TypeVar("Row")
DRAIN_SECONDS = 5.0
"""Seconds that the rest of the rows may take after a bad one: about what a new process needs to import TensorFlow."""
SWEEPS_A_SLOT = 4
"""Most tasks a slot that delete files: each executor is to get one, and thousands would take longer than they may."""
MOST_JOBS = 250
"""Jobs that bring an RDD to the driver: of thousands of partitions, most of them empty, Spark needs longer to begin a job than for its rows."""
LARGEST_IN_TASK = 32 * 2**20
"""Bytes of a block that may be part of a task. Spark refuses tasks above 128 MiB, or what `spark.rpc.message.maxSize` says."""

Pair = tuple[ShardRef, ShardRef | None]


VALIDATION = "validation rows, partition"
"""What errors call a partition of validation rows."""


@dataclass(frozen=True)
class SpoolOptions:
    """How rows are written.

    dataset: id of the dataset, part of the directory's name. expect_target: whether rows are pairs; None if tuples of two or three are.
    take_finished: take the finished shard that lies on the host, if there is one, instead of writing the rows again.
    ahead: whether rows may be read before the ones before them are written (`spool`).
    allow_plain_text: whether rows may be written where Spark encrypts its own files.
    place: what errors call the partition of a row, before its number.
    prepare: makes the rows that are written of those that are given (`spool`).
    """

    dataset: str
    floatx: str
    expect_target: bool | None
    versions: Mapping[str, str]
    take_finished: bool = False
    ahead: bool = False
    allow_plain_text: bool = False
    place: str = "partition"
    prepare: Prepare | None = None

    def for_validation(self, dataset: str) -> SpoolOptions:
        """Return how the validation rows that go with these rows are written: of another source, and errors say so."""
        return replace(self, dataset=dataset, ahead=False, place=VALIDATION)

    def check_disks(self, context: SparkContext) -> None:
        """Do nothing if rows may be written on the executors. All that writes rows there asks first.

        Raises:
            PlainTextError: Spark encrypts its own files there, and this is not allowed beside them.
        """
        check_disks(settings_of(context), allow_plain_text=self.allow_plain_text)


Writing = Callable[[SpoolOptions], RDD]
"""Writes certain rows as shards, and returns their references: a ShardRef, or the Failure of writing it, of each worker."""


def new_dataset() -> str:
    """Return a new dataset id."""
    return uuid.uuid4().hex[:16]


def partitioned(rdd: RDD, num_workers: int) -> RDD:
    """Return the same rows in exactly `num_workers` partitions, each row in one of them, recomputable by lineage."""
    partitions = partition_count(rdd)
    if partitions == num_workers:
        return rdd
    if partitions == 0:
        return rdd.context.parallelize([], num_workers)
    rdd = own_rows(rdd)
    if partitions > num_workers and not _too_large_together(rdd, num_workers):
        return rdd.coalesce(num_workers, shuffle=False)
    # A shuffle: each row is computed, and so counted, once, also where the order of its parent is Spark's affair.
    return (
        rdd.mapPartitionsWithIndex(_numbered)
        .repartitionAndSortWithinPartitions(num_workers, lambda key: (key[0] + key[1]) % num_workers)
        .values()
    )


def _too_large_together(rdd: RDD, num_workers: int) -> bool:
    """Return whether rows of `sc.parallelize` are more than Spark sends with so few tasks: they travel with them.

    PySpark has no public name for partitions, nor for what they hold.
    """
    context = rdd.context
    if is_local(context):  # nothing is sent
        return False
    java = rdd._prev_jrdd if hasattr(rdd, "_prev_jrdd") else rdd._jrdd  # before its own Python functions
    parts = java.rdd().partitions()
    if parts[0].getClass().getSimpleName() != "ParallelCollectionPartition":
        return False
    nbytes = context._jvm.org.apache.spark.util.SizeEstimator.estimate(parts)
    return int(nbytes) > num_workers * _message_bytes(context) // 2


def _message_bytes(context: SparkContext) -> int:
    return int(settings_of(context).get("spark.rpc.message.maxSize", "128")) * 2**20


def _numbered(index: int, rows: Iterable[Row]) -> Iterator[tuple[tuple[int, int], Row]]:
    return (((index, number), row) for number, row in enumerate(rows))


def dealt(columns: tuple[object, ...], num_workers: int, *, seed: int | None = None) -> list[Block]:
    """Arrays dealt to workers like cards: worker i gets the rows i, i + K, i + 2K, ...

    So arrays that are sorted by label give every worker some of each.

    Args:
        columns: (x,), (x, y) or (x, y, sample_weight): arrays with a leading axis of rows, or trees of them.
        seed: of a permutation of the rows before they are dealt; None deals them as they lie.

    Raises:
        ValueError: arrays of different lengths.
    """
    leaves, structure = flatten(columns)
    arrays = [np.asarray(leaf) for leaf in leaves]
    lengths = {len(array) if array.ndim else -1 for array in arrays}
    if len(lengths) != 1:
        raise ValueError(
            f"all arrays must have the same number of rows; got shapes {[array.shape for array in arrays]}."
        )
    (rows,) = lengths
    order = None if seed is None else np.random.default_rng(seed).permutation(rows)
    dealt_blocks = []
    for worker in range(num_workers):
        places = slice(worker, None, num_workers)
        mine = [array[places] if order is None else array[order[places]] for array in arrays]
        tree = unflatten(structure, mine)
        assert isinstance(tree, tuple)
        dealt_blocks.append(Block(tree, len(mine[0])))
    return dealt_blocks


def is_unpickled(rdd: RDD) -> bool:
    """Return whether all rows of an RDD are objects of their own, since Spark has unpickled them.

    Python code that makes them in the same task may use an array again for its next row.
    """
    return type(rdd) is RDD or rdd.is_cached or rdd.is_checkpointed


def own_rows(rdd: RDD) -> RDD:
    """Return the same rows, each an object of its own: for whoever holds several at once, as Spark does before it pickles them."""
    return rdd if is_unpickled(rdd) else rdd.map(_copied)


def _copied(value: object) -> object:
    """Return a row, or a part of one, without the arrays and containers that the next row may be made in."""
    if isinstance(value, np.ndarray):
        return value.copy()
    if isinstance(value, tuple):  # a Row and a namedtuple are read as tuples
        return tuple(map(_copied, value))
    if isinstance(value, list):  # of thousands of numbers, as a rule
        return (
            list(map(_copied, value)) if isinstance(next(iter(value), None), np.ndarray | list | tuple) else list(value)
        )
    if isinstance(value, dict):
        return {name: _copied(part) for name, part in value.items()}
    return value


def references(rdd: RDD, options: SpoolOptions) -> RDD:
    """Write each partition as a shard. Return one element per partition: its ShardRef, or the Failure of writing it.

    Raises:
        PlainTextError: rows must not be written.
    """
    options.check_disks(rdd.context)
    options = replace(options, ahead=options.ahead or is_unpickled(rdd))
    return rdd.mapPartitionsWithIndex(lambda index, rows: iter([written(index, rows, options)]))


def pairs(training: RDD, validation: RDD | None) -> RDD:
    """(training shard, validation shard or None), both written by the same task and so on the same executor."""
    if validation is None:
        return training.map(lambda ref: (ref, None))
    return training.zip(validation)


def pairs_with_blocks(training: RDD, blocks: Sequence[Broadcast[Block]], options: SpoolOptions) -> RDD:
    """The same for validation arrays: each worker fetches its block.

    A zip of two RDDs takes three Python processes a task, and the one that trains is often one that has not imported
    TensorFlow yet; this takes one.

    Raises:
        PlainTextError: rows must not be written.
    """
    options.check_disks(training.context)

    def beside(index: int, refs: Iterable[ShardRef | Failure]) -> Iterator[tuple[object, object]]:
        for ref in refs:
            yield ref, written(index, [blocks[index].value], options)

    return training.mapPartitionsWithIndex(beside)


def finished_pairs(context: SparkContext, training: str, validation: str | None, num_workers: int) -> RDD:
    """The pairs of shards that all workers of a fit have written already. Only for Spark in local mode: on a cluster a task
    may run where its files are not.
    """

    def found(index: int) -> tuple[ShardRef | Failure, ShardRef | Failure | None]:
        return _finished(index, training), None if validation is None else _finished(index, validation)

    return context.range(0, num_workers, 1, num_workers).map(found)


def _finished(index: int, dataset: str) -> ShardRef | Failure:
    ref = find_shard(dataset, index)
    return ref or Failure.of(
        index, ShardMissing(f"the shard of worker {index} is not in {', '.join(local_directories())} any more.")
    )


def written(index: int, rows: Iterable[object], options: SpoolOptions) -> ShardRef | Failure:
    """Write the rows of one worker as a shard. Return its reference, or the Failure of writing it; the rows are read to the end.

    Raises:
        InputCutError: Spark could not compute all rows, and says why.
    """
    try:
        check_versions(options.versions)
    except Exception as error:
        return Failure.of(index, error)
    try:
        finished = find_shard(options.dataset, index) if options.take_finished else None
        if finished is not None:
            read_to_the_end(rows)
            return finished
        return spool(
            whole(rows),
            dataset=options.dataset,
            worker=index,
            floatx=options.floatx,
            expect_target=options.expect_target,
            ahead=options.ahead,
            place=options.place,
            prepare=options.prepare,
        )
    except InputCutError:
        raise
    except Exception as error:  # reported as a value: the driver raises it
        read_to_the_end(rows, DRAIN_SECONDS)
        return Failure.of(index, error)


def read_to_the_end(rows: Iterable[object], seconds: float = float("inf")) -> None:
    """Read what is left of a task's input. Spark ends a Python process that leaves some, with its imported TensorFlow."""
    end = time.monotonic() + seconds
    with suppress(Exception):  # where the rows themselves raise, nothing more comes
        for _ in rows:
            if time.monotonic() > end:
                return


def failure_in(pair: tuple[object, object]) -> Failure | None:
    """Return the failure among a pair of references, if any."""
    for ref in pair:
        if isinstance(ref, Failure):
            return ref
    return None


def remove_pair(pair: tuple[object, object]) -> None:
    """Delete the files of both shards."""
    for ref in pair:
        if isinstance(ref, ShardRef):
            remove(ref)


def unfinished_files(context: SparkContext, tag: str) -> bool:
    """Return whether a tag's tasks may have left files though its job succeeded: attempts have failed, as their process died, or Spark
    speculates, and kills some.
    """
    return failed_tasks(context, tag) > 0 or is_on(settings_of(context), "spark.speculation")


def sweep(context: SparkContext, tag: str, tasks: int, datasets: Sequence[str]) -> None:
    """Delete the files of killed tasks, by a task on every slot and on the driver's own host.

    Args:
        tasks: how many the killed job had. There are as many here, but at least one a slot and at most `SWEEPS_A_SLOT`.
    """

    def delete(_: object) -> None:
        for dataset in datasets:
            remove_dataset(dataset)

    def job() -> None:
        found = slots(context, 0.0)  # not `spark.default.parallelism`, which may be hundreds
        count = max(found, min(tasks, SWEEPS_A_SLOT * max(1, found)))
        context.range(0, count, 1, count).foreach(delete)

    deleted_by(context, f"{tag}-sweep", datasets, job)


def deleted_by(context: SparkContext, tag: str, datasets: Sequence[str], job: Callable[[], object]) -> None:
    """Run a job that deletes the files of datasets, within a time limit. Failures are logged, never raised.

    The driver deletes what lies on its own host in any case.
    """
    try:
        outside_groups(lambda: run_within(TIDY_SECONDS, context, tag, "elephas_like: delete shards", job))
    except (Overdue, ElephasError) as cause:  # a run's own outcome must not be hidden by its cleanup
        level = logging.DEBUG if stopped(context) else logging.WARNING  # its executors have ended, with all they held
        log.log(
            level,
            "%s: shards were not deleted everywhere (%s). Directories called %s may remain in the executors' local "
            "directories (spark.local.dir); Spark deletes those that are its own when the application ends.",
            *(tag, str(cause).splitlines()[0], " and ".join(f"elephas_like-{dataset}" for dataset in datasets)),
        )
    for dataset in datasets:
        remove_dataset(dataset)


def persisted_anew(refs: RDD) -> None:
    """Drop persisted references, so that Spark rewrites the rows when a job next asks for them."""
    with cleanup(refs.context, "drop references of shards"):
        refs.unpersist(blocking=True)
    refs.persist(StorageLevel.MEMORY_AND_DISK)


def rows_of_partitions(rdd: RDD) -> Iterator[list[object]]:
    """Yield the rows of each partition on the driver, one partition at a time; of many partitions, a few at a time."""
    rdd = own_rows(rdd)
    count = rdd.getNumPartitions()
    step = max(1, -(-count // MOST_JOBS))
    for begin in range(0, count, step):
        yield from _rows_together(rdd, range(begin, min(begin + step, count)))


def _rows_together(rdd: RDD, indices: Sequence[int]) -> Iterator[list[object]]:
    """Yield the rows of each of some partitions, by one job if Spark brings so many to the driver."""
    if len(indices) > 1:
        try:
            with readable_errors(rdd.context):
                found = rdd.context.runJob(rdd, lambda rows: [list(said_as_utf8(rows))], indices)
            yield from found
            return
        except RefusedError:
            log.debug("partitions %s come one by one", indices)
    for index in indices:
        with readable_errors(rdd.context):
            rows = rdd.context.runJob(rdd, said_as_utf8, [index])
        yield rows


def attempt_id() -> int:
    """Spark's number of this task attempt, unique in the application."""
    context = TaskContext.get()
    return 0 if context is None else int(context.taskAttemptId())


class ShardedDataset:
    """Rows that are written once and trained on many times: one shard per worker.

    Spark holds the references (memory and disk) and writes a shard again where its executor was lost. A context
    manager: `release()` deletes the files.
    """

    def __init__(
        self,
        source: RDD | Callable[[], RDD],
        num_workers: int,
        dataset: str,
        shipped: ExitStack | None = None,
        write: Writing | None = None,
    ) -> None:
        self._shipped = shipped or ExitStack()
        self._source = source
        self._write = write or partial(references, self.source)
        self.num_workers = num_workers
        self.dataset = dataset
        self._references: RDD | None = None
        self._options: SpoolOptions | None = None  # by which they are written
        self._failed: bool | None = None  # whether they could not be; None while nobody knows
        self._lock = threading.Lock()  # several fits may share the rows, in threads
        self._written = False
        self.released = False

    @cached_property
    def source(self) -> RDD:
        """The rows that the shards are written from."""
        return self._source() if callable(self._source) else self._source

    def references(self, options: SpoolOptions) -> RDD:
        """Return the persisted references. The rows are written when a job first asks for them.

        The options of the first caller hold, unless the rows could not be written by them: that caller's model did not fit the rows.
        """
        if self.released:
            raise ValueError("this ShardedDataset was released; shard the data again.")
        with self._lock:
            if self._references is not None and self._failed and options != self._options:
                with cleanup(self._references.context, "drop references of shards"):
                    self._references.unpersist()
                self._references, self._failed = None, None
            if self._references is None:
                self._references = self._write(options).persist(StorageLevel.MEMORY_AND_DISK)
                self._options = options
            return self._references

    def written(self) -> None:
        """Note that a job has asked for the references, so the rows are on disk."""
        self._written = True
        if self._references is not None:
            self._failed = False

    def invalidate(self) -> None:
        """Invalidate the references, so that the next job rewrites the rows: files of a shard are missing."""
        with self._lock:
            self._written = False
            if self._references is not None:
                self._failed = self._failed is not False
                persisted_anew(self._references)

    def release(self) -> None:
        """Delete the files and drop the references. Safe to call twice, also after Ctrl-C.

        It takes 20 seconds at most; a warning says what could not be deleted by then.
        """
        self.released = True
        insist(self._tidy)

    def _tidy(self) -> None:
        """Leave nothing. May be called again, if it was interrupted."""
        with self._lock:
            if self._references is not None:
                self._delete(self._references)
                self._references = None
        self._shipped.close()

    def _delete(self, refs: RDD) -> None:
        """Delete the files, and what Spark holds of the references."""
        dataset, tag = self.dataset, f"elephas_like-{self.dataset}-release"

        def delete(ref: object) -> None:
            remove_pair((ref, None))
            remove_dataset(dataset)  # with what killed tasks left unfinished

        if self._written:
            deleted_by(refs.context, tag, [dataset], lambda: refs.foreach(delete))
            self._written = False
        else:  # references that are not there would be made, and all rows written, to be deleted
            sweep(refs.context, tag, self.num_workers, [dataset])
        with cleanup(refs.context, "drop references of shards"):
            refs.unpersist(blocking=True)

    def __enter__(self) -> ShardedDataset:
        """Return itself."""
        return self

    def __exit__(self, *error: object) -> None:
        """Release the dataset."""
        self.release()


def blocks_rdd(context: SparkContext, blocks: Sequence[Block], shipped: ExitStack) -> RDD:
    """Return blocks as an RDD of one each per partition.

    Small blocks are part of their tasks. Tasks travel as messages, which are bounded (`spark.rpc.message.maxSize`), and are
    copied in the driver's Java heap: large blocks are broadcast, which costs an executor more than its own.

    Args:
        shipped: destroys the broadcasts.
    """
    largest = max((sum(map(_nbytes, flatten(block.columns)[0])) for block in blocks), default=0)
    if largest <= min(LARGEST_IN_TASK, _message_bytes(context) // 4):
        return context.parallelize(list(blocks), len(blocks))
    broadcasts = [context.broadcast(block) for block in blocks]
    for broadcast in broadcasts:
        shipped.callback(destroy, context, broadcast)
    return context.range(0, len(blocks), 1, len(blocks)).map(lambda index: broadcasts[index].value)


def _nbytes(leaf: object) -> int:
    array = np.asarray(leaf)
    return sum(len(str(text)) for text in array.flat) if array.dtype == object else array.nbytes
