"""Weights behind a port, for code that starts a server by hand: clients read them and subtract from them.

Training does not use this (`exchange` does the exchange of a fit). It is Elephas' parameter server, with a token before
everything else and without pickles. Arrays are sent in the format of compat/weight_bytes.py; others than the expected
are refused.

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
"""Environment variable in which a server leaves its token for clients made in the same process."""

_CONNECT_PAUSES = (0.1, 0.2, 0.4, 0.8, 1.6)
Made = TypeVar("Made")


class RefusedError(ElephasError, PermissionError):
    """The server refused a request: the token is missing or wrong (401), or the arrays do not fit (400, 413)."""


class SharedWeights:
    """Weights that many threads read and subtract from; with `locked=False` at the same time (hogwild)."""

    def __init__(self, weights: Sequence[Array], *, locked: bool) -> None:
        self._weights = [np.array(weight) for weight in weights]
        self.lock = RWLock()
        self._locked = locked
        self.nbytes = len(weights_to_bytes(self._weights))

    def read(self) -> Weights:
        """Return a copy of the current weights."""
        with self._held(self.lock.acquire_read):
            return [np.array(weight) for weight in self._weights]

    def subtract(self, delta: Sequence[Array]) -> None:
        """Compute weights <- weights - delta.

        Raises:
            ValueError: the shapes differ.
        """
        with self._held(self.lock.acquire_write):
            self._weights = subtract_params(self._weights, delta)

    def subtract_bytes(self, data: bytes) -> None:
        """Subtract a delta as it comes from the network.

        Raises:
            ValueError: the bytes are no list of arrays of exactly these shapes and dtypes.
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
    """Return the token for a server that is started by hand, and leave it in the environment for clients made here."""
    token = given or os.environ.get(TOKEN_VARIABLE) or new_token()
    os.environ[TOKEN_VARIABLE] = token
    return token


class Listener:
    """A server that runs in a thread, from its creation to `stop()`."""

    def __init__(self, running: socketserver.BaseServer, port: int) -> None:
        self._running = running
        self.port = port
        self.thread = threading.Thread(
            target=running.serve_forever, kwargs={"poll_interval": 0.05}, name="elephas-like-parameters", daemon=True
        )
        self.thread.start()

    def stop(self) -> None:
        """End connections and free the port."""
        self._running.shutdown()
        self.thread.join()
        self._running.server_close()


def http_listener(weights: SharedWeights, token: str, host: str, port: int, *, threaded: bool = True) -> Listener:
    """Serve weights over HTTP.

    Raises:
        PortError: the address is not available.
    """
    with _listen(host, port) as listener:  # the server duplicates the descriptor
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
    """Serve weights over plain TCP.

    Raises:
        PortError: the address is not available.
    """
    listener = _listen(host, port)
    return Listener(_TcpServer(listener, weights, token), listener.getsockname()[1])


def application(weights: SharedWeights, token: str) -> Flask:
    """Return the Flask application. Every request without the token gets the same empty 401."""
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
    """Logs requests at debug level."""

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
            with suppress(OSError):  # the client disconnected first
                connection.shutdown(socket.SHUT_RDWR)


class _TcpHandler(socketserver.BaseRequestHandler):
    """Serves one client: authentication, then requests until it disconnects."""

    server: _TcpServer
    request: socket.socket

    def handle(self) -> None:
        self.request.settimeout(IDLE_SECONDS)
        self.server.open.add(self.request)
        try:
            if self._authenticate():
                while (command := self.request.recv(1)) in (b"g", b"u"):
                    self._serve(command)
        except (OSError, ValueError) as error:
            log.info("a connection ended: %s", error)
        finally:
            self.server.open.discard(self.request)

    def _serve(self, command: bytes) -> None:
        weights = self.server.weights
        if command == b"g":
            send_bytes(self.request, weights_to_bytes(weights.read()))
        else:
            weights.subtract_bytes(recv_bytes(self.request, weights.nbytes))
            self.request.sendall(WELCOME)

    def _authenticate(self) -> bool:
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
    """Reads the weights of a parameter server and sends updates. Made on the driver, pickled to the workers.

    A subclass with its own `client_type` is returned by `get_client`.

    Args:
        port: of the server; default 4000.
        token: the server's; None takes the token that a server of this process left in the environment.
        host: the server's address as workers reach it; None takes this machine, the driver.
        timeout: seconds without a byte from the server; default 60.
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
        """Return the client of a type.

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
        """Return the server's current weights."""

    @abc.abstractmethod
    def update_parameters(self, delta: Sequence[Array]) -> Any:
        """Subtract `delta` (before minus after) from the server's weights."""

    def _given_token(self) -> str:
        return self.token or os.environ.get(TOKEN_VARIABLE) or ""

    def _connect_with_retries(self, connect: Callable[[str, int], Made]) -> Made:
        """Return a connection. A server that is not there yet is retried for three seconds."""
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
        """Return the server's current weights.

        Raises:
            RefusedError: the token is wrong or missing (401).
            ConnectionLostError: no server answers.
        """
        return bytes_to_weights(self._request("GET", "/parameters"))

    def update_parameters(self, delta: Sequence[Array]) -> bytes:
        """Subtract `delta` from the server's weights. Return the server's answer, b"Update done".

        Raises:
            RefusedError: the token is wrong or missing (401), or the delta does not fit (400, 413).
            ConnectionLostError: no server answers.
        """
        return self._request("POST", "/update", weights_to_bytes(delta))

    def _request(self, method: str, path: str, body: bytes | None = None) -> bytes:
        def connect(host: str, port: int) -> http.client.HTTPConnection:
            made = http.client.HTTPConnection(host, port, timeout=self.timeout)
            made.connect()
            return made

        connection = self._connect_with_retries(connect)
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
        """Return the server's current weights.

        Raises:
            RefusedError: the token is wrong or missing (401).
            ConnectionLostError: no server answers.
        """
        with self._connection() as connection:
            connection.sendall(b"g")
            return bytes_to_weights(recv_bytes(connection))

    def update_parameters(self, delta: Sequence[Array]) -> None:
        """Subtract `delta` from the server's weights; return when that is done.

        Raises:
            RefusedError: the token is wrong or missing (401), or the delta does not fit (400).
            ConnectionLostError: no server answers.
        """
        with self._connection() as connection:
            with suppress(ConnectionError):  # the server disconnects in the middle of a delta that does not fit
                connection.sendall(b"u")
                send_bytes(connection, weights_to_bytes(delta))
            with suppress(ConnectionError):
                if connection.recv(1) == WELCOME:
                    return
            raise RefusedError(
                _refusal(
                    "400", "the delta does not have the shapes and dtypes of the weights, or the server was stopped."
                )
            )

    @contextmanager
    def _connection(self) -> Iterator[socket.socket]:
        connection = self._connect_with_retries(lambda host, port: socket.create_connection((host, port), self.timeout))
        with connection:
            token = self._given_token().encode()
            connection.sendall(HELLO.pack(MAGIC, len(token)) + token)
            if connection.recv(1) != WELCOME:
                raise RefusedError(_refusal("401", ""))
            yield connection


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
