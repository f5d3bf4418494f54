"""Job groups: under which name a job shows in Spark's UI, and can be cancelled."""

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
