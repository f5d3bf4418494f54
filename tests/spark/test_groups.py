"""Tasks are counted by the group of their job."""

from __future__ import annotations

from elephas_like.spark.groups import job_group, tasks


def test_sparks_tasks_are_counted_by_group(sc) -> None:
    with job_group(sc, "counted", "a test"):
        assert sc.parallelize(range(6), 3).map(lambda row: (row % 2, row)).reduceByKey(max).count() == 2
    assert tasks(sc, "counted")[0] == 0
    assert tasks(sc, "another") == (0, 0)
