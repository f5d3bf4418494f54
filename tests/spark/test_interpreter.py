"""The Python that Spark's tasks run with, asked on this machine before a job."""

from __future__ import annotations

import re
import sys
import venv
from pathlib import Path

import pytest

from elephas_like.core.errors import ElephasError
from elephas_like.spark.interpreter import check_interpreter, is_ours, problem


def test_our_own_interpreter_is_not_asked(sc) -> None:
    assert is_ours(sys.executable)
    check_interpreter(sc, local=True)


def test_a_link_elsewhere_is_another_environment(tmp_path: Path) -> None:
    link = tmp_path / "python3"
    link.symlink_to(sys.executable)
    assert not is_ours(str(link))


def test_a_program_that_does_not_exist_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYSPARK_PYTHON", "/no/such/python")
    assert problem("/no/such/python", ships_packages=False) == (
        "PYSPARK_PYTHON is '/no/such/python', and there is no such program."
    )
    monkeypatch.delenv("PYSPARK_PYTHON")
    found = problem("python0", ships_packages=False)
    assert found == "PYSPARK_PYTHON is not set: Spark's executors run 'python0', and there is no such program."


def test_packages_that_are_missing_are_named_with_their_versions(tmp_path: Path) -> None:
    venv.create(tmp_path / "bare", with_pip=False)
    python = str(tmp_path / "bare" / "bin" / "python")
    found = problem(python, ships_packages=False)
    assert re.match(
        r"(elephas-like \S+, )?keras(-nightly)? \S+, tensorflow.* are installed on the driver and missing on the", found
    )
    assert python in found
    assert problem(python, ships_packages=True) == ""  # Spark may bring them


def program(folder: Path, prints: str, status: int = 0) -> str:
    path = folder / "python"
    path.write_text(f"#!/bin/sh\necho '{prints}'\nexit {status}\n")
    path.chmod(0o755)
    return str(path)


def test_another_version_is_named(tmp_path: Path) -> None:
    found = problem(program(tmp_path, "[[2, 7], []]"), ships_packages=False)
    assert "version 2.7" in found
    assert f"{sys.version_info[0]}.{sys.version_info[1]}: they must be equal" in found


def test_what_cannot_be_asked_is_left_to_spark(tmp_path: Path) -> None:
    assert problem(program(tmp_path, "", status=1), ships_packages=False) == ""
    assert problem(program(tmp_path, "no JSON"), ships_packages=False) == ""


def test_the_error_has_the_line_that_mends_it(sc, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sc, "pythonExec", "/no/such/python")
    with pytest.raises(ElephasError, match=r'no such program.*os\.environ\["PYSPARK_PYTHON"\] = sys\.executable'):
        check_interpreter(sc, local=True)
    check_interpreter(sc, local=False)
