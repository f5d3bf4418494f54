"""The parameter server, over HTTP (a Flask application on a threaded WSGI server) or TCP. It runs on the driver.

With an Identity (tls.py) either speaks TLS, and nothing else. Both exchange the same frames (wire.py) and read nothing before a
connection is authenticated by the token. `stop()` ends all threads and connections and frees the port.

    HTTP: POST /exchange, Authorization: Bearer TOKEN, one frame up and one down; connections are kept.
    TCP:  MAGIC, u16 length, token; one byte back, 1 for welcome; then (u64 length, frame) up and down.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import socket
import socketserver
import threading
import time
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, Protocol, Self

from flask import Flask, Response, request
from werkzeug.serving import ThreadedWSGIServer, WSGIRequestHandler

from elephas_like.core.errors import ElephasError
from elephas_like.exchange.address import listen
from elephas_like.exchange.lines import HELLO, LENGTH, LINGER_SECONDS, UNKNOWN, WELCOME, linger, send
from elephas_like.exchange.protocol import MAGIC, Sizes
from elephas_like.exchange.request_handler import Answerer, FitRequestHandler, Handler
from elephas_like.exchange.security import same_token
from elephas_like.exchange.tls import Identity, accepted, admits
from elephas_like.exchange.wire import Chunk, CutShortError, nbytes

log = logging.getLogger(__name__)

LONGEST_TOKEN = 256

IDLE_SECONDS = 60.0
"""A connection that is silent for so long is closed. Clients open another one."""
UNAUTHENTICATED_SECONDS = 5.0
"""How long a connection may stay open without authentication."""
FULL_SECONDS = 0.1
"""Seconds until a server that could not open another file tries again."""
_CONNECTIONS_A_WORKER, _MORE_CONNECTIONS = 4, 64
_HEAD_BYTES = 16 * 2**10
AUTHENTICATED = "elephas_like.authenticated"
STOP_SECONDS = 5.0


class _Connections(socketserver.ThreadingMixIn):
    """A thread per connection, all of them known, so that they can be ended.

    At most `most` connections are open. A connection that has not shown the token is closed after UNAUTHENTICATED_SECONDS. When
    no more connections may be opened, the oldest unauthenticated one is closed for a new one.
    """

    daemon_threads = True
    most = 64
    identity: Identity | None = None
    """Certificate and key; None serves in plain text."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self._open: dict[threading.Thread, socket.socket] = {}
        self._unauthenticated: dict[threading.Thread, float] = {}
        self._guard = threading.Condition()
        self._full = False
        super().__init__(*arguments, **options)

    def get_request(self) -> tuple[socket.socket, Any]:
        """Accept a connection. With TLS, the handshake is left to the connection's own thread.

        Where this process may open no more files, the peer waits.
        """
        try:
            connection, address = super().get_request()  # type: ignore[misc]  # of TCPServer, which this is mixed into
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE):
                if not self._full:
                    self._full = True
                    log.warning(
                        "connections of workers wait: %s. Raise this process's limit of open files (ulimit -n) to more than %d.",
                        *(error.strerror, self.most),
                    )
                time.sleep(FULL_SECONDS)
            raise
        return connection if self.identity is None else accepted(connection, self.identity), address

    def finish_request(self, request: Any, client_address: Any) -> None:
        """Serve a connection that speaks as this server does, TLS or plain text."""
        if admits(request, IDLE_SECONDS):
            super().finish_request(request, client_address)  # type: ignore[misc]
        else:
            log.info(
                "a connection from %s ended before a request: its peer closed it, or only one end speaks TLS",
                client_address,
            )

    def process_request(self, request: Any, client_address: Any) -> None:
        """Start the connection's thread, if another connection is allowed."""
        thread = threading.Thread(
            target=self.process_request_thread,
            args=(request, client_address),
            name="elephas-like-connection",
            daemon=True,
        )
        with self._guard:
            first = next(iter(self._unauthenticated), None) if len(self._open) >= self.most else None
            if first is not None:
                self._end(first)
            elif len(self._open) >= self.most:
                log.warning("refused a connection from %s: %d are open, all of workers", client_address, self.most)
                self.shutdown_request(request)  # type: ignore[attr-defined]  # of BaseServer, which this is mixed into
                return
            self._open[thread] = request
            self._unauthenticated[thread] = time.monotonic() + UNAUTHENTICATED_SECONDS
        if first is not None:
            first.join(LINGER_SECONDS)  # at once, as a rule; threads stay within bounds, too
        try:
            thread.start()
        except (RuntimeError, MemoryError) as error:  # the system has no thread left: the peer tries again later
            log.warning("refused a connection from %s: %s", client_address, error)
            with self._guard:
                del self._open[thread]
                self._guard.notify_all()
                self._unauthenticated.pop(thread, None)
            self.shutdown_request(request)  # type: ignore[attr-defined]

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Serve a connection until it ends."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            with self._guard:
                self._open.pop(threading.current_thread(), None)
                self._unauthenticated.pop(threading.current_thread(), None)
                self._guard.notify_all()

    def mark_authenticated(self) -> None:
        """Note that the connection of this thread has shown the token."""
        with self._guard:
            self._unauthenticated.pop(threading.current_thread(), None)

    def service_actions(self) -> None:
        """Close connections that stayed unauthenticated for too long, also if they send a byte now and then."""
        with self._guard:
            now = time.monotonic()
            for thread in [thread for thread, until in self._unauthenticated.items() if until <= now]:
                self._end(thread)

    def _end(self, thread: threading.Thread) -> None:
        """Cut an unauthenticated connection; its thread then ends. Called under the guard."""
        del self._unauthenticated[thread]
        with contextlib.suppress(OSError):  # the peer was faster
            self._open[thread].shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Log why a connection broke off. Clients try again."""
        log.info("a connection from %s broke off", client_address, exc_info=True)

    def wait_until_closed(self, seconds: float) -> bool:
        """Wait until no connection is open. Return False if some still are after so many seconds."""
        with self._guard:
            return self._guard.wait_for(lambda: not self._open, seconds)

    def end_connections(self, seconds: float) -> None:
        """Let replies that are being written go out, then end all connections and wait for their threads."""
        end = time.monotonic() + seconds
        for how in (socket.SHUT_RD, socket.SHUT_RDWR):
            with self._guard:
                still_open = dict(self._open)
            for connection in still_open.values():
                with contextlib.suppress(OSError):  # the peer was faster
                    connection.shutdown(how)
            for thread in still_open:
                thread.join(max(0.1, end - time.monotonic()))


class _Body:
    """The rest of one request on a connection."""

    def __init__(self, file: Any, remaining: int) -> None:
        self._file = file
        self.remaining = remaining

    def readinto(self, buffer: memoryview, /) -> int:
        """Fill the start of `buffer` from this request, never from the next."""
        try:
            came: int = self._file.readinto(buffer[: min(len(buffer), self.remaining)]) if self.remaining else 0
        except OSError as error:
            raise CutShortError(f"the connection broke in the middle of a frame: {error}.") from error
        self.remaining -= came
        return came


class Served(Protocol):
    """The store that requests are answered from."""

    num_workers: int

    def stop(self) -> None:
        """End the run, and with it every waiting request."""
        ...


class _Server:
    """Start and stop of both servers."""

    def __init__(
        self,
        store: Served,
        token: str,
        sizes: Sizes,
        host: str,
        port: int | str = 0,
        *,
        handler: Callable[[Any, Sizes], Handler] = FitRequestHandler,
        identity: Identity | None = None,
    ) -> None:
        self._store = store
        self._token = token
        self._handler = handler(store, sizes)
        self._wanted = (host, port)
        self._identity = identity
        self._running: Any = None
        self.thread: threading.Thread | None = None
        self._address: tuple[str, int] = (host, 0)

    @property
    def address(self) -> tuple[str, int]:
        """Host and port that the server listens on; the port is known once it has started."""
        return self._address

    def start(self) -> Self:
        """Listen, and return when workers can connect.

        Raises:
            PortError: the port, or each one of the range, is taken; or the host is none of this machine.
        """
        if self._running is not None:
            raise ElephasError("expected start() once; this server is running.")
        listener = listen(*self._wanted)
        try:
            self._address = (self._wanted[0], listener.getsockname()[1])
            self._running = self._make(listener)
            self._running.most = _CONNECTIONS_A_WORKER * self._store.num_workers + _MORE_CONNECTIONS
            self._running.identity = self._identity
            self.thread = threading.Thread(
                target=self._running.serve_forever,
                kwargs={"poll_interval": 0.05},
                name="elephas-like-server",
                daemon=True,
            )
            self.thread.start()
        except BaseException:  # Ctrl-C among them: of a `with` block that has not begun nobody ends anything
            if self._running is None:
                listener.close()
            self.stop()
            raise
        return self

    def left(self, seconds: float) -> bool:
        """Wait until all clients have closed their connections. Return False if some have not after so many seconds."""
        return self._running is None or self._running.wait_until_closed(seconds)

    def stop(self) -> None:
        """Stop the store, end all connections and free the port. May be called again."""
        self._store.stop()
        running, thread, self._running, self.thread = self._running, self.thread, None, None
        if running is None:
            return
        # A process that was forked meanwhile, by a callback, has the socket too: it ends for all of them.
        with contextlib.suppress(OSError):
            running.socket.shutdown(socket.SHUT_RDWR)
        if thread is not None and _begins(thread):
            running.shutdown()
            thread.join()
        running.server_close()
        running.end_connections(STOP_SECONDS)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _make(self, listener: socket.socket) -> Any:
        """A socketserver on a listening socket, which it then owns."""
        raise NotImplementedError


def _begins(thread: threading.Thread) -> bool:
    """Return whether a thread runs or has run. One that Ctrl-C has not waited for in `start` may be about to."""
    for _ in range(100):
        if thread.ident is not None:
            return True
        time.sleep(0.01)
    return False


class HttpExchangeServer(_Server):
    """The parameter server over HTTP."""

    def _make(self, listener: socket.socket) -> Any:
        with listener:  # the server makes its own descriptor
            return _WsgiServer(*self._address, self._application(), _HttpConnection, fd=listener.fileno())

    def _application(self) -> Flask:
        """What answers requests."""
        return application(self._handler, self._token)


class TcpExchangeServer(_Server):
    """The parameter server over TCP, without HTTP."""

    def _make(self, listener: socket.socket) -> Any:
        return _TcpListener(listener, self._handler, self._token)


def application(handler: Handler, token: str) -> Flask:
    """The Flask application. Without the token every request gets the same empty 401."""
    app = Flask("elephas_like", static_folder=None)

    @app.before_request
    def check() -> Response | None:
        if not same_token(request.headers.get("Authorization", ""), f"Bearer {token}"):
            return Response(status=401)
        request.environ.get(AUTHENTICATED, lambda: None)()
        if (request.content_length or 0) > handler.most:
            return Response(status=413)
        return None

    def answered(answer: Answerer) -> Response:
        reply = answer(request.environ["wsgi.input"], request.content_length or 0)
        return Response(
            reply.chunks,  # type: ignore[arg-type]  # memoryviews, which our own handler writes as they are
            status=reply.status,
            headers={"Content-Length": str(nbytes(reply.chunks))},
            mimetype="application/octet-stream",
            direct_passthrough=True,
        )

    for (method, path), answer in handler.routes.items():
        app.add_url_rule(path, f"{method} {path}", partial(answered, answer), methods=[method])
    return app


class _Head:
    """The first line and the headers of a request, of which no more than a little is read."""

    def __init__(self, file: Any) -> None:
        self._file = file
        self.remaining = _HEAD_BYTES

    def readline(self, most: int) -> bytes:
        """A line; nothing after the end, and where there were too many."""
        line: bytes = self._file.readline(min(most, self.remaining))
        self.remaining -= len(line)
        return line


class _WsgiServer(_Connections, ThreadedWSGIServer):
    """Werkzeug's threaded server with connections that can be ended."""


class _HttpConnection(WSGIRequestHandler):
    """Keeps connections, which Werkzeug's own `run_wsgi` closes after each request, and writes without a copy."""

    server: _WsgiServer
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    timeout = IDLE_SECONDS

    def parse_request(self) -> bool:
        """Reads the headers, no more of them than a request of ours has."""
        body, self.rfile = self.rfile, _Head(self.rfile)  # type: ignore[assignment]
        try:
            good = super().parse_request()
            whole = self.rfile.remaining > 0  # type: ignore[attr-defined]
        finally:
            self.rfile = body
        if good and not whole:
            self.close_connection = True
            self._write("431 Request Header Fields Too Large", [("Content-Length", "0")], [])
            linger(self.connection)
        return good and whole

    def run_wsgi(self) -> None:
        """Serves one request."""
        length = self.headers.get("Content-Length", "0")
        if "Transfer-Encoding" in self.headers or not (length.isascii() and length.isdigit() and len(length) < 19):
            self.close_connection = True
            self._write("411 Length Required", [("Content-Length", "0")], [])
            return
        body = _Body(self.rfile, int(length))
        environ = self.make_environ() | {"wsgi.input": body, AUTHENTICATED: self.server.mark_authenticated}
        started: list[tuple[str, list[tuple[str, str]]]] = []

        def start_response(status: str, headers: list[tuple[str, str]], exc_info: object = None) -> Any:
            started.append((status, headers))

        chunks = self.server.app(environ, start_response)
        status, headers = started[-1]
        self.close_connection = self.close_connection or body.remaining > 0 or status.startswith(("401", "404"))
        self._write(status, headers, chunks)
        if body.remaining:
            linger(self.connection)

    def _write(self, status: str, headers: list[tuple[str, str]], chunks: Iterable[Chunk]) -> None:
        if self.close_connection:
            headers = [*headers, ("Connection", "close")]
        lines = [f"HTTP/1.1 {status}", *(f"{name}: {value}" for name, value in headers), "", ""]
        send(self.connection, ["\r\n".join(lines).encode("latin-1"), *chunks])

    def version_string(self) -> str:
        """Name the server in error pages, without its version."""
        return "elephas_like"

    def log(self, type: str, message: str, *args: Any) -> None:
        """Requests are ordinary and go to the debug log."""
        log.debug(message, *args)


class _TcpListener(_Connections, socketserver.TCPServer):
    """A TCP server with connections that can be ended."""

    def __init__(self, listener: socket.socket, handler: Handler, token: str) -> None:
        super().__init__(listener.getsockname(), _TcpConnection, bind_and_activate=False)
        self.socket.close()
        self.socket = listener
        self.handler = handler
        self.token = token


class _TcpConnection(socketserver.StreamRequestHandler):
    """One worker's connection: authentication, then requests."""

    server: _TcpListener
    disable_nagle_algorithm = True
    timeout = IDLE_SECONDS

    def handle(self) -> None:
        """Serve requests until one side ends the connection."""
        try:
            if not self._authenticate():
                linger(self.connection)
                return
            while (prefix := self.rfile.read(LENGTH.size)) and len(prefix) == LENGTH.size:
                (length,) = LENGTH.unpack(prefix)
                body = _Body(self.rfile, length)
                reply = self.server.handler.serve(body, length)
                send(self.connection, [LENGTH.pack(nbytes(reply.chunks)), *reply.chunks])
                del reply  # a worker trains for long, and the state that it was sent may be replaced meanwhile
                if body.remaining:
                    linger(self.connection)
                    return
        except OSError as error:
            log.debug("a connection ended: %s", error)

    def _authenticate(self) -> bool:
        hello = self.rfile.read(HELLO.size)
        if not hello:
            return False
        given = ""
        if len(hello) == HELLO.size:
            magic, length = HELLO.unpack(hello)
            if magic == MAGIC and length <= LONGEST_TOKEN:
                given = self.rfile.read(length).decode("utf-8", "replace")
        known = same_token(given, self.server.token)
        if known:
            self.server.mark_authenticated()
        self.connection.sendall(WELCOME if known else UNKNOWN)
        return known
