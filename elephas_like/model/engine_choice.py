"""Which engine a fit takes, and with how many workers: a decision, and the slots that are held for it."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace

from pyspark import SparkContext
from pyspark.sql import SparkSession

from elephas_like.core.errors import ElephasError, WaitError
from elephas_like.core.types import EngineName
from elephas_like.model.options import Options
from elephas_like.spark.gang import default_parallelism
from elephas_like.spark.gpus import check_host, worker_slots
from elephas_like.spark.slots import reservation, slots
from elephas_like.spark.waits import STOPPED, stopped

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Choice:
    """An engine and its workers.

    least: workers that the server engine is content with, where other fits hold slots.
    waits: whether it waits for its slots. Otherwise it takes those that are free at once, or leaves the fit to jobs.
    reason: why "auto" took it, for the log, with a place for `workers`; "" where the engine was asked for.
    """

    engine: EngineName
    workers: int
    least: int = 1
    waits: bool = False
    reason: str = ""


def choose(
    asked: EngineName, num_workers: int | None, partitions: int | None, slots: int | None, steady: bool
) -> Choice:
    """The engine that was asked for, or for "auto" the one that fits.

    Args:
        num_workers: workers that were asked for; None takes one per partition, the server engine at most one per slot.
        partitions: of the data; None where it has none yet.
        slots: tasks that Spark can run at the same time; None without Spark.
        steady: whether workers must live through the whole fit, which those of the jobs engine do not.
    """
    anywhere = num_workers or partitions or 1
    if asked is EngineName.JOBS:
        return Choice(asked, anywhere)
    if asked is EngineName.IN_PROCESS or slots is None:
        why = "no Spark session is active" if asked is EngineName.AUTO else ""
        return Choice(EngineName.IN_PROCESS, anywhere, reason=why)
    wanted = num_workers or max(1, min(partitions or slots, slots))
    if asked in (EngineName.SERVER, EngineName.GANG):
        return Choice(asked, wanted, least=wanted, waits=True)
    if steady:
        why = "{workers} workers that go on alone, or keep something between rounds"
        return Choice(EngineName.SERVER, wanted, least=wanted, waits=True, reason=why)
    least = num_workers or 1
    if least > slots:
        return jobs_instead(num_workers, partitions, slots, f"Spark has {slots} slots")
    why = f"{{workers}} workers fit in the free ones of Spark's {slots} slots"
    return Choice(EngineName.SERVER, wanted, least=least, reason=why)


def jobs_instead(num_workers: int | None, partitions: int | None, slots: int, why: str) -> Choice:
    """The jobs engine, for a fit whose workers cannot all run at the same time."""
    workers = num_workers or partitions or max(1, slots)
    reason = f"{{workers}} workers would run at once, and {why}; each round is a Spark job"
    return Choice(EngineName.JOBS, workers, reason=reason)


@contextmanager
def chosen_engine(
    options: Options,
    context: SparkContext | None,
    num_workers: int | None,
    partitions: int | None,
    *,
    steady: bool = False,
) -> Iterator[tuple[EngineName, int]]:
    """(the engine, its workers), as `choose` says, with the reason logged.

    The server engine's slots are held until the end: whoever chooses at the same time sees what is left.

    Args:
        num_workers, partitions: as for `choose`.
        steady: whether workers must live through the whole fit for a reason that is not among the options.

    Raises:
        CapacityError: the server engine, and fewer slots than workers; or no GPU where GPUs were asked for.
        WaitError: the server engine, and other fits hold the slots for longer than `join_timeout`.
    """
    available = None
    if context is not None and options.engine is not EngineName.IN_PROCESS:
        if stopped(context):
            raise ElephasError(STOPPED)
        if options.engine is not EngineName.JOBS:  # which needs no simultaneous slots, nor waits for executors
            available = worker_slots(context, options.join_timeout, num_workers, options.resources)
    choice = choose(options.engine, num_workers, partitions, available, steady or not options.runs_as_jobs())
    if choice.engine is EngineName.IN_PROCESS and options.resources is not None:
        check_host()
    with ExitStack() as held:
        if choice.engine in (EngineName.SERVER, EngineName.GANG) and context is not None and available is not None:
            timeout = options.join_timeout if choice.waits else 0.0
            slots_held = reservation(
                context,
                choice.workers,
                available,
                timeout,
                at_least=choice.least,
                kind=options.resources,
                of_all=None if options.resources is None else slots(context, 0.0, num_workers),
            )
            try:
                choice = replace(choice, workers=held.enter_context(slots_held))
            except WaitError:
                if choice.waits:
                    raise
                choice = jobs_instead(num_workers, partitions, available, "other fits hold the slots")
        _log(choice)
        yield choice.engine, choice.workers


@contextmanager
def chosen_remotely(
    options: Options, session: SparkSession, num_workers: int | None
) -> Iterator[tuple[EngineName, int]]:
    """(the engine, its workers) of a fit over Spark Connect: gangs, or no Spark at all where that was asked for.

    Raises:
        ValueError: another engine was asked for.
    """
    if options.engine is EngineName.IN_PROCESS:
        yield options.engine, num_workers or 1
        return
    if options.engine not in (EngineName.AUTO, EngineName.GANG):
        raise ValueError(
            f"engine={options.engine.value!r} needs a classic session; over Spark Connect use engine='gang', or leave it out."
        )
    yield EngineName.GANG, num_workers or default_parallelism(session)


def _log(choice: Choice) -> None:
    if choice.reason:
        level = logging.WARNING if choice.engine is EngineName.JOBS else logging.INFO
        log.log(level, "engine=%r: %s", choice.engine.value, choice.reason.format(workers=choice.workers))
