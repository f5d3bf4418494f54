"""Task slots: how many workers can run at once, and reservations of slots before long tasks start.

Without reservations, two fits of two workers on two slots could take one slot each and wait for each other forever.
"""

from __future__ import annotations

import logging
import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from pyspark import SparkContext
from pyspark.resource import ResourceProfile

from elephas_like.core.errors import CapacityError, ElephasError, WaitError
from elephas_like.core.types import Resources
from elephas_like.spark.failures import GONE
from elephas_like.spark.job_tags import tasks, waits_for_slots
from elephas_like.spark.session import Conf, is_local, is_on, settings_of
from elephas_like.spark.waits import stopped

log = logging.getLogger(__name__)

_LOCAL_CLUSTER = re.compile(r"local-cluster\[\s*(?P<executors>\d+)\s*,\s*(?P<cores>\d+)\s*,")
_reserved: dict[str, int] = {}
_known: dict[
    tuple[str, int | None], int
] = {}  # slots of an application, or of a resource profile of it, when last counted
_changed = threading.Condition()

MOST_EXECUTORS = 2**31 - 1
"""Spark's default of `spark.dynamicAllocation.maxExecutors`."""
SETTLED_SECONDS = 5.0
"""Seconds without another executor after which a new cluster context is taken to be complete, where it has what it asked for."""
REPLACED_SECONDS = 30.0
"""Seconds to wait for the successor of a lost executor, or for one of a new session, where fewer slots will do."""


def slots(
    context: SparkContext, wait: float = 30.0, wanted: int | None = None, profile: ResourceProfile | None = None
) -> int:
    """Return the number of tasks that can run at the same time, busy slots included.

    Executors of a new cluster context register one after another, over seconds: this waits for the first and, until `wait`
    seconds after the context's start, for those that its settings ask for, and while more come. A cluster that had more slots
    when they were last counted has lost an executor, which it replaces: that is waited for, too, once. Under dynamic allocation
    it does not wait: for `wanted` slots, the application may grow to `maxExecutors`; otherwise its registered executors count,
    or those that it starts with.

    Args:
        wait: seconds to wait for executors.
        wanted: number of slots that is enough; None waits until no more executors come.
        profile: what the tasks need, if it is not what all tasks of the application need.

    Raises:
        ElephasError: the SparkContext was stopped.
    """
    if stopped(context):
        raise ElephasError(GONE)
    if allocates_dynamically(context):
        return _slots_of_growing(context, profile, may_grow=wanted is not None)
    key = context.applicationId, None if profile is None else profile.id
    known = _known.get(key, 0)
    lost_below = known if wanted is None else wanted if wanted <= known else 0
    patience = wait if wanted is not None else min(wait, REPLACED_SECONDS)
    local, started = is_local(context), context.startTime / 1000
    asked = 0 if local else slots_asked_for(settings_of(context), context.master, profile)
    began = changed = time.monotonic()
    before, said = 0, False
    while True:
        found, now = _concurrent_tasks(context, profile), time.monotonic()
        if found != before:
            before, changed = found, now
        age, quiet = time.time() - started, now > changed + SETTLED_SECONDS
        complete = quiet and (found >= asked or age > patience)
        settled = local or age > wait or complete or (wanted is not None and found >= wanted)
        given_up = now > began + patience
        if (found and settled and (found >= lost_below or given_up)) or now > began + wait:
            _known[key] = found if wait and given_up else max(found, known)
            return found
        if quiet and not settled and not said:
            said = True
            log.warning(
                "Spark has %d of the %d slots that its settings ask for: waiting for the others, up to %.0f s after its start.",
                *(found, asked, patience),
            )
        if 0 < found < lost_below and not said:
            said = True
            log.warning(
                "Spark had %d slots and has %d now, as after the loss of an executor: waiting up to %.0f s for another one.",
                *(known, found, patience),
            )
        time.sleep(0.1)


def allocates_dynamically(context: SparkContext) -> bool:
    """Return whether Spark adds executors while tasks wait, and removes idle ones. In local mode it never does."""
    return not is_local(context) and is_on(settings_of(context), "spark.dynamicAllocation.enabled")


def _slots_of_growing(context: SparkContext, profile: ResourceProfile | None, *, may_grow: bool) -> int:
    conf = settings_of(context)
    each = _slots_each(conf, profile)
    most = int(conf.get("spark.dynamicAllocation.maxExecutors", str(MOST_EXECUTORS))) * each
    if may_grow:
        return max(most, _concurrent_tasks(context, profile))
    begins = (
        "spark.dynamicAllocation.minExecutors",
        "spark.dynamicAllocation.initialExecutors",
        "spark.executor.instances",
    )
    first = max(1, *(int(conf.get(name, "0")) for name in begins))
    return max(min(most, first * each), _concurrent_tasks(context, profile))


def _slots_each(conf: Conf, profile: ResourceProfile | None, cores: int | None = None) -> int:
    """Return the slots of an executor, by the settings; a standalone cluster may give it more cores than they say."""
    each = (cores or int(conf.get("spark.executor.cores", "1") or 1)) // task_cpus(conf)
    gpus = task_gpus(conf) if profile is None else float(profile.taskResources[Resources.GPU].amount)
    if gpus:
        has = float(conf.get("spark.executor.resource.gpu.amount", "0") or 0)
        each = min(
            each, int(has) * int(1 / gpus) if gpus < 1 else int(has / gpus)
        )  # a card is divided, and no two together
    return max(1, each)


def slots_asked_for(conf: Conf, master: str, profile: ResourceProfile | None = None) -> int:
    """Return the slots of the executors that an application asks its cluster for, at least; 0 where nothing says how many.

    A standalone cluster gives it as many executors as there are cores, whatever `spark.executor.instances` says.
    """
    cluster = _LOCAL_CLUSTER.match(master)
    if cluster is not None:
        return int(cluster["executors"]) * _slots_each(conf, profile, int(cluster["cores"]))
    executors = 0 if master.startswith("spark://") else int(conf.get("spark.executor.instances", "0") or 0)
    return executors * _slots_each(conf, profile)


def _concurrent_tasks(context: SparkContext, profile: ResourceProfile | None) -> int:
    """Return the slots registered now. Spark has no public name for it; barrier mode uses the same method."""
    scala = context._jsc.sc()
    known = scala.resourceProfileManager()
    if profile is None:
        return int(scala.maxNumConcurrentTasks(known.defaultResourceProfile()))
    known.addResourceProfile(profile._java_resource_profile)  # as `RDD.withResources` does
    return int(scala.maxNumConcurrentTasks(profile._java_resource_profile))


def task_cpus(conf: Conf) -> int:
    """Return `spark.task.cpus`: cores per task."""
    return int(conf.get("spark.task.cpus", "1") or 1)


def task_gpus(conf: Conf) -> float:
    """Return `spark.task.resource.gpu.amount`: GPUs per task, 0 where tasks are given none."""
    return float(conf.get(f"spark.task.resource.{Resources.GPU}.amount", "0") or 0)


@contextmanager
def reservation(
    context: SparkContext,
    num_workers: int,
    available: int,
    timeout: float,
    *,
    at_least: int | None = None,
    kind: str | None = None,
    of_all: int | None = None,
) -> Iterator[int]:
    """Reserve slots of this application against other fits of this driver process; yield their number.

    Args:
        num_workers: slots to reserve.
        available: slots that Spark has, busy ones included.
        timeout: seconds to wait for slots that other fits hold; 0 does not wait.
        at_least: slots that are enough if others hold the rest; None needs all `num_workers`.
        kind: what a slot has besides cores, "gpu", of which fits without do not take any away.
        of_all: slots that Spark has with or without that; None if `available` are all.

    Raises:
        CapacityError: Spark has fewer slots than that.
        WaitError: other fits hold them for longer than `timeout` seconds.
    """
    least = num_workers if at_least is None else at_least
    if least > available:
        raise CapacityError(
            f"{least} workers must run at the same time, and Spark has {available} slots. Use num_workers="
            f"{max(1, available)}, give Spark more cores, or use engine='jobs' (synchronous only), which needs no "
            "simultaneous slots."
        )
    keys = (context.applicationId, *(() if kind is None else (f"{context.applicationId} {kind}",)))

    def unreserved() -> int:
        left = available - _reserved.get(keys[-1], 0)
        return left if of_all is None else min(left, of_all - _reserved.get(keys[0], 0))

    with _changed:
        if not _changed.wait_for(lambda: unreserved() >= least, min(timeout, threading.TIMEOUT_MAX)):
            raise WaitError(
                f"other fits hold {_reserved.get(keys[-1], 0)} of {available} slots, and this one needs {least}; "
                f"waited {timeout:.0f} s (join_timeout)."
            )
        taken = min(num_workers, unreserved())
        for key in keys:
            _reserved[key] = _reserved.get(key, 0) + taken
    try:
        yield taken
    finally:
        with _changed:
            for key in keys:
                _reserved[key] -= taken
            _changed.notify_all()


def reserved(context: SparkContext) -> int:
    """Return the slots that fits of this process have reserved."""
    with _changed:
        return _reserved.get(context.applicationId, 0)


def held_up(context: SparkContext, tag: str) -> float:
    """Return the time while the jobs with a tag wait for slots of fits of this process, which end or are suspended; else 0.

    As part of a job's progress (`waits.run_within`) it keeps such a wait from counting.
    """
    waits = reserved(context) and waits_for_slots(context, tag)
    return time.monotonic() if waits else 0.0


def task_progress(context: SparkContext, tag: str) -> object:
    """Return a value that changes when a task of a tag's jobs starts or ends, and while they are held up."""
    return tasks(context, tag), held_up(context, tag)


def free(context: SparkContext, available: int, kind: str | None = None) -> int:
    """Return the slots that no fit of this process has reserved; of those with a GPU, if that is the kind."""
    with _changed:
        return available - _reserved.get(
            context.applicationId if kind is None else f"{context.applicationId} {kind}", 0
        )
