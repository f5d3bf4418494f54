"""The engine without Spark: workers of this process, one after the other. Most tests use it.

Asynchronous runs follow a virtual clock: workers have seeded speeds, and the one that would finish first is run first.
The same seed gives the same run.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from elephas_like.core import scores
from elephas_like.core.center import Center, Ledger
from elephas_like.core.types import Array, EpochRecord, Evaluation, Joined, Order, Update, Vector, Worker

SPEED_SPREAD = 0.5
"""Standard deviation of the logarithm of the workers' speeds on the virtual clock."""


class InProcessRounds:
    """Synchronous rounds: every worker in turn (core.types.Rounds)."""

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


class InProcessAsyncWorkers(InProcessRounds):
    """Asynchronous workers on a virtual clock (core.loop.Crowd).

    A worker needs steps / speed units of time for a span; speeds are lognormal, drawn from `seed`.
    """

    def __init__(self, workers: Sequence[Worker], seed: int) -> None:
        super().__init__(workers)
        self._speeds = np.random.default_rng(seed).lognormal(0.0, SPEED_SPREAD, len(workers))
        self._arrivals: list[tuple[float, int, Order]] = []
        self._clock = [0.0] * len(workers)

    def begin(self, center: Center, ledger: Ledger, validates: Callable[[int], bool]) -> None:
        """Schedule the first arrival of every worker."""
        self._center, self._ledger, self._validates = center, ledger, validates
        for worker in range(len(self._workers)):
            self._schedule(worker)

    def next_epoch(self) -> EpochRecord | None:
        """Run workers in the order of their arrivals until an epoch is finished. Return None when training has ended."""
        while not self._ledger.finished:
            if self._ledger.over:
                return None
            when, index, order = heapq.heappop(self._arrivals)
            self._clock[index] = when
            update = self._workers[index].train(order)
            staleness = self._center.version - update.version
            self._ledger.book(update, staleness, self._center.commit(update), self._center)
            self._schedule(index)
        record = self._ledger.finished.popleft()
        if self._validates(record.epoch):
            order = Order("evaluate", state=record.state)
            record = replace(record, validation=scores.add(e.metrics for e in self.evaluate(order)))
        return record

    def replace(self, parts: Mapping[str, Array], moved: Vector | None = None) -> None:
        """Replace parts of the shared state by what callbacks changed."""
        self._center.replace(parts, moved)

    def _schedule(self, index: int) -> None:
        """Schedule a worker's next arrival. It starts from the state that is served now."""
        if not self._ledger.has_work(index):
            return
        order = self._ledger.next_order(index, self._center)
        assert order.span is not None
        steps = max(1, self._workers[index].steps_of(order.span))
        heapq.heappush(self._arrivals, (self._clock[index] + steps / self._speeds[index], index, order))
