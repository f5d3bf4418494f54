"""Reports of running trials: takes those of each trial's newest attempt, and answers whether to go on."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping

from elephas_like.core.errors import SupersededError
from elephas_like.core.types import Order, Role
from elephas_like.exchange import protocol, wire
from elephas_like.exchange.request_handler import RequestHandler
from elephas_like.exchange.store import STOP

NO_STATE = protocol.Sizes({role.value: 0 for role in Role})
"""A search's frames carry numbers in their header only."""

Judge = Callable[[int, int, Mapping[str, float]], bool]
"""(trial, epoch, its logs) -> whether to go on with it."""


class TrialStore:
    """Takes the reports of running trials. Only a trial's newest attempt may report.

    judge: called under a lock, one report at a time. A report that was sent twice is judged twice.
    num_workers: trials that report at a time.
    """

    def __init__(self, judge: Judge, num_workers: int = 1) -> None:
        self._judge = judge
        self.num_workers = num_workers
        self._attempts: dict[int, int] = {}
        self._lock = threading.Lock()
        self._stopped = False

    def progress(self, trial: int, attempt: int, epoch: int, metrics: Mapping[str, float]) -> bool:
        """Take a report and return whether to go on with the trial.

        Raises:
            SupersededError: a newer attempt reports on this trial.
        """
        with self._lock:
            newest = self._attempts.get(trial, attempt)
            if attempt < newest:
                raise SupersededError(f"trial {trial}: attempt {newest} has taken over from attempt {attempt}.")
            self._attempts[trial] = attempt
            return not self._stopped and self._judge(trial, epoch, metrics)

    def stop(self) -> None:
        """End every trial at its next report."""
        with self._lock:
            self._stopped = True


class TrialRequestHandler(RequestHandler):
    """Answers reports of trials, and refuses other requests."""

    def __init__(self, store: TrialStore, sizes: protocol.Sizes = NO_STATE) -> None:
        super().__init__(sizes)
        self._store = store

    def _reply(self, source: wire.ByteSource, head: wire.Head) -> Order | protocol.Sign:
        message = wire.read_rest(source, head) if head.kind == "progress" else None
        if not isinstance(message, protocol.TrialProgress):
            raise wire.FrameError(f"expected a trial's progress, got {head.kind!r}.")
        goes_on = self._store.progress(message.worker, message.attempt, message.epoch, message.metrics)
        return protocol.Sign("done") if goes_on else STOP
