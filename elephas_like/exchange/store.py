"""The state machine behind both servers: who has joined, which order is out, who has answered, and what went wrong.

Worker threads of a server call `join`, `ask`, `offer`, `answer`, `beat` and `report`; the driver calls the rest. Every
wait is on one condition and ends by a time-out. `RoundStore` holds synchronous rounds, `CenterStore` a shared state.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, TypeVar

from elephas_like.core import scores
from elephas_like.core.async_progress import AsyncProgress
from elephas_like.core.center import Center, Commit
from elephas_like.core.errors import (
    DataError,
    ElephasError,
    Failure,
    StoppedError,
    SupersededError,
    WaitError,
)
from elephas_like.core.types import Array, EpochRecord, Evaluation, Joined, Order, Update, Vector, nothing, same

log = logging.getLogger(__name__)

LONGEST_POLL = 20.0
MOST_EPOCHS_WAITING = 2
"""Finished epochs that may wait for the driver's callbacks before asynchronous workers wait too."""
STOP = Order("stop")
WAIT = Order("wait")

Result = TypeVar("Result", Update, Evaluation)


@dataclass(frozen=True)
class Waits:
    """How long anything may take, in seconds, and how much may be read ahead, in bytes.

    join_timeout: from the first worker's first sign of life until all have given one; and without one, for a worker
        that has not joined.
    round_timeout: in which a worker that owes something (its rows written, an answer) does not move on: it trains no
        step, nor begins anew as another attempt. Before the first sign of life, in which Spark ends no task.
    lease_seconds: after the last sign of life, until another attempt may take a worker's place.
    poll_seconds: how long a request is held while there is nothing to do; at most 20.
    read_ahead: answers that are taken in before their turn, all together.
    """

    join_timeout: float = 60.0
    round_timeout: float = 600.0
    lease_seconds: float = 10.0
    poll_seconds: float = LONGEST_POLL
    read_ahead: int = 64 * 2**20


@dataclass
class _Place:
    """Who holds a worker's place.

    sent, holds: what frozen layers hold in the order that it was sent last, and in one that it has answered.
    """

    joined: Joined
    heard: float
    progress: int = 0
    former: set[int] = field(default_factory=set)
    sent: Vector | None = None
    holds: Vector | None = None


@dataclass
class _Guest:
    """A worker that has said that it is there, and has not joined yet."""

    attempt: int
    host: str
    heard: float


class Store:
    """Membership, guard and errors of one run. The two kinds below say which order comes next.

    Args:
        layout_hash: the driver's; a worker with another one fails the run.
        clock: seconds; for tests.
    """

    def __init__(
        self,
        num_workers: int,
        layout_hash: str,
        *,
        waits: Waits | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.num_workers = num_workers
        self.dropped = 0
        """Answers that were not applied because they, or what replaced them, had been applied before."""
        self._layout_hash = layout_hash
        self._waits = waits or Waits()
        self._clock = clock
        self._changed = threading.Condition()
        self._places: dict[int, _Place] = {}
        self._first: dict[int, Joined] = {}
        self._guests: dict[int, _Guest] = {}
        self._first_sign: float | None = None
        self._moved: dict[int, float] = {}
        self._spark_tasks: tuple[int, int] = (0, 0)
        self._spark_moved: float = clock()
        self._reserved: dict[int, int] = {}
        self._frozen: Vector | None = None
        self._failure: BaseException | None = None
        self._stopped = False

    # What the driver calls.

    def joined(self) -> list[Joined]:
        """All workers, in order, once they have joined.

        Raises:
            WaitError: some have not joined in time; it names them.
        """
        began = self._clock()
        with self._changed:
            while missing := [worker for worker in range(self.num_workers) if worker not in self._places]:
                self._raise_if_ended()
                due = {worker: self._join_due(worker, began) for worker in missing}
                end, limit = min(due.values())
                if not self._wait_until(end):
                    late = self._late_of({worker: end for worker, (end, _) in due.items()})
                    raise self._late(late, "join", limit)
            self._raise_if_ended()
            return [self._places[worker].joined for worker in range(self.num_workers)]

    def note_tasks(self, running: int, ended: int) -> bool:
        """Takes note of how many tasks Spark runs for this run, and has ended; False where that matters no more.

        It tells a worker that Spark has not started from one whose rows are still being made, by tasks that cannot
        announce themselves: an earlier stage's, or those that write down a dataset that is kept.
        """
        with self._changed:
            if (running, ended) != self._spark_tasks:
                self._spark_tasks, self._spark_moved = (running, ended), self._clock()
                self._changed.notify_all()
            return len(self._places) < self.num_workers and not self._ended

    def fail(self, error: BaseException) -> None:
        """Ends the run with an error: whoever waits on the driver raises it, workers are told to stop."""
        with self._changed:
            if self._failure is None and not self._stopped:
                self._failure = error
            self._changed.notify_all()

    def stop(self) -> None:
        """Tells every worker to stop at its next request."""
        with self._changed:
            if self.dropped and not self._stopped:
                log.info("%d answers were dropped because they had been applied before.", self.dropped)
            self._stopped = True
            self._changed.notify_all()

    # What the server calls for a worker.

    def announce(self, worker: int, attempt: int, host: str) -> bool:
        """A worker's first sign of life, before it has rows to join with; False where the run is over.

        Raises:
            SupersededError: this attempt has lost its place to another one.
        """
        self._check_number(worker)
        with self._changed:
            place = self._places.get(worker)
            if place and attempt in place.former:
                self._hold(worker, attempt)
            self._guests[worker] = _Guest(attempt, host, self._clock())
            self._move(worker)
            self._changed.notify_all()
            return not self._ended

    def join(self, joined: Joined) -> Order:
        """A worker takes its place and gets its first order; "wait" while another attempt holds it.

        The same attempt may join as often as it likes. A newcomer gets what its predecessor has not answered.

        Raises:
            SupersededError: this attempt has lost its place to another one.
        """
        worker, attempt = joined.worker, joined.attempt
        self._check_number(worker)
        end = self._poll_end()
        with self._changed:
            while True:
                free = self._may_take(worker, attempt)
                if self._ended:
                    return STOP
                if free:
                    break
                if not self._wait_until(min(end, self._lease_end(worker))) and self._clock() >= end:
                    return WAIT
            self._seat(joined)
            return STOP if self._ended else self._next_order(worker, attempt, end)

    def ask(self, worker: int, attempt: int) -> Order:
        """The next order of a worker that was told to wait."""
        with self._changed:
            return self._next_order(worker, attempt, self._poll_end())

    def offer(self, worker: int, attempt: int, number: int, nbytes: int) -> Order | Literal["send", "again"]:
        """Whether the answer to order `number` may be read now.

        Returns:
            "send" where there is room for its `nbytes`, which are then kept free; "again" where there was none for
            so long that the worker should ask again; an order, the next one, where the answer is not wanted any more.
        """
        end = self._poll_end()
        with self._changed:
            while True:
                self._hold(worker, attempt)
                if self._ended:
                    return STOP
                if not self._wanted(worker, number):
                    return self._drop(worker, attempt, end)
                self._move(worker)  # it has done its part, and waits for its turn
                if worker in self._reserved or self._may_read(worker, nbytes):
                    self._reserved[worker] = nbytes
                    return "send"
                if not self._wait_until(end):
                    return "again"

    def withdraw(self, worker: int, attempt: int) -> None:
        """Gives up the room of an answer that did not arrive whole."""
        with self._changed:
            if worker in self._places and self._places[worker].joined.attempt == attempt:
                self._reserved.pop(worker, None)
                self._changed.notify_all()

    def answer(self, attempt: int, result: Update | Evaluation) -> Order:
        """Takes a result, once, and returns the worker's next order.

        Raises:
            SupersededError: this attempt has lost its place to another one.
            ElephasError: the result is none of the order that the worker has.
        """
        worker = result.worker
        with self._changed:
            end = self._poll_end()
            self._hold(worker, attempt)
            if self._ended:
                return STOP
            if not self._wanted(worker, result.number):
                return self._drop(worker, attempt, end)
            self._claim(worker, result)
            self._places[worker].holds = self._places[worker].sent
        try:
            self._apply(result)
        except Exception as error:  # whatever a strategy raises is raised on the driver
            self.fail(error)
        finally:
            self._applied(worker)
        with self._changed:
            return self._next_order(worker, attempt, self._poll_end())

    def beat(self, worker: int, attempt: int, progress: int = 0) -> bool:
        """Renews a lease; False where the run is over for this worker.

        Args:
            progress: another number than before says that the worker has moved on.

        Raises:
            SupersededError: this attempt has lost its place to another one.
        """
        with self._changed:
            place = self._places.get(worker)
            if place and attempt in place.former:
                self._hold(worker, attempt)
            if place and place.joined.attempt == attempt:
                place.heard = self._clock()
                if progress != place.progress:
                    place.progress = progress
                    self._move(worker)
            guest = self._guests.get(worker)
            if guest and guest.attempt == attempt:
                guest.heard = self._clock()
            return not self._ended

    def report(self, attempt: int, failure: Failure) -> None:
        """Fails the run with a worker's exception, also before it has joined.

        Raises:
            SupersededError: this attempt has lost its place, and its errors do not matter any more.
        """
        with self._changed:
            place = self._places.get(failure.worker)
            if place and attempt in place.former:
                self._hold(failure.worker, attempt)
            self.fail(failure.error())

    # What the two kinds of stores decide. All but `_apply` are called under the lock.

    def _pending(self, worker: int) -> Order | None:
        """The order that the worker has got, or could get, and has not answered."""
        raise NotImplementedError

    def _last_number(self, worker: int) -> int:
        """Number of the worker's latest order; -1 before the first."""
        raise NotImplementedError

    def _next(self, worker: int) -> Order | None:
        """The order to hand out now; None where there is none yet."""
        raise NotImplementedError

    def _may_read(self, worker: int, nbytes: int) -> bool:
        """Whether an answer of `nbytes` may be taken in now."""
        raise NotImplementedError

    def _claim(self, worker: int, result: Update | Evaluation) -> None:
        """Marks the worker's order as answered."""
        raise NotImplementedError

    def _apply(self, result: Update | Evaluation) -> None:
        """Uses a result that has been claimed. Called without the lock."""
        raise NotImplementedError

    def _applied(self, worker: int) -> None:
        """After `_apply`, whether it went well or not. Called without the lock."""

    # Waiting and ending.

    @property
    def _ended(self) -> bool:
        return self._stopped or self._failure is not None

    def _raise_if_ended(self) -> None:
        if self._failure is not None:
            raise self._failure
        if self._stopped:
            raise StoppedError("the run was stopped while the driver was waiting for its workers.")

    def _poll_end(self) -> float:
        # A worker that waits for its turn moves on whenever it looks: in time, also where rounds have little of it.
        return self._clock() + min(self._waits.poll_seconds, LONGEST_POLL, self._waits.round_timeout / 2)

    def _wait_until(self, end: float) -> bool:
        """Waits for a change; False where `end` has passed."""
        remaining = end - self._clock()
        if remaining <= 0:
            return False
        self._changed.wait(min(remaining, threading.TIMEOUT_MAX))
        return True

    def _late(self, missing: list[int], what: str, limit: str) -> WaitError:
        """The run's failure, naming those who are missing."""
        seconds = getattr(self._waits, limit)
        named = "; ".join(self._whereabouts(worker) for worker in missing)
        unseen = [worker for worker in missing if worker not in self._places and worker not in self._guests]
        if unseen and limit == "join_timeout":
            advice = (
                f"Spark runs {self._spark_tasks[0]} of {self.num_workers} tasks: are there free slots for all workers, and can "
                "each executor open connections to the driver (host=, port=)? If they need longer"
            )
        elif limit == "join_timeout":
            advice = "Look at the executors' logs. If executors are replaced more slowly"
        else:
            advice = "They did not move on in this time: look at the executors' logs. If a step, or writing rows, takes longer"
        error = WaitError(
            f"expected {self.num_workers} workers to {what} within {limit}={seconds:g} s; missing: {named}. {advice}, "
            f"give SparkModel a longer {limit}."
        )
        self.fail(error)
        return error

    def _whereabouts(self, worker: int) -> str:
        place = self._places.get(worker)
        guest = self._guests.get(worker)
        if place is None and guest is None:
            return f"worker {worker} (no sign of life)"
        if place is None or (guest is not None and guest.heard > place.heard):
            assert guest is not None
            return (
                f"worker {worker} (attempt {guest.attempt} on {guest.host}, has not joined, "
                f"last heard of {self._clock() - guest.heard:.0f} s ago)"
            )
        lease = "live" if self._clock() < self._lease_end(worker) else "expired"
        return (
            f"worker {worker} (attempt {place.joined.attempt} on {place.joined.host}, lease {lease}, "
            f"last heard of {self._clock() - place.heard:.0f} s ago)"
        )

    def _move(self, worker: int) -> None:
        """The worker has moved on: a time-out of its own begins anew."""
        self._moved[worker] = self._clock()
        if self._first_sign is None:
            self._first_sign = self._clock()

    def _due(self, worker: int, since: float) -> float:
        """When an answer that has been owed `since` is to be there, unless the worker moves on before."""
        return max(since, self._moved.get(worker, since)) + self._waits.round_timeout

    def _late_of(self, due: Mapping[int, float]) -> list[int]:
        """The workers whose time is up."""
        now = self._clock()
        return [worker for worker, end in due.items() if end <= now]

    def _join_due(self, worker: int, began: float) -> tuple[float, str]:
        """When a worker is to have joined, and by which time-out."""
        guest = self._guests.get(worker)
        if guest is not None:
            return min(
                (guest.heard + self._waits.join_timeout, "join_timeout"), (self._due(worker, began), "round_timeout")
            )
        since = max(began, self._spark_moved)
        if self._first_sign is None or self._spark_tasks[0] >= self.num_workers:  # its rows are being made
            return max(since, self._first_sign or since) + self._waits.round_timeout, "round_timeout"
        return max(since, self._first_sign) + self._waits.join_timeout, "join_timeout"

    # Membership.

    def _check_number(self, worker: int) -> None:
        if worker >= self.num_workers:
            raise ElephasError(f"expected a worker from 0 to {self.num_workers - 1} to join, got worker {worker}.")

    def _lease_end(self, worker: int) -> float:
        return self._places[worker].heard + self._waits.lease_seconds

    def _may_take(self, worker: int, attempt: int) -> bool:
        place = self._places.get(worker)
        if place is None or place.joined.attempt == attempt:
            return True
        if attempt in place.former:
            self._hold(worker, attempt)
        return self._clock() >= self._lease_end(worker)

    def _seat(self, joined: Joined) -> None:
        """Gives a worker its place, unless it is not what was expected: then the run fails."""
        if error := self._misfit(joined):
            self.fail(error)
            return
        place = self._places.get(joined.worker)
        if place is None:
            self._places[joined.worker] = _Place(joined, self._clock())
            self._first[joined.worker] = joined
            self._move(joined.worker)
        elif place.joined.attempt != joined.attempt:
            log.warning(
                "worker %d: attempt %d on %s takes over from attempt %d on %s, which was last heard of %.0f s ago.",
                *(joined.worker, joined.attempt, joined.host, place.joined.attempt, place.joined.host),
                self._clock() - place.heard,
            )
            place.former.add(place.joined.attempt)
            place.joined, place.progress, place.sent, place.holds = joined, 0, None, None
            self._move(joined.worker)
            self._reserved.pop(joined.worker, None)
        guest = self._guests.get(joined.worker)
        if guest is not None and guest.attempt == joined.attempt:
            del self._guests[joined.worker]
        self._changed.notify_all()

    def _misfit(self, joined: Joined) -> ElephasError | None:
        if joined.layout_hash != self._layout_hash:
            return ElephasError(
                f"worker {joined.worker} on {joined.host} built another model: expected the layout "
                f"{self._layout_hash}, got {joined.layout_hash}. Do the executors have the driver's versions of Keras "
                "and of the custom objects?"
            )
        first = self._first.get(joined.worker)
        if first is None:
            return None
        if (joined.rows, joined.validation_rows) != (first.rows, first.validation_rows):
            return DataError(
                f"worker {joined.worker} came back with {joined.rows} rows to train on and {joined.validation_rows} to "
                f"validate; expected {first.rows} and {first.validation_rows} as before. The rows are recomputed when "
                "a task is retried: persist the RDD, or remove what makes it different each time."
            )
        if joined.checksum != first.checksum:
            log.warning(
                "worker %d came back with other rows (checksum %d, before %d): the fit goes on, but its weights are no "
                "longer equal to those of an undisturbed run to the last bit.",
                *(joined.worker, joined.checksum, first.checksum),
            )
        return None

    def _hold(self, worker: int, attempt: int) -> None:
        """Renews the lease of the holder; raises for anyone else."""
        place = self._places.get(worker)
        if place is None:
            raise ElephasError(f"expected worker {worker} to join before anything else.")
        if place.joined.attempt != attempt:
            raise SupersededError(
                f"attempt {attempt} of worker {worker} has lost its place to attempt {place.joined.attempt} on "
                f"{place.joined.host}."
            )
        place.heard = self._clock()

    # Orders and answers.

    def _next_order(self, worker: int, attempt: int, end: float) -> Order:
        while True:
            self._hold(worker, attempt)
            if self._ended:
                return STOP
            order = self._next(worker)
            if order is not None:
                return self._without_what_it_holds(self._places[worker], order)
            if not self._wait_until(end):
                return WAIT

    def _without_what_it_holds(self, place: _Place, order: Order) -> Order:
        """The order without the values of frozen layers where the worker has them from an order that it has answered."""
        if order.state is None or not order.state.frozen.size:
            return order
        frozen = order.state.frozen
        if self._frozen is None or not same(frozen, self._frozen):
            self._frozen = frozen
        place.sent = self._frozen
        return replace(order, state=order.state.but(frozen=nothing())) if place.holds is self._frozen else order

    def _wanted(self, worker: int, number: int) -> bool:
        """Whether the worker's order `number` is still to be answered."""
        pending = self._pending(worker)
        if pending is not None and pending.number == number:
            return True
        if number <= self._last_number(worker):
            return False
        raise ElephasError(
            f"worker {worker} answers order {number}; expected one up to {self._last_number(worker)}, its latest."
        )

    def _drop(self, worker: int, attempt: int, end: float) -> Order:
        self.dropped += 1
        log.info("worker %d sent an answer again; it is not applied twice.", worker)
        return self._next_order(worker, attempt, end)

    def _check_kind(self, order: Order, result: Update | Evaluation) -> None:
        expected = "train" if isinstance(result, Update) else "evaluate"
        if order.kind != expected:
            raise ElephasError(
                f"worker {result.worker} answered its {order.kind!r} order {order.number} with "
                f"{'an update' if isinstance(result, Update) else 'an evaluation'}."
            )

    def _read_ahead(self, besides: int) -> int:
        """Bytes of answers that are in, or about to come from workers that are alive."""
        return sum(
            nbytes
            for worker, nbytes in self._reserved.items()
            if worker != besides and (self._pending(worker) is None or self._clock() < self._lease_end(worker))
        )


class RoundStore(Store):
    """Synchronous rounds (`core.workers.SyncWorkers`): one order for all workers, answers handed on in worker order.

    Large answers are also *read* in worker order: what is taken in before its turn stays within `read_ahead`.
    """

    _order: Order | None = None
    _turn: int = 0

    def train(self, order: Order) -> Iterator[Update]:
        """Gives the order to all workers; their updates, in worker order.

        Raises:
            WaitError: a worker that has not answered did not move on for `round_timeout`; it is named.
        """
        return self._collect(self._publish(order), Update)

    def evaluate(self, order: Order) -> Iterator[Evaluation]:
        """Gives the order to all workers; their evaluations, in worker order."""
        return self._collect(self._publish(order), Evaluation)

    def _publish(self, order: Order) -> float:
        """Hands the order out and returns since when it is to be answered."""
        with self._changed:
            self._raise_if_ended()
            if self._order is not None and order.number <= self._order.number:
                raise ValueError(f"order numbers must rise: {self._order.number} is followed by {order.number}.")
            self._order = order
            self._answered: set[int] = set()
            self._results: dict[int, Update | Evaluation] = {}
            self._turn = 0
            self._reserved.clear()
            self._changed.notify_all()
            return self._clock()

    def _collect(self, since: float, kind: type[Result]) -> Iterator[Result]:
        for worker in range(self.num_workers):
            with self._changed:
                self._turn = worker
                self._changed.notify_all()
                while worker not in self._results:
                    self._raise_if_ended()
                    due = {w: self._due(w, since) for w in range(worker, self.num_workers) if w not in self._results}
                    if not self._wait_until(min(due.values())):
                        raise self._late(self._late_of(due), "answer", "round_timeout")
                self._raise_if_ended()
                result = self._results.pop(worker)
                self._reserved.pop(worker, None)
            assert isinstance(result, kind)
            yield result

    def _pending(self, worker: int) -> Order | None:
        if self._order is None or worker in self._answered:
            return None
        return self._order

    def _last_number(self, worker: int) -> int:
        return -1 if self._order is None else self._order.number

    def _next(self, worker: int) -> Order | None:
        return self._pending(worker)

    def _may_read(self, worker: int, nbytes: int) -> bool:
        return worker == self._turn or self._read_ahead(worker) + nbytes <= self._waits.read_ahead

    def _claim(self, worker: int, result: Update | Evaluation) -> None:
        assert self._order is not None
        self._check_kind(self._order, result)
        self._answered.add(worker)
        self._results[worker] = result
        self._changed.notify_all()

    def _apply(self, result: Update | Evaluation) -> None:
        """Nothing: the driver averages."""


@dataclass
class _FinishedEpoch:
    """An epoch that is over, and its evaluations as they come; None where it is not evaluated."""

    record: EpochRecord
    evaluations: dict[int, Evaluation] | None
    since: float


@dataclass(frozen=True)
class _Task:
    """A worker's order; `epoch` is what an evaluation belongs to."""

    order: Order
    epoch: _FinishedEpoch | None = None


class CenterStore(Store):
    """A shared state: each answer is committed as it comes, and answered with the state that is served then.

    Each finished epoch is a whole state, so no more than a few may wait for the driver's callbacks: workers wait then.

    Args:
        lock_free: commit several updates at once (hogwild); the center must bear it.
    """

    def __init__(
        self,
        num_workers: int,
        layout_hash: str,
        *,
        lock_free: bool = False,
        waits: Waits | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(num_workers, layout_hash, waits=waits, clock=clock)
        self.late = 0
        """Updates that came after the budget of samples was used up, and were not applied."""
        self._lock_free = lock_free
        self._center: Center | None = None
        self._progress: AsyncProgress | None = None
        self._validates: Callable[[int], bool] = lambda epoch: False
        self._tasks: dict[int, _Task] = {}
        self._claimed: dict[int, _Task] = {}
        self._numbers = dict.fromkeys(range(num_workers), -1)
        self._to_evaluate: dict[int, deque[_FinishedEpoch]] = {worker: deque() for worker in range(num_workers)}
        self._epochs: deque[_FinishedEpoch] = deque()

    def begin(self, center: Center, progress: AsyncProgress, validates: Callable[[int], bool]) -> None:
        """Starts to hand out orders.

        Args:
            validates: whether an epoch's state is evaluated by the workers.
        """
        with self._changed:
            self._center, self._progress, self._validates = center, progress, validates
            self._changed.notify_all()

    def next_epoch(self) -> EpochRecord | None:
        """The next epoch that is finished and evaluated; None where all have been handed out.

        Raises:
            WaitError: no worker moved on for `round_timeout` seconds, or one that has to evaluate did not.
        """
        with self._changed:
            _, progress = self._begun()
            called = self._clock()
            while True:
                self._raise_if_ended()
                if self._epochs and self._complete(self._epochs[0]):
                    self._changed.notify_all()  # whoever waited for the driver may go on
                    return self._finished(self._epochs.popleft())
                if not self._epochs and progress.over and not self._claimed:
                    return None
                due = self._owing(called)
                # An epoch waits for each of its evaluations; training goes on as long as anybody does.
                if not self._wait_until((min if self._epochs else max)(due.values())):
                    raise self._late(self._late_of(due), "answer", "round_timeout")

    def replace(self, parts: Mapping[str, Array], moved: Vector | None = None) -> None:
        """Puts some vectors, by the name of their role, in the place of the center's, and moves its weights."""
        with self._changed:
            center, _ = self._begun()
            center.replace(parts, moved)

    def _begun(self) -> tuple[Center, AsyncProgress]:
        if self._center is None or self._progress is None:
            raise ElephasError("expected begin() before this: the center is not there yet.")
        return self._center, self._progress

    def _owing(self, called: float) -> dict[int, float]:
        """The workers that the driver waits for, and until when; callbacks, before it `called`, do not count."""
        everyone = range(self.num_workers)
        if not self._epochs:
            busy = [worker for worker in everyone if self._pending(worker)]
            return {worker: self._due(worker, called) for worker in busy or everyone}
        epoch = self._epochs[0]
        assert epoch.evaluations is not None  # else it is complete
        since = max(called, epoch.since)
        return {worker: self._due(worker, since) for worker in everyone if worker not in epoch.evaluations}

    def _complete(self, epoch: _FinishedEpoch) -> bool:
        return epoch.evaluations is None or len(epoch.evaluations) == self.num_workers

    def _finished(self, epoch: _FinishedEpoch) -> EpochRecord:
        if epoch.evaluations is None:
            return epoch.record
        validation = scores.add(epoch.evaluations[worker].metrics for worker in range(self.num_workers))
        return replace(epoch.record, validation=validation)

    def _pending(self, worker: int) -> Order | None:
        task = self._tasks.get(worker)
        return None if task is None else task.order

    def _last_number(self, worker: int) -> int:
        return self._numbers[worker]

    def _next(self, worker: int) -> Order | None:
        if self._center is None or self._progress is None or worker in self._claimed:
            return None  # an update that is being committed is counted before the next order is made
        if worker not in self._tasks:
            number = self._numbers[worker] + 1
            if self._to_evaluate[worker]:
                epoch = self._to_evaluate[worker].popleft()
                order = Order("evaluate", number, version=self._center.version, state=epoch.record.state)
                self._tasks[worker] = _Task(order, epoch)
            elif not self._progress.has_work(worker) or len(self._epochs) > MOST_EPOCHS_WAITING:
                return None
            else:
                order = replace(self._progress.next_order(worker, self._center), number=number)
                self._tasks[worker] = _Task(order)
            self._numbers[worker] = number
        return self._tasks[worker].order

    def _may_read(self, worker: int, nbytes: int) -> bool:
        ahead = self._read_ahead(worker)
        return ahead == 0 or ahead + nbytes <= self._waits.read_ahead

    def _claim(self, worker: int, result: Update | Evaluation) -> None:
        self._check_kind(self._tasks[worker].order, result)
        self._claimed[worker] = self._tasks.pop(worker)
        self._move(worker)

    def _apply(self, result: Update | Evaluation) -> None:
        if isinstance(result, Evaluation):
            epoch = self._claimed[result.worker].epoch
            assert epoch is not None
            assert epoch.evaluations is not None
            epoch.evaluations[result.worker] = result
        elif self._lock_free:
            self._commit(result)
        else:
            with self._changed:
                self._commit(result)

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
            while progress.finished:
                record = progress.finished.popleft()
                evaluations: dict[int, Evaluation] | None = {} if self._validates(record.epoch) else None
                epoch = _FinishedEpoch(record, evaluations, self._clock())
                self._epochs.append(epoch)
                if epoch.evaluations is not None:
                    for queue in self._to_evaluate.values():
                        queue.append(epoch)

    def _applied(self, worker: int) -> None:
        with self._changed:
            self._claimed.pop(worker, None)
            self._reserved.pop(worker, None)
            self._changed.notify_all()
