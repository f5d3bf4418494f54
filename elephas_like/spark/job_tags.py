"""Job tags: mark the jobs of a fit or a search, describe them in Spark's UI, cancel them, and count their tasks.

Job groups are left alone, for a thread has one only, and it may be the caller's: a streaming query and most notebooks
cancel what they started by its group.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from pyspark import SparkContext, SparkStageInfo, StatusTracker


@contextmanager
def tagged_jobs(context: SparkContext, tag: str, description: str) -> Iterator[None]:
    """Mark the jobs of this thread with `tag`, beside tags and the group that it has; restore what was there afterwards."""
    with _own_properties(context):
        context.addJobTag(tag)
        context.setJobDescription(description)
        yield


@contextmanager
def _own_properties(context: SparkContext) -> Iterator[None]:
    """Give this thread a copy of Spark's local properties, and the previous ones back afterwards.

    Threads share one set of them if `inheritable_thread_target` made their targets, as in a search of Spark ML's with
    parallelism: what one thread sets holds for all, and cancelling its jobs would cancel theirs. Spark has no public
    name for the whole set; PySpark's own threads copy it like this.
    """
    scala = context._jsc.sc()
    before = scala.getLocalProperties()
    scala.setLocalProperties(before.clone())
    try:
        yield
    finally:
        scala.setLocalProperties(before)


def starved_jobs(context: SparkContext, tag: str) -> set[int]:
    """Return the jobs without a tag that have tasks left to run, and none running: they wait for slots."""
    tracker = context.statusTracker()
    found = set()
    for job in set(tracker.getActiveJobsIds()) - jobs_with(context, tag):
        stages = _stages(tracker, job)
        if any(stage.numCompletedTasks < stage.numTasks for stage in stages) and not _running(stages):
            found.add(job)
    return found


def waits_for_slots(context: SparkContext, tag: str) -> bool:
    """Whether no task of a tag's jobs runs now."""
    tracker = context.statusTracker()
    return not any(_running(_stages(tracker, job)) for job in _active_jobs(context, tag))


def unfinished(context: SparkContext, tag: str) -> bool:
    """Whether a tag's job has not ended, or has ended and still has running tasks, as a cancelled job does.

    Only both together tell: Spark publishes a task's start up to 0.1 s late, until its job ends.
    """
    return bool(_active_jobs(context, tag)) or tasks(context, tag)[0] > 0


def tasks(context: SparkContext, tag: str) -> tuple[int, int]:
    """Return (running tasks, ended tasks) of a tag's jobs, over all stages, as Spark knows now."""
    tracker = context.statusTracker()
    running = ended = 0
    for job in jobs_with(context, tag):
        stages = _stages(tracker, job)
        running += _running(stages)
        ended += sum(stage.numCompletedTasks + stage.numFailedTasks for stage in stages)
    return running, ended


def failed_tasks(context: SparkContext, tag: str) -> int:
    """Return how many task attempts of a tag's jobs have failed, over all stages, as Spark knows now."""
    tracker = context.statusTracker()
    return sum(stage.numFailedTasks for job in jobs_with(context, tag) for stage in _stages(tracker, job))


def jobs_with(context: SparkContext, tag: str) -> set[int]:
    """Return the known jobs of a tag, active or not. PySpark's StatusTracker lacks what Spark's own has since 3.5."""
    return set(context._jsc.sc().statusTracker().getJobIdsForTag(tag))


def _active_jobs(context: SparkContext, tag: str) -> set[int]:
    return set(context.statusTracker().getActiveJobsIds()) & jobs_with(context, tag)


def _stages(tracker: StatusTracker, job: int) -> list[SparkStageInfo]:
    info = tracker.getJobInfo(job)
    found = [tracker.getStageInfo(stage) for stage in (() if info is None else info.stageIds)]
    return [stage for stage in found if stage is not None]


def _running(stages: Iterable[SparkStageInfo]) -> int:
    return sum(stage.numActiveTasks for stage in stages)
