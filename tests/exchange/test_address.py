from __future__ import annotations

import socket

import pytest

from elephas_like.exchange.address import bind_address


def test_the_users_host_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_LOCAL_IP", "127.0.0.3")
    assert bind_address("127.0.0.2", "127.0.0.4") == "127.0.0.2"
    assert bind_address("localhost", None) == "127.0.0.1"
    assert bind_address("::1", None) == "::1"


def test_spark_local_ip_comes_before_spark_driver_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_LOCAL_IP", "127.0.0.3")
    assert bind_address(None, "127.0.0.4") == "127.0.0.3"
    monkeypatch.delenv("SPARK_LOCAL_IP")
    assert bind_address(None, "127.0.0.4") == "127.0.0.4"


def test_without_anything_it_is_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SPARK_LOCAL_IP", raising=False)
    with socket.create_server((bind_address(None, None), 0)) as listening:
        assert listening.getsockname()[1] > 0


def test_a_host_that_does_not_resolve_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match=r"host must be an address of the driver.*no such host"):
        bind_address("no such host", None)
    monkeypatch.setenv("SPARK_LOCAL_IP", "no such host")
    with pytest.raises(ValueError, match="SPARK_LOCAL_IP"):
        bind_address(None, None)
