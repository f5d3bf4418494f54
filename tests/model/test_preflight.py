"""Findings of a preflight check from plain inputs, and the check of a fit without Spark. With Spark: tests/integration."""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import keras
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from small import line

from elephas_like import SparkModel
from elephas_like.core.findings import Finding, Level
from elephas_like.core.types import EngineName
from elephas_like.engine.probe import ExecutorProbe
from elephas_like.model.engine_choice import choose
from elephas_like.model.preflight import (
    adds_them_up,
    disk_finding,
    driver_memory,
    engine_findings,
    exchange_findings,
    executor_findings,
    partition_findings,
    report_of,
    server_finding,
    slot_findings,
)
from elephas_like.rows.samples import PartitionSample

AUTO, SERVER, JOBS, HERE = EngineName.AUTO, EngineName.SERVER, EngineName.JOBS, EngineName.IN_PROCESS
OK, NOTE, PROBLEM = Level
MiB = 2**20
PROBE = ExecutorProbe("node-1", {"python": "3.11.7", "keras": "3.8.0"}, "", "/tmp", 1000, "")


def only(findings: Iterator[Finding]) -> tuple[Level, str]:
    (finding,) = findings
    return finding.level, finding.text


def test_the_engine_that_is_chosen_and_why() -> None:
    assert only(engine_findings(AUTO, choose(AUTO, 2, None, 4, False))) == (
        OK,
        "'server' with 2 workers: 2 workers fit in the free ones of Spark's 4 slots",
    )
    assert only(engine_findings(JOBS, choose(JOBS, 2, None, 4, False))) == (
        OK,
        "'jobs' with 2 workers: it was asked for",
    )
    level, text = only(engine_findings(AUTO, choose(AUTO, 5, None, 4, False)))
    assert level is NOTE
    assert text.startswith("'jobs' with 5 workers: 5 workers would run at once, and Spark has 4 slots")


@pytest.mark.parametrize(
    ("asked", "workers", "found", "unreserved", "level", "said"),
    [
        (AUTO, 2, 4, 4, OK, "4 found, 4 not taken by other fits; a fit takes 2"),
        (AUTO, 2, 4, 1, NOTE, "once they are free"),
        (JOBS, 9, 4, 4, OK, "a fit takes 4"),
        (SERVER, 5, 4, 4, PROBLEM, "5 workers must run at the same time, and Spark has 4 slots. Use num_workers=4"),
        (AUTO, 5, 4, 4, OK, "a fit takes 4"),
        (AUTO, None, 0, 0, PROBLEM, "no executor has registered"),
    ],
)
def test_slots(asked: EngineName, workers: int | None, found: int, unreserved: int, level: Level, said: str) -> None:
    got, text = only(slot_findings(choose(asked, workers, None, found, False), found, unreserved))
    assert got is level
    assert said in text


def test_executors_with_the_drivers_versions_with_others_and_with_those_that_cannot_work() -> None:
    driver = PROBE.packages
    assert only(executor_findings(driver, [PROBE, PROBE])) == (OK, "2 tasks on node-1 have the driver's versions")
    other = replace(PROBE, host="node-2", packages={**driver, "python": "3.12.1"})
    level, text = only(executor_findings(driver, [PROBE, other, other]))
    assert level is NOTE
    assert "python 3.12.1 on node-2, 3.11.7 on the driver" in text
    wrong = replace(other, mismatch="keras is 3.8.0 on the driver and 2.0 on node-2")
    assert only(executor_findings(driver, [wrong, wrong])) == (PROBLEM, wrong.mismatch)


def test_executors_that_compile_keras_in_each_process() -> None:
    slow = [replace(PROBE, host=f"node-{number}", compiles_again=number > 1) for number in (1, 2, 3, 3)]
    note, fine = executor_findings(PROBE.packages, slow)
    assert (note.level, fine.level) == (NOTE, OK)
    assert note.text.startswith("Python cannot keep the bytecode of Keras on node-2, node-3 (")


def test_a_server_that_some_executors_do_not_reach() -> None:
    assert server_finding("10.0.0.1:80 (http)", [PROBE]).text == "executors reach the driver at 10.0.0.1:80 (http)"
    found = server_finding(
        "10.0.0.1:80", [PROBE, replace(PROBE, host="node-2", unreachable="cannot reach it. Give host=")]
    )
    assert found.level is PROBLEM
    assert found.text == "executors on node-2 do not reach it; node-2: cannot reach it. Give host="


def samples(*rows: int, complete: bool = True) -> list[PartitionSample]:
    return [PartitionSample(index, count, complete, None) for index, count in enumerate(rows)]


def test_partitions() -> None:
    assert only(partition_findings(2, 2, samples(3, 4))) == (OK, "2 partitions for 2 workers; rows in 2 of them: 3, 4")
    assert "3 of them: 1000 or more, " in only(partition_findings(9, 2, samples(1000, 1000, 1000, complete=False)))[1]
    assert "split among the workers by a shuffle" in only(partition_findings(1, 2, samples(3)))[1]
    level, text = only(partition_findings(9, 2, samples(3, 0)))
    assert level is NOTE
    assert "Partition 1 is empty: repartition" in text
    assert only(partition_findings(9, 2, samples(0, 0)))[0] is NOTE  # seven were not looked at
    assert only(partition_findings(2, 2, samples(0, 0)))[0] is PROBLEM
    assert only(partition_findings(0, 2, []))[0] is PROBLEM


@pytest.mark.parametrize(
    ("engine", "limit", "physical", "level", "said"),
    [
        (SERVER, 0, None, OK, "10.0 MiB; 6 copies and the updates of a round are 124.0 MiB"),
        (SERVER, MiB, 124 * MiB, OK, "124.0 MiB"),
        (SERVER, 0, 124 * MiB - 1, PROBLEM, "the machine has 124.0 MiB"),
        (JOBS, 50 * MiB, None, OK, "5 copies and the updates of a round are 100.0 MiB"),
        (JOBS, 0, None, OK, "5 copies"),
        (JOBS, 50 * MiB - 1, None, PROBLEM, "Raise spark.driver.maxResultSize (50.0 MiB), or use engine='server'"),
        (HERE, 0, None, OK, "10 copies and the updates of a round are 150.0 MiB"),
    ],
)
def test_memory_of_the_driver(engine: EngineName, limit: int, physical: int | None, level: Level, said: str) -> None:
    got, text = only(driver_memory(engine, 5, 10 * MiB, 10 * MiB, limit, physical))
    assert got is level
    assert said in text


@pytest.mark.parametrize(
    ("limit", "level", "said"),
    [(10 * MiB, OK, "5 copies and the updates of a round are 60.0 MiB"), (10 * MiB - 1, PROBLEM, "Raise")],
)
def test_a_sum_of_updates_is_as_large_as_one(limit: int, level: Level, said: str) -> None:
    got, text = only(driver_memory(JOBS, 500, 10 * MiB, 10 * MiB, limit, None, sums=True))
    assert got is level
    assert said in text


def test_updates_count_as_large_as_they_are_sent() -> None:
    level, text = only(driver_memory(JOBS, 5, 10 * MiB, 2 * MiB, 10 * MiB, None))
    assert level is OK  # five whole states would be too much
    assert "5 copies and the updates of a round are 60.0 MiB" in text


def test_a_check_knows_codecs_and_slots_that_stay_with_workers() -> None:
    def memory(**options: object) -> str:
        model = keras.Sequential([keras.Input((1024,)), keras.layers.Dense(1024, use_bias=False)])
        model.compile("adam", "mse")
        report = SparkModel(model, 4, engine="in_process", **options).check(np.ones((8, 1024)), np.ones((8, 1024)))
        return next(found.text for found in report.findings if found.name == "memory of the driver")

    assert memory().startswith("the model's state is 12.0 MiB; 9 copies and the updates of a round are 156.0 MiB")
    assert "124.0 MiB" in memory(optimizer_state="reset")
    assert "112.1 MiB" in memory(optimizer_state="reset", codec="int8")


def test_a_server_with_much_to_take_in_is_noted() -> None:
    assert not list(exchange_findings(102, 10 * MiB))
    level, text = only(exchange_findings(103, 10 * MiB))
    assert level is NOTE
    assert text.startswith("each takes 1.0 GiB of updates to the driver")


@pytest.mark.parametrize(
    ("options", "master", "expected"),
    [
        ({}, "spark://node", True),
        ({}, "local[64]", False),
        ({"optimizer_state": "per_worker"}, "spark://node", False),
        ({"strategy": "median"}, "spark://node", False),
        ({"mode": "asynchronous"}, "spark://node", False),
    ],
)
def test_what_the_jobs_engine_could_add_up(options: dict, master: str, expected: bool) -> None:
    model = SparkModel(line(), 64, **options)
    context = SimpleNamespace(master=master)
    choice = choose(SERVER, 64, None, 64, False)
    assert adds_them_up(context, model._options, model._model, choice, 100 * MiB, 0) is expected


def test_the_server_reads_two_large_updates_ahead() -> None:
    _, text = only(driver_memory(SERVER, 5, 100 * MiB, 100 * MiB, 0, None))
    assert "6 copies and the updates of a round are 700.0 MiB" in text


def test_shards_need_room_on_the_tightest_disk() -> None:
    roomy = replace(PROBE, host="node-2", free_bytes=10**9)
    found = disk_finding(samples(5, 10), 100, [roomy, PROBE])
    assert found.level is OK
    assert "/tmp on node-1 has 1000 bytes free, room for 10 rows" in found.text
    assert disk_finding(samples(5, 11), 100, [roomy, PROBE]).level is PROBLEM


def test_an_error_that_nobody_expected_ends_the_report_and_keeps_what_was_found() -> None:
    found = Finding("spark", OK, "here")

    def findings() -> Iterator[Finding]:
        yield found
        raise RuntimeError("the disk\nis full")

    report = report_of(findings())
    assert report.findings[0] == found
    assert str(report.findings[1]) == "problem  check: it ended here, by RuntimeError: the disk is full"


# Without Spark


@pytest.fixture
def fitted() -> SparkModel:
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)], name="line")
    model.compile("sgd", "mse")
    return SparkModel(model, 2, engine="in_process")


def test_a_fit_in_this_process(fitted: SparkModel, capsys: pytest.CaptureFixture) -> None:
    before = fitted.master_network.get_weights()
    report = fitted.check(np.ones((5, 2)), np.ones((5, 1)))
    assert report.ok
    assert str(report) in capsys.readouterr().out
    names = [finding.name for finding in report.findings]
    assert names == ["driver", "spark", "engine", "rows", "first row", "model", "memory of the driver"]
    assert "rows in 2 of them: 3, 2" in str(report)
    for one, other in zip(before, fitted.master_network.get_weights(), strict=True):
        np.testing.assert_array_equal(one, other)


def test_a_report_is_printed_where_its_letters_are_not_and_where_no_console_is(
    fitted: SparkModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = pa.table({"a": [None, 2.0], "größe": [None, 2.0], "label": [0.0, 1.0]})
    pq.write_table(table, tmp_path / "rows.parquet")
    for stream in (io.TextIOWrapper(io.BytesIO(), encoding="ascii"), None):
        monkeypatch.setattr("sys.stdout", stream)
        report = fitted.check(str(tmp_path), features_col=["größe", "a"])
        assert "column 'größe'" in str(report)
        if stream is not None:
            stream.flush()
            assert b"column 'gr??e'" in stream.buffer.getvalue()


def test_files_without_spark(fitted: SparkModel, tmp_path: Path) -> None:
    table = pa.table({"a": [1.0, 2.0], "b": [1.0, 2.0], "label": [0.0, 1.0]})
    pq.write_table(table, tmp_path / "rows.parquet")
    report = fitted.check(str(tmp_path), features_col=["a", "b"], verbose=0)
    assert report.ok, str(report)


def test_verbose_0_prints_nothing_and_a_bad_row_is_no_exception(
    fitted: SparkModel, capsys: pytest.CaptureFixture
) -> None:
    report = fitted.check(np.ones((5, 3)), np.ones((5, 1)), verbose=0)
    assert not report.ok
    assert [finding.name for finding in report.of("problem")] == ["first row"]
    assert not capsys.readouterr().out


def test_wrong_arguments_are_raised(fitted: SparkModel) -> None:
    with pytest.raises(ValueError, match="features_col= names columns of a DataFrame"):
        fitted.check(np.ones((5, 2)), features_col="x")
    with pytest.raises(ValueError, match="timeout"):
        fitted.check(np.ones((5, 2)), timeout=0)
    with pytest.raises(TypeError, match="generators"):
        fitted.check(iter([1]))
