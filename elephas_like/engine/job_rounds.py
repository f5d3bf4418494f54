"""The engine whose rounds are ordinary Spark jobs: no port, and no slots that must be free at the same time.

Dynamic allocation and speculation are fine. Each round ships the state in a broadcast and collects the updates. Shards
stay on the executors' disks; Spark holds references to them and rewrites a shard that was lost.
"""

from __future__ import annotations

import logging
import platform
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

from pyspark import RDD, Accumulator, AccumulatorParam, Broadcast, SparkContext
from pyspark.resource import ResourceProfile

from elephas_like.core.columns import nbytes
from elephas_like.core.errors import DataError, ElephasError, Failure, ShardMissing, WaitError
from elephas_like.core.types import (
    Evaluation,
    Joined,
    Memories,
    Order,
    Recollection,
    TrainState,
    Update,
    Vector,
    nothing,
    same,
)
from elephas_like.core.workers import Worker, WorkerFactory
from elephas_like.rows.shard_files import remove_dataset
from elephas_like.rows.shards import Pair, attempt_id, deleted_by, failure_in, persisted_anew, remove_pair, sweep
from elephas_like.spark.gpus import on_gpus, take_gpu
from elephas_like.spark.session import is_local, settings_of
from elephas_like.spark.settings import size_bytes
from elephas_like.spark.slots import held_up
from elephas_like.spark.waits import Overdue, cancel_and_wait, cleanup, destroy, readable_errors, run_within

log = logging.getLogger(__name__)
Result = TypeVar("Result")
Fingerprints = tuple[tuple[int, int], ...]
Answered = frozenset[tuple[int, int]]

TRIES = 3
"""Times that a round is tried where shards are missing. They are rewritten before each further try."""


@dataclass(frozen=True)
class _MissingShard:
    """Reports that a task ran on a host without its shard."""

    worker: int
    message: str


@dataclass(frozen=True)
class _Answer(Generic[Result]):
    """A worker's result, with the references of its shard and, if any, of its validation shard."""

    result: Result
    pair: Pair


class _AnsweredWorkers(AccumulatorParam):
    """Accumulates (job number, worker) of ended tasks as a set: counting a task twice does no harm."""

    def zero(self, value: Answered) -> Answered:
        return frozenset()

    def addInPlace(self, value1: Answered, value2: Answered) -> Answered:
        return value1 | value2


@dataclass(frozen=True)
class JobRun:
    """What tasks need, as plain data.

    run: id of the fit, to tell fits apart in a reused process.
    make: returns the factory of workers.
    """

    run: str
    make: Callable[[], WorkerFactory]


class JobRounds:
    """Synchronous rounds as Spark jobs (core.workers.SyncWorkers). A context manager that deletes the shards on exit.

    Args:
        refs: one pair of shard references per partition, persisted.
        run: what tasks need; workers of one process share its factory.
        tag: Spark job tag; its jobs are cancelled on Ctrl-C and after failures.
        describe: returns the text in Spark's UI for an order.
        keep: whether the shards outlive the run (a ShardedDataset's do).
        datasets: ids of the shards that are deleted with the run.
        round_timeout: seconds. A round may outlast this as long as workers answer; if none does for so long, the fit
            fails.
        profile: what Spark gives the tasks; None for what all tasks of the application get.
        invalidate: called where shards are missing, to drop persisted references that `refs` is computed from.
    """

    def __init__(
        self,
        context: SparkContext,
        refs: RDD,
        run: JobRun,
        tag: str,
        describe: Callable[[Order | None], str],
        keep: bool,
        *,
        datasets: Sequence[str],
        round_timeout: float,
        profile: ResourceProfile | None = None,
        invalidate: Callable[[], None] = lambda: None,
    ) -> None:
        self._context, self._refs, self._run = context, refs, run
        self._tag, self._describe, self._keep = tag, describe, keep
        self._datasets, self._invalidate = tuple(datasets), invalidate
        self._round_timeout, self._profile = round_timeout, profile
        self._num_workers = refs.getNumPartitions()
        self._largest_result = size_bytes(settings_of(context).get("spark.driver.maxResultSize", "1g"))
        self._written = False
        self._found: RDD | None = None
        self._fingerprints: list[Fingerprints] = []
        self._jobs = 0
        self._frozen: tuple[Vector, Broadcast[Vector]] | None = None
        self._answered: Accumulator[Answered] = context.accumulator(frozenset(), _AnsweredWorkers())

    def __enter__(self) -> JobRounds:
        """Return itself."""
        return self

    def __exit__(self, *error: object) -> None:
        """Cancel running jobs, close workers and delete shards, within a limited time."""
        run, keep, datasets = self._run.run, self._keep, self._datasets

        def tidy(pairs: Iterator[Pair]) -> Iterator[int]:
            _close(run)
            for pair in pairs:
                remove_pair((None if keep else pair[0], pair[1]))  # validation rows are never a ShardedDataset's
            for dataset in datasets:
                remove_dataset(dataset)  # including unfinished files of killed tasks
            yield 0

        cancel_and_wait(self._context, self._tag)  # tasks read and write files until they are killed
        if self._frozen is not None:
            destroy(self._context, self._frozen[1])
        if self._written:
            deleted_by(
                self._context,
                f"{self._tag}-tidy",
                datasets,
                on_gpus(self._pairs().mapPartitions(tidy), self._profile).count,
            )
        else:  # the references were never computed: computing them now would write all rows only to delete them
            sweep(self._context, self._tag, self._num_workers, datasets)
        with cleanup(self._context, "drop references of shards"):
            self._refs.unpersist(blocking=True)

    def joined(self) -> list[Joined]:
        """Return the first messages of all workers, after a job that writes the shards and compiles the model."""
        return self._job(None, lambda worker, _: worker.joined(attempt_id(), platform.node()))

    def train(self, order: Order) -> Iterator[Update]:
        """Return the updates of one job."""
        self._check_result_size(order)
        return iter(self._job(order, lambda worker, given: worker.train(given)))

    def evaluate(self, order: Order) -> Iterator[Evaluation]:
        """Return the evaluations of one job."""
        return iter(self._job(order, lambda worker, given: worker.evaluate(given)))

    def recall(self, after: int) -> Iterator[Recollection]:
        """Return nothing: workers of jobs remember nothing from round to round."""
        return iter(())

    def remind(self, memories: Memories, after: int) -> None:
        """Do nothing: workers of jobs remember nothing from round to round."""

    def _job(self, order: Order | None, act: Callable[[Worker, Order], Result]) -> list[Result]:
        """Run one job and return one result per worker, in worker order.

        Raises:
            ElephasError: shards were lost in every try.
            WaitError: no worker answered for `round_timeout` seconds; the message names those who did not.
            DataError: a shard that was rewritten has another number of rows.
        """
        what = self._describe(order)
        state: Broadcast[TrainState] | None = None
        frozen: Broadcast[Vector] | None = None
        try:
            # Ship the state, frozen layers apart: they rarely change.
            if order is not None and order.state is not None:
                frozen = self._frozen_broadcast(order.state.frozen)
                with readable_errors(self._context):
                    state = self._context.broadcast(order.state.but(frozen=nothing()))
                order = replace(order, state=None, step=None)
            # A task without its shard's files reports so; then the references are dropped and the round is run again.
            for tries in range(1, TRIES + 1):
                self._jobs += 1
                task = _task(self._run, order, state, frozen, act, self._jobs, self._answered)
                results = self._collect(on_gpus(self._pairs().mapPartitionsWithIndex(task), self._profile), what)
                missing = [result for result in results if isinstance(result, _MissingShard)]
                for result in results:
                    if isinstance(result, Failure):
                        raise result.error()
                if not missing:
                    self._note_written([answer.pair for answer in results])
                    return [answer.result for answer in results]
                log.warning("%s; the shards are written again (try %d of %d)", missing[0].message, tries + 1, TRIES)
                self._written, self._found = False, None
                self._invalidate()
                persisted_anew(self._refs)
            raise ElephasError(f"shards were lost {TRIES} times in one round, last: {missing[0].message}")
        finally:
            if state is not None:
                destroy(self._context, state)

    def _pairs(self) -> RDD:
        """Return the RDD of the references.

        Tasks carry the rows of a `parallelize`d RDD, also where what is computed of them is persisted: 0.1 s for 100 MB. In local
        mode, where all files are in one place, only the job that writes the shards has to.
        """
        return self._found or self._refs

    def _note_written(self, pairs: list[Pair]) -> None:
        """Note what the shards hold, and check that it is what they held before."""
        self._written = True
        self._check_same_rows([tuple((ref.rows, ref.checksum) for ref in pair if ref is not None) for pair in pairs])
        if self._found is None and is_local(self._context):
            self._found = self._context.parallelize(pairs, len(pairs))

    def _frozen_broadcast(self, frozen: Vector) -> Broadcast[Vector] | None:
        """Return the broadcast of the frozen layers, shipped again only when they change; None if there are none."""
        if self._frozen is not None and not same(self._frozen[0], frozen):
            destroy(self._context, self._frozen[1])
            self._frozen = None
        if self._frozen is None and frozen.size:
            with readable_errors(self._context):
                self._frozen = frozen, self._context.broadcast(frozen)
        return None if self._frozen is None else self._frozen[1]

    def _collect(self, tasks: RDD, what: str) -> list[Any]:
        """Collect the results of a job. An accumulator reports each task that ends."""
        self._answered.value = frozenset()
        try:
            results: list[Any] = run_within(
                self._round_timeout,
                self._context,
                self._tag,
                what,
                tasks.collect,
                progress=lambda: (self._answered.value, held_up(self._context, self._tag)),
            )
        except Overdue:
            answered = {worker for job, worker in self._answered.value if job == self._jobs}
            late = [str(worker) for worker in range(self._num_workers) if worker not in answered]
            missing = f"worker {', '.join(late)}" if late else "none, but the job has not ended"
            raise WaitError(
                f"expected {self._num_workers} workers to answer, and none did for round_timeout={self._round_timeout:g} s; "
                f"missing: {missing} ({what}). Look at the executors' logs, at whether other jobs hold "
                "the slots that their tasks wait for, or give a longer round_timeout."
            ) from None
        return results

    def _check_same_rows(self, fingerprints: list[Fingerprints]) -> None:
        """Check that rewritten shards hold the same rows as before."""
        for worker, (before, now) in enumerate(zip(self._fingerprints or fingerprints, fingerprints, strict=True)):
            for (rows, checksum), (rows_now, checksum_now) in zip(before, now, strict=True):
                if rows != rows_now:
                    raise DataError(
                        f"worker {worker} came back with {rows_now} rows; expected {rows} as before. The rows are "
                        "recomputed when a shard is lost: persist the RDD, or remove what makes it different each time."
                    )
                if checksum != checksum_now:
                    log.warning(
                        "worker %d came back with other rows (checksum %d, before %d): the fit goes on, but its weights "
                        "are no longer equal to those of an undisturbed run to the last bit.",
                        *(worker, checksum_now, checksum),
                    )
        self._fingerprints = fingerprints

    def _check_result_size(self, order: Order) -> None:
        limit = self._largest_result
        each = 0 if order.state is None else order.state.nbytes - order.state.frozen.nbytes
        needed = self._num_workers * each
        if limit and needed > limit:
            raise ElephasError(
                f"{self._num_workers} updates of {needed // self._num_workers / 2**20:.0f} MiB are more than "
                f"spark.driver.maxResultSize ({limit / 2**20:.0f} MiB). Raise it, or use engine='server'."
            )


def _task(
    run: JobRun,
    order: Order | None,
    state: Broadcast[TrainState] | None,
    frozen: Broadcast[Vector] | None,
    act: Callable[[Worker, Order], Result],
    job: int,
    answered: Accumulator[Answered],
) -> Callable[[int, Iterator[Pair]], Iterator[_Answer[Result] | Failure | _MissingShard]]:
    def task(index: int, pairs: Iterator[Pair]) -> Iterator[_Answer[Result] | Failure | _MissingShard]:
        try:
            take_gpu()
            (pair,) = pairs  # read to the end: Spark does not reuse a process that leaves input behind
            failure = failure_in(pair)
            if failure is not None:
                yield failure
                return
            given = order or Order("wait")
            if state is not None:
                held = nothing() if frozen is None else frozen.value
                given = replace(given, state=state.value.but(frozen=held))
            yield _Answer(act(_worker(run, index, pair), given), pair)
        except ShardMissing as error:
            yield _MissingShard(index, str(error))
        except Exception as error:  # reported as a value: the driver raises it
            yield Failure.of(index, error)
        finally:
            answered.add(frozenset({(job, index)}))

    return task


class OpenWorkers:
    """The workers of one run that this Python process keeps from round to round, since Spark reuses it.

    Beyond the limits the least recently used worker is closed; it is opened again from its files when it is needed. The
    worker that trains now is always kept.

    Args:
        nbytes: maximum bytes of all open shards' files, which is their memory where they are held in memory.
        count: maximum number of workers.
    """

    def __init__(self, nbytes: int = 512 * 2**20, count: int = 32) -> None:
        self.nbytes, self.count = nbytes, count
        self._run = ""
        self._factory: WorkerFactory | None = None
        self._workers: OrderedDict[int, tuple[Pair, int, Worker]] = OrderedDict()

    def worker(self, run: JobRun, index: int, pair: Pair) -> Worker:
        """Return the worker of a shard: the open one, or a new one."""
        if run.run != self._run:
            self.close(self._run)
            self._run, self._factory = run.run, run.make()
        if index in self._workers and self._workers[index][0] != pair:  # its shard was rewritten
            self._close(index)
        if index not in self._workers:
            size = sum(nbytes(ref) for ref in pair if ref is not None)
            self._make_room(size)
            assert self._factory is not None
            self._workers[index] = (pair, size, self._factory(index, *pair))
        self._workers.move_to_end(index)
        return self._workers[index][2]

    def close(self, run: str) -> None:
        """Close the workers of a run, if this process has worked for it last."""
        if run != self._run:
            return
        for index in list(self._workers):
            self._close(index)
        factory, self._factory, self._run = self._factory, None, ""
        if factory is not None and hasattr(factory, "__exit__"):
            factory.__exit__(None, None, None)

    def _make_room(self, size: int) -> None:
        while self._workers and (
            len(self._workers) >= self.count or size + sum(held for _, held, _ in self._workers.values()) > self.nbytes
        ):
            self._close(next(iter(self._workers)))

    def _close(self, index: int) -> None:
        self._workers.pop(index)[2].close()


OPEN = OpenWorkers()
"""Workers that this Python process keeps from task to task.

Tasks are pickled, and a global that they name would be sent as a copy: they use the functions below."""


def _worker(run: JobRun, index: int, pair: Pair) -> Worker:
    return OPEN.worker(run, index, pair)


def _close(run: str) -> None:
    OPEN.close(run)
