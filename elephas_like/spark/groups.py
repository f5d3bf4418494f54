"""Job groups: name jobs in Spark's UI, cancel them, and count their tasks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from pyspark import SparkContext, SparkStageInfo, StatusTracker


@contextmanager
def job_group(context: SparkContext, group: str, description: str) -> Iterator[None]:
    """Put the jobs of this thread into `group`; restore the previous group afterwards."""
    with _own_properties(context):
        context.setJobGroup(group, description)
        yield


@contextmanager
def _own_properties(context: SparkContext) -> Iterator[None]:
    """Give this thread a copy of Spark's local properties, and the previous ones back afterwards.

    Threads share one set of them if `inheritable_thread_target` made their targets, as in a search of Spark ML's with
    parallelism: what one thread sets holds for all, and cancelling its job group would cancel their jobs. Spark has no
    public name for the whole set; PySpark's own threads copy it like this.
    """
    scala = context._jsc.sc()
    before = scala.getLocalProperties()
    scala.setLocalProperties(before.clone())
    try:
        yield
    finally:
        scala.setLocalProperties(before)


def starved_jobs(context: SparkContext, group: str) -> set[int]:
    """Return the jobs outside a group that have tasks left to run, and none running: they wait for slots."""
    tracker = context.statusTracker()
    found = set()
    for job in set(tracker.getActiveJobsIds()) - set(tracker.getJobIdsForGroup(group)):
        stages = _stages(tracker, job)
        if any(stage.numCompletedTasks < stage.numTasks for stage in stages) and not _running(stages):
            found.add(job)
    return found


def waits_for_slots(context: SparkContext, group: str) -> bool:
    """Whether no task of a group runs now."""
    tracker = context.statusTracker()
    return not any(_running(_stages(tracker, job)) for job in _active_jobs(tracker, group))


def unfinished(context: SparkContext, group: str) -> bool:
    """Whether a job of a group has not ended, or has ended and still has running tasks, as a cancelled job does.

    Only both together tell: Spark publishes a task's start up to 0.1 s late, until its job ends.
    """
    return bool(_active_jobs(context.statusTracker(), group)) or tasks(context, group)[0] > 0


def tasks(context: SparkContext, group: str) -> tuple[int, int]:
    """Return (running tasks, ended tasks) of the group's jobs, over all stages, as Spark knows now."""
    tracker = context.statusTracker()
    running = ended = 0
    for job in tracker.getJobIdsForGroup(group):
        stages = _stages(tracker, job)
        running += _running(stages)
        ended += sum(stage.numCompletedTasks + stage.numFailedTasks for stage in stages)
    return running, ended


def failed_tasks(context: SparkContext, group: str) -> int:
    """Return how many task attempts of the group's jobs have failed, over all stages, as Spark knows now."""
    tracker = context.statusTracker()
    return sum(stage.numFailedTasks for job in tracker.getJobIdsForGroup(group) for stage in _stages(tracker, job))


def _active_jobs(tracker: StatusTracker, group: str) -> set[int]:
    return set(tracker.getActiveJobsIds()) & set(tracker.getJobIdsForGroup(group))


def _stages(tracker: StatusTracker, job: int) -> list[SparkStageInfo]:
    info = tracker.getJobInfo(job)
    found = [tracker.getStageInfo(stage) for stage in (() if info is None else info.stageIds)]
    return [stage for stage in found if stage is not None]


def _running(stages: Iterable[SparkStageInfo]) -> int:
    return sum(stage.numActiveTasks for stage in stages)
