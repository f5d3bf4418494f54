"""A preflight check of a real session: what it sees, that it ends, and that it leaves nothing (conftest looks)."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from small import line, points

import elephas_like
from elephas_like import SparkModel
from elephas_like.core.findings import CheckReport, Finding


def named(report: CheckReport) -> dict[str, Finding]:
    return {finding.name: finding for finding in report.findings}


def problems(report: CheckReport) -> dict[str, str]:
    return {finding.name: finding.text for finding in report.of("problem")}


@pytest.mark.parametrize("transport", ["http", "socket"])
def test_a_good_session_and_good_rows(sc, transport: str) -> None:
    model = line()
    before = [weights.copy() for weights in model.get_weights()]
    report = SparkModel(model, parameter_server_mode=transport).check(sc.parallelize(points(20), 2), verbose=0)
    assert report.ok, str(report)
    assert not report.of("note"), str(report)
    found = named(report)
    assert found["spark"].text == f"Spark {sc.version}, master local[2]"
    assert found["slots"].text == "2 found, 2 not taken by other fits; a fit takes 2"
    assert found["server"].text.startswith("executors reach the driver at 127.0.0.1:")
    assert found["rows"].text.endswith("rows in 2 of them: 10, 10")
    assert found["first row"].text == "float32 (2,), float32 (): the model takes it"
    assert {"driver", "engine", "executors", "model", "memory of the driver", "memory of executors", "disk"} <= set(
        found
    )
    for one, other in zip(before, model.get_weights(), strict=True):
        np.testing.assert_array_equal(one, other)


def test_a_dataframe_and_a_sharded_dataset(sc, spark) -> None:
    rows = [(x, y) for x, y in points(20)]
    frame = spark.createDataFrame(rows, "features array<double>, label double")
    assert SparkModel(line(), engine="jobs").check(frame, verbose=0).ok
    with elephas_like.shard(sc.parallelize(points(20), 2), 2) as dataset:
        report = SparkModel(line()).check(dataset, verbose=0)
    assert report.ok, str(report)


def test_data_of_every_kind_that_fit_takes(spark) -> None:
    x, y = (np.array(part) for part in zip(*points(20), strict=True))
    table = pd.DataFrame({"one": x[:, 0], "other": x[:, 1], "label": y})
    for given in (
        {"x": (x, y)},
        {"x": points(20)},
        {"x": table, "features_col": ["one", "other"], "label_col": "label"},
    ):
        report = SparkModel(line(), engine="in_process").check(verbose=0, **given)
        assert report.ok, str(report)
        assert {one.name: one.text for one in report.findings}["first row"].endswith("the model takes it")
    holes = spark.createDataFrame([([1.0, 2.0], None), ([1.0, 2.0], 1.0)], "features array<double>, label double")
    assert SparkModel(line(), engine="jobs").check(holes.coalesce(1), handle_invalid="skip", verbose=0).ok


def test_parquet_files_are_read_by_the_workers_who_would_have_them(sc, tmp_path: Path) -> None:
    x, y = (np.array(part) for part in zip(*points(20), strict=True))
    pq.write_table(pa.table({"a": x[:, 0], "b": x[:, 1], "label": y}), tmp_path / "rows.parquet")
    for engine in ("in_process", "jobs"):
        report = SparkModel(line(), 2, engine=engine).check(str(tmp_path), features_col=["a", "b"], verbose=0)
        assert report.ok, str(report)
        assert "2 partitions for 2 workers; rows in 2 of them: 10, 10" in str(report)


def test_rows_of_a_wrong_shape_say_what_was_expected_and_found(sc) -> None:
    report = SparkModel(line()).check(sc.parallelize([([1.0, 2.0, 3.0], 1.0)] * 4, 2), verbose=0)
    (text,) = problems(report).values()
    assert "expects features of shape (2,)" in text
    assert "the row's are (3,). Reshape the rows" in text


def test_rows_that_raise_are_a_problem_and_no_rows_are_one(sc) -> None:
    broken = sc.parallelize(points(4), 2).map(lambda row: row[7])
    assert "IndexError" in problems(SparkModel(line()).check(broken, verbose=0))["rows"]
    assert "A fit needs rows" in problems(SparkModel(line()).check(sc.parallelize([], 2), verbose=0))["rows"]


def test_a_server_that_cannot_listen_is_a_problem(sc) -> None:
    report = SparkModel(line(), host="192.0.2.1").check(sc.parallelize(points(4), 2), verbose=0)
    assert "cannot listen on 192.0.2.1" in problems(report)["server"]


@pytest.mark.fault(
    "Executors cannot reach the driver: `SparkModel.check` before a fit",
    "a line of the report that names address and port, and what to set",
    "a few seconds",
)
def test_a_server_that_executors_do_not_reach_is_a_problem(sc, monkeypatch: pytest.MonkeyPatch) -> None:
    # Loopback has many addresses: workers are told one on which the server does not listen.
    monkeypatch.setattr("elephas_like.model.launch.server_addresses", lambda *_: ("127.0.0.1", "127.0.0.9"))
    report = SparkModel(line()).check(sc.parallelize(points(4), 2), verbose=0)
    assert "cannot reach the parameter server at 127.0.0.9:" in problems(report)["server"]
    assert "Give SparkModel host=" in problems(report)["server"]


def test_a_check_without_a_slot_ends_in_time(sc, no_free_slot) -> None:
    with no_free_slot():
        report = SparkModel(line()).check(sc.parallelize(points(4), 2), verbose=0, timeout=1)
    assert "started or ended within 1 s" in problems(report)["executors"]
    assert "no rows came within 1 s" in named(report)["rows"].text


def test_rows_that_never_come_end_in_time(sc, tmp_path: Path) -> None:
    folder = str(tmp_path)

    def wait(rows: Iterator[tuple]) -> Iterator[tuple]:
        while not Path(folder, "go-on").exists():
            threading.Event().wait(0.05)
        return rows

    report = SparkModel(line()).check(sc.parallelize(points(4), 2).mapPartitions(wait), verbose=0, timeout=2)
    (tmp_path / "go-on").touch()
    assert "no rows came within 2 s" in named(report)["rows"].text
