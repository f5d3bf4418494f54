"""A client's connections to a server on the driver, over HTTP or TCP, encrypted or not (server.py says what crosses them).

A connection is opened when it is needed, kept, and opened again after it was closed. Time-outs count the time in which no byte
moves, so a large body may take as long as it needs while it flows.
"""

from __future__ import annotations

import contextlib
import http.client
import socket
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from elephas_like.core.errors import ElephasError
from elephas_like.exchange import tls, wire
from elephas_like.exchange.lines import HELLO, LENGTH, PATH, WELCOME, send, stale
from elephas_like.exchange.protocol import MAGIC

OCTETS = {"Content-Type": "application/octet-stream"}


class TokenError(ElephasError):
    """The server does not know the token."""


@dataclass(frozen=True)
class Incoming:
    """A reply whose body is still to be read.

    length: bytes of the body; None if the server does not say. status: as HTTP says it; over TCP always 200.
    """

    source: wire.ByteSource
    length: int | None
    status: int = 200
    reason: str = ""


class Line:
    """A connection for one thread, which another thread may end.

    Args:
        connect_timeout: seconds until the connection is open.
        timeout: longest time without a byte sent or received, in seconds.
        fingerprint: of the server's certificate; None connects in plain text.
    """

    def __init__(
        self,
        host: str,
        port: int,
        token: str,
        *,
        connect_timeout: float = 5.0,
        timeout: float = 60.0,
        fingerprint: str | None = None,
    ) -> None:
        self._address = (host, port)
        self._fingerprint = fingerprint
        self._token = token
        self._connect_timeout = connect_timeout
        self._timeout = timeout
        self._guard = threading.Lock()
        self._socket: socket.socket | None = None
        self._over = False

    def open(self) -> socket.socket:
        """Connect. `call` does so where it is necessary.

        Raises:
            tls.TLSError: the server has another certificate, or one end speaks TLS and the other does not.
        """
        connection: socket.socket = socket.create_connection(self._address, self._connect_timeout)
        if self._fingerprint is not None:
            connection = tls.to_server(connection)
        connection.settimeout(self._timeout)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with self._guard:
            self._socket = connection
            if self._over:
                raise ConnectionAbortedError("the line was closed while it was opened")
        if isinstance(connection, tls.EncryptedSocket) and self._fingerprint is not None:
            try:
                tls.check_server(connection, self._fingerprint, self._place)
            except tls.TLSError:
                self.close()
                raise
        return connection

    def call(
        self,
        chunks: Sequence[wire.Chunk],
        method: str = "POST",
        path: str = PATH,
        headers: Mapping[str, str] = OCTETS,
    ) -> Incoming:
        """Send a request and return the reply, whose body must be read before the next call.

        Args:
            method, path, headers: of a request over HTTP.

        Raises:
            TokenError: the server does not know the token.
            tls.TLSError: as `open`.
            OSError, wire.CutShortError: the connection broke, or nothing moved for too long.
        """
        return self._exchange(self._opened(), chunks, method, path, headers)

    def _exchange(
        self,
        connection: socket.socket,
        chunks: Sequence[wire.Chunk],
        method: str,
        path: str,
        headers: Mapping[str, str],
    ) -> Incoming:
        raise NotImplementedError

    def wrap(self, around: Callable[[socket.socket], Any]) -> None:
        """Put something around the connection, which is opened if it is not. The next one is plain again."""
        self._socket = around(self._opened())

    def close(self) -> None:
        """Close the connection. The next call opens another."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def end(self) -> None:
        """Close for good. A call in another thread then fails."""
        with self._guard:
            self._over = True
            if self._socket is not None:
                with contextlib.suppress(OSError):
                    self._socket.shutdown(socket.SHUT_RDWR)
        self.close()

    @property
    def _place(self) -> str:
        return f"{self._address[0]}:{self._address[1]}"

    def _opened(self) -> socket.socket:
        if self._socket is not None and stale(self._socket):
            self.close()
        return self._socket or self.open()


class HttpLine(Line):
    """A kept HTTP connection. It ignores proxy settings, which are not meant for traffic inside a cluster."""

    def _exchange(
        self,
        connection: socket.socket,
        chunks: Sequence[wire.Chunk],
        method: str,
        path: str,
        headers: Mapping[str, str],
    ) -> Incoming:
        # http.client writes the head and reads the reply; it would write a body by `sendall`, whose time-out bounds all of it.
        http_connection = http.client.HTTPConnection(*self._address)
        http_connection.sock = connection
        http_connection.putrequest(method, path, skip_accept_encoding=True)
        own = {"Authorization": f"Bearer {self._token}", "Content-Length": str(wire.nbytes(chunks))}
        for name, value in {**own, **headers}.items():
            http_connection.putheader(name, value)
        with contextlib.suppress(ConnectionError):  # a server that refuses a request need not read all of it
            http_connection.endheaders()
            send(connection, chunks)
        try:
            response = http_connection.getresponse()
        except http.client.HTTPException as error:
            if str(error).encode("latin-1", "replace").startswith(tls.ALERT[:2]):
                self.close()
                raise tls.encrypted_server(self._place) from error
            raise ConnectionResetError(f"expected a reply in HTTP, got {error!r}") from error
        if response.will_close or response.status == 401:
            self.close()  # the response keeps the socket open until it is read
        if response.status == 401:
            raise TokenError("401")
        return Incoming(response, response.length, response.status, response.reason)


class SocketLine(Line):
    """A kept TCP connection."""

    def open(self) -> socket.socket:
        """Connect and show the token."""
        connection = super().open()
        token = self._token.encode()
        send(connection, [HELLO.pack(MAGIC, len(token)) + token])
        reply = wire.read(_Received(connection), len(WELCOME))
        if reply != WELCOME:
            self.close()
            raise tls.encrypted_server(self._place) if tls.ALERT.startswith(reply) else TokenError("401")
        return connection

    def _exchange(
        self,
        connection: socket.socket,
        chunks: Sequence[wire.Chunk],
        method: str,
        path: str,
        headers: Mapping[str, str],
    ) -> Incoming:
        with contextlib.suppress(ConnectionError):
            send(connection, [LENGTH.pack(wire.nbytes(chunks)), *chunks])
        source = _Received(connection)
        (length,) = LENGTH.unpack(wire.read(source, LENGTH.size))
        return Incoming(source, length)


class _Received:
    """Reads from a socket."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection

    def readinto(self, buffer: memoryview, /) -> int:
        """Fill the start of `buffer`."""
        return self._socket.recv_into(buffer)


LINES: dict[str, type[Line]] = {"http": HttpLine, "socket": SocketLine}
