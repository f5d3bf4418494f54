"""A worker to which faults happen on purpose, for tests (core/fault_plan.py)."""

from __future__ import annotations

import logging
import os
import pickle
import threading
from dataclasses import replace
from typing import NoReturn

from elephas_like.core.fault_plan import Fault, FaultPlan
from elephas_like.core.rounds import boundary
from elephas_like.core.types import Evaluation, Joined, Order, Recollection, Span, Update
from elephas_like.core.workers import Worker
from elephas_like.rows.shards import attempt_id

log = logging.getLogger(__name__)


class FaultyWorker:
    """A worker that fails, dies, hangs or waits where a plan says so, and is otherwise the one it is made from."""

    def __init__(self, inner: Worker, worker: int, plan: FaultPlan) -> None:
        self._inner, self._worker, self._plan = inner, worker, plan

    def joined(self, attempt: int, host: str) -> Joined:
        """Return the worker's first message."""
        return self._inner.joined(attempt, host)

    def steps_of(self, span: Span) -> int:
        """Return the worker's batches in a span."""
        return self._inner.steps_of(span)

    def train(self, order: Order) -> Update:
        """Return the update of an order, unless a fault comes before."""
        assert order.span is not None
        attempt, round = attempt_id(), self._plan.round_of(order.number, order.version)
        for index, fault in self._plan.due(self._worker, attempt, round, order.span, "fail", "kill", "hang"):
            if fault.step:
                self._inner.train(replace(order, span=self._first_steps(order.span, fault.step)))
            self._end(index, fault, round)
        update = self._inner.train(order)
        for _, fault in self._plan.due(self._worker, attempt, round, order.span, "delay"):
            threading.Event().wait(fault.seconds)
        return update

    def evaluate(self, order: Order) -> Evaluation:
        """Return the worker's evaluation. Nothing happens to evaluations."""
        return self._inner.evaluate(order)

    def recall(self, order: Order) -> Recollection:
        """Return what the worker remembers."""
        return self._inner.recall(order)

    def remind(self, order: Order) -> Recollection:
        """Have the worker remember."""
        return self._inner.remind(order)

    def progress(self) -> int:
        """Return the worker's progress."""
        return self._inner.progress()

    def save(self, path: str) -> None:
        """Save what the worker remembers."""
        self._inner.save(path)

    def restore(self, path: str) -> None:
        """Take over what was saved."""
        self._inner.restore(path)

    def close(self) -> None:
        """Close the worker."""
        self._inner.close()

    def _first_steps(self, span: Span, steps: int) -> Span:
        """Return the first steps of a span, as a span: what is trained of it is never sent."""
        of = self._inner.steps_of(Span(span.epoch))
        begin, end = boundary(of, span.begin, span.of), boundary(of, span.end, span.of)
        return Span(span.epoch, begin, min(begin + steps, end), max(of, 1))

    def _end(self, index: int, fault: Fault, round: int) -> NoReturn:
        log.warning("injected: worker %d, round %d: %s", self._worker, round, fault.kind)
        if fault.kind == "fail":
            raise pickle.loads(self._plan.errors)[index]  # noqa: S301  written by our own driver
        if fault.kind == "kill":
            os.kill(os.getpid(), fault.signal)
        while True:
            threading.Event().wait(threading.TIMEOUT_MAX)
