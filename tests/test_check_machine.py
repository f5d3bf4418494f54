"""The look for Java that comes before anything else."""

from __future__ import annotations

import stat
from pathlib import Path
from types import ModuleType

import pytest
from tool_modules import loaded


@pytest.fixture
def check() -> ModuleType:
    return loaded("check_machine")


def java(folder: Path, version: str) -> None:
    """A command that says what a Java of that version says."""
    (folder / "bin").mkdir(parents=True)
    command = folder / "bin" / "java"
    command.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2025-04-15' >&2\n")
    command.chmod(command.stat().st_mode | stat.S_IXUSR)


@pytest.mark.parametrize(
    ("version", "fine"), [("17.0.15", True), ("21", True), ("11.0.2", False), ("1.8.0_392", False)]
)
def test_old_javas_are_named(
    check: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str, fine: bool
) -> None:
    java(tmp_path, version)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    said = check.problem()
    assert (said is None) is fine
    if not fine:
        number = "8" if version.startswith("1.8") else "11"
        assert f"is {number}." in said
        assert "\n" not in said


def test_no_java_says_what_to_install(check: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    said = check.problem()
    assert "Java 17 or newer" in said
    for system in ("Debian", "macOS", "conda"):
        assert system in said
