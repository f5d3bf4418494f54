"""What Spark's settings mean for a fit."""

from __future__ import annotations

import pytest
from pyspark import SparkConf

from elephas_like.core.findings import Finding, Level
from elephas_like.spark.settings import executor_memory, setting_findings, size_bytes

MiB = 2**20


def conf(**settings: object) -> SparkConf:
    made = SparkConf(loadDefaults=False)
    for name, value in settings.items():
        made.set(f"spark.{name.replace('_', '.')}", str(value))
    return made


def found(settings: SparkConf, *, server: bool = True, **asked: bool) -> dict[str, Finding]:
    return {finding.name: finding for finding in setting_findings(settings, server=server, **asked)}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1g", 2**30),
        ("512m", 512 * MiB),
        ("512MB", 512 * MiB),
        ("0", 0),
        ("1024", 1024),
        ("2k", 2048),
        ("10b", 10),
        ("1pb", 2**50),
    ],
)
def test_sizes_are_read_as_spark_writes_them(text: str, expected: int) -> None:
    assert size_bytes(text) == expected


def test_settings_of_memory_count_in_mebibytes() -> None:
    assert size_bytes("384", MiB) == 384 * MiB
    assert size_bytes("384b", MiB) == 384
    assert size_bytes("1g", MiB) == 2**30


def test_a_plain_session_has_nothing_to_note() -> None:
    assert {finding.level for finding in found(conf()).values()} == {Level.OK}
    assert set(found(conf())) == {"dynamic allocation", "speculation", "task cpus", "encryption"}


def test_dynamic_allocation_is_noted_with_what_it_may_grow_to() -> None:
    finding = found(conf(dynamicAllocation_enabled="true", dynamicAllocation_maxExecutors=9))["dynamic allocation"]
    assert finding.level is Level.NOTE
    assert "maxExecutors: 9" in finding.text
    assert "num_workers=" in finding.text


def test_speculation_is_noted_where_workers_hold_slots() -> None:
    assert found(conf(speculation="true"))["speculation"].level is Level.NOTE
    assert found(conf(speculation="true"), server=False)["speculation"].level is Level.OK


def test_workers_that_spark_kills_because_they_are_idle_are_a_problem() -> None:
    kills = {"python_worker_killOnIdleTimeout": "true"}
    assert "python workers" not in found(conf(**kills))  # without a time it kills none
    finding = found(conf(**kills, python_worker_idleTimeoutSeconds=30))["python workers"]
    assert finding.level is Level.PROBLEM
    assert "spark.python.worker.killOnIdleTimeout=false" in finding.text


def test_dumps_of_tracebacks_that_may_end_a_worker_are_noted() -> None:
    finding = found(conf(python_worker_tracebackDumpIntervalSeconds="1"))["python workers"]
    assert finding.level is Level.NOTE
    assert "every 1 s" in finding.text


@pytest.mark.parametrize(
    ("settings", "level"),
    [
        ({}, None),
        ({"executor_pyspark_memory": "0"}, None),
        ({"executor_pyspark_memory": "1200m"}, Level.PROBLEM),
        ({"executor_pyspark_memory": "2048"}, Level.NOTE),
        ({"executor_pyspark_memory": "3g", "executor_cores": 2}, Level.PROBLEM),
    ],
)
def test_an_address_space_in_which_tensorflow_cannot_be_imported_is_a_problem(settings: dict, level: object) -> None:
    finding = found(conf(**settings)).get("python workers")
    assert (None if finding is None else finding.level) is level
    assert finding is None or "raise spark.executor.memoryOverhead in its place" in finding.text


def test_tasks_that_need_more_cores_than_executors_have_are_a_problem() -> None:
    assert "2 cores" in found(conf(task_cpus=2, executor_cores=2))["task cpus"].text
    finding = found(conf(task_cpus=3, executor_cores=2))["task cpus"]
    assert finding.level is Level.PROBLEM
    assert "spark.task.cpus=3 is more than spark.executor.cores=2" in finding.text


def test_what_would_be_refused_for_its_plain_text_is_a_problem() -> None:
    finding = found(conf(ssl_enabled="true"), tls=False)["encryption"]
    assert finding.level is Level.PROBLEM
    assert "in plain text. Leave tls out or give tls=True" in finding.text
    disks = found(conf(io_encryption_enabled="true"))["encryption"]
    assert (disks.level, "allow_plain_text=True" in disks.text) == (Level.PROBLEM, True)


def test_how_the_server_speaks() -> None:
    assert "speaks TLS" in found(conf(ssl_enabled="true"))["encryption"].text
    assert "speaks plain text" in found(conf())["encryption"].text
    allowed = found(conf(ssl_enabled="true", io_encryption_enabled="true"), tls=False, allow_plain_text=True)[
        "encryption"
    ]
    assert (allowed.level, "speaks plain text" in allowed.text) == (Level.OK, True)


# 512 MiB of TensorFlow and 5 copies of 32 MiB are 672 MiB a worker.


@pytest.mark.parametrize(
    ("master", "settings", "level"),
    [
        ("local[2]", {}, Level.OK),
        ("spark://here:7077", {}, Level.OK),
        ("yarn", {}, Level.PROBLEM),  # 384 MiB by default
        ("k8s://here", {"executor_memoryOverhead": "672"}, Level.OK),
        ("k8s://here", {"executor_memoryOverhead": "671m"}, Level.PROBLEM),
        ("k8s://here", {"executor_minMemoryOverhead": "672m"}, Level.OK),
        ("k8s://here", {"executor_minMemoryOverhead": "672m", "executor_memoryOverhead": "384m"}, Level.PROBLEM),
        ("yarn", {"executor_memory": "7g"}, Level.OK),  # a tenth of it is 716 MiB
        ("yarn", {"executor_memoryOverhead": "400m", "executor_pyspark_memory": "272m"}, Level.OK),
        ("yarn", {"executor_memoryOverhead": "1g", "executor_cores": 2}, Level.PROBLEM),
        ("yarn", {"executor_memoryOverhead": "1g", "executor_cores": 2, "task_cpus": 2}, Level.OK),
    ],
)
def test_python_needs_room_outside_of_the_heap(master: str, settings: dict, level: Level) -> None:
    finding = executor_memory(conf(**settings), master, 32 * MiB)
    assert finding.level is level
    assert "672.0 MiB" in finding.text
    if level is Level.PROBLEM:
        workers = 2 if "executor_cores" in settings else 1
        assert f"Set spark.executor.memoryOverhead={672 * workers}m" in finding.text
