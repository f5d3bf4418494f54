"""The doctor where things are missing, each in a process of its own, and on a machine that has all."""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

import pytest
from bare import command

from elephas_like.console.doctor import (
    OPTIONAL,
    extra_findings,
    is_installed,
    java_findings,
    python_findings,
    session_findings,
)
from elephas_like.core.findings import Level
from elephas_like.core.version import __version__

WITHOUT_JAVA = {"PATH": "/nowhere", "JAVA_HOME": None, "SPARK_REMOTE": None}


def test_without_java_spark_tensorflow_and_keras_each_line_has_the_command_that_mends_it() -> None:
    gone = ("pyspark", "tensorflow", "keras", "numpy", "pandas", "sklearn", "hyperopt", "optuna", "matplotlib")
    nowhere = {"JAVA_HOME": "/größe", "PYTHONIOENCODING": "ascii"}  # a console without its letters
    done = command("doctor", without=gone, environment=WITHOUT_JAVA | nowhere)
    assert (done.returncode, done.stderr) == (1, "")
    assert r"'/gr\xf6\xdfe'" in done.stdout
    lines = {line.split(": ")[0].split()[-1]: line for line in done.stdout.splitlines() if ": " in line}
    assert "openjdk-17-jre-headless" in lines["java"]
    assert "pip install 'elephas-like[spark]'" in lines["spark"]
    assert "pip install 'elephas-like[tensorflow]'" in lines["tensorflow"]
    assert "matplotlib" in lines["extras"]
    assert "training on Spark: not ready: java, spark, tensorflow" in done.stdout
    assert "in this process" not in done.stdout


def test_keras_of_another_backend_needs_no_tensorflow_to_say_what_is_missing() -> None:
    gone = ("pyspark", "tensorflow", "keras", "jax")
    done = command("doctor", without=gone, environment={**WITHOUT_JAVA, "KERAS_BACKEND": "openvino"})
    assert "problem  keras: ModuleNotFoundError: No module named 'keras'. Run pip install 'keras>=3.8'" in done.stdout
    for name in ("doctor", "demo"):  # the first said to install Keras, the second showed a traceback
        environment = {"KERAS_BACKEND": "tensorfolw"} | ({} if name == "demo" else WITHOUT_JAVA)
        done = command(name, without=("pyspark",), environment=environment)
        assert "this process' Keras runs on 'tensorfolw'. Set KERAS_BACKEND=tensorflow" in done.stdout + done.stderr
        assert done.returncode == 1
        assert "Traceback" not in done.stderr
    done = command("doctor", without=gone, environment={**WITHOUT_JAVA, "KERAS_BACKEND": "jax"})
    assert "elephas-like[jax]" in done.stdout
    assert "tensorflow:" not in done.stdout


@pytest.mark.slow
def test_without_java_a_fit_in_this_process_is_offered() -> None:
    done = command("doctor", environment=WITHOUT_JAVA)
    assert done.returncode == 1
    assert "training on Spark: not ready: java\n" in done.stdout
    assert "without Spark: ready, with SparkModel(..., engine='in_process')" in done.stdout


@pytest.mark.slow
def test_where_nothing_is_missing_slots_and_executors_are_looked_at() -> None:
    done = command("doctor", "--master", "local[3]", environment={"PYSPARK_PYTHON": None})
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
    assert "slots: 3 found" in done.stdout
    assert "executors: 3 tasks" in done.stdout or "executors: 2 tasks" in done.stdout
    assert done.stdout.endswith("training on Spark: ready\n")


def test_executors_that_would_run_another_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    assert [finding.level for finding in python_findings()] == [Level.OK]
    monkeypatch.setenv("PYSPARK_PYTHON", str(tmp_path / "python"))
    _, missing = python_findings()
    assert missing.level is Level.PROBLEM
    assert "no such program. Before the SparkSession starts: export PYSPARK_PYTHON=" in missing.text
    other = tmp_path / "python3"
    other.touch(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("PYSPARK_PYTHON")
    _, note = python_findings()
    assert note.level is Level.NOTE
    assert f"they would run {other}; this command runs {sys.executable}" in note.text


def test_a_spark_elsewhere_needs_no_java_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_REMOTE", "sc://elsewhere")
    monkeypatch.setenv("PATH", "/nowhere")
    (found,) = java_findings()
    assert found.level is Level.OK


def test_extras_that_are_missing_are_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("elephas_like.console.doctor.OPTIONAL", {"sys": "demo", "no_such": "plain", "nor_this": "a[b]"})
    (found,) = extra_findings()
    assert found.text == "not installed: no_such, nor_this. If you want what they are for: pip install plain 'a[b]'"
    assert is_installed("sys")


def test_a_session_that_does_not_start_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    from pyspark.sql import SparkSession

    def refuse(builder: object) -> None:
        raise RuntimeError("Could not parse Master URL: 'nonsense'")

    monkeypatch.setattr(SparkSession.Builder, "getOrCreate", refuse)
    (found,) = session_findings("nonsense")
    assert found.level is Level.PROBLEM
    assert "did not start at nonsense: Could not parse Master URL" in found.text


def test_the_extras_that_it_names_are_those_of_the_project() -> None:
    project = tomllib.loads((Path(__file__).parent.parent.parent / "pyproject.toml").read_text())["project"]
    extras = {name for package in OPTIONAL.values() for name in re.findall(r"\[(.+)\]", package)}
    assert len(extras) == len(OPTIONAL) - 1
    assert extras <= set(project["optional-dependencies"])
    assert project["version"] == __version__
    assert project["scripts"]["elephas-like"] == "elephas_like.console.command:main"
