"""Workers as the loop sees them, with a clock beside them: what the driver waits for, and what moves, is told to a monitor."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from types import MappingProxyType
from typing import Protocol, cast, runtime_checkable

from elephas_like.core.async_progress import AsyncProgress
from elephas_like.core.center import Center
from elephas_like.core.fit_monitor import FitMonitor, RoundTimes, WorkerSign
from elephas_like.core.summing import Summed, Weighing
from elephas_like.core.types import (
    EpochRecord,
    Evaluation,
    Joined,
    Memories,
    Order,
    Recollection,
    TrainState,
    Update,
    Vector,
)
from elephas_like.core.workers import AsyncWorkers, SummingWorkers, SyncWorkers
from elephas_like.engine.job_rounds import JobRounds

Traffic = tuple[int, int]
"""Bytes of updates and of states."""


@runtime_checkable
class Counted(Protocol):
    """Workers behind a server (exchange/store.py), which knows when it heard of them and what it has moved."""

    def signs(self) -> Mapping[int, WorkerSign]:
        """Return the workers' last signs of life."""
        ...

    def traffic(self) -> Traffic:
        """Return the bytes moved so far."""
        ...


def watched(workers: SyncWorkers | AsyncWorkers, monitor: FitMonitor) -> SyncWorkers | AsyncWorkers:
    """Return the same workers, with a monitor that is told of what they do."""
    if isinstance(workers, Counted):
        monitor.watch(signs=workers.signs)
    if isinstance(workers, AsyncWorkers):
        return WatchedAlone(workers, monitor)
    return WatchedRounds(workers, monitor)


class WatchedRounds:
    """Synchronous workers (core.workers.SyncWorkers, and SummingWorkers where they are)."""

    def __init__(self, workers: SyncWorkers, monitor: FitMonitor) -> None:
        self._workers, self._monitor = workers, monitor
        self._frozen: Vector | None = None

    def joined(self) -> list[Joined]:
        """Wait for all workers and return them in order."""
        joined = self._workers.joined()
        self._monitor.joined(joined)
        return joined

    def train(self, order: Order) -> Iterator[Update]:
        """Return the workers' updates, and tell the monitor how long they were waited for."""
        began, workers = self._monitor.clock(), self._workers
        traffic: Callable[[int], Traffic | None]
        if isinstance(workers, Counted):
            traffic = partial(_moved_since, workers, workers.traffic())
        elif isinstance(workers, JobRounds):
            traffic = partial(_shipped, self._bytes_of(cast(TrainState, order.state)))
        else:
            traffic = _nothing
        return _Timed(workers.train(order), self._monitor, began, traffic)

    def train_summed(self, order: Order, weighing: Weighing) -> Summed | None:
        """Return the workers' updates, their vectors added up, if they do that; and tell the monitor how long they were waited for."""
        if not isinstance(self._workers, SummingWorkers):
            return None
        began = self._monitor.clock()
        summed = self._workers.train_summed(order, weighing)
        if summed is not None:
            down = self._bytes_of(cast(TrainState, order.state))
            self._monitor.exchanged(RoundTimes(began, self._monitor.clock() - began, summed.nbytes, down))
        return summed

    def evaluate(self, order: Order) -> Iterator[Evaluation]:
        """Return the workers' evaluations."""
        return self._workers.evaluate(order)

    def recall(self, after: int) -> Iterator[Recollection]:
        """Return what the workers remember."""
        return self._workers.recall(after)

    def remind(self, memories: Memories, after: int) -> None:
        """Have the workers remember what they did."""
        self._workers.remind(memories, after)

    def _bytes_of(self, state: TrainState) -> int:
        """Return the bytes of a state as the jobs engine ships it: frozen layers when they have changed."""
        known = state.frozen is self._frozen
        self._frozen = state.frozen
        return state.nbytes - (state.frozen.nbytes if known else 0)


def _moved_since(workers: Counted, before: Traffic, up: int) -> Traffic:
    """What a server has moved in a round."""
    received, sent = workers.traffic()
    return received - before[0], sent - before[1]


def _shipped(down: int, up: int) -> Traffic:
    """What Spark has moved in a round: a state, and updates of `up` bytes."""
    return up, down


def _nothing(up: int) -> None:
    """Updates of workers in this process move nowhere."""


class _Timed(Iterator[Update]):
    """The updates of one round. It keeps none of them: they may be large."""

    def __init__(
        self, updates: Iterator[Update], monitor: FitMonitor, began: float, traffic: Callable[[int], Traffic | None]
    ) -> None:
        self._updates, self._monitor, self._began, self._traffic = updates, monitor, began, traffic
        self._waited = monitor.clock() - began  # the jobs engine has waited by now
        self._up = 0

    def __next__(self) -> Update:
        asked = self._monitor.clock()
        try:
            update = next(self._updates)
        except StopIteration:
            self._waited += self._monitor.clock() - asked
            up, down = self._traffic(self._up) or (None, None)
            self._monitor.exchanged(RoundTimes(self._began, self._waited, up, down))
            raise
        self._waited += self._monitor.clock() - asked
        self._up += sum(array.nbytes for array in update.arrays().values())
        return update


class WatchedAlone:
    """Workers that go on alone (core.workers.AsyncWorkers)."""

    def __init__(self, workers: AsyncWorkers, monitor: FitMonitor) -> None:
        self._workers, self._monitor = workers, monitor

    def joined(self) -> list[Joined]:
        """Wait for all workers and return them in order."""
        joined = self._workers.joined()
        self._monitor.joined(joined)
        return joined

    def begin(
        self,
        center: Center,
        progress: AsyncProgress,
        validates: Callable[[int], bool],
        recalls: Callable[[int], bool] = lambda epoch: False,
        memories: Memories = MappingProxyType({}),
    ) -> None:
        """Start handing out work. The monitor sees what is recorded of it."""
        self._monitor.watch(live=progress.history)
        self._workers.begin(center, progress, validates, recalls, memories)

    def next_epoch(self) -> EpochRecord | None:
        """Wait for the next finished epoch."""
        record = self._workers.next_epoch()
        if isinstance(self._workers, Counted):
            self._monitor.moved(*self._workers.traffic())
        return record

    def memories(self, last: EpochRecord) -> Memories:
        """Return what the workers remember."""
        return self._workers.memories(last)

    def replace(self, before: TrainState, after: TrainState) -> None:
        """Pass what callbacks changed to the shared state."""
        self._workers.replace(before, after)
