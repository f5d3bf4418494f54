"""Predict and evaluate over an RDD: batches are streamed, and the order of rows is kept.

Each is one Spark job, which `MapJob` bounds in time, and after which nothing is left on the executors' disks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from pyspark import RDD, SparkContext

from elephas_like.core.columns import nbytes
from elephas_like.core.errors import DataError, Failure, WaitError
from elephas_like.core.structure import unflatten
from elephas_like.core.types import Array, ShardRef, Structure
from elephas_like.rows.shard_files import attempt_directory, remove
from elephas_like.rows.shards import DRAIN_SECONDS, SpoolOptions, read_to_the_end, sweep, unfinished_files
from elephas_like.rows.spool import Block, spool
from elephas_like.spark.gpus import GpuTasks, on_gpus, take_gpu
from elephas_like.spark.job_tags import tasks
from elephas_like.spark.slots import task_progress
from elephas_like.spark.task_input import said_as_utf8, whole
from elephas_like.spark.versions import check_versions
from elephas_like.spark.waits import Overdue, cancel_and_wait, insist, run_within

BATCHES_AT_ONCE = 16
"""Batches of rows at least that are written as one shard, and predicted from it."""
SHARD_BYTES = 16 * 2**20
"""Bytes of such a shard, where more batches than that fit in."""

Chunk = tuple[list[Array], Structure]
Result = TypeVar("Result")
Predict = Callable[[Iterable[ShardRef]], Iterator[Chunk]]
"""Outputs of the rows of shards, in order; each shard is deleted when the next one is asked for."""


@dataclass(frozen=True)
class MapJob:
    """The Spark job of one prediction or evaluation.

    Args:
        title: what it does, for Spark's UI and for errors.
        dataset: id of the files that its tasks write.
        timeout: seconds in which none of its tasks starts or ends, after which it is cancelled.
        keep: whether the files outlive it (a ShardedDataset's do).
        gpus: how the tasks have a GPU each; None where nothing is asked for.
    """

    title: str
    dataset: str
    timeout: float
    keep: bool = False
    gpus: GpuTasks | None = None

    def run(self, rdd: RDD, job: Callable[[], Result]) -> Result:
        """Return what `job`, which computes `rdd`, returns. Where it fails, is interrupted or late, end its tasks and sweep.

        Raises:
            WaitError: no task started or ended for `timeout` seconds.
            ElephasError: the job failed, or the SparkContext was stopped.
        """
        context, tag = rdd.context, f"elephas_like-{self.dataset}-map"

        def tidy() -> None:
            cancel_and_wait(context, tag)
            self._sweep(rdd, tag)

        try:
            found = run_within(
                self.timeout,
                context,
                tag,
                f"elephas_like: {self.title}",
                job,
                progress=lambda: task_progress(context, tag),
            )
        except BaseException as error:
            message = self._late(context, tag) if isinstance(error, Overdue) else ""
            insist(tidy)
            if message:
                raise WaitError(message) from None
            raise
        if unfinished_files(context, tag):
            insist(lambda: self._sweep(rdd, tag))
        return found

    def _late(self, context: SparkContext, tag: str) -> str:
        running, ended = tasks(context, tag)
        return (
            f"expected a task to start or end, and none did for timeout={self.timeout:g} s ({self.title}; {running} "
            f"running, {ended} ended). Look at the executors' logs, at what the rows wait for, and at whether other jobs "
            "hold the slots; or give the data more partitions, or the call a longer timeout."
        )

    def _sweep(self, rdd: RDD, tag: str) -> None:
        if not self.keep:
            sweep(rdd.context, tag, rdd.getNumPartitions(), [self.dataset])


def prediction_chunks(rdd: RDD, predictor: Callable[[], Predict], batch_size: int, options: SpoolOptions) -> RDD:
    """Return an RDD of (output arrays, their structure) for successive batches, in the order of the rows; or a Failure of the rows.

    Args:
        predictor: returns the function that predicts for shards, called on the executor.
        options: how rows are written, below a directory of their dataset for each task.

    Raises:
        PlainTextError: rows must not be written.
    """
    options.check_disks(rdd.context)

    def chunks(index: int, rows: Iterator[object]) -> Iterator[Chunk | Failure]:
        try:
            yield from predicted(index, said_as_utf8(rows), predictor, batch_size, options)
        except DataError as error:  # as a value: Spark would print its own stack, and try the same rows again
            read_to_the_end(rows, DRAIN_SECONDS)
            yield Failure.of(index, error)

    return rdd.mapPartitionsWithIndex(chunks)


def predicted(
    index: int, rows: Iterable[object], predictor: Callable[[], Predict], batch_size: int, options: SpoolOptions
) -> Iterator[Chunk]:
    """Yield the predictions of one partition's rows, batch by batch. The rows pass through files of this task's own."""
    check_versions(options.versions)
    take_gpu()
    with attempt_directory(options.dataset, index) as place:
        yield from predictor()(_shards(index, rows, batch_size, place, options))


def _shards(
    index: int, rows: Iterable[object], batch_size: int, place: str, options: SpoolOptions
) -> Iterator[ShardRef]:
    """Yield shards of successive rows, whole batches each but the last. A shard is deleted when the next one is asked for."""
    coming, at_least, begin = iter(rows), batch_size * BATCHES_AT_ONCE, 0
    for first in coming:
        ref = spool(
            _beginning_with(first, coming, at_least),
            dataset="chunk",
            worker=index,
            base=place,
            floatx=options.floatx,
            expect_target=False,
            begin=begin,
            ahead=options.ahead,
        )
        begin += ref.rows
        at_least = batch_size * max(BATCHES_AT_ONCE, SHARD_BYTES // max(1, batch_size * nbytes(ref) // ref.rows))
        try:
            yield ref
        finally:
            remove(ref)


def _beginning_with(row: object, coming: Iterator[object], at_least: int) -> Iterator[object]:
    """Yield a row and those after it, until there are at least `at_least`; a Block counts as the rows it holds.

    Each is read when it is asked for: Python code that makes them may use an array again for its next row.
    """
    count = 0
    while True:
        yield row
        count += row.rows if isinstance(row, Block) else 1
        if count >= at_least:
            return
        try:
            row = next(coming)
        except StopIteration:
            return


def rows_of(chunks: RDD) -> RDD:
    """Return an RDD of single predictions: an array a row, or a list or dict of arrays for several outputs."""

    def one_by_one(parts: Iterable[Chunk | Failure]) -> Iterator[object]:
        for part in parts:
            if isinstance(part, Failure):
                raise part.error()
            outputs, structure = part
            counts = [len(output) for output in outputs]
            if len(set(counts)) > 1:
                raise ValueError(
                    f"the outputs of a batch have {counts} rows: predictions of each row need a row in each output. predict(rdd) with "
                    "collect=True returns the outputs one beside the other."
                )
            for row in range(counts[0]):
                tree = unflatten(structure, [output[row] for output in outputs])
                yield list(tree) if isinstance(tree, tuple) else tree

    return chunks.mapPartitions(one_by_one)


def collected(chunks: RDD, job: MapJob, none: Callable[[], object]) -> object:
    """Return all predictions: an array with a leading axis of rows, or a list or dict of them for several outputs.

    Args:
        none: returns what no rows give.

    Raises:
        WaitError, ElephasError: as `MapJob.run`.
    """
    found = job.run(chunks, chunks.collect)
    for part in found:
        if isinstance(part, Failure):
            raise part.error()
    return joined_chunks(found, none)


def joined_chunks(parts: Sequence[Chunk], none: Callable[[], object]) -> object:
    """Return the predictions of successive batches as one array, or a list or dict of them for several outputs; `none()` of no batch."""
    if not parts:
        return none()
    outputs = [np.concatenate(arrays) for arrays in zip(*(part[0] for part in parts), strict=True)]
    tree = unflatten(parts[0][1], outputs)
    return list(tree) if isinstance(tree, tuple) else tree


def of_shards(refs: RDD, act: Callable[[int, ShardRef], Result], job: MapJob) -> list[Result]:
    """Apply `act(partition, shard)` to each shard of an RDD of references and return the results.

    The shards' files are deleted unless the job keeps them.

    Raises:
        WorkerError: `act`, or writing the rows, raised on an executor.
        WaitError, ElephasError: as `MapJob.run`.
    """
    keep = job.keep

    def each(index: int, elements: Iterable[ShardRef | Failure]) -> Iterator[object]:
        take_gpu()
        for ref in whole(elements):
            if isinstance(ref, Failure):
                yield ref
                return
            try:
                yield act(index, ref)
            except Exception as error:  # reported as a value: the driver raises it
                yield Failure.of(index, error)
            finally:
                if not keep:
                    remove(ref)

    answers = on_gpus(refs.mapPartitionsWithIndex(each), job.gpus)
    results = job.run(answers, answers.collect)
    for result in results:
        if isinstance(result, Failure):
            raise result.error()
    return results
