"""Messages on a real pair of sockets, and the driver's address."""

from __future__ import annotations

import pickle
import socket
from collections.abc import Iterator

import numpy as np
import pytest

from elephas_like.compat.framing import (
    determine_master,
    receive,
    recv_bytes,
    send,
    send_bytes,
    split_address,
    wait_until_listening,
)


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    one, other = socket.socketpair()
    with one, other:
        yield one, other


def test_bytes_and_arrays_cross(pair) -> None:
    one, other = pair
    send_bytes(one, b"hello")
    assert recv_bytes(other) == b"hello"
    weights = [np.arange(4.0).reshape(2, 2), np.array(1, "int64")]
    send(one, weights)
    for ours, theirs in zip(receive(other), weights, strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_the_length_has_as_many_digits_as_elephas_gave_it(pair) -> None:
    one, other = pair
    send(one, [], num_bytes=7)
    assert other.recv(100) == b"0000004" + b"\0\0\0\0"


def test_nothing_is_pickled_or_unpickled(pair) -> None:
    one, other = pair
    with pytest.raises(TypeError, match="nothing else travels without a pickle"):
        send(one, {"a": 1})  # type: ignore[arg-type]
    body = pickle.dumps([np.zeros(1)], -1)
    one.sendall(str(len(body)).zfill(20).encode() + body)
    with pytest.raises(ValueError, match=r"bytes end|array 0"):
        receive(other)


def test_a_connection_that_ends_is_an_error(pair) -> None:
    one, other = pair
    one.sendall(b"\0\0\0\x05ab")
    one.shutdown(socket.SHUT_WR)
    with pytest.raises(ConnectionError, match="3 bytes before the end"):
        recv_bytes(other)


def test_too_much_is_refused_before_it_is_read(pair) -> None:
    one, other = pair
    one.sendall(b"\xff\xff\xff\xff")
    with pytest.raises(ConnectionError, match="expected at most 10"):
        recv_bytes(other, 10)


def test_the_driver_is_where_spark_local_ip_says(monkeypatch) -> None:
    monkeypatch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
    assert determine_master() == "127.0.0.1:4000"
    assert determine_master(port=8080) == "127.0.0.1:8080"
    monkeypatch.setenv("SPARK_LOCAL_IP", "::1")
    assert split_address(determine_master(1)) == ("::1", 1)
    monkeypatch.delenv("SPARK_LOCAL_IP")
    assert determine_master().endswith(":4000")


def test_waiting_for_a_server_ends() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        wait_until_listening("127.0.0.1", port, timeout=5)
    with pytest.raises(TimeoutError, match=f"nothing listened at 127.0.0.1:{port} within 0.1 s"):
        wait_until_listening("127.0.0.1", port, timeout=0.1)
