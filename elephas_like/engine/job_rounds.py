"""The engine whose rounds are ordinary Spark jobs: no port, no gang of slots; dynamic allocation and speculation welcome.

Each round ships the state in a broadcast and collects the updates. Shards stay on the executors' disks; Spark holds
their references and writes a shard again where it was lost.
"""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

from pyspark import RDD, Accumulator, AccumulatorParam, Broadcast, SparkContext

from elephas_like.core.columns import nbytes
from elephas_like.core.errors import DataError, ElephasError, Failure, ShardMissing, WaitError
from elephas_like.core.types import (
    Evaluation,
    Joined,
    Order,
    TrainState,
    Update,
    Vector,
    Worker,
    WorkerFactory,
    nothing,
    same,
)
from elephas_like.rows.shard_files import remove_dataset
from elephas_like.rows.shards import Pair, attempt_id, deleted_by, failure_in, persisted_anew, remove_pair, sweep
from elephas_like.spark.waits import KILLED_AFTER, Overdue, destroy, readably, run_within, stopped, tidying

log = logging.getLogger(__name__)
Result = TypeVar("Result")
Marks = tuple[tuple[int, int], ...]
Answered = frozenset[tuple[int, int]]

TRIES = 3
"""How often a round is run if files of a shard are missing. Each time they are rewritten."""


@dataclass(frozen=True)
class _Missing:
    """A task ran on a host that does not have its shard."""

    worker: int
    message: str


@dataclass(frozen=True)
class _Answer(Generic[Result]):
    """A worker's result, and (rows, checksum) of its shard and of its validation shard, if any."""

    result: Result
    marks: Marks


class _Heard(AccumulatorParam):
    """(number of the job, worker) of tasks that have ended, as a set: one that is counted twice is still one."""

    def zero(self, value: Answered) -> Answered:
        return frozenset()

    def addInPlace(self, value1: Answered, value2: Answered) -> Answered:
        return value1 | value2


@dataclass(frozen=True)
class JobRun:
    """Plain data for tasks. run: tells one fit from the next in a reused process."""

    run: str
    make: Callable[[], WorkerFactory]


class JobRounds:
    """Synchronous rounds as Spark jobs (core.workers.SyncWorkers). A context manager that deletes the shards on exit.

    Args:
        refs: one pair of shard references per partition, persisted.
        factory: makes the workers on executors; workers of one process share what it returns.
        group: Spark job group, which Ctrl-C and failures cancel.
        describe: what Spark's UI shows for an order.
        keep: whether the shards outlive the run (a ShardedDataset's do).
        datasets: ids of the shards that go with the run.
        round_timeout: seconds for which no worker at all may answer, whether their tasks run or wait for a slot.
        forget: called where shards are missing, for references that `refs` is made of and that are persisted too.
    """

    def __init__(
        self,
        context: SparkContext,
        refs: RDD,
        run: JobRun,
        group: str,
        describe: Callable[[Order | None], str],
        keep: bool,
        *,
        datasets: Sequence[str],
        round_timeout: float,
        forget: Callable[[], None] = lambda: None,
    ) -> None:
        self._context, self._refs, self._run = context, refs, run
        self._group, self._describe, self._keep = group, describe, keep
        self._datasets, self._forget = tuple(datasets), forget
        self._round_timeout = round_timeout
        self._num_workers = refs.getNumPartitions()
        self._written = self._cut_off = False
        self._marks: list[Marks] = []
        self._jobs = 0
        self._frozen: tuple[Vector, Broadcast[Vector]] | None = None
        self._heard: Accumulator[Answered] = context.accumulator(frozenset(), _Heard())

    def __enter__(self) -> JobRounds:
        """Return itself."""
        return self

    def __exit__(self, *error: object) -> None:
        """End running jobs, delete shards and close workers, within a time limit."""
        run, keep, datasets = self._run.run, self._keep, self._datasets

        def tidy(pairs: Iterator[Pair]) -> Iterator[int]:
            _close(run)
            for pair in pairs:
                remove_pair((None if keep else pair[0], pair[1]))  # validation rows are never a ShardedDataset's
            for dataset in datasets:
                remove_dataset(dataset)  # with what killed tasks left unfinished
            yield 0

        with tidying(self._context, "cancel the jobs of this fit"):
            self._context.cancelJobGroup(self._group)
        if self._frozen is not None:
            destroy(self._context, self._frozen[1])
        if self._written:
            deleted_by(self._context, f"{self._group}-tidy", datasets, self._refs.mapPartitions(tidy).count)
        else:  # references that are not there would be made, and all rows written, to be deleted
            if self._cut_off and not stopped(self._context):  # tasks write rows until they are killed
                threading.Event().wait(KILLED_AFTER)
            sweep(self._context, self._group, self._num_workers, datasets)
        with tidying(self._context, "forget references of shards"):
            self._refs.unpersist(blocking=True)

    def joined(self) -> list[Joined]:
        """Run a job that writes the shards and compiles the model, and return all workers."""
        return self._job(None, lambda worker, _: worker.joined(attempt_id(), ""))

    def train(self, order: Order) -> Iterator[Update]:
        """Run a job and yield its updates."""
        self._check_result_size(order)
        return iter(self._job(order, lambda worker, given: worker.train(given)))

    def evaluate(self, order: Order) -> Iterator[Evaluation]:
        """Run a job and yield its evaluations."""
        return iter(self._job(order, lambda worker, given: worker.evaluate(given)))

    def _job(self, order: Order | None, act: Callable[[Worker, Order], Result]) -> list[Result]:
        """One result per worker, in worker order.

        Raises:
            WaitError: no worker answered for `round_timeout` seconds; it names those who have not.
            DataError: a shard that was written again has another number of rows.
        """
        what = self._describe(order)
        state: Broadcast[TrainState] | None = None
        frozen: Broadcast[Vector] | None = None
        try:
            if order is not None and order.state is not None:
                frozen = self._shipped(order.state.frozen)
                with readably(self._context):
                    state = self._context.broadcast(order.state.but(frozen=nothing()))
                order = replace(order, state=None)
            for tries in range(1, TRIES + 1):
                self._jobs += 1
                task = _task(self._run, order, state, frozen, act, self._jobs, self._heard)
                results = self._collected(self._refs.mapPartitionsWithIndex(task), what)
                missing = [result for result in results if isinstance(result, _Missing)]
                for result in results:
                    if isinstance(result, Failure):
                        raise result.error()
                if not missing:
                    self._written = True
                    self._compare([answer.marks for answer in results])
                    return [answer.result for answer in results]
                log.warning("%s; the shards are written again (try %d of %d)", missing[0].message, tries + 1, TRIES)
                self._written = False
                self._forget()
                persisted_anew(self._refs)
            raise ElephasError(f"shards were lost {TRIES} times in one round, last: {missing[0].message}")
        finally:
            if state is not None:
                destroy(self._context, state)

    def _shipped(self, frozen: Vector) -> Broadcast[Vector] | None:
        """Broadcast the values of frozen layers, once for all rounds in which they do not change. None if there are none."""
        if self._frozen is not None and not same(self._frozen[0], frozen):
            destroy(self._context, self._frozen[1])
            self._frozen = None
        if self._frozen is None and frozen.size:
            with readably(self._context):
                self._frozen = frozen, self._context.broadcast(frozen)
        return None if self._frozen is None else self._frozen[1]

    def _collected(self, tasks: RDD, what: str) -> list[Any]:
        """Return the results of a job. An accumulator says which workers have answered, as each task ends."""
        self._heard.value, self._cut_off = frozenset(), True
        try:
            results: list[Any] = run_within(
                self._round_timeout, self._context, self._group, what, tasks.collect, progress=lambda: self._heard.value
            )
        except Overdue:
            heard = {worker for job, worker in self._heard.value if job == self._jobs}
            late = [str(worker) for worker in range(self._num_workers) if worker not in heard]
            missing = f"worker {', '.join(late)}" if late else "none, but the job has not ended"
            raise WaitError(
                f"expected {self._num_workers} workers to answer, and none did for round_timeout={self._round_timeout:g} s; "
                f"missing: {missing} ({what}). Look at the executors' logs, at whether other jobs hold "
                "the slots that their tasks wait for, or give a longer round_timeout."
            ) from None
        self._cut_off = False
        return results

    def _compare(self, marks: list[Marks]) -> None:
        """Check that shards which were rewritten hold the same rows as before."""
        for worker, (before, now) in enumerate(zip(self._marks or marks, marks, strict=True)):
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
        self._marks = marks

    def _check_result_size(self, order: Order) -> None:
        limit = _bytes(self._context.getConf().get("spark.driver.maxResultSize", "1g"))
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
    heard: Accumulator[Answered],
) -> Callable[[int, Iterator[Pair]], Iterator[_Answer[Result] | Failure | _Missing]]:
    def task(index: int, pairs: Iterator[Pair]) -> Iterator[_Answer[Result] | Failure | _Missing]:
        try:
            (pair,) = pairs  # read to the end: Spark does not reuse a process that leaves input behind
            failure = failure_in(pair)
            if failure is not None:
                yield failure
                return
            given = order or Order("wait")
            if state is not None:
                held = nothing() if frozen is None else frozen.value
                given = replace(given, state=state.value.but(frozen=held))
            marks = tuple((ref.rows, ref.checksum) for ref in pair if ref is not None)
            yield _Answer(act(_worker(run, index, pair), given), marks)
        except ShardMissing as error:
            yield _Missing(index, str(error))
        except Exception as error:  # reported as a value: the driver raises it
            yield Failure.of(index, error)
        finally:
            heard.add(frozenset({(job, index)}))

    return task


class OpenWorkers:
    """The workers that a reused Python process keeps from round to round, of one run at a time.

    What would be over a bound is closed, the longest unused first; a worker that comes again is opened anew from its
    files. The worker at work always has its place.

    Args:
        nbytes: of the files of all shards that are open: what they take in memory where they are held there.
        count: of workers.
    """

    def __init__(self, nbytes: int = 512 * 2**20, count: int = 32) -> None:
        self.nbytes, self.count = nbytes, count
        self._run = ""
        self._factory: WorkerFactory | None = None
        self._workers: OrderedDict[int, tuple[Pair, int, Worker]] = OrderedDict()

    def worker(self, run: JobRun, index: int, pair: Pair) -> Worker:
        """Return the open worker of a shard, or a new one."""
        if run.run != self._run:
            self.close(self._run)
            self._run, self._factory = run.run, run.make()
        if index in self._workers and self._workers[index][0] != pair:  # its shard was written again
            self._close(index)
        if index not in self._workers:
            size = sum(nbytes(ref) for ref in pair if ref is not None)
            self._make_room(size)
            assert self._factory is not None
            self._workers[index] = (pair, size, self._factory(index, *pair))
        self._workers.move_to_end(index)
        return self._workers[index][2]

    def close(self, run: str) -> None:
        """Close the workers of a run, if this process worked for it last."""
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
"""A module's global is what a Python process keeps from task to task. Tasks, which are pickled, get at it by functions of
the module: what they name themselves would be sent along as a copy."""


def _worker(run: JobRun, index: int, pair: Pair) -> Worker:
    return OPEN.worker(run, index, pair)


def _close(run: str) -> None:
    OPEN.close(run)


def _bytes(text: str) -> int:
    """Return the bytes that one of Spark's size strings means: "1g", "512m", "0"."""
    units = {"b": 0, "k": 10, "m": 20, "g": 30, "t": 40}
    digits = text.strip().lower().rstrip("b")
    if digits and digits[-1] in units:
        return int(digits[:-1]) << units[digits[-1]]
    return int(digits or 0)
