"""What both ends of a connection share: the paths and prefixes around a frame, writing without a copy, and closing."""

from __future__ import annotations

import contextlib
import selectors
import socket
import struct
import time
from collections.abc import Iterable

from elephas_like.exchange.wire import Chunk

PATH = "/exchange"
HELLO = struct.Struct("<4sH")
LENGTH = struct.Struct("<Q")
WELCOME, UNKNOWN = b"\x01", b"\x00"

_BUFFERS_A_WRITE = 64
LINGER_SECONDS = 1.0
_LINGER_BYTES = 2**20


def send(connection: socket.socket, chunks: Iterable[Chunk]) -> None:
    """Write buffers one after the other, without joining them and with few system calls.

    The socket's time-out limits the time in which no byte is taken, not all of the writing as in `sendall`.
    """
    waiting = [memoryview(chunk) for chunk in chunks if len(chunk)]
    several = getattr(connection, "sendmsg", None)  # Windows has none
    while waiting:
        sent = connection.send(waiting[0]) if several is None else several(waiting[:_BUFFERS_A_WRITE])
        while waiting and sent >= len(waiting[0]):
            sent -= len(waiting.pop(0))
        if sent:
            waiting[0] = waiting[0][sent:]


def stale(connection: socket.socket) -> bool:
    """Whether an idle connection has something to read. As a rule the peer has closed it."""
    with selectors.DefaultSelector() as selector:
        selector.register(connection, selectors.EVENT_READ)
        return bool(selector.select(0))


def linger(connection: socket.socket) -> None:
    """Give the peer time to read a reply to a request that was not read to its end. Closing at once would reset it."""
    end, dropped = time.monotonic() + LINGER_SECONDS, 0
    plain = socket.socket  # whatever the connection is, no more than its raw bytes are wanted
    with contextlib.suppress(OSError):
        plain.shutdown(connection, socket.SHUT_WR)
        plain.settimeout(connection, LINGER_SECONDS)
        while time.monotonic() < end and dropped < _LINGER_BYTES:
            came = plain.recv(connection, 2**16)
            if not came:
                return
            dropped += len(came)
