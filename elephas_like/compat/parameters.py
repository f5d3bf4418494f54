"""Weights behind a port, for code that starts a server by hand: whoever has the token reads them and subtracts from them.

Training does not use this (server.py does the exchange of a fit): it is Elephas' parameter server, with a token before
everything else and without pickles. Arrays travel in the format of compat/weight_bytes.py, and only those that fit.

    HTTP: GET /parameters, POST /update, Authorization: Bearer TOKEN
    TCP:  MAGIC, u16 length, token; one byte back, 1 for welcome; then "g" (weights come back), or "u" and a delta
"""

from __future__ import annotations

import abc
import errno
import http.client
import logging
import os
import socket
import socketserver
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, ClassVar, TypeVar

import numpy as np
from flask import Flask, Response, request
from werkzeug.serving import BaseWSGIServer, WSGIRequestHandler, make_server

from elephas_like.compat.framing import determine_master, recv_bytes, send_bytes, split_address
from elephas_like.compat.rwlock import RWLock
from elephas_like.compat.weight_bytes import bytes_to_weights, weights_to_bytes
from elephas_like.compat.weight_lists import Weights, subtract_params
from elephas_like.core.errors import ConnectionLostError, ElephasError
from elephas_like.core.types import Array
from elephas_like.exchange.lines import HELLO, WELCOME
from elephas_like.exchange.protocol import MAGIC
from elephas_like.exchange.security import new_token, same_token
from elephas_like.exchange.server import IDLE_SECONDS, LONGEST_TOKEN, PortError

log = logging.getLogger(__name__)

TOKEN_VARIABLE = "ELEPHAS_LIKE_TOKEN"
"""Where a server leaves its token for clients that are made in the same process."""

_CONNECT_PAUSES = (0.1, 0.2, 0.4, 0.8, 1.6)
Made = TypeVar("Made")


class RefusedError(ElephasError, PermissionError):
    """The server did not accept a request: the token is missing or wrong (401), or the arrays do not fit (400, 413)."""


class SharedWeights:
    """Weights that many threads read and subtract from; `locked=False` lets them do so at the same time (hogwild)."""

    def __init__(self, weights: Sequence[Array], *, locked: bool) -> None:
        self._weights = [np.array(weight) for weight in weights]
        self.lock = RWLock()
        self._locked = locked
        self.nbytes = len(weights_to_bytes(self._weights))

    def read(self) -> Weights:
        """A copy of the weights now."""
        with self._held(self.lock.acquire_read):
            return [np.array(weight) for weight in self._weights]

    def subtract(self, delta: Sequence[Array]) -> None:
        """Weights <- weights - delta.

        Raises:
            ValueError: the shapes differ.
        """
        with self._held(self.lock.acquire_write):
            self._weights = subtract_params(self._weights, delta)

    def subtract_bytes(self, data: bytes) -> None:
        """The same for a delta as it comes from the network.

        Raises:
            ValueError: it is no list of arrays of exactly these shapes and dtypes.
        """
        self.subtract(bytes_to_weights(data, like=self._weights))

    @contextmanager
    def _held(self, acquire: Callable[[], None]) -> Iterator[None]:
        if not self._locked:
            yield
            return
        acquire()
        try:
            yield
        finally:
            self.lock.release()


def token_of_this_process(given: str | None) -> str:
    """The token for a server that is started by hand, left in the environment for clients that are made here."""
    token = given or os.environ.get(TOKEN_VARIABLE) or new_token()
    os.environ[TOKEN_VARIABLE] = token
    return token


class Listener:
    """A server that runs in a thread, from where it is made to `stop()`."""

    def __init__(self, running: socketserver.BaseServer, port: int) -> None:
        self._running = running
        self.port = port
        self.thread = threading.Thread(
            target=running.serve_forever, kwargs={"poll_interval": 0.05}, name="elephas-like-parameters", daemon=True
        )
        self.thread.start()

    def stop(self) -> None:
        """Ends connections and frees the port."""
        self._running.shutdown()
        self.thread.join()
        self._running.server_close()


def http_listener(weights: SharedWeights, token: str, host: str, port: int, *, threaded: bool = True) -> Listener:
    """Serves weights over HTTP.

    Raises:
        PortError: it cannot listen there.
    """
    with _listen(host, port) as listener:  # the server makes its own descriptor
        running: BaseWSGIServer = make_server(
            host,
            port,
            application(weights, token),
            threaded=threaded,
            request_handler=_QuietHandler,
            fd=listener.fileno(),
        )
        return Listener(running, listener.getsockname()[1])


def socket_listener(weights: SharedWeights, token: str, host: str, port: int) -> Listener:
    """Serves weights over plain TCP.

    Raises:
        PortError: it cannot listen there.
    """
    listener = _listen(host, port)
    return Listener(_TcpServer(listener, weights, token), listener.getsockname()[1])


def application(weights: SharedWeights, token: str) -> Flask:
    """The Flask application. Without the token every request gets the same empty 401."""
    app = Flask("elephas_like", static_folder=None)

    @app.before_request
    def check() -> Response | None:
        if not same_token(request.headers.get("Authorization", ""), f"Bearer {token}"):
            return Response(status=401)
        if (request.content_length or 0) > weights.nbytes:
            return Response(status=413)
        return None

    @app.get("/")
    def home() -> str:
        return "Elephas"

    @app.get("/parameters")
    def parameters() -> Response:
        return Response(weights_to_bytes(weights.read()), mimetype="application/octet-stream")

    @app.post("/update")
    def update() -> Response:
        try:
            weights.subtract_bytes(request.get_data(cache=False))
        except ValueError as error:
            return Response(str(error), status=400, mimetype="text/plain")
        return Response("Update done")

    return app


class _QuietHandler(WSGIRequestHandler):
    """Requests are ordinary and go to the debug log."""

    timeout = IDLE_SECONDS

    def version_string(self) -> str:
        return "elephas_like"

    def log(self, type: str, message: str, *args: Any) -> None:
        log.debug(message, *args)


class _TcpServer(socketserver.ThreadingTCPServer):
    """A thread per connection; all of them end with the server."""

    daemon_threads = True

    def __init__(self, listener: socket.socket, weights: SharedWeights, token: str) -> None:
        super().__init__(listener.getsockname(), _TcpHandler, bind_and_activate=False)
        self.socket.close()
        self.socket = listener
        self.weights = weights
        self.token = token
        self.open: set[socket.socket] = set()

    def handle_error(self, request: Any, client_address: Any) -> None:
        log.info("a connection from %s broke off", client_address, exc_info=True)

    def server_close(self) -> None:
        super().server_close()
        for connection in list(self.open):
            with suppress(OSError):  # its client was faster
                connection.shutdown(socket.SHUT_RDWR)


class _TcpHandler(socketserver.BaseRequestHandler):
    """One client: hello, then requests until it goes away."""

    server: _TcpServer
    request: socket.socket

    def handle(self) -> None:
        self.request.settimeout(IDLE_SECONDS)
        self.server.open.add(self.request)
        try:
            if self._welcome():
                while (wish := self.request.recv(1)) in (b"g", b"u"):
                    self._serve(wish)
        except (OSError, ValueError) as error:
            log.info("a connection ended: %s", error)
        finally:
            self.server.open.discard(self.request)

    def _serve(self, wish: bytes) -> None:
        weights = self.server.weights
        if wish == b"g":
            send_bytes(self.request, weights_to_bytes(weights.read()))
        else:
            weights.subtract_bytes(recv_bytes(self.request, weights.nbytes))
            self.request.sendall(WELCOME)

    def _welcome(self) -> bool:
        with self.request.makefile("rb", buffering=0) as file:
            hello, given = file.read(HELLO.size), ""
            if hello and len(hello) == HELLO.size:
                magic, length = HELLO.unpack(hello)
                if magic == MAGIC and length <= LONGEST_TOKEN:
                    given = (file.read(length) or b"").decode("utf-8", "replace")
        known = same_token(given, self.server.token)
        self.request.sendall(WELCOME if known else b"\0")
        return known


class BaseParameterClient(abc.ABC):
    """Reads the weights of a parameter server and brings updates to it. Made on the driver, pickled to the workers.

    A subclass with a `client_type` of its own can be had from `get_client`.

    Args:
        port: of the server.
        token: the server's; None takes what a server of this process left in the environment.
        host: where the server is, as workers reach it; None asks this machine, the driver, now.
        timeout: seconds without a byte from the server.
    """

    client_type: ClassVar[str] = "base"
    _types: ClassVar[dict[str, type[BaseParameterClient]]] = {}

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        cls._types[cls.client_type] = cls

    def __init__(
        self, port: int = 4000, *, token: str | None = None, host: str | None = None, timeout: float = 60.0
    ) -> None:
        self.port = port
        self.token = token or os.environ.get(TOKEN_VARIABLE)
        self.master_url = determine_master(port) if host is None else f"{host}:{port}"
        self.timeout = timeout

    @classmethod
    def get_client(cls, client_type: str, port: int = 4000, **options: Any) -> BaseParameterClient:
        """The client of a type.

        Raises:
            ValueError: listing the known ones.
        """
        if client_type not in cls._types:
            raise ValueError(
                f"Parameter server mode has to be one of {', '.join(map(repr, cls._types))}; got {client_type!r}."
            )
        return cls._types[client_type](port, **options)

    @abc.abstractmethod
    def get_parameters(self) -> Weights:
        """The server's weights now."""

    @abc.abstractmethod
    def update_parameters(self, delta: Sequence[Array]) -> Any:
        """Has the server subtract `delta` (before minus after) from its weights."""

    def _given_token(self) -> str:
        return self.token or os.environ.get(TOKEN_VARIABLE) or ""

    def _connected(self, connect: Callable[[str, int], Made]) -> Made:
        """A connection; a server that is not there yet is asked again, for three seconds."""
        host, port = split_address(self.master_url)
        for pause in (*_CONNECT_PAUSES, None):
            try:
                return connect(host, port)
            except OSError as error:
                if pause is None:
                    raise ConnectionLostError(
                        f"there is no parameter server at {self.master_url} ({error}). Was it started, and is that an "
                        "address that this machine reaches?"
                    ) from error
            time.sleep(pause)
        raise AssertionError("unreachable")


class HttpClient(BaseParameterClient):
    """The client of an HttpServer."""

    client_type = "http"
    headers: ClassVar[dict[str, str]] = {"Content-Type": "application/elephas"}

    def get_parameters(self) -> Weights:
        """The server's weights now.

        Raises:
            RefusedError: without the token (401). ConnectionLostError: nobody is there.
        """
        return bytes_to_weights(self._ask("GET", "/parameters"))

    def update_parameters(self, delta: Sequence[Array]) -> bytes:
        """Has the server subtract `delta` from its weights; its answer is b"Update done".

        Raises:
            RefusedError: without the token (401), or a delta that does not fit (400, 413).
        """
        return self._ask("POST", "/update", weights_to_bytes(delta))

    def _ask(self, method: str, path: str, body: bytes | None = None) -> bytes:
        def connect(host: str, port: int) -> http.client.HTTPConnection:
            made = http.client.HTTPConnection(host, port, timeout=self.timeout)
            made.connect()
            return made

        connection = self._connected(connect)
        try:
            headers = {**self.headers, "Authorization": f"Bearer {self._given_token()}"}
            connection.request(method, path, body, headers)
            response = connection.getresponse()
            said = response.read()
        except (OSError, http.client.HTTPException) as error:
            raise ConnectionLostError(f"the parameter server at {self.master_url} went away: {error}") from error
        finally:
            connection.close()
        if response.status != 200:
            raise RefusedError(_refusal(f"{response.status} {response.reason}", said.decode("utf-8", "replace")))
        return said


class SocketClient(BaseParameterClient):
    """The client of a SocketServer."""

    client_type = "socket"

    def get_parameters(self) -> Weights:
        """The server's weights now.

        Raises:
            RefusedError: without the token (401). ConnectionLostError: nobody is there.
        """
        with self._line() as line:
            line.sendall(b"g")
            return bytes_to_weights(recv_bytes(line))

    def update_parameters(self, delta: Sequence[Array]) -> None:
        """Has the server subtract `delta` from its weights, and returns when it has.

        Raises:
            RefusedError: without the token (401), or a delta that does not fit (400).
        """
        with self._line() as line:
            with suppress(ConnectionError):  # it hangs up in the middle of what it does not want
                line.sendall(b"u")
                send_bytes(line, weights_to_bytes(delta))
            with suppress(ConnectionError):
                if line.recv(1) == WELCOME:
                    return
            raise RefusedError(
                _refusal(
                    "400", "the delta does not have the shapes and dtypes of the weights, or the server was stopped."
                )
            )

    @contextmanager
    def _line(self) -> Iterator[socket.socket]:
        line = self._connected(lambda host, port: socket.create_connection((host, port), self.timeout))
        with line:
            token = self._given_token().encode()
            line.sendall(HELLO.pack(MAGIC, len(token)) + token)
            if line.recv(1) != WELCOME:
                raise RefusedError(_refusal("401", ""))
            yield line


def _refusal(status: str, said: str) -> str:
    if status.startswith("401"):
        return (
            f"the parameter server refused ({status}): it wants its token. Give token=, or make the client in the "
            f"process of the server, which leaves it in the environment as {TOKEN_VARIABLE}."
        )
    return f"the parameter server refused ({status}). {said}"


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=128)
    except OSError as error:
        advice = "is taken: give port=0" if error.errno == errno.EADDRINUSE else "cannot be had on this machine"
        raise PortError(error.errno, f"{host}:{port} {advice} ({error}).") from error
