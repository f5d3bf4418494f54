"""A client's connections against servers that are slow, silent, or in no hurry to read. One suite for both transports."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import partial

import pytest
from small_world import Background, taken

from elephas_like.exchange.connections import LINES, Line, TokenError
from elephas_like.exchange.lines import HELLO, LENGTH, UNKNOWN, WELCOME
from elephas_like.exchange.tls import Identity, accepted, admits, identity
from elephas_like.exchange.wire import CutShortError, read

BOUND = 0.75
"""Seconds without a byte that the lines of these tests wait."""
PAUSE = 0.03
STEP = 2**20
BODY = bytes(40 * STEP)
"""So large that the buffers of the system hold a small part of it, and that 40 pauses are longer than the bound."""


@pytest.fixture(params=["http", "socket"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def on_every_line(check: Callable[[str, Identity | None], None]) -> None:
    """Check both transports, plain and encrypted, at the same time: each waits for seconds that nobody computes in."""
    encrypted = identity()
    running = [Background(partial(check, kind, own)) for kind in LINES for own in (None, encrypted)]
    for each in running:
        each.result()


@contextmanager
def served(serve: Callable[[socket.socket], None], kind: str, own: Identity | None = None) -> Iterator[Line]:
    """A line to a program that takes one connection, whose token it has read."""

    def accept(listener: socket.socket) -> None:
        connection: socket.socket = listener.accept()[0]
        if own is not None:
            connection = accepted(connection, own)
        with connection:
            if own is not None:
                admits(connection, 20)
                connection.settimeout(None)
            if kind == "socket":
                _, length = HELLO.unpack(taken(connection, HELLO.size))
                taken(connection, length)
                connection.sendall(WELCOME)
            serve(connection)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2**16)
        running = Background(lambda: accept(listener))
        fingerprint = None if own is None else own.fingerprint
        with closing(LINES[kind](*listener.getsockname(), "t", timeout=BOUND, fingerprint=fingerprint)) as line:
            yield line
        running.result()


def take_head(connection: socket.socket, kind: str) -> None:
    if kind == "socket":
        taken(connection, LENGTH.size)
        return
    head = b""
    while not head.endswith(b"\r\n\r\n"):
        head += connection.recv(1)


def head_of_reply(kind: str, length: int) -> bytes:
    return LENGTH.pack(length) if kind == "socket" else f"HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n".encode()


def pause() -> None:
    threading.Event().wait(PAUSE)


@pytest.mark.fault("A slow network", "an update may take as long as bytes flow", "time")
def test_a_body_that_is_taken_in_trickles_may_take_longer_than_the_bound() -> None:
    def check(kind: str, own: Identity | None) -> None:
        def serve(connection: socket.socket) -> None:
            take_head(connection, kind)
            for _ in range(len(BODY) // STEP):
                assert len(taken(connection, STEP)) == STEP
                pause()
            connection.sendall(head_of_reply(kind, 2) + b"ok")

        with served(serve, kind, own) as line:
            reply = line.call([BODY])
            assert read(reply.source, 2) == b"ok"

    on_every_line(check)


@pytest.mark.fault(
    "A connection stalls", "it is opened again after 60 s without a byte, and the update sent again", "60 s"
)
def test_a_body_that_is_taken_no_further_ends_by_the_bound() -> None:
    def check(kind: str, own: Identity | None) -> None:
        over = threading.Event()

        def serve(connection: socket.socket) -> None:
            take_head(connection, kind)
            taken(connection, 4 * STEP)
            over.wait(20)

        with served(serve, kind, own) as line:
            with pytest.raises(TimeoutError):
                line.call([BODY])
            over.set()

    on_every_line(check)


def test_a_reply_that_comes_in_trickles_may_take_longer_than_the_bound() -> None:
    def check(kind: str, own: Identity | None) -> None:
        body = bytes(range(40))

        def serve(connection: socket.socket) -> None:
            take_head(connection, kind)
            connection.sendall(head_of_reply(kind, len(body)))
            for byte in body:
                pause()
                connection.sendall(bytes([byte]))

        with served(serve, kind, own) as line:
            reply = line.call([])
            assert reply.length == len(body)
            assert read(reply.source, len(body)) == body

    on_every_line(check)


def test_a_reply_that_stops_ends_by_the_bound() -> None:
    def check(kind: str, own: Identity | None) -> None:
        over = threading.Event()

        def serve(connection: socket.socket) -> None:
            take_head(connection, kind)
            connection.sendall(head_of_reply(kind, 3) + b"ab")
            over.wait(20)

        with served(serve, kind, own) as line:
            reply = line.call([])
            with pytest.raises(TimeoutError):
                read(reply.source, 3)
            over.set()

    on_every_line(check)


def test_an_unknown_token_is_an_error_of_its_own(kind: str) -> None:
    def accept(listener: socket.socket) -> None:
        connection, _ = listener.accept()
        with connection:
            if kind == "socket":
                taken(connection, HELLO.size + 1)
                connection.sendall(UNKNOWN)
            else:
                take_head(connection, kind)
                connection.sendall(b"HTTP/1.1 401 UNAUTHORIZED\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")

    with socket.create_server(("127.0.0.1", 0)) as listener:
        running = Background(lambda: accept(listener))
        with closing(LINES[kind](*listener.getsockname(), "t")) as line, pytest.raises(TokenError):
            line.call([])
        running.result()


def test_a_reply_that_is_no_http_is_a_broken_connection() -> None:
    def serve(connection: socket.socket) -> None:
        take_head(connection, "http")
        connection.sendall(b"SSH-2.0-OpenSSH\r\n")

    with served(serve, "http") as line, pytest.raises(ConnectionError, match="a reply in HTTP"):
        line.call([])


def test_a_reply_that_is_cut_short_is_an_error() -> None:
    def serve(connection: socket.socket) -> None:
        take_head(connection, "socket")
        connection.sendall(struct.pack("<I", 0))

    with served(serve, "socket") as line, pytest.raises(CutShortError):
        line.call([])
