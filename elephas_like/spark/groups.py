"""Job groups: name jobs in Spark's UI, cancel them, and count their tasks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from pyspark import SparkContext

_PROPERTIES = ("spark.jobGroup.id", "spark.job.description")


@contextmanager
def job_group(context: SparkContext, group: str, description: str) -> Iterator[None]:
    """Put the jobs of this thread into `group`; restore the previous group afterwards."""
    before = {name: context.getLocalProperty(name) for name in _PROPERTIES}
    context.setJobGroup(group, description)
    try:
        yield
    finally:
        for name, value in before.items():
            context.setLocalProperty(name, value)  # None takes the property away


def starved_jobs(context: SparkContext, group: str, *, others: bool = False) -> set[int]:
    """Return the jobs of a group, or all others, that have tasks left to run and none running: they wait for slots."""
    tracker = context.statusTracker()
    active, own, found = set(tracker.getActiveJobsIds()), set(tracker.getJobIdsForGroup(group)), set()
    for job in active - own if others else active & own:
        info = tracker.getJobInfo(job)
        stages = [tracker.getStageInfo(stage) for stage in (() if info is None else info.stageIds)]
        left = any(stage is not None and stage.numCompletedTasks < stage.numTasks for stage in stages)
        if left and not any(stage is not None and stage.numActiveTasks for stage in stages):
            found.add(job)
    return found


def tasks(context: SparkContext, group: str) -> tuple[int, int]:
    """Return (running tasks, ended tasks) of the group's jobs, over all stages, as Spark knows now."""
    tracker = context.statusTracker()
    running = ended = 0
    for job in tracker.getJobIdsForGroup(group):
        info = tracker.getJobInfo(job)
        for stage in () if info is None else info.stageIds:
            found = tracker.getStageInfo(stage)
            if found is not None:
                running += found.numActiveTasks
                ended += found.numCompletedTasks + found.numFailedTasks
    return running, ended
