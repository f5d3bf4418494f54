"""Tasks are counted by the group of their job."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

from pyspark import inheritable_thread_target

from elephas_like.spark.groups import job_group, tasks


def test_sparks_tasks_are_counted_by_group(sc) -> None:
    with job_group(sc, "counted", "a test"):
        assert sc.parallelize(range(6), 3).map(lambda row: (row % 2, row)).reduceByKey(max).count() == 2
    assert tasks(sc, "counted")[0] == 0
    assert tasks(sc, "another") == (0, 0)


def test_threads_that_share_properties_have_groups_of_their_own(spark, sc) -> None:
    """Spark ML's searches make such threads: to cancel one thread's group must not take another's jobs along."""
    step = Barrier(2, timeout=60)
    shared = inheritable_thread_target(spark)  # the properties of all that it wraps

    def seen() -> str | None:
        return sc.getLocalProperty("spark.jobGroup.id")

    @shared
    def first() -> list[str | None]:
        with job_group(sc, "first", "a test"):
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
        with job_group(sc, "second", "a test"):
            step.wait()
            step.wait()  # the first has left
            found.append(seen())
        step.wait()
        return [*found, seen()]

    with ThreadPoolExecutor(2) as pool:
        threads = [pool.submit(first), pool.submit(second)]
        assert threads[0].result() == ["first", None, None]
        assert threads[1].result() == [None, "second", None]


def test_a_group_around_ours_comes_back(sc) -> None:
    with job_group(sc, "theirs", "a test"):
        with job_group(sc, "ours", "a test"):
            assert sc.getLocalProperty("spark.jobGroup.id") == "ours"
        assert sc.getLocalProperty("spark.jobGroup.id") == "theirs"
        assert sc.getLocalProperty("spark.job.description") == "a test"
    assert sc.getLocalProperty("spark.jobGroup.id") is None
