"""The engine whose rounds are ordinary Spark jobs: no port, no gang of slots; dynamic allocation and speculation welcome.

Each round ships the state in a broadcast and collects the updates. Shards stay on the executors' disks; Spark holds
their references and writes a shard again where it was lost.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from pyspark import RDD, Broadcast, SparkContext, StorageLevel

from elephas_like.core.errors import ElephasError, Failure, ShardMissing
from elephas_like.core.types import Evaluation, Joined, Order, TrainState, Update, Worker, WorkerFactory
from elephas_like.engine.failures import readable
from elephas_like.engine.groups import job_group
from elephas_like.engine.shards import Pair, attempt_id, failure_in, remove_pair, sweep
from elephas_like.engine.spool import remove_dataset

log = logging.getLogger(__name__)
Result = TypeVar("Result")

TRIES = 3
"""Times that a round is run where a shard's files are missing: then they are written anew."""

_open: dict[str, dict[int, tuple[Pair, Worker]]] = {}
"""Workers of the run that this Python process last worked for, by their number: Spark reuses processes across rounds."""


@dataclass(frozen=True)
class _Missing:
    """Says that a task ran where its shard is not."""

    worker: int
    message: str


@dataclass(frozen=True)
class JobRun:
    """What tasks need: plain data. `run` tells one fit from the next in a reused process."""

    run: str
    make: Callable[[], WorkerFactory]


class JobRounds:
    """Synchronous rounds as Spark jobs (core.types.Rounds). A context manager that deletes the shards.

    Args:
        refs: one pair of shard references per partition, persisted.
        factory: makes the workers on executors; workers of one process share what it returns.
        group: Spark job group, which Ctrl-C and failures cancel.
        describe: what Spark's UI shows for an order.
        keep: whether the shards outlive the run (a ShardedDataset's do).
        datasets: ids of the shards that go with the run.
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
        forget: Callable[[], None] = lambda: None,
    ) -> None:
        self._context, self._refs, self._run = context, refs, run
        self._group, self._describe, self._keep = group, describe, keep
        self._datasets, self._forget = tuple(datasets), forget
        self._num_workers = refs.getNumPartitions()
        self._written = False

    def __enter__(self) -> JobRounds:
        """Itself."""
        return self

    def __exit__(self, *error: object) -> None:
        """Ends what still runs, deletes shards, closes workers."""
        self._context.cancelJobGroup(self._group)
        run, keep, datasets = self._run.run, self._keep, self._datasets

        def tidy(pairs: Iterator[Pair]) -> Iterator[int]:
            _close(run)
            for pair in pairs:
                remove_pair((None if keep else pair[0], pair[1]))  # validation rows are never a ShardedDataset's
            for dataset in datasets:
                remove_dataset(dataset)  # with what killed tasks left unfinished
            yield 0

        try:
            if (
                not self._written
            ):  # references that are not there yet would be made, and all rows written, to be deleted
                sweep(self._context, self._group, self._num_workers, self._datasets)
                return
            with job_group(self._context, f"{self._group}-tidy", "elephas_like: delete shards"):
                self._refs.mapPartitions(tidy).count()
        except Exception as cause:  # the fit's own outcome must not be hidden by its tidying
            log.warning(
                "could not delete the shards of %s: %s. Spark deletes its local directories at its end.", run, cause
            )
        finally:
            self._refs.unpersist(blocking=True)

    def joined(self) -> list[Joined]:
        """All workers, after a job that writes the shards and compiles the model."""
        return self._job(None, lambda worker, _: worker.joined(attempt_id(), ""))

    def train(self, order: Order) -> Iterator[Update]:
        """The updates of one job."""
        self._check_result_size(order)
        return iter(self._job(order, lambda worker, given: worker.train(given)))

    def evaluate(self, order: Order) -> Iterator[Evaluation]:
        """The evaluations of one job."""
        return iter(self._job(order, lambda worker, given: worker.evaluate(given)))

    def _job(self, order: Order | None, act: Callable[[Worker, Order], Result]) -> list[Result]:
        """One result per worker, in worker order."""
        state: Broadcast[TrainState] | None = None
        if order is not None and order.state is not None:
            state = self._context.broadcast(order.state)
            order = replace(order, state=None)
        task = _task(self._run, order, state, act)
        try:
            for tries in range(1, TRIES + 1):
                try:
                    with job_group(self._context, self._group, self._describe(order)):
                        results = self._refs.mapPartitionsWithIndex(task).collect()
                except Exception as error:  # py4j and pyspark raise many kinds
                    raise readable(error) from None
                missing = [result for result in results if isinstance(result, _Missing)]
                for result in results:
                    if isinstance(result, Failure):
                        raise result.error()
                if not missing:
                    self._written = True
                    return results
                log.warning("%s; the shards are written again (try %d of %d)", missing[0].message, tries + 1, TRIES)
                self._forget()
                self._refs.unpersist(blocking=True)
                self._refs.persist(StorageLevel.MEMORY_AND_DISK)
            raise ElephasError(f"shards were lost {TRIES} times in one round, last: {missing[0].message}")
        finally:
            if state is not None:
                state.destroy()

    def _check_result_size(self, order: Order) -> None:
        limit = _bytes(self._context.getConf().get("spark.driver.maxResultSize", "1g"))
        needed = self._num_workers * (0 if order.state is None else order.state.nbytes)
        if limit and needed > limit:
            raise ElephasError(
                f"{self._num_workers} updates of {needed // self._num_workers / 2**20:.0f} MiB are more than "
                f"spark.driver.maxResultSize ({limit / 2**20:.0f} MiB). Raise it, or use engine='server'."
            )


def _task(
    run: JobRun, order: Order | None, state: Broadcast[TrainState] | None, act: Callable[[Worker, Order], Result]
) -> Callable[[int, Iterator[Pair]], Iterator[Result | Failure | _Missing]]:
    def task(index: int, pairs: Iterator[Pair]) -> Iterator[Result | Failure | _Missing]:
        try:
            (pair,) = pairs  # read to the end: Spark does not reuse a process that leaves input behind
            failure = failure_in(pair)
            if failure is not None:
                yield failure
                return
            given = order or Order("wait")
            if state is not None:
                given = replace(given, state=state.value)
            yield act(_worker(run, index, pair), given)
        except ShardMissing as error:
            yield _Missing(index, str(error))
        except Exception as error:  # reported as a value: the driver raises it
            yield Failure.of(index, error)

    return task


def _worker(run: JobRun, index: int, pair: Pair) -> Worker:
    """The worker of a shard in this process: the open one, or a new one."""
    for other in [name for name in _open if name != run.run]:
        _close(other)
    workers = _open.setdefault(run.run, {})
    if index in workers and workers[index][0] != pair:
        workers.pop(index)[1].close()
    if index not in workers:
        if run.run not in _factories:
            _factories[run.run] = run.make()
        workers[index] = (pair, _factories[run.run](index, *pair))
    return workers[index][1]


_factories: dict[str, WorkerFactory] = {}


def _close(run: str) -> None:
    for _, worker in _open.pop(run, {}).values():
        worker.close()
    factory = _factories.pop(run, None)
    if factory is not None and hasattr(factory, "__exit__"):
        factory.__exit__(None, None, None)


def _bytes(text: str) -> int:
    """Spark's size strings ("1g", "512m", "0") in bytes."""
    units = {"b": 0, "k": 10, "m": 20, "g": 30, "t": 40}
    digits = text.strip().lower().rstrip("b")
    if digits and digits[-1] in units:
        return int(digits[:-1]) << units[digits[-1]]
    return int(digits or 0)
