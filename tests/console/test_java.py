"""Which Java is found, and what is said of it. tests/test_check_machine.py has the versions."""

from __future__ import annotations

from pathlib import Path

import pytest

from elephas_like.console.java import java_command, java_problem, java_version


def java(folder: Path, prints: str) -> str:
    (folder / "bin").mkdir(parents=True)
    command = folder / "bin" / "java"
    command.write_text(f"#!/bin/sh\necho '{prints}' >&2\n")
    command.chmod(0o755)
    return str(command)


def test_that_of_java_home_comes_before_that_of_the_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home, path = java(tmp_path / "home", 'openjdk version "21"'), java(tmp_path / "path", 'openjdk version "17"')
    monkeypatch.setenv("PATH", str(tmp_path / "path" / "bin"))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    assert java_command() == path
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "home"))
    assert java_command() == home
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "nowhere"))
    said = str(java_problem())
    assert f"JAVA_HOME names none: it is '{tmp_path / 'nowhere'}', which has no bin/java." in said
    assert f"There is {path} on the PATH: unset JAVA_HOME" in said


@pytest.mark.parametrize(
    ("prints", "version"), [('java version "1.8.0_392"', 8), ('openjdk version "25-ea"', 25), ("no idea", None)]
)
def test_versions(tmp_path: Path, prints: str, version: int | None) -> None:
    assert java_version(java(tmp_path, prints)) == version


def test_a_command_that_cannot_run_has_no_version(tmp_path: Path) -> None:
    assert java_version(str(tmp_path)) is None
