"""Plain messages on a plain socket, as Elephas' own helpers sent them; the driver's address, and when it listens.

send_bytes / recv_bytes   u32 length (big-endian), then the bytes
send / receive            the length in decimal digits, then a list of arrays (compat/weight_bytes.py); never a pickle
"""

from __future__ import annotations

import os
import socket as sockets
import struct
import time
from collections.abc import Sequence

from elephas_like.compat.weight_bytes import bytes_to_weights, weights_to_bytes
from elephas_like.core.types import Array
from elephas_like.exchange.address import bind_address

_LENGTH = struct.Struct("!I")
_PROBE_SECONDS = 0.05


def determine_master(port: int = 4000) -> str:
    """Return the "host:port" of the driver, as workers reach it: SPARK_LOCAL_IP, or the address of this machine's name."""
    host = bind_address(
        None, spark_bind_address=None, spark_driver_host=None, spark_local_ip=os.environ.get("SPARK_LOCAL_IP")
    )
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def split_address(address: str) -> tuple[str, int]:
    """Return host and port of "host:port"; an IPv6 host is in brackets."""
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)


def wait_until_listening(host: str, port: int, timeout: float = 30.0) -> None:
    """Wait until something listens at (host, port).

    Args:
        timeout: seconds.

    Raises:
        TimeoutError: nothing listens after `timeout` seconds; with the last refusal.
    """
    end = time.monotonic() + timeout
    while True:
        try:
            sockets.create_connection((host, port), timeout=max(_PROBE_SECONDS, end - time.monotonic())).close()
            return
        except OSError as error:
            if time.monotonic() >= end:
                raise TimeoutError(f"nothing listened at {host}:{port} within {timeout:g} s ({error}).") from error
        time.sleep(_PROBE_SECONDS)


def send_bytes(sock: sockets.socket, b: bytes) -> None:
    """Send bytes, preceded by their length."""
    sock.sendall(_LENGTH.pack(len(b)))
    sock.sendall(b)


def recv_bytes(sock: sockets.socket, most: int = 2**32 - 1) -> bytes:
    """Return the bytes that `send_bytes` sent.

    Args:
        most: maximum number of bytes; larger messages are refused before they are read.

    Raises:
        ConnectionError: the other side closed the connection, or announced too many bytes.
    """
    (length,) = _LENGTH.unpack(_exactly(sock, _LENGTH.size))
    if length > most:
        raise ConnectionError(f"the other side announces {length} bytes; expected at most {most}.")
    return _exactly(sock, length)


def send(socket: sockets.socket, data: Sequence[Array], num_bytes: int = 20) -> None:
    """Send a list of arrays, preceded by its length in `num_bytes` decimal digits.

    Raises:
        TypeError: `data` is something else. Objects would need a pickle, which nobody should read from a network.
    """
    if not isinstance(data, list | tuple):
        raise TypeError(
            f"data must be a list of arrays, got {type(data).__name__}: nothing else travels without a pickle."
        )
    body = weights_to_bytes(data)
    socket.sendall(str(len(body)).zfill(num_bytes).encode("ascii"))
    socket.sendall(body)


def receive(socket: sockets.socket, num_bytes: int = 20) -> list[Array]:
    """Return the list of arrays that `send` sent.

    Raises:
        ValueError: the message does not begin with a length, or holds no list of arrays.
    """
    digits = _exactly(socket, num_bytes)
    if not digits.isdigit():
        raise ValueError(f"expected a length in {num_bytes} digits, got {digits[:32]!r}.")
    return bytes_to_weights(_exactly(socket, int(digits)))


def _exactly(sock: sockets.socket, count: int) -> bytes:
    """Read `count` bytes as they come, so that an announced length allocates nothing."""
    parts, missing = [], count
    while missing:
        part = sock.recv(min(missing, 2**20))
        if not part:
            raise ConnectionError(f"the connection ended {missing} bytes before the end of a message.")
        parts.append(part)
        missing -= len(part)
    return b"".join(parts)
