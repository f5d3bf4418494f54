from __future__ import annotations

import os
import signal
import sys
import threading
from functools import partial
from pathlib import Path

import pytest

from elephas_like.core.errors import ElephasError, WorkerError
from elephas_like.spark.failures import RefusedError
from elephas_like.spark.parallel import JobRuns, Runs, RunsInTurn, cancelled_by_caller


def outcomes(sc, act, count: int = 4) -> dict[int, object]:
    rdd = sc.parallelize(range(count), count).map(act)
    with JobRuns(sc, at_once=2, tag="parallel") as runs:
        calls = [partial(runs.rows, rdd, number, "a part", tries=4) for number in range(count)]
        return dict(runs.outcomes(calls))


def test_each_partition_once(sc) -> None:
    assert outcomes(sc, lambda number: number * 10) == {0: [0], 1: [10], 2: [20], 3: [30]}


def test_an_error_is_an_outcome_and_the_others_come(sc, tmp_path: Path) -> None:
    def broken(number: int) -> int:
        if number == 1:
            with (tmp_path / "tried").open("a") as file:
                file.write(".")
            raise LookupError("no part 1")
        return number

    found = outcomes(sc, broken)
    assert isinstance(found[1], WorkerError)
    assert "no part 1" in str(found[1])
    assert [found[number] for number in (0, 2, 3)] == [[0], [2], [3]]
    assert (tmp_path / "tried").read_text() == "."  # what the user's code raises is tried once


def test_a_lost_python_worker_is_replaced(sc, tmp_path: Path) -> None:
    def dies_once(number: int) -> int:
        if number == 1 and not (tmp_path / "died").exists():
            (tmp_path / "died").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return number

    assert outcomes(sc, dies_once) == {number: [number] for number in range(4)}


def test_results_that_spark_does_not_take_are_not_computed_again(sc, tmp_path: Path) -> None:
    def large(number: int) -> bytes:
        with (tmp_path / "tried").open("a") as file:
            file.write(".")
        return bytes(4096)

    settings = sc._jsc.sc().conf()  # of which Spark reads this one for each job
    before = settings.get("spark.driver.maxResultSize", "1g")
    settings.set("spark.driver.maxResultSize", "2k")
    try:
        (error,) = outcomes(sc, large, 1).values()
    finally:
        settings.set("spark.driver.maxResultSize", before)
    assert isinstance(error, RefusedError)
    assert "KiB of results for the driver, and spark.driver.maxResultSize allows 2.0 KiB" in str(error)
    assert (tmp_path / "tried").read_text() == "."


def test_runs_in_turn_are_made_when_their_outcome_is_asked_for() -> None:
    made: list[int] = []

    def call(number: int) -> int:
        made.append(number)
        return 1 // number

    runs: RunsInTurn[int] = RunsInTurn()
    found = runs.outcomes([partial(call, number) for number in range(3)])
    number, error = next(found)
    assert (number, type(error), made) == (0, ZeroDivisionError, [0])
    assert list(found) == [(1, 1), (2, 0)]
    runs.start(3, partial(call, 3))
    runs.cancel()
    assert runs.finished(0.0) is None


def test_a_run_in_turn_that_exits_has_failed() -> None:
    runs: RunsInTurn[int] = RunsInTurn()
    runs.start(0, partial(sys.exit, 3))
    number, error = runs.finished(0.0)
    assert number == 0
    assert isinstance(error, ElephasError)
    assert str(error) == "it called sys.exit(3)."


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
        with Runs(sc, at_once=2, name="elephas_like-test", stop=release.set) as runs:
            next(runs.outcomes([call(number) for number in range(6)]))
            raise RuntimeError("enough")
    assert len(started) < 6
    assert release.is_set()
    assert not [thread for thread in threading.enumerate() if "test" in thread.name and "elephas" in thread.name]


@pytest.mark.parametrize(
    ("how", "what"),
    [
        ("part of cancelled job group a-cell", "the Spark job group of the caller was"),
        ("part of cancelled job tag mine", "the Spark job tag of the caller was"),
        ("part of cancelled job tags mine", "the Spark job tag of the caller was"),  # as Spark 4 says it
        ("Query [id = 1f, runId = 2e] was stopped", "the streaming query of the caller was"),
        ("Query of mine [id = 1f, runId = 2e] was stopped", "the streaming query of the caller was"),
        ("as part of cancellation of all jobs", "all Spark jobs were"),
        ("part of cancelled job tag elephas_like-search-1", ""),
        ("because killed via the Web UI", ""),
    ],
)
def test_what_a_caller_has_cancelled_is_known_by_what_spark_says(how: str, what: str) -> None:
    assert cancelled_by_caller(f"the Spark job was cancelled. Spark says: Job 3 cancelled {how}") == what
