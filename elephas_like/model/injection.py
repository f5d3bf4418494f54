"""Faults on purpose in the fits of this process, for tests (docs/fault-tolerance.md, "Test your own job")."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, fields, replace

from elephas_like.core.fault_plan import Ask, Fault, FaultPlan, Injection, check_faults
from elephas_like.core.types import EngineName, Mode, ShardRef
from elephas_like.core.workers import Worker
from elephas_like.engine.faulty_worker import FaultyWorker
from elephas_like.exchange.client import ClientSettings
from elephas_like.exchange.faulty_client import AskDriver
from elephas_like.exchange.trial_reports import TrialStore
from elephas_like.model.plan import Fit
from elephas_like.trainer.code import pickle_by_value
from elephas_like.trainer.factories import TrainerFactory
from elephas_like.trainer.programs import Program

Serve = Callable[[TrialStore], AbstractContextManager[ClientSettings]]
"""Serves a store on the driver, and says how workers reach it."""

_active: list[Injection] = []
_guard = threading.Lock()


@contextmanager
def inject(*faults: Fault) -> Iterator[Injection]:
    """Have faults happen to the workers of fits that start inside, in all threads of this process.

    The driver counts how often a worker comes to a fault, over all these fits. Spark's workers ask it over a port of its own,
    also those of the jobs engine. A fit that cannot have one of the faults raises ValueError before anything starts.

    Args:
        faults: made by `fail`, `kill`, `delay`, `hang` and `drop`.

    Yields:
        An object whose `happened` lists what has really happened: a test should look at it.

    Raises:
        TypeError: something else than faults. RuntimeError: faults are injected already.
    """
    for fault in faults:
        if not isinstance(fault, Fault):
            raise TypeError(f"inject: expected faults such as kill(worker=1, round=3), got {fault!r}.")
    injection = Injection(faults)
    with _guard:
        if _active:
            raise RuntimeError("inject: expected one `with inject(...)` at a time; give it all faults.")
        _active.append(injection)
    try:
        yield injection
    finally:
        _active.clear()


@dataclass(frozen=True)
class FaultyFactory(TrainerFactory):
    """Makes workers to which faults happen."""

    plan: FaultPlan | None = None

    def trainer(
        self, worker: int, shard: ShardRef, validation: ShardRef | None, program: Program | None, *, owns_program: bool
    ) -> Worker:
        """Return a worker on a given program."""
        assert self.plan is not None
        inner = super().trainer(worker, shard, validation, program, owns_program=owns_program)
        return FaultyWorker(inner, worker, self.plan)


@contextmanager
def injected(fit: Fit, engine: EngineName, num_workers: int, serve: Serve) -> Iterator[Fit]:
    """Yield a fit with the faults that are injected now; the same one if there are none.

    Args:
        serve: how workers of other processes ask whether a fault happens.

    Raises:
        ValueError: as `check_faults`.
    """
    with _guard:
        injection = _active[0] if _active else None
    if injection is None:
        yield fit
        return
    check_faults(injection.faults, engine, num_workers)
    if engine is EngineName.IN_PROCESS:
        visits = itertools.count()  # no Spark that would number attempts: every visit is one
        yield _with_faults(
            fit, injection, lambda index, worker, _, round: injection.ask(index, worker, next(visits), round)
        )
        return
    with serve(TrialStore(injection.judge, num_workers)) as settings:
        yield _with_faults(fit, injection, AskDriver(settings))


def _with_faults(fit: Fit, injection: Injection, ask: Ask) -> Fit:
    errors = pickle_by_value([fault.error for fault in injection.faults])
    plan = injection.plan(fit.options.mode is Mode.SYNCHRONOUS, ask, errors)
    given = {each.name: getattr(fit.factory, each.name) for each in fields(TrainerFactory)}
    return replace(fit, factory=FaultyFactory(**given, plan=plan), faults=plan)
