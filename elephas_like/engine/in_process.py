"""The engine without Spark: workers of this process, one after the other. Most tests use it.

Asynchronous runs follow a virtual clock: workers have seeded speeds, and the one that would finish first is run first.
The same seed gives the same run.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from types import MappingProxyType

import numpy as np

from elephas_like.core import scores
from elephas_like.core.async_progress import AsyncProgress
from elephas_like.core.center import Center
from elephas_like.core.quorum import Quorum
from elephas_like.core.types import (
    ASIDE,
    EpochRecord,
    Evaluation,
    Floats,
    Joined,
    Memories,
    Order,
    Recollection,
    TrainState,
    Update,
)
from elephas_like.core.workers import Worker

SPEED_SPREAD = 0.5
"""Standard deviation of the logarithm of the workers' speeds on the virtual clock."""


def speeds_of(workers: int, seed: int) -> Floats:
    """Return lognormal speeds of workers on the virtual clock, drawn from `seed`."""
    return np.random.default_rng(seed).lognormal(0.0, SPEED_SPREAD, workers)


class InProcessSyncWorkers:
    """Synchronous workers, each in turn (core.workers.SyncWorkers)."""

    def __init__(self, workers: Sequence[Worker]) -> None:
        self._workers = workers

    def joined(self) -> list[Joined]:
        """Return the first messages of all workers."""
        return [worker.joined(attempt, "in_process") for attempt, worker in enumerate(self._workers)]

    def train(self, order: Order) -> Iterator[Update]:
        """Return the workers' updates."""
        return (worker.train(order) for worker in self._workers)

    def evaluate(self, order: Order) -> Iterator[Evaluation]:
        """Return the workers' evaluations."""
        return (worker.evaluate(order) for worker in self._workers)

    def recall(self, after: int) -> Iterator[Recollection]:
        """Return what the workers remember. None of them is ahead: a worker trains when its update is asked for."""
        return (worker.recall(Order("recall", ASIDE, after)) for worker in self._workers)

    def remind(self, memories: Memories, after: int = -1) -> None:
        """Have the workers remember what they did when a checkpoint was written."""
        for index, worker in enumerate(self._workers):
            worker.remind(Order("remind", ASIDE, after, memory=memories.get(index, {})))


class InProcessQuorumWorkers(InProcessSyncWorkers):
    """Synchronous workers on a virtual clock, whose rounds end at a quorum (exchange/quorum_store.py).

    A worker needs steps / speed units of time for a span.

    Args:
        speeds: of the workers, in any unit.
    """

    def __init__(self, workers: Sequence[Worker], quorum: Quorum, speeds: Sequence[float]) -> None:
        super().__init__(workers)
        self.now = 0.0
        """Time on the virtual clock."""
        self._quorum, self._speeds = quorum, speeds
        self._busy: list[tuple[float, int, Order]] = []

    def train(self, order: Order) -> Iterator[Update]:
        """Yield updates as they come, those of stragglers from earlier rounds among them, until the round ends."""
        began, answered, without_rows, end = self.now, 0, 0, float("inf")
        at_work = {worker for _, worker, _ in self._busy}
        for worker in range(len(self._workers)):
            if worker not in at_work:
                self._start(worker, order)
        while self._busy and self._busy[0][0] <= end and answered < len(self._workers):
            self.now, worker, given = heapq.heappop(self._busy)
            update = self._workers[worker].train(given)
            empty = update.samples == 0
            yield update
            del update  # which may be large: no second one is kept
            if given is not order:
                self._start(worker, order)
                continue
            answered, without_rows = answered + 1, without_rows + empty
            if end == float("inf") and self._quorum.missing(len(self._workers), answered, without_rows) <= 0:
                end = self._quorum.end(began, self.now)
        if answered < len(self._workers):
            self.now = end

    def evaluate(self, order: Order) -> Iterator[Evaluation]:
        """Return the workers' evaluations."""
        self.now = max([self.now, *(when for when, _, _ in self._busy)])  # stragglers finish what they are at
        return super().evaluate(order)

    def _start(self, worker: int, order: Order) -> None:
        assert order.span is not None
        steps = max(1, self._workers[worker].steps_of(order.span))
        heapq.heappush(self._busy, (self.now + steps / self._speeds[worker], worker, order))


class InProcessAsyncWorkers(InProcessSyncWorkers):
    """Asynchronous workers on a virtual clock (core.workers.AsyncWorkers).

    A worker needs steps / speed units of time for a span; speeds are lognormal, drawn from `seed`.
    """

    def __init__(self, workers: Sequence[Worker], seed: int) -> None:
        super().__init__(workers)
        self._speeds = speeds_of(len(workers), seed)
        self._arrivals: list[tuple[float, int, Order]] = []
        self._clock = [0.0] * len(workers)

    def begin(
        self,
        center: Center,
        progress: AsyncProgress,
        validates: Callable[[int], bool],
        recalls: Callable[[int], bool] = lambda epoch: False,
        memories: Memories = MappingProxyType({}),
    ) -> None:
        """Start handing out work."""
        self._center, self._progress, self._validates, self._recalls = center, progress, validates, recalls
        if memories:
            self.remind(memories)
        for worker in range(len(self._workers)):
            self._schedule(worker)

    def next_epoch(self) -> EpochRecord | None:
        """Run workers until an epoch is finished, and return it. Return None after the last."""
        while not self._progress.finished:
            if self._progress.over:
                return None
            when, index, order = heapq.heappop(self._arrivals)
            self._clock[index] = when
            update = self._workers[index].train(order)
            self._progress.record(update, self._center.commit(update), self._center)
            self._schedule(index)
        record = self._progress.finished.popleft()
        if self._recalls(record.epoch):
            record = replace(record, memories=self.memories(record))
        if self._validates(record.epoch):
            order = Order.to_evaluate(record.state)
            record = replace(record, validation=scores.add(e.metrics for e in self.evaluate(order)))
        return record

    def memories(self, last: EpochRecord) -> Memories:
        """Return what the workers remember."""
        return {one.worker: one.memory for one in self.recall(ASIDE)}

    def replace(self, before: TrainState, after: TrainState) -> None:
        """Replace parts of the shared state by what callbacks changed."""
        self._center.replace(before, after)

    def _schedule(self, index: int) -> None:
        """Puts a worker's next arrival on the clock: the state it starts from is the one served now."""
        if not self._progress.has_work(index):
            return
        order = self._progress.next_order(index, self._center)
        assert order.span is not None
        steps = max(1, self._workers[index].steps_of(order.span))
        heapq.heappush(self._arrivals, (self._clock[index] + steps / self._speeds[index], index, order))
