"""Job groups: under which name a job shows in Spark's UI, can be cancelled, and can be asked how far it is."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from pyspark import SparkContext

_PROPERTIES = ("spark.jobGroup.id", "spark.job.description")


@contextmanager
def job_group(context: SparkContext, group: str, description: str) -> Iterator[None]:
    """Jobs of this thread belong to `group` until the end; then to whatever group they belonged to before."""
    before = {name: context.getLocalProperty(name) for name in _PROPERTIES}
    context.setJobGroup(group, description)
    try:
        yield
    finally:
        for name, value in before.items():
            context.setLocalProperty(name, value)  # None takes the property away


def tasks(context: SparkContext, group: str) -> tuple[int, int]:
    """(tasks of the group's jobs that run now, tasks that have ended), in whatever stage, as Spark knows at the moment."""
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
