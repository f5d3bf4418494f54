"""Synchronous rounds over the server: one order for all workers, answers taken in worker order."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from types import MappingProxyType
from typing import TypeVar

from elephas_like.core.types import ASIDE, Evaluation, Memories, Order, Recollection, Update
from elephas_like.core.types import Result as AnyResult
from elephas_like.exchange.store import Store

Result = TypeVar("Result", Update, Evaluation, Recollection)


class RoundStore(Store):
    """Synchronous rounds (`core.workers.SyncWorkers`): one order for all workers, answers yielded in worker order.

    Large answers are also *read* in worker order: what is read before its turn stays within `Waits.read_ahead`.
    """

    _order: Order | None = None
    _turn: int = 0
    _last: tuple[int, int] = (-1, ASIDE - 1)
    _memories: Memories = MappingProxyType({})

    def train(self, order: Order) -> Iterator[Update]:
        """Give the order to all workers and yield their updates in worker order.

        Raises:
            WaitError: workers that have not answered made no progress for `round_timeout`; they are named.
        """
        return self._collect(self._publish(order), Update)

    def evaluate(self, order: Order) -> Iterator[Evaluation]:
        """Give the order to all workers and yield their evaluations in worker order."""
        return self._collect(self._publish(order), Evaluation)

    def recall(self, after: int) -> Iterator[Recollection]:
        """Ask all workers what they remember, and yield it in worker order."""
        return self._collect(self._publish(Order("recall", self._last[1] + 1, after)), Recollection)

    def remind(self, memories: Memories, after: int) -> None:
        """Have all workers remember what they did when a checkpoint was written, and wait until they do."""
        self._memories = memories
        for _ in self._collect(self._publish(Order("remind", self._last[1] + 1, after)), Recollection):
            pass
        self._memories = {}

    def _publish(self, order: Order) -> float:
        """Hand the order out. Return since when it is to be answered."""
        with self._changed:
            self._raise_if_ended()
            last = self._last_number(0, order.number)
            if order.number <= last:
                raise ValueError(f"order numbers must rise: {last} is followed by {order.number}.")
            self._last = (self._last[0], order.number) if order.number >= ASIDE else (order.number, self._last[1])
            self._driver_waits()
            self._order = order
            self._answered: set[int] = set()
            self._results: dict[int, AnyResult] = {}
            self._turn = 0
            self._reserved.clear()
            self._changed.notify_all()
            return self._clock()

    def _collect(self, since: float, kind: type[Result]) -> Iterator[Result]:
        for worker in range(self.num_workers):
            yield self._result_of(worker, since, kind)  # and keep no reference: the next one is as large
        with self._changed:
            self._driver_goes_on()

    def _result_of(self, worker: int, since: float, kind: type[Result]) -> Result:
        """Wait for a worker's answer and take it out of the store."""
        with self._changed:
            self._turn = worker
            self._changed.notify_all()
            while worker not in self._results:
                self._raise_if_ended()
                unanswered = [w for w in range(worker, self.num_workers) if w not in self._results]
                due = {w: self._membership.answer_due(w, since) for w in unanswered}
                self._wait_for_answers(due, min(due.values()))
            self._raise_if_ended()
            result = self._results.pop(worker)
            self._reserved.pop(worker, None)
        assert isinstance(result, kind)
        return result

    def _pending(self, worker: int) -> Order | None:
        if self._order is None or worker in self._answered:
            return None
        return self._order

    def _last_number(self, worker: int, number: int) -> int:
        return self._last[number >= ASIDE]

    def _next(self, worker: int) -> Order | None:
        return self._pending(worker)

    def _with_state(self, worker: int, order: Order) -> Order:
        return replace(order, memory=self._memories.get(worker, {})) if order.kind == "remind" else order

    def _may_read(self, worker: int, nbytes: int) -> bool:
        return worker == self._turn or self._read_ahead(worker) + nbytes <= self._waits.read_ahead

    def _claim(self, result: AnyResult) -> None:
        assert self._order is not None
        self._check_kind(self._order, result)
        self._answered.add(result.worker)
        self._results[result.worker] = result
        self._changed.notify_all()
