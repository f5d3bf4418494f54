from __future__ import annotations

import threading

import pytest

from elephas_like.core.errors import WorkerError
from elephas_like.spark.parallel import Calls, PartitionJobs


def jobs(sc, act, count: int = 4, at_once: int = 2) -> PartitionJobs:
    rdd = sc.parallelize(range(count), count).map(act)
    given = [(rdd, number) for number in range(count)]
    return PartitionJobs(sc, given, at_once=at_once, group="parallel", descriptions=["a part"] * count)


def test_each_partition_once(sc) -> None:
    with jobs(sc, lambda number: number * 10) as running:
        assert sorted(running.results()) == [(0, [0]), (1, [10]), (2, [20]), (3, [30])]


def test_an_error_is_a_result_and_the_others_come(sc) -> None:
    def broken(number: int) -> int:
        if number == 1:
            raise LookupError("no part 1")
        return number

    with jobs(sc, broken) as running:
        found = dict(running.results())
    assert isinstance(found[1], WorkerError)
    assert "no part 1" in str(found[1])
    assert [found[number] for number in (0, 2, 3)] == [[0], [2], [3]]


def test_calls_that_were_not_started_never_are(sc) -> None:
    release, started = threading.Event(), []

    def call(number: int):
        def run() -> int:
            started.append(number)
            if number:
                release.wait(60)
            return number

        return run

    with pytest.raises(RuntimeError, match="enough"):
        with Calls([call(number) for number in range(6)], at_once=2, name="test", stop=release.set) as running:
            next(running.results())
            raise RuntimeError("enough")
    assert len(started) < 6
    assert release.is_set()
    assert not [thread for thread in threading.enumerate() if "test" in thread.name and "elephas" in thread.name]
