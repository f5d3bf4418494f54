"""The state of one run behind the server: membership, orders, answers and errors.

The server's threads call `announce`, `join`, `ask`, `offer`, `answer`, `beat` and `report` for workers; the driver calls the
rest. Every wait is on one condition and ends by a time-out. `RoundStore` (round_store.py) makes synchronous rounds of this,
`CenterStore` (center_store.py) a shared state.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Literal

from elephas_like.core.errors import ElephasError, Failure, ShardMissing, StoppedError, SupersededError
from elephas_like.core.fit_monitor import WorkerSign
from elephas_like.core.types import (
    Array,
    Evaluation,
    Joined,
    Order,
    PackedStep,
    Recollection,
    Result,
    Role,
    Update,
    nothing,
    same,
)
from elephas_like.exchange.membership import LONGEST_POLL, Membership, Waits

log = logging.getLogger(__name__)

STOP = Order("stop")
WAIT = Order("wait")
SUSPEND = Order("suspend")

_ANSWERS: dict[type[Result], tuple[tuple[str, ...], str]] = {
    Update: (("train",), "an update"),
    Evaluation: (("evaluate",), "an evaluation"),
    Recollection: (("recall", "remind"), "a recollection"),
}
"""The orders that each kind of answer answers, and how it is called."""


class Store:
    """What both modes share. The two kinds of stores decide which order comes next and what becomes of answers.

    Args:
        layout_hash: the driver's; a worker with another one fails the run.
        seldom: parts of the state that seldom change, and are left out of orders to workers that have them.
        clock: seconds; for tests.
    """

    def __init__(
        self,
        num_workers: int,
        layout_hash: str,
        *,
        seldom: Sequence[Role] = (Role.FROZEN,),
        waits: Waits | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.num_workers = num_workers
        self.dropped = 0
        """Answers that were not applied because they, or what replaced them, had been applied before."""
        self.rewrite: Callable[[], None] | None = None
        """Drops the references of shards, so that a worker's next attempt writes its rows again; None if that is not possible."""
        self._waits = waits or Waits()
        self._clock = clock
        self._changed = threading.Condition()
        self._membership = Membership(num_workers, layout_hash, self._waits, clock)
        self._reserved: dict[int, int] = {}
        self._seldom = tuple(seldom)
        self._newest: dict[Role, Array] = {}
        self._failure: BaseException | None = None
        self._unneeded: tuple[str, Failure] | None = None
        self._stopped = False
        self._idle_since: float | None = None
        self._suspended = False
        self._received = self._sent = 0

    # Called by the driver.

    def joined(self) -> list[Joined]:
        """Wait for all workers to join and return them in order.

        Raises:
            WaitError: some have not joined in time; it names them.
        """
        began = self._clock()
        with self._changed:
            self._driver_waits()
            while missing := self._membership.missing:
                self._raise_if_ended()
                due = {worker: self._membership.join_due(worker, began) for worker in missing}
                end, limit = min(due.values())
                if not self._wait_until(end):
                    late = self._membership.late({worker: deadline.at for worker, deadline in due.items()})
                    error = self._membership.late_error(late, "join", limit)
                    self.fail(error)
                    raise error
            self._raise_if_ended()
            self._driver_goes_on()
            return self._membership.joined()

    def note_tasks(self, running: int, ended: int) -> bool:
        """Record how many tasks Spark runs for this run and has ended. Return False once all workers have joined.

        The counts tell a worker that Spark has not started from one whose rows are still being made by tasks that cannot
        announce themselves: those of an earlier stage, or those that write a dataset that is kept.
        """
        with self._changed:
            if self._membership.note_tasks(running, ended):
                self._changed.notify_all()
            return bool(self._membership.missing) and not self._ended

    def signs(self) -> dict[int, WorkerSign]:
        """Return the workers' last signs of life."""
        with self._changed:
            return self._membership.signs()

    def traffic(self) -> tuple[int, int]:
        """Return the bytes of the updates that have come and of the states that went out, so far."""
        with self._changed:
            return self._received, self._sent

    def idle_seconds(self) -> float:
        """Return for how long the driver has not waited for its workers: it runs callbacks. 0 while it waits."""
        with self._changed:
            return 0.0 if self._idle_since is None else self._clock() - self._idle_since

    def suspend(self) -> None:
        """Tell every worker to end its task at its next request, unless the driver needs them by now.

        It lasts until `recalled`: some may have left.
        """
        with self._changed:
            self._suspended = not self._ended and (self._suspended or self._idle_since is not None)
            self._changed.notify_all()

    def recalled(self) -> bool:
        """Wait, once all tasks have ended, until the driver needs its workers again.

        Return False if they ended for another reason than `suspend`, or if the run is over.
        """
        with self._changed:
            while self._suspended and self._idle_since is not None and not self._ended:
                self._changed.wait()
            recalled, self._suspended = self._suspended and not self._ended, False
            return recalled

    def fail(self, error: BaseException) -> None:
        """End the run with an error. The driver raises it, and workers are told to stop.

        Where Spark has given a task up because its later attempts failed beside the first, what they said is raised.
        """
        with self._changed:
            if isinstance(error, SupersededError) and self._unneeded is not None and self._unneeded[0] in str(error):
                error = self._unneeded[1].error()
            if self._failure is None and not self._stopped:
                self._failure = error
            self._changed.notify_all()

    def stop(self) -> None:
        """Tell every worker to stop at its next request."""
        with self._changed:
            if self.dropped and not self._stopped:
                log.info("%d answers were dropped because they had been applied before.", self.dropped)
            self._stopped = True
            self._changed.notify_all()

    # Called by the server for a worker.

    def announce(self, worker: int, attempt: int, host: str) -> bool:
        """Take a worker's first sign of life, before it has rows to join with. Return False if the run is over.

        Raises:
            SupersededError: this attempt has lost its place to another one.
        """
        self._membership.check_number(worker)
        with self._changed:
            self._membership.announce(worker, attempt, host)
            self._changed.notify_all()
            return not self._ended

    def join(self, joined: Joined) -> Order:
        """Make a worker a member and return its first order, or "wait" while another attempt holds its place.

        The same attempt may join as often as it likes. A new attempt gets what its predecessor has not answered.

        Raises:
            SupersededError: this attempt has lost its place to another one.
        """
        worker, attempt = joined.worker, joined.attempt
        self._membership.check_number(worker)
        end = self._poll_end()
        with self._changed:
            # Wait for the lease of the attempt that holds the place to end.
            while True:
                free = self._membership.may_register(worker, attempt)
                if self._ended:
                    return STOP
                if free:
                    break
                if not self._wait_until(min(end, self._membership.lease_end(worker))) and self._clock() >= end:
                    return WAIT
            # A worker that does not fit fails the run.
            try:
                takes_over = self._membership.register(joined)
            except ElephasError as error:
                self.fail(error)
                return STOP
            if takes_over:
                self._reserved.pop(worker, None)
            self._changed.notify_all()
            order = self._next_order(worker, attempt, end)
        return self._complete_order(worker, order)

    def ask(self, worker: int, attempt: int) -> Order:
        """Return the next order of a worker that was told to wait."""
        with self._changed:
            order = self._next_order(worker, attempt, self._poll_end())
        return self._complete_order(worker, order)

    def offer(self, worker: int, attempt: int, number: int, nbytes: int) -> Order | Literal["send", "again"]:
        """Decide whether the answer to order `number` may be read now.

        Returns:
            "send" if there is room for its `nbytes`, which are then reserved. "again" if there was no room for so long that
            the worker should ask again. The next order if the answer is no longer wanted.
        """
        end = self._poll_end()
        with self._changed:
            while True:
                self._membership.renew(worker, attempt)
                if self._ended:
                    return STOP
                if not self._wanted(worker, number):
                    self._note_dropped(worker)
                    order = self._next_order(worker, attempt, end)
                    break
                # The worker has done its part and waits for its turn: that counts as progress.
                self._membership.note_progress(worker)
                if worker in self._reserved or self._may_read(worker, nbytes):
                    self._reserved[worker] = nbytes
                    return "send"
                if not self._wait_until(end):
                    return "again"
        return self._complete_order(worker, order)

    def withdraw(self, worker: int, attempt: int) -> None:
        """Release the bytes reserved for an answer that did not arrive whole."""
        with self._changed:
            member = self._membership.members.get(worker)
            if member is not None and member.joined.attempt == attempt:
                self._reserved.pop(worker, None)
                self._changed.notify_all()

    def answer(self, attempt: int, result: Result) -> Order:
        """Take a result, once, and return the worker's next order.

        Raises:
            SupersededError: this attempt has lost its place to another one.
            ElephasError: the result is none of the order that the worker has.
        """
        self.accept(attempt, result)
        return self.ask(result.worker, attempt)

    def accept(self, attempt: int, result: Result) -> None:
        """Take a result, once. Call `ask` afterwards, without the result: the next order may be long in coming.

        Raises:
            SupersededError, ElephasError: as `answer`.
        """
        worker = result.worker
        with self._changed:
            member = self._membership.renew(worker, attempt)
            if self._ended:
                return
            if not self._wanted(worker, result.number):
                self._note_dropped(worker)
                return
            apply = self._claim(result)
            member.has_answered(result)
            if isinstance(result, Update):
                self._received += sum(array.nbytes for array in result.arrays().values())
        if apply is not None:
            apply()

    def beat(self, worker: int, attempt: int, progress: int = 0) -> bool:
        """Renew a lease. Return False if the run is over for this worker.

        Args:
            progress: a number that changes while the worker is at work.

        Raises:
            SupersededError: this attempt has lost its place to another one.
        """
        with self._changed:
            self._membership.beat(worker, attempt, progress)
            return not self._ended

    def report(self, attempt: int, failure: Failure) -> bool:
        """Fail the run with a worker's exception, also before it has joined.

        Return True where the run goes on: it has begun, and the files of a shard are missing that can be written again. The task
        must raise, so that Spark runs it once more.

        Raises:
            SupersededError: this attempt has lost its place, or is a copy that waits for it, and its errors do not matter.
        """
        rewrite = self.rewrite if failure.type_name == ShardMissing.__name__ else None
        with self._changed:
            if rewrite is None or self._membership.missing:
                try:
                    self._membership.check_may_fail(failure.worker, attempt)
                except SupersededError as unneeded:
                    self._unneeded = str(unneeded), failure
                    log.warning(
                        "attempt %d of worker %d is not needed, and has failed: %s",
                        attempt,
                        failure.worker,
                        failure.message,
                    )
                    raise
                self.fail(failure.error())
                return False
        log.warning("%s; the shard is written again", failure.message.rstrip("."))
        try:
            rewrite()
        except Exception as error:  # Spark raises many kinds, as when its context was stopped
            self.fail(error)
            return False
        return True

    # What a kind of store decides. Called under the lock.

    def _pending(self, worker: int) -> Order | None:
        """Return the order that the worker has not answered, if any."""
        raise NotImplementedError

    def _last_number(self, worker: int, number: int) -> int:
        """Return the number of the worker's latest order of the kind that `number` has; -1 before the first."""
        raise NotImplementedError

    def _next(self, worker: int) -> Order | None:
        """Return the order to hand out now; None if there is none yet."""
        raise NotImplementedError

    def _may_read(self, worker: int, nbytes: int) -> bool:
        """Whether an answer of `nbytes` may be read now: one alone, or as many as `Waits.read_ahead` has room for."""
        ahead = self._read_ahead(worker)
        return ahead == 0 or ahead + nbytes <= self._waits.read_ahead

    def _claim(self, result: Result) -> Callable[[], None] | None:
        """Mark the worker's order as answered by a result. Return what is to be done with it without the lock, if anything."""
        raise NotImplementedError

    def _with_state(self, worker: int, order: Order) -> Order:
        """Return the order with the state to start from. Called without the lock, as a state may take long to make."""
        return order

    # Waiting and ending.

    def _driver_waits(self) -> None:
        """Note, under the lock, that the driver waits for its workers."""
        self._idle_since = None
        self._changed.notify_all()

    def _driver_goes_on(self) -> None:
        """Note, under the lock, that the driver has what it waited for, and runs callbacks now."""
        self._idle_since = self._clock()

    @property
    def _ended(self) -> bool:
        return self._stopped or self._failure is not None

    def _raise_if_ended(self) -> None:
        if self._failure is not None:
            raise self._failure
        if self._stopped:
            raise StoppedError("the run was stopped while the driver was waiting for its workers.")

    def _poll_end(self) -> float:
        # A held request counts as progress when it is answered, so it must end well within a short round_timeout.
        return self._clock() + min(self._waits.poll_seconds, LONGEST_POLL, self._waits.round_timeout / 2)

    def _wait_until(self, end: float) -> bool:
        """Wait for a change. Return False if `end` has passed."""
        remaining = end - self._clock()
        if remaining <= 0:
            return False
        self._changed.wait(min(remaining, threading.TIMEOUT_MAX))
        return True

    def _wait_for_answers(self, due: dict[int, float], end: float) -> None:
        """Wait for a change until `end`. If it has passed, fail the run, naming the workers that are late by `due`."""
        if not self._wait_until(end):
            error = self._membership.late_error(self._membership.late(due), "answer", "round_timeout")
            self.fail(error)
            raise error

    # Orders and answers.

    def _next_order(self, worker: int, attempt: int, end: float) -> Order:
        while True:
            member = self._membership.renew(worker, attempt)
            if self._ended:
                return STOP
            if self._suspended:
                member.left = True
                return SUSPEND
            order = self._next(worker)
            if order is not None:
                return order
            if not self._wait_until(end):
                return WAIT

    def _complete_order(self, worker: int, order: Order) -> Order:
        """Return an order as it is sent, and count its bytes. Called without the lock."""
        order = self._order_to_send(worker, order)
        if order.kind == "train" and order.state is not None:
            with self._changed:
                self._sent += order.state.nbytes + (0 if order.step is None else order.step.packed.nbytes)
                self._sent += 0 if order.mean_step is None else order.mean_step.nbytes
        return order

    def _order_to_send(self, worker: int, order: Order) -> Order:
        """Return an order with its state. Called without the lock.

        Parts that seldom change are left out if the worker has them from an order that it has answered, and so are weights to which a
        packed step leads from those that it has.
        """
        try:
            order = self._with_state(worker, order)
        except Exception as error:  # whatever a strategy raises is raised on the driver
            self.fail(error)
            return STOP
        if order.state is None:
            return order
        left_out: dict[str, Array] = {}
        step = order.step
        with self._changed:
            member = self._membership.members[worker]
            for role in self._seldom:
                part = order.state.part(role)
                if not part.size:
                    continue
                if role not in self._newest or not same(part, self._newest[role]):
                    self._newest[role] = part
                member.sent[role] = self._newest[role], order.number
                if member.held.get(role) is self._newest[role]:
                    left_out[role.value] = nothing()
            if step is not None and step.packed.size:
                if step.after >= 0 and member.trained == step.after:
                    left_out[Role.WEIGHT.value] = nothing()
                else:
                    step = PackedStep()
        if not left_out and step is order.step:
            return order
        return replace(order, state=order.state.but(**left_out), step=step)

    def _wanted(self, worker: int, number: int) -> bool:
        """Whether the worker's order `number` is still to be answered."""
        pending = self._pending(worker)
        if pending is not None and pending.number == number:
            return True
        last = self._last_number(worker, number)
        if number <= last:
            return False
        raise ElephasError(f"worker {worker} answers order {number}; expected one up to {last}, its latest.")

    def _note_dropped(self, worker: int) -> None:
        self.dropped += 1
        log.info("worker %d sent an answer again; it is not applied twice.", worker)

    def _check_kind(self, order: Order, result: Result) -> None:
        kinds, what = _ANSWERS[type(result)]
        if order.kind not in kinds:
            raise ElephasError(f"worker {result.worker} answered its {order.kind!r} order {order.number} with {what}.")

    def _read_ahead(self, besides: int) -> int:
        """Return the bytes of other workers' answers that are in, or about to come from workers that are alive."""
        return sum(
            nbytes
            for worker, nbytes in self._reserved.items()
            if worker != besides and (self._pending(worker) is None or self._membership.holds_lease(worker))
        )
