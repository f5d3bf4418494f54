"""What executors say of themselves."""

from __future__ import annotations

import platform
import py_compile
import socket
import sys
from pathlib import Path

import pytest

from elephas_like.core.layout import Layout
from elephas_like.engine.probe import compiles_again, probed
from elephas_like.exchange.client import ClientSettings
from elephas_like.exchange.protocol import Sizes
from elephas_like.exchange.round_store import RoundStore
from elephas_like.exchange.server import TcpExchangeServer
from elephas_like.spark.versions import installed, versions
from elephas_like.spark.waits import Overdue

SIZES = Sizes.of(Layout(()))


def settings(port: int, token: str = "token") -> ClientSettings:
    return ClientSettings("socket", "127.0.0.1", port, token, SIZES, retries=0)


def test_tasks_tell_where_they_are_and_that_they_reach_the_server(sc) -> None:
    store = RoundStore(2, "")
    with TcpExchangeServer(store, "token", SIZES, "127.0.0.1") as server:
        found = probed(sc, 2, settings(server.address[1]), versions(), 60)
    assert [(probe.host, probe.packages) for probe in found] == [(platform.node(), installed())] * 2
    assert [(probe.mismatch, probe.unreachable) for probe in found] == [("", "")] * 2
    assert all(probe.free_bytes > 0 and probe.directory for probe in found)


def test_a_port_where_nobody_listens_and_a_strange_server(sc) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    (probe,) = probed(sc, 1, settings(port), versions(), 60)
    assert f"cannot reach the parameter server at 127.0.0.1:{port} after 1 tries" in probe.unreachable
    with TcpExchangeServer(RoundStore(1, ""), "token", SIZES, "127.0.0.1") as server:
        (probe,) = probed(sc, 1, settings(server.address[1], "other"), versions(), 60)
    assert "does not know this run's token" in probe.unreachable


def test_other_packages_than_the_drivers_are_named(sc) -> None:
    (probe,) = probed(sc, 1, None, {"keras": "2.15.0"}, 60)
    assert "keras is 2.15.0 on the driver and" in probe.mismatch
    assert probe.unreachable == ""


def test_no_slot_no_answer(sc, no_free_slot) -> None:
    with no_free_slot(), pytest.raises(Overdue):
        probed(sc, 1, None, versions(), 0.5)


def test_bytecode_that_is_missing_and_cannot_be_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "package_of_mine").mkdir()
    (tmp_path / "package_of_mine" / "__init__.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    assert not compiles_again("package_of_mine")  # the first import writes it
    monkeypatch.setattr("os.access", lambda place, mode: place != tmp_path / "package_of_mine")
    assert compiles_again("package_of_mine")  # a read-only disk
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    assert compiles_again("package_of_mine")
    monkeypatch.setattr(sys, "pycache_prefix", str(tmp_path / "elsewhere"))
    assert compiles_again("package_of_mine")
    py_compile.compile(str(tmp_path / "package_of_mine" / "__init__.py"))
    assert not compiles_again("package_of_mine")
    assert not compiles_again("no_package_of_mine")
