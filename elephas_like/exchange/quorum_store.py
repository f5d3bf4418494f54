"""Synchronous rounds that do not wait for stragglers: a round ends at a quorum, and late updates count in a later one."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import replace

from elephas_like.core.quorum import Quorum
from elephas_like.core.types import ASIDE, Order, Update
from elephas_like.core.types import Result as AnyResult
from elephas_like.exchange.round_store import Result, RoundStore
from elephas_like.exchange.store import Store


class QuorumStore(RoundStore):
    """Rounds that end at a quorum. Updates are yielded as they come; evaluations and recalls wait for all workers.

    A straggler trains its order to the end, and its update is yielded by the round that is under way when it comes. Then it
    gets that round's order, if the round is not over yet. A worker that has no rows in a round answers it at once: it does
    not count towards the quorum.
    """

    quorum: Quorum

    _late: deque[Update]
    _without_rows: set[int]
    _last_answered: dict[int, int]
    _last_yielded: dict[int, int]

    def begin(self, quorum: Quorum) -> QuorumStore:
        """Set the quorum and return itself."""
        self.quorum, self._late, self._results, self._without_rows = quorum, deque(), {}, set()
        self._last_answered, self._last_yielded = {}, {}
        return self

    def _publish(self, order: Order) -> float:
        with self._changed:
            # What came after the end of the last round belongs to the next.
            self._late.extend(result for result in self._results.values() if isinstance(result, Update))
            self._without_rows.clear()
            return super()._publish(order)

    def _collect(self, since: float, kind: type[Result]) -> Iterator[Result]:
        if kind is not Update:
            yield from super()._collect(since, kind)
            return
        self._reached: float | None = None
        while self._more_to_come(since):
            yield self._first_result(kind)  # and keep no reference: the next one is as large
        with self._changed:
            self._driver_goes_on()

    def _more_to_come(self, since: float) -> bool:
        """Wait for an update. Return False if the round is over: all have answered, or a quorum, and its grace has passed."""
        with self._changed:
            while not (self._late or self._results):
                self._raise_if_ended()
                owing = [worker for worker in range(self.num_workers) if worker not in self._answered]
                missing = self.quorum.missing(self.num_workers, len(self._answered), len(self._without_rows))
                if not owing:
                    return False
                if missing > 0:  # more workers may be lost than would leave a quorum
                    due = {worker: self._membership.answer_due(worker, since) for worker in owing}
                    self._wait_for_answers(due, sorted(due.values())[len(owing) - missing])
                    continue
                self._reached = self._clock() if self._reached is None else self._reached
                if not self._wait_until(self.quorum.end(since, self._reached)):
                    return False
            self._raise_if_ended()
            return True

    def _first_result(self, kind: type[Result]) -> Result:
        with self._changed:
            result = self._late.popleft() if self._late else self._results.pop(next(iter(self._results)))
            self._last_yielded[result.worker] = result.number
            self._reserved.pop(result.worker, None)
            self._changed.notify_all()
        assert isinstance(result, kind)
        return result

    def _wanted(self, worker: int, number: int) -> bool:
        assert self._order is not None
        if number < min(self._order.number, ASIDE):  # of an earlier round: once, and not what came back before
            return number > self._last_answered.get(worker, -1)
        return super()._wanted(worker, number)

    def _with_state(self, worker: int, order: Order) -> Order:
        if order.kind == "recall":  # what is late is not in the driver's state
            return replace(order, version=self._last_yielded.get(worker, -1))
        return super()._with_state(worker, order)

    def _may_read(self, worker: int, nbytes: int) -> bool:
        return Store._may_read(self, worker, nbytes)  # updates are taken as they come, not in worker order

    def _claim(self, result: AnyResult) -> None:
        assert self._order is not None
        if result.number < ASIDE:
            self._last_answered[result.worker] = result.number
        if result.number == self._order.number and isinstance(result, Update) and not result.samples:
            self._without_rows.add(result.worker)
        if result.number < self._order.number and isinstance(result, Update):
            self._late.append(result)
            self._changed.notify_all()
        else:
            super()._claim(result)
