"""What the tasks of jobs do, and the workers that their Python processes keep from one job to the next."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

from pyspark import Accumulator, AccumulatorParam, Broadcast, TaskContext

from elephas_like.core.columns import nbytes
from elephas_like.core.errors import Failure, InputCutError, ShardMissing
from elephas_like.core.types import Order, TrainState, Vector, nothing
from elephas_like.core.workers import Worker, WorkerFactory
from elephas_like.rows.shards import Pair, failure_in
from elephas_like.spark.gpus import take_gpu
from elephas_like.spark.task_input import only

Result = TypeVar("Result")
Answered = frozenset[tuple[int, int]]


@dataclass(frozen=True)
class MissingShard:
    """Reports that a task ran on a host without its shard.

    attempt: from 0; a later one is a further try of a task that has failed, or a copy of one that runs (speculation).
    """

    worker: int
    message: str
    attempt: int = 0


@dataclass(frozen=True)
class Answer(Generic[Result]):
    """A worker's result, with the references of its shard and, if any, of its validation shard."""

    worker: int
    result: Result
    pair: Pair


class AnsweredWorkers(AccumulatorParam):
    """Accumulates (job number, worker) of ended tasks as a set: counting a task twice does no harm."""

    def zero(self, value: Answered) -> Answered:
        """Return nobody."""
        return frozenset()

    def addInPlace(self, value1: Answered, value2: Answered) -> Answered:
        """Return all of both."""
        return value1 | value2


@dataclass(frozen=True)
class JobRun:
    """What tasks need, as plain data.

    run: id of the fit, to tell fits apart in a reused process.
    make: returns the factory of workers.
    """

    run: str
    make: Callable[[], WorkerFactory]


def task_of(
    run: JobRun,
    order: Order | None,
    state: Broadcast[TrainState] | None,
    frozen: Broadcast[Vector] | None,
    act: Callable[[Worker, Order], Result],
    job: int,
    answered: Accumulator[Answered],
    copies_wait: float = 0.0,
) -> Callable[[int, Iterator[Pair]], Iterator[Answer[Result] | Failure | MissingShard]]:
    """Return what one worker's task does: have the worker carry an order out, and yield what came of it.

    Args:
        order: None before the first. state, frozen: what belongs to it.
        act: what the worker does. job: number of the job.
        copies_wait: seconds that a further attempt without its shard waits before it says so. If it is a copy of a task that runs,
            Spark would take its answer and end that task; meanwhile the task answers, and Spark ends the copy.
    """

    def task(index: int, pairs: Iterator[Pair]) -> Iterator[Answer[Result] | Failure | MissingShard]:
        try:
            take_gpu()
            pair = only(pairs)
            failure = failure_in(pair)
            if failure is not None:
                yield failure
                return
            given = order or Order("wait")
            if state is not None:
                held = nothing() if frozen is None else frozen.value
                given = replace(given, state=state.value.but(frozen=held))
            yield Answer(index, act(_worker(run, index, pair), given), pair)
        except InputCutError:
            raise  # Spark says why
        except ShardMissing as error:
            context = TaskContext.get()
            attempt = 0 if context is None else int(context.attemptNumber())
            if attempt and copies_wait:
                threading.Event().wait(copies_wait)
            yield MissingShard(index, str(error), attempt)
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


def close_workers(run: str) -> None:
    """Close the workers of a run that this Python process has kept."""
    OPEN.close(run)
