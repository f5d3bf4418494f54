"""Jobs of a classic session; those of Spark Connect: tests/connect."""

from __future__ import annotations

import threading

import pytest

from elephas_like.core.errors import WorkerError
from elephas_like.spark.remote import new_tag, run_job
from elephas_like.spark.waits import Overdue


def test_a_job_gives_what_it_gives(spark) -> None:
    assert run_job(spark, new_tag("count"), "count", 60, spark.range(7).count) == 7


def test_a_job_that_takes_too_long_is_cancelled(spark, sc) -> None:
    def wait(rows):
        threading.Event().wait(600)
        return rows

    with pytest.raises(Overdue):
        run_job(spark, new_tag("wait"), "wait", 0.5, sc.parallelize(range(1), 1).mapPartitions(wait).count)


def test_a_workers_error_is_its_own(spark, sc) -> None:
    with pytest.raises(WorkerError, match="by zero") as raised:
        run_job(spark, new_tag("divide"), "divide", 60, sc.parallelize([0], 1).map(lambda x: 1 // x).collect)
    assert isinstance(raised.value, ZeroDivisionError)


def test_tags_are_new_and_have_no_comma_or_space() -> None:
    tags = {new_tag("map") for _ in range(20)}
    assert len(tags) == 20
    assert not any("," in tag or " " in tag for tag in tags)
