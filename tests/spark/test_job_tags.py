"""Tasks are counted by the tag of their job, and the caller's job group stays."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pyspark
import pytest
from pyspark import inheritable_thread_target

from elephas_like.spark.job_tags import tagged_jobs, tasks
from elephas_like.spark.waits import outside_groups

TAGS, GROUP = "spark.job.tags", "spark.jobGroup.id"


def test_sparks_tasks_are_counted_by_tag(sc) -> None:
    with tagged_jobs(sc, "counted", "a test"):
        assert sc.parallelize(range(6), 3).map(lambda row: (row % 2, row)).reduceByKey(max).count() == 2
    assert tasks(sc, "counted") == (0, 6)  # three that map, three that reduce
    assert tasks(sc, "another") == (0, 0)


@pytest.mark.skipif(pyspark.__version__.startswith("3."), reason="threads share no properties before Spark 4.0")
def test_threads_that_share_properties_have_tags_of_their_own(spark, sc) -> None:
    """Spark ML's searches make such threads: to cancel one thread's jobs must not take another's along."""
    step = Barrier(2, timeout=60)
    shared = inheritable_thread_target(spark)  # the properties of all that it wraps

    def seen() -> str | None:
        return sc.getLocalProperty(TAGS)

    @shared
    def first() -> list[str | None]:
        with tagged_jobs(sc, "first", "a test"):
            step.wait()
            step.wait()  # the other has entered its own
            found = [seen()]
        found.append(seen())
        step.wait()
        step.wait()  # the other has left
        return [*found, seen()]

    @shared
    def second() -> list[str | None]:
        step.wait()  # the first has entered
        found = [seen()]
        with tagged_jobs(sc, "second", "a test"):
            step.wait()
            step.wait()  # the first has left
            found.append(seen())
        step.wait()
        return [*found, seen()]

    with ThreadPoolExecutor(2) as pool:
        threads = [pool.submit(first), pool.submit(second)]
        assert threads[0].result() == ["first", None, None]
        assert threads[1].result() == [None, "second", None]


def test_the_callers_group_and_tags_stay(sc) -> None:
    def seen() -> tuple[str | None, str | None, str | None]:
        tags = sc.getLocalProperty(TAGS)
        return (
            sc.getLocalProperty(GROUP),
            tags and ",".join(sorted(tags.split(","))),
            sc.getLocalProperty("spark.job.description"),
        )

    before = seen()
    sc.setJobGroup("theirs", "their jobs")
    sc.addJobTag("a-tag-of-theirs")
    try:
        with tagged_jobs(sc, "ours", "our jobs"):
            assert seen() == ("theirs", "a-tag-of-theirs,ours", "our jobs")
        assert outside_groups(seen) == (None, None, None)
        assert seen() == ("theirs", "a-tag-of-theirs", "their jobs")
    finally:
        sc.removeJobTag("a-tag-of-theirs")
        sc.setLocalProperty(GROUP, None)
        sc.setLocalProperty("spark.job.description", None)
    assert seen() == before
