"""Asynchronous training over the server: each answer is committed to the shared state as it comes."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from types import MappingProxyType

from elephas_like.core import scores
from elephas_like.core.async_progress import AsyncProgress
from elephas_like.core.center import Center, Commit
from elephas_like.core.errors import ElephasError
from elephas_like.core.types import (
    Array,
    EpochRecord,
    Evaluation,
    Memories,
    Order,
    Recollection,
    Result,
    Role,
    TrainState,
    Update,
)
from elephas_like.exchange.membership import Waits
from elephas_like.exchange.store import Store

MOST_EPOCHS_WAITING = 2
"""Finished epochs that may wait for the driver's callbacks before asynchronous workers wait too."""


@dataclass
class FinishedEpoch:
    """An epoch that has ended, and its evaluations and its workers' memories as they come; None if these are not asked for.

    since: when it ended.
    """

    record: EpochRecord
    evaluations: dict[int, Evaluation] | None
    since: float
    memories: dict[int, Mapping[str, Array]] | None = None

    def owes(self, worker: int) -> bool:
        """Whether the epoch waits for a worker."""
        return any(asked is not None and worker not in asked for asked in (self.evaluations, self.memories))


@dataclass(frozen=True)
class Assignment:
    """A worker's order. epoch: what an evaluation or a recall belongs to."""

    order: Order
    epoch: FinishedEpoch | None = None


class CenterStore(Store):
    """A shared state: each update is committed as it comes, and answered with the state that is served then.

    A finished epoch holds a whole state. Workers wait once more than a few are waiting for the driver's callbacks.

    Args:
        lock_free: commit several updates at once (hogwild); the center must bear it.
    """

    def __init__(
        self,
        num_workers: int,
        layout_hash: str,
        *,
        lock_free: bool = False,
        seldom: Sequence[Role] = (Role.FROZEN,),
        waits: Waits | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(num_workers, layout_hash, seldom=seldom, waits=waits, clock=clock)
        self.late = 0
        """Updates that came after the budget of samples was used up, and were not applied."""
        self._lock_free = lock_free
        self._center_lock: AbstractContextManager[object] = nullcontext() if lock_free else threading.Lock()
        self._center: Center | None = None
        self._progress: AsyncProgress | None = None
        self._validates: Callable[[int], bool] = lambda epoch: False
        self._assigned: dict[int, Assignment] = {}
        self._claimed: dict[int, Assignment] = {}
        self._numbers = dict.fromkeys(range(num_workers), -1)
        self._recalls: Callable[[int], bool] = lambda epoch: False
        self._in_center = dict.fromkeys(range(num_workers), -1)
        self._asides: dict[int, deque[Assignment]] = {worker: deque() for worker in range(num_workers)}
        self._epochs: deque[FinishedEpoch] = deque()

    def begin(
        self,
        center: Center,
        progress: AsyncProgress,
        validates: Callable[[int], bool],
        recalls: Callable[[int], bool] = lambda epoch: False,
        memories: Memories = MappingProxyType({}),
    ) -> None:
        """Start handing out orders.

        Args:
            validates: whether an epoch's state is evaluated by the workers.
            recalls: whether workers are asked what they remembered when an epoch ended.
            memories: what they remembered when a checkpoint was written.
        """
        with self._changed:
            self._center, self._progress = center, progress
            self._validates, self._recalls = validates, recalls
            for worker, memory in memories.items():
                self._asides[worker].append(Assignment(Order("remind", memory=memory)))
            self._changed.notify_all()

    def next_epoch(self) -> EpochRecord | None:
        """Wait for the next finished and evaluated epoch. Return None after the last.

        Raises:
            WaitError: no worker made progress for `round_timeout` seconds, or one that an epoch waits for did not.
        """
        with self._changed:
            _, progress = self._begun()
            called = self._clock()
            while True:
                self._raise_if_ended()
                if self._epochs and self._complete(self._epochs[0]):
                    self._driver_goes_on()
                    self._changed.notify_all()  # workers may be waiting for the driver
                    return self._finished(self._epochs.popleft())
                if not self._epochs and progress.over and not self._claimed:
                    return None
                self._driver_waits()
                due = self._owing(called)
                # An epoch waits for each of its evaluations; training goes on as long as anybody does.
                self._wait_for_answers(due, (min if self._epochs else max)(due.values()))

    def memories(self, last: EpochRecord) -> Memories:
        """Ask all workers what they remember of what is in the center, and wait for it."""
        with self._changed:
            asked = FinishedEpoch(last, None, self._clock(), {})
            self._epochs.appendleft(asked)
            for worker, asides in self._asides.items():
                asides.appendleft(Assignment(Order("recall", version=self._in_center[worker]), asked))
            self._changed.notify_all()
        found = self.next_epoch()
        assert found is not None
        return found.memories or {}

    def replace(self, before: TrainState, after: TrainState) -> None:
        """Pass to the center what callbacks have made of a state that was taken before."""
        center, _ = self._begun()
        with self._center_lock:
            center.replace(before, after)

    def _begun(self) -> tuple[Center, AsyncProgress]:
        if self._center is None or self._progress is None:
            raise ElephasError("expected begin() before this: the center is not there yet.")
        return self._center, self._progress

    def _owing(self, called: float) -> dict[int, float]:
        """Return the workers that the driver waits for, and when each is late. Time before `called` was the callbacks'."""
        everyone = range(self.num_workers)
        if not self._epochs:
            busy = [worker for worker in everyone if self._pending(worker)]
            return {worker: self._membership.answer_due(worker, called) for worker in busy or everyone}
        epoch = self._epochs[0]
        since = max(called, epoch.since)
        return {worker: self._membership.answer_due(worker, since) for worker in everyone if epoch.owes(worker)}

    def _complete(self, epoch: FinishedEpoch) -> bool:
        return not any(epoch.owes(worker) for worker in range(self.num_workers))

    def _finished(self, epoch: FinishedEpoch) -> EpochRecord:
        validation = None
        if epoch.evaluations is not None:
            validation = scores.add(epoch.evaluations[worker].metrics for worker in range(self.num_workers))
        return replace(epoch.record, validation=validation, memories=epoch.memories)

    def _pending(self, worker: int) -> Order | None:
        assigned = self._assigned.get(worker)
        return None if assigned is None else assigned.order

    def _last_number(self, worker: int, number: int) -> int:
        return self._numbers[worker]

    def _next(self, worker: int) -> Order | None:
        # An update that is being committed is counted before the worker's next order is made.
        if self._center is None or self._progress is None or worker in self._claimed:
            return None
        if worker not in self._assigned:
            assignment = self._assign(worker, self._center.version, self._progress)
            if assignment is None:
                return None
            self._assigned[worker] = assignment
            self._numbers[worker] = assignment.order.number
        return self._assigned[worker].order

    def _assign(self, worker: int, version: int, progress: AsyncProgress) -> Assignment | None:
        """Return a new order for a worker: to train if nothing else is due, and the driver's callbacks are not far behind.

        An order to train gets its state when it is sent: the driver would hold a state for each worker.
        """
        number = self._numbers[worker] + 1
        if self._asides[worker]:
            aside = self._asides[worker].popleft()
            version = version if aside.order.kind == "evaluate" else aside.order.version
            return replace(aside, order=replace(aside.order, number=number, version=version))
        if not progress.has_work(worker) or len(self._epochs) > MOST_EPOCHS_WAITING:
            return None
        return Assignment(replace(progress.order_without_state(worker), number=number))

    def _with_state(self, worker: int, order: Order) -> Order:
        if order.kind != "train":
            return order
        center, _ = self._begun()
        with self._center_lock:
            version, state = center.served(worker, live=True)
        return replace(order, version=version, state=state)

    def _claim(self, result: Result) -> Callable[[], None]:
        worker = result.worker
        self._check_kind(self._assigned[worker].order, result)
        self._claimed[worker] = self._assigned.pop(worker)
        self._membership.note_progress(worker)
        return partial(self._apply, result)

    def _apply(self, result: Result) -> None:
        """Apply a claimed result. Called without the lock."""
        try:
            if isinstance(result, Update):
                with self._center_lock:  # not the store's: heartbeats of others do not wait
                    self._commit(result)
            else:
                self._add_to_epoch(result)
        except Exception as error:  # whatever a strategy raises is raised on the driver
            self.fail(error)
        finally:
            with self._changed:
                self._claimed.pop(result.worker, None)
                self._reserved.pop(result.worker, None)
                self._changed.notify_all()

    def _add_to_epoch(self, result: Evaluation | Recollection) -> None:
        epoch = self._claimed[result.worker].epoch
        if epoch is None:  # the answer to a reminder
            return
        if isinstance(result, Evaluation):
            assert epoch.evaluations is not None
            epoch.evaluations[result.worker] = result
        else:
            assert epoch.memories is not None
            epoch.memories[result.worker] = result.memory

    def _commit(self, update: Update) -> None:
        center, progress = self._begun()
        if progress.over:
            self.late += 1
            return
        self._record(update, center.commit(update))

    def _record(self, update: Update, commit: Commit) -> None:
        center, progress = self._begun()
        with self._changed:
            if progress.over:  # the others finished it while this one was adding without the lock
                return
            progress.record(update, commit, center)
            self._in_center[update.worker] = update.number
            while progress.finished:
                self._end_epoch(progress.finished.popleft())

    def _end_epoch(self, record: EpochRecord) -> None:
        """Have workers evaluate the epoch's state, and send what they remembered at this moment, if that is asked for."""
        epoch = FinishedEpoch(record, {} if self._validates(record.epoch) else None, self._clock())
        epoch.memories = {} if self._recalls(record.epoch) else None
        self._epochs.append(epoch)
        for worker, asides in self._asides.items():
            if epoch.evaluations is not None:
                asides.append(Assignment(Order.to_evaluate(record.state), epoch))
            if epoch.memories is not None:
                asides.append(Assignment(Order("recall", version=self._in_center[worker]), epoch))
