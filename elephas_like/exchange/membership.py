"""The workers of one run: who has announced itself, who has joined, and by when each must move on.

A worker first announces itself, while its rows are still being made: it is a `PendingWorker`. When it joins it becomes a
`Member` and holds a lease, which every request renews. When Spark runs a task again, the new attempt takes over once the lease
of the old one has ended.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from elephas_like.core.errors import DataError, ElephasError, SupersededError, WaitError
from elephas_like.core.fit_monitor import WorkerSign
from elephas_like.core.types import Array, Joined, Result, Role, Update
from elephas_like.exchange.protocol import READ_AHEAD

log = logging.getLogger(__name__)

LONGEST_POLL = 20.0

Limit = Literal["join_timeout", "round_timeout"]


@dataclass(frozen=True)
class Waits:
    """Time limits in seconds, and how many bytes may be read ahead.

    join_timeout: from the first worker's first sign of life until every worker has given one; also the longest silence of a
        worker that has not joined.
    round_timeout: how long a worker that owes something (its rows, an answer) may make no progress. A trained step is
        progress, and so is a new attempt. It also limits the time before the first sign of life, while Spark ends no task.
    lease_seconds: from a worker's last request until another attempt may take over.
    poll_seconds: how long a request is held while there is nothing to do; at most 20.
    read_ahead: bytes of all answers together that are read before their turn. It bounds the server's memory: asynchronous
        answers of which two are more than this are read one at a time.
    """

    join_timeout: float = 60.0
    round_timeout: float = 600.0
    lease_seconds: float = 10.0
    poll_seconds: float = LONGEST_POLL
    read_ahead: int = READ_AHEAD


@dataclass
class Member:
    """A worker that has joined.

    heard: when it last gave a sign of life. progress: what its last heartbeat said, which rises while it is at work.
    superseded: attempts that have lost their place. left: whether it was told to end its task, so that its place is free.
    sent: parts of the state that seldom change, as the last order that had them brought them, and the number of that order.
    held: the same, of orders that it has answered: what it surely has. trained: the number of the last order that it has trained.
    """

    joined: Joined
    heard: float
    progress: int = 0
    superseded: set[int] = field(default_factory=set)
    left: bool = False
    sent: dict[Role, tuple[Array, int]] = field(default_factory=dict)
    held: dict[Role, Array] = field(default_factory=dict)
    trained: int = -1

    def has_answered(self, result: Result) -> None:
        """Note what it has, since it has answered an order."""
        self.held |= {role: part for role, (part, number) in self.sent.items() if number == result.number}
        if isinstance(result, Update):
            self.trained = result.number


@dataclass
class PendingWorker:
    """An attempt that has announced itself and has not joined yet."""

    attempt: int
    host: str
    heard: float


class Deadline(NamedTuple):
    """When a worker is late, and by which of the limits in `Waits`."""

    at: float
    limit: Limit


class Membership:
    """The workers of one run. Not thread-safe: a store calls it under its lock.

    Args:
        layout_hash: of the driver's model; no worker with another one may join.
        clock: seconds.
    """

    def __init__(self, num_workers: int, layout_hash: str, waits: Waits, clock: Callable[[], float]) -> None:
        self.members: dict[int, Member] = {}
        self.pending: dict[int, PendingWorker] = {}
        self._num_workers = num_workers
        self._layout_hash = layout_hash
        self._waits = waits
        self._clock = clock
        self._first_joined: dict[int, Joined] = {}
        self._first_sign: float | None = None
        self._progress_at: dict[int, float] = {}
        self._spark_tasks = (0, 0)
        self._spark_progress_at = clock()

    # Joining.

    @property
    def missing(self) -> list[int]:
        """Workers that have not joined."""
        return [worker for worker in range(self._num_workers) if worker not in self.members]

    def joined(self) -> list[Joined]:
        """Return what the members joined with, in order."""
        return [self.members[worker].joined for worker in range(self._num_workers)]

    def check_number(self, worker: int) -> None:
        """Raise ElephasError if the run has no worker of this number."""
        if worker >= self._num_workers:
            raise ElephasError(f"expected a worker from 0 to {self._num_workers - 1} to join, got worker {worker}.")

    def announce(self, worker: int, attempt: int, host: str) -> None:
        """Note the first sign of life of an attempt.

        Raises:
            SupersededError: this attempt has lost its place.
        """
        self.check_not_superseded(worker, attempt)
        self.pending[worker] = PendingWorker(attempt, host, self._clock())
        self.note_progress(worker)

    def may_register(self, worker: int, attempt: int) -> bool:
        """Whether an attempt may take the worker's place now: the place is free, its own, or the holder's lease has ended.

        Also where another worker has been missing for long: Spark may have given its slot to this attempt, a copy of a task
        that runs elsewhere, as it does when a stage is submitted again after a failed fetch. The copy takes over, and the
        task that ends leaves a slot.

        Raises:
            SupersededError: this attempt has lost its place.
        """
        member = self.members.get(worker)
        if member is None or member.joined.attempt == attempt:
            return True
        self.check_not_superseded(worker, attempt)
        return self._clock() >= self.lease_end(worker) or self._another_is_missing(worker)

    def _another_is_missing(self, worker: int) -> bool:
        """Whether one of the other workers has given no sign of life for twice a lease."""
        long_ago = self._clock() - 2 * self._waits.lease_seconds
        return any(self._heard(other) <= long_ago for other in range(self._num_workers) if other != worker)

    def _heard(self, worker: int) -> float:
        """Return when a worker's last sign of life came, from any attempt; the first sign of anyone if there was none."""
        member, pending = self.members.get(worker), self.pending.get(worker)
        signs = [sign.heard for sign in (member, pending) if sign is not None]
        return max(signs, default=self._clock() if self._first_sign is None else self._first_sign)

    def register(self, joined: Joined) -> bool:
        """Make a worker a member. Return whether it takes over from another attempt.

        Raises:
            ElephasError: the worker does not fit the run.
        """
        self._check_fit(joined)
        worker, member, now = joined.worker, self.members.get(joined.worker), self._clock()
        takes_over = member is not None and member.joined.attempt != joined.attempt
        if member is None:
            self.members[worker] = Member(joined, now)
            self._first_joined[worker] = joined
            self.note_progress(worker)
        elif takes_over:
            former = member.joined
            log.log(
                logging.INFO if member.left else logging.WARNING,
                "worker %d: attempt %d on %s takes over from attempt %d on %s, which was last heard of %.0f s ago.",
                *(worker, joined.attempt, joined.host, former.attempt, former.host, now - member.heard),
            )
            # The newcomer has nothing yet; `heard` is renewed by its first request.
            superseded = member.superseded | {former.attempt}
            self.members[worker] = Member(joined, member.heard, superseded=superseded)
            self.note_progress(worker)
        pending = self.pending.get(worker)
        if pending is not None and pending.attempt == joined.attempt:
            del self.pending[worker]
        return takes_over

    def _check_fit(self, joined: Joined) -> None:
        """Raise if the worker has another model, or other rows than an earlier attempt."""
        if joined.layout_hash != self._layout_hash:
            raise ElephasError(
                f"worker {joined.worker} on {joined.host} built another model: expected the layout "
                f"{self._layout_hash}, got {joined.layout_hash}. Do the executors have the driver's versions of Keras "
                "and of the custom objects?"
            )
        first = self._first_joined.get(joined.worker)
        if first is None:
            return
        if (joined.rows, joined.validation_rows) != (first.rows, first.validation_rows):
            raise DataError(
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

    # Leases and signs of life.

    def renew(self, worker: int, attempt: int) -> Member:
        """Renew the lease of the attempt that holds a worker's place.

        Raises:
            SupersededError: another attempt holds it.
            ElephasError: the worker has not joined.
        """
        member = self.members.get(worker)
        if member is None:
            raise ElephasError(f"expected worker {worker} to join before anything else.")
        if member.joined.attempt != attempt:
            raise self._superseded(member, attempt)
        member.heard = self._clock()
        return member

    def lease_end(self, worker: int) -> float:
        """Return when another attempt may take a member's place."""
        member = self.members[worker]
        return member.heard + (0.0 if member.left else self._waits.lease_seconds)

    def holds_lease(self, worker: int) -> bool:
        """Whether a member's lease is live."""
        return self._clock() < self.lease_end(worker)

    def check_not_superseded(self, worker: int, attempt: int) -> None:
        """Raise SupersededError if this attempt has lost its place."""
        member = self.members.get(worker)
        if member is not None and attempt in member.superseded:
            raise self._superseded(member, attempt)

    def check_may_fail(self, worker: int, attempt: int) -> None:
        """Raise SupersededError if an error of this attempt says nothing of the run: a living attempt holds the place."""
        self.check_not_superseded(worker, attempt)
        member = self.members.get(worker)
        if member is not None and member.joined.attempt != attempt and self.holds_lease(worker):
            raise self._superseded(member, attempt)

    def beat(self, worker: int, attempt: int, progress: int) -> None:
        """Take a heartbeat. A change of `progress` shows that the worker is at work.

        Raises:
            SupersededError: this attempt has lost its place.
        """
        self.check_not_superseded(worker, attempt)
        member, pending = self.members.get(worker), self.pending.get(worker)
        if member is not None and member.joined.attempt == attempt:
            member.heard = self._clock()
            if progress != member.progress:
                member.progress = progress
                self.note_progress(worker)
        if pending is not None and pending.attempt == attempt:
            pending.heard = self._clock()

    def signs(self) -> dict[int, WorkerSign]:
        """Return the last sign of life of each worker that has given one."""
        now, found = self._clock(), {}
        for worker in sorted({*self.members, *self.pending}):
            member, pending = self.members.get(worker), self.pending.get(worker)
            retries = 0 if member is None else len(member.superseded)
            if member is not None and (pending is None or member.heard >= pending.heard):
                found[worker] = WorkerSign(member.joined.host, now - member.heard, retries)
            elif pending is not None:
                found[worker] = WorkerSign(pending.host, now - pending.heard, retries)
        return found

    def _superseded(self, member: Member, attempt: int) -> SupersededError:
        joined = member.joined
        return SupersededError(
            f"attempt {attempt} of worker {joined.worker} has lost its place to attempt {joined.attempt} on {joined.host}."
        )

    # Deadlines.

    def note_progress(self, worker: int) -> None:
        """Note that a worker has moved on: its round_timeout begins anew."""
        self._progress_at[worker] = self._clock()
        if self._first_sign is None:
            self._first_sign = self._clock()

    def note_tasks(self, running: int, ended: int) -> bool:
        """Note how many of the run's tasks Spark runs and has ended. Return whether that has changed."""
        changed = (running, ended) != self._spark_tasks
        if changed:
            self._spark_tasks, self._spark_progress_at = (running, ended), self._clock()
        return changed

    def answer_due(self, worker: int, since: float) -> float:
        """Return when an answer owed since `since` is late, unless the worker moves on before."""
        return max(since, self._progress_at.get(worker, since)) + self._waits.round_timeout

    def join_due(self, worker: int, since: float) -> Deadline:
        """Return when a worker that is waited for since `since` is late to join."""
        # A pending worker must keep beating, and must finish its rows.
        pending = self.pending.get(worker)
        if pending is not None:
            silent = Deadline(pending.heard + self._waits.join_timeout, "join_timeout")
            return min(silent, Deadline(self.answer_due(worker, since), "round_timeout"))
        # A worker without a sign of life may still have its rows made by tasks that cannot announce themselves. That is so
        # before anyone's first sign, and while Spark runs as many tasks as there are workers.
        since = max(since, self._spark_progress_at)
        if self._first_sign is None or self._spark_tasks[0] >= self._num_workers:
            return Deadline(max(since, self._first_sign or since) + self._waits.round_timeout, "round_timeout")
        # Otherwise Spark has not started its task.
        return Deadline(max(since, self._first_sign) + self._waits.join_timeout, "join_timeout")

    def late(self, due: Mapping[int, float]) -> list[int]:
        """Return the workers whose deadline has passed."""
        now = self._clock()
        return [worker for worker, end in due.items() if end <= now]

    def late_error(self, late: list[int], what: str, limit: Limit) -> WaitError:
        """Return the run's failure, which names the late workers and says what to do."""
        seconds = getattr(self._waits, limit)
        named = "; ".join(self._described(worker) for worker in late)
        unseen = [worker for worker in late if worker not in self.members and worker not in self.pending]
        if unseen and limit == "join_timeout":
            advice = (
                f"Spark runs {self._spark_tasks[0]} of {self._num_workers} tasks: are there free slots for all workers, and "
                "can each executor open connections to the driver (host=, port=)? If they need longer"
            )
        elif limit == "join_timeout":
            advice = "Look at the executors' logs. If executors are replaced more slowly"
        else:
            advice = "They did not move on in this time: look at the executors' logs. If a step, or writing rows, takes longer"
        return WaitError(
            f"expected {self._num_workers} workers to {what} within {limit}={seconds:g} s; missing: {named}. {advice}, "
            f"give SparkModel a longer {limit}."
        )

    def _described(self, worker: int) -> str:
        """Say what is known of a worker: attempt, host, lease, last sign of life."""
        member, pending = self.members.get(worker), self.pending.get(worker)
        if pending is not None and (member is None or pending.heard > member.heard):
            return (
                f"worker {worker} (attempt {pending.attempt} on {pending.host}, has not joined, "
                f"last heard of {self._clock() - pending.heard:.0f} s ago)"
            )
        if member is None:
            return f"worker {worker} (no sign of life)"
        lease = "live" if self.holds_lease(worker) else "expired"
        return (
            f"worker {worker} (attempt {member.joined.attempt} on {member.joined.host}, lease {lease}, "
            f"last heard of {self._clock() - member.heard:.0f} s ago)"
        )
