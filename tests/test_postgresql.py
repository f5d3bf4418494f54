"""PostgreSQL is installed for the slow tests only where it is missing and can be."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from types import ModuleType

import pytest
from databases import tool


@pytest.fixture
def apt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What an apt-get, the only command there is, was called with. It fails if a file `down` lies beside it."""
    log, command = tmp_path / "calls", tmp_path / "apt-get"
    command.write_text(
        f'#!/bin/sh\necho "$@" >>{log}\nif [ -e {tmp_path}/down ]; then echo "no network" >&2; exit 100; fi\n'
    )
    command.chmod(command.stat().st_mode | stat.S_IXUSR)
    log.touch()
    monkeypatch.setenv("PATH", str(tmp_path))
    return log


@pytest.fixture
def missing(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The tool on a machine with the database but without the driver, as root."""
    found = tool()
    monkeypatch.setattr(found, "programs", lambda: Path("/usr/bin"))
    monkeypatch.setattr(found, "driver", lambda: None)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    return found


def test_nothing_is_installed_where_all_is_there(missing: ModuleType, apt: Path, monkeypatch) -> None:
    monkeypatch.setattr(missing, "driver", lambda: Path("postgresql-42.jar"))
    assert missing.installed() is None
    assert apt.read_text() == ""


def test_root_installs_by_apt_and_looks_again(missing: ModuleType, apt: Path) -> None:
    said = missing.installed()
    install = "-qq install --yes --no-install-recommends postgresql libpostgresql-jdbc-java"
    assert apt.read_text().splitlines() == ["-qq update", install]
    assert said == "not installed: libpostgresql-jdbc-java. sudo apt-get install postgresql libpostgresql-jdbc-java"


def test_others_are_told_what_to_install(missing: ModuleType, apt: Path, monkeypatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert "sudo apt-get install postgresql" in missing.installed()
    assert apt.read_text() == ""


def test_a_failed_installation_says_why(missing: ModuleType, apt: Path) -> None:
    (apt.parent / "down").touch()
    assert missing.installed().endswith("apt-get -qq update failed: no network")
