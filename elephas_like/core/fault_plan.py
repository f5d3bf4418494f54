"""Faults on purpose, for tests of a fit: what is to happen where, and what has happened."""

from __future__ import annotations

import signal as signals
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from elephas_like.core.types import EngineName, Span

SIGKILL = int(getattr(signals, "SIGKILL", 9))  # Windows has none
Kind = Literal["fail", "kill", "delay", "hang", "drop"]
Ask = Callable[[int, int, int, int], bool]
"""(number of a fault, worker, id of its attempt, round) -> whether the fault happens now. The driver answers."""

KINDS: dict[EngineName, frozenset[Kind]] = {
    EngineName.SERVER: frozenset({"fail", "kill", "delay", "hang", "drop"}),
    EngineName.JOBS: frozenset({"fail", "kill", "delay", "hang"}),
    EngineName.GANG: frozenset({"fail", "kill", "delay", "hang"}),
    EngineName.IN_PROCESS: frozenset({"fail", "delay"}),
}
"""What can be done where: jobs have no connection of their own, the one of gangs goes to their leader, and in_process workers are the driver."""


@dataclass(frozen=True)
class Fault:
    """One fault of one worker. Made by `fail`, `kill`, `delay`, `hang` and `drop`.

    round: of a synchronous fit the number of a record in `history.rounds`; of an asynchronous one the number of the worker's
        own order, evaluations counted; None means all. With `epoch`, the part of that epoch, from 0.
    step: the batches of the round that are trained before.
    attempts: the times that a worker comes to this round at which the fault happens. A worker that Spark runs again
        comes a second time.
    """

    kind: Kind
    worker: int
    round: int | None = None
    epoch: int | None = None
    step: int = 0
    attempts: frozenset[int] = frozenset({0})
    seconds: float = 0.0
    signal: int = SIGKILL
    error: Exception | None = None
    reply: bool = False

    def __post_init__(self) -> None:
        """Check the fields."""
        for name in ("worker", "round", "epoch", "step"):
            value = getattr(self, name)
            if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 0):
                raise ValueError(f"{self.kind}: expected {name} to be a whole number from 0, got {value!r}.")
        if not self.attempts or min(self.attempts) < 0:
            raise ValueError(f"{self.kind}: expected attempts to be whole numbers from 0, got {sorted(self.attempts)}.")
        if not 0 <= self.seconds < threading.TIMEOUT_MAX:
            raise ValueError(f"{self.kind}: expected seconds to be at least 0, got {self.seconds!r}.")

    def meets(self, round: int, span: Span | None) -> bool:
        """Return whether a round is one that this fault is meant for."""
        if self.epoch is None:
            return self.round is None or self.round == round
        if span is None or span.epoch != self.epoch:
            return False
        return self.round is None or self.round == span.begin


@dataclass(frozen=True)
class Happened:
    """A fault that has happened. attempt: 0 where the worker came to this round for the first time."""

    fault: Fault
    round: int
    attempt: int


@dataclass(frozen=True)
class FaultPlan:
    """What workers need to know of the faults of a fit.

    errors: a cloudpickle of the faults' exceptions, by the number of the fault.
    """

    faults: tuple[Fault, ...]
    synchronous: bool
    ask: Ask
    errors: bytes = b""

    def round_of(self, number: int, version: int) -> int:
        """Return the round of an order or update."""
        return version if self.synchronous else number

    def due(
        self, worker: int, attempt: int, round: int, span: Span | None, *kinds: Kind
    ) -> Iterator[tuple[int, Fault]]:
        """Yield the faults that happen now, with their numbers. The driver is told so by asking it."""
        for index, fault in enumerate(self.faults):
            meant = fault.kind in kinds and fault.worker == worker and fault.meets(round, span)
            if meant and self.ask(index, worker, attempt, round):
                yield index, fault


@dataclass
class Injection:
    """The faults of a `with inject(...)`, on the driver. Thread-safe.

    happened: those that have happened so far, in the order in which workers came to them.
    """

    faults: tuple[Fault, ...]
    happened: list[Happened] = field(default_factory=list)
    _attempts: dict[tuple[int, int], list[int]] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def ask(self, index: int, worker: int, attempt: int, round: int) -> bool:
        """Return whether a fault happens to this attempt. An attempt that asks again is given the same answer."""
        with self._lock:
            seen = self._attempts.setdefault((index, round), [])
            new = attempt not in seen
            if new:
                seen.append(attempt)
            count = seen.index(attempt)
            happens = count in self.faults[index].attempts
            if new and happens:
                self.happened.append(Happened(self.faults[index], round, count))
            return happens

    def judge(self, attempt: int, round: int, values: Mapping[str, float]) -> bool:
        """Answer a worker that asks over the network."""
        index, worker = int(values["fault"]), int(values["worker"])
        return 0 <= index < len(self.faults) and self.ask(index, worker, attempt, round)

    def plan(self, synchronous: bool, ask: Ask, errors: bytes = b"") -> FaultPlan:
        """Return what workers are told."""
        return FaultPlan(tuple(replace(fault, error=None) for fault in self.faults), synchronous, ask, errors)


def check_faults(faults: Sequence[Fault], engine: EngineName, num_workers: int) -> None:
    """Check that faults can happen in a fit.

    Raises:
        ValueError: a worker that the fit does not have, or a fault that its engine cannot have.
    """
    for fault in faults:
        if fault.worker >= num_workers:
            raise ValueError(f"{fault.kind}: expected a worker below {num_workers}, got worker {fault.worker}.")
        if fault.kind not in KINDS[engine]:
            able = ", ".join(repr(name.value) for name in KINDS if fault.kind in KINDS[name])
            raise ValueError(f"{fault.kind} cannot be done with engine={engine.value!r}; it can with engine={able}.")


def fail(
    worker: int,
    round: int | None = None,
    *,
    epoch: int | None = None,
    step: int = 0,
    error: Exception | type[Exception] = RuntimeError,
    attempts: int | Collection[int] = 0,
) -> Fault:
    """Have a worker raise an exception.

    Args:
        worker, round, epoch, attempts: where and when, as `Fault` says. One of `round` and `epoch` is needed.
        step: batches of the round that are trained before; a round with fewer goes on undisturbed.
        error: the exception, or its class.

    Raises:
        ValueError: numbers that cannot be.
    """
    raised = error("injected by elephas_like.testing") if isinstance(error, type) else error
    if not isinstance(raised, Exception):
        raise ValueError(f"fail: expected an exception, got {error!r}.")
    return _placed(Fault("fail", worker, round, epoch, step, _whole(attempts), error=raised))


def kill(
    worker: int,
    round: int | None = None,
    *,
    epoch: int | None = None,
    step: int = 0,
    signal: int = SIGKILL,
    attempts: int | Collection[int] = 0,
) -> Fault:
    """Send a signal to the Python process of a worker's task. Spark runs the task again if `spark.task.maxFailures` is above 1.

    Args:
        worker, round, epoch, attempts: where and when, as `Fault` says. One of `round` and `epoch` is needed.
        step: batches of the round that are trained before; a round with fewer goes on undisturbed.
        signal: its number. A process that survives it never answers.

    Raises:
        ValueError: numbers that cannot be.
    """
    return _placed(Fault("kill", worker, round, epoch, step, _whole(attempts), signal=int(signal)))


def hang(
    worker: int,
    round: int | None = None,
    *,
    epoch: int | None = None,
    step: int = 0,
    attempts: int | Collection[int] = 0,
) -> Fault:
    """Have a worker never answer, while its process lives.

    Args:
        worker, round, epoch, attempts: where and when, as `Fault` says. One of `round` and `epoch` is needed.
        step: batches of the round that are trained before; a round with fewer goes on undisturbed.

    Raises:
        ValueError: numbers that cannot be.
    """
    return _placed(Fault("hang", worker, round, epoch, step, _whole(attempts)))


def delay(
    worker: int,
    round: int | None = None,
    *,
    epoch: int | None = None,
    seconds: float,
    every_round: bool = False,
    attempts: int | Collection[int] = 0,
) -> Fault:
    """Have a worker wait after it has trained, before it answers.

    Args:
        worker, round, epoch, attempts: where and when, as `Fault` says.
        seconds: how long.
        every_round: instead of `round` and `epoch`.

    Raises:
        ValueError: numbers that cannot be.
    """
    return _placed(Fault("delay", worker, round, epoch, 0, _whole(attempts), float(seconds)), every_round)


def drop(
    worker: int,
    round: int | None = None,
    *,
    epoch: int | None = None,
    when: Literal["sending", "reply"] = "sending",
    every_round: bool = False,
    attempts: int | Collection[int] = 0,
) -> Fault:
    """Have the connection break that a worker's update is sent over. Only the server engine has such connections.

    Args:
        worker, round, epoch, attempts: where and when, as `Fault` says.
        when: "sending" closes it when half of the update is sent; "reply" when the driver has applied the update.
        every_round: instead of `round` and `epoch`.

    Raises:
        ValueError: numbers that cannot be.
    """
    if when not in ("sending", "reply"):
        raise ValueError(f"drop: expected when to be 'sending' or 'reply', got {when!r}.")
    return _placed(Fault("drop", worker, round, epoch, 0, _whole(attempts), reply=when == "reply"), every_round)


def _whole(attempts: int | Collection[int]) -> frozenset[int]:
    return frozenset({attempts} if isinstance(attempts, int) else attempts)


def _placed(fault: Fault, every_round: bool = False) -> Fault:
    """Check that it is said when a fault happens."""
    given = fault.round is not None or fault.epoch is not None
    if given == every_round:
        wanted = "round, epoch or every_round" if fault.kind in ("delay", "drop") else "round or epoch"
        raise ValueError(f"{fault.kind}: expected {wanted} to say when it happens, got {'both' if given else 'none'}.")
    return replace(fault, round=0) if fault.epoch is not None and fault.round is None else fault
