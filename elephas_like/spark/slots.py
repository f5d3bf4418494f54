"""How many workers can run at once, and who may: slots are counted, and reserved, before long tasks are started.

Two fits of two workers on two slots would otherwise take one slot each, and wait for each other for ever.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from pyspark import SparkContext

from elephas_like.core.errors import CapacityError, WaitError

_reserved: dict[str, int] = {}
_changed = threading.Condition()


SETTLED_SECONDS = 5.0
"""After so long without another executor, those of a fresh cluster context are taken to be all."""


def slots(context: SparkContext, wait: float = 30.0, wanted: int | None = None) -> int:
    """Tasks that can run at the same time, busy slots included.

    Under dynamic allocation with a `maxExecutors`, what the application may grow to. Executors of a fresh cluster context register one after
    the other, over seconds: this waits for the first and, within `wait` of the context's start, for others.

    Args:
        wait: seconds to wait for executors.
        wanted: slots that are enough; None waits until no more executors come.
    """
    most = context.getConf().get("spark.dynamicAllocation.maxExecutors")
    if context.getConf().get("spark.dynamicAllocation.enabled", "false") == "true" and most is not None:
        cores = int(context.getConf().get("spark.executor.cores", "1"))
        return int(most) * max(1, cores // task_cpus(context))
    changed = time.monotonic()
    deadline, before = changed + wait, 0
    fresh = not context.master.startswith("local[") and time.time() < context.startTime / 1000 + wait
    while True:
        found, now = _concurrent_tasks(context), time.monotonic()
        if found != before:
            before, changed = found, now
        complete = not fresh or now > changed + SETTLED_SECONDS or (wanted is not None and found >= wanted)
        if (found and complete) or now > deadline:
            return found
        time.sleep(0.1)


def _concurrent_tasks(context: SparkContext) -> int:
    """Slots that are registered now. Spark has no public name for it; barrier mode checks itself against the same."""
    scala = context._jsc.sc()
    return int(scala.maxNumConcurrentTasks(scala.resourceProfileManager().defaultResourceProfile()))


def task_cpus(context: SparkContext) -> int:
    """`spark.task.cpus`: cores that a task may use."""
    return int(context.getConf().get("spark.task.cpus", "1"))


@contextmanager
def reservation(
    context: SparkContext, num_workers: int, available: int, timeout: float, *, at_least: int | None = None
) -> Iterator[int]:
    """Holds slots of this application against other fits of this driver process, and gives their number.

    Args:
        num_workers: slots that are asked for.
        available: slots that Spark has, busy ones included.
        timeout: seconds to wait for slots that other fits hold; 0 takes what is free at this moment, or nothing.
        at_least: slots that will do where others hold the rest; None wants all `num_workers`.

    Raises:
        CapacityError: more than there are at all.
        WaitError: other fits hold them for longer than `timeout` seconds.
    """
    least = num_workers if at_least is None else at_least
    if least > available:
        raise CapacityError(
            f"{least} workers must run at the same time, and Spark has {available} slots. Use num_workers="
            f"{max(1, available)}, give Spark more cores, or use engine='jobs' (synchronous only), which needs no "
            "simultaneous slots."
        )
    key = context.applicationId
    with _changed:
        if not _changed.wait_for(lambda: available - _reserved.get(key, 0) >= least, timeout):
            raise WaitError(
                f"other fits hold {_reserved.get(key, 0)} of {available} slots, and this one needs {least}; "
                f"waited {timeout:.0f} s (join_timeout)."
            )
        taken = min(num_workers, available - _reserved.get(key, 0))
        _reserved[key] = _reserved.get(key, 0) + taken
    try:
        yield taken
    finally:
        with _changed:
            _reserved[key] -= taken
            _changed.notify_all()


def free(context: SparkContext, available: int) -> int:
    """Slots that no fit of this process has reserved."""
    with _changed:
        return available - _reserved.get(context.applicationId, 0)
