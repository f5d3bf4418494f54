"""Chromium is installed for the slow tests only where it is missing and can be."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from types import ModuleType

import pytest
from browsers import tool


@pytest.fixture
def apt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What an apt-get, the only command there is, was called with. It installs a browser unless a file `down` lies beside it."""
    log, command, browser = tmp_path / "calls", tmp_path / "apt-get", tmp_path / "chromium"
    command.write_text(
        f"#!/bin/sh\necho \"$@\" >>{log}\nif [ -e {tmp_path}/down ]; then echo 'no network' >&2; exit 100; fi\n"
        f'if [ "$2" = install ]; then echo >{browser}; /bin/chmod +x {browser}; fi\n'
    )
    command.chmod(command.stat().st_mode | stat.S_IXUSR)
    log.touch()
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    return log


@pytest.fixture
def chromium() -> ModuleType:
    return tool()


def test_nothing_is_installed_where_it_is_there(chromium: ModuleType, apt: Path) -> None:
    browser = apt.parent / "chromium-browser"
    browser.touch(0o755)
    assert chromium.program() == str(browser)
    assert chromium.installed() is None
    assert apt.read_text() == ""


def test_root_installs_by_apt_and_looks_again(chromium: ModuleType, apt: Path) -> None:
    assert chromium.installed() is None
    install = "-qq install --yes --no-install-recommends chromium fonts-dejavu-core"
    assert apt.read_text().splitlines() == ["-qq update", install]


def test_others_are_told_what_to_install(chromium: ModuleType, apt: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert chromium.installed() == "not installed: chromium. sudo apt-get install chromium fonts-dejavu-core"
    assert apt.read_text() == ""


def test_a_failed_installation_says_why(chromium: ModuleType, apt: Path) -> None:
    (apt.parent / "down").touch()
    assert chromium.installed().endswith("apt-get -qq update failed: no network")
