"""Weights behind a port, for code that starts a server by hand: clients read them and subtract from them.

Training does not use this. It is Elephas' parameter server on the servers and connections of `exchange`, with a token before
everything else and without pickles. Arrays are sent in the format of compat/weight_bytes.py; others than the expected are
refused.

    HTTP: GET /parameters, POST /update
    TCP:  "g", or "u" and a delta; the reply is one byte, 1 if that was carried out, and the weights or what was wrong
"""

from __future__ import annotations

import abc
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, nullcontext
from typing import Any, ClassVar

import numpy as np

from elephas_like.compat.framing import determine_master, split_address
from elephas_like.compat.rwlock import RWLock
from elephas_like.compat.weight_bytes import bytes_to_weights, weights_to_bytes
from elephas_like.compat.weight_lists import Weights, subtract_params
from elephas_like.core import checks
from elephas_like.core.errors import ConnectionLostError, ElephasError
from elephas_like.core.types import Array
from elephas_like.exchange.connections import HttpLine, Line, SocketLine, TokenError
from elephas_like.exchange.lines import UNKNOWN, WELCOME
from elephas_like.exchange.request_handler import Answerer, Reply
from elephas_like.exchange.security import new_token
from elephas_like.exchange.wire import ByteSource, CutShortError, read

TOKEN_VARIABLE = "ELEPHAS_LIKE_TOKEN"
"""Environment variable in which a server leaves its token for clients made in the same process."""

_CONNECT_PAUSES = (0.1, 0.2, 0.4, 0.8, 1.6)


class RefusedError(ElephasError, PermissionError):
    """The server refused a request: the token is missing or wrong (401), or the arrays do not fit (400, 413)."""


class SharedWeights:
    """Weights that many threads read and subtract from; with `locked=False` at the same time (hogwild)."""

    num_workers = 240
    """Clients that a server expects: it takes about four connections from each at a time."""

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

    def subtract_bytes(self, data: bytes | bytearray) -> None:
        """Subtract a delta as it comes from the network.

        Raises:
            ValueError: the bytes are no list of arrays of exactly these shapes and dtypes.
        """
        self.subtract(bytes_to_weights(data, like=self._weights))

    def stop(self) -> None:
        """Do nothing: no request waits for another one."""

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


class WeightsRequestHandler:
    """Answers reads and updates of shared weights (`exchange.request_handler.Handler`).

    threaded: False answers one request at a time.
    """

    def __init__(self, weights: SharedWeights, *, threaded: bool = True) -> None:
        self.most = weights.nbytes
        self.routes: dict[tuple[str, str], Answerer] = {
            ("GET", "/"): lambda _body, _length: Reply(200, [b"Elephas"]),
            ("GET", "/parameters"): self._read,
            ("POST", "/update"): self._update,
        }
        self._weights = weights
        self._turn = nullcontext() if threaded else threading.Lock()

    def serve(self, source: ByteSource, length: int, /) -> Reply:
        """Answer a request over TCP: its command, then its body. The reply begins with whether it was carried out."""
        command, length = bytes(read(source, min(length, 1))), length - 1
        if command == b"g" and not length:
            reply = self._read(source, length)
        elif command == b"u" and length <= self.most:
            reply = self._update(source, length)
        else:
            reply = Reply(400, [b"expected g, or u and a delta as large as the weights"])
        return Reply(reply.status, [WELCOME if reply.status == 200 else UNKNOWN, *reply.chunks])

    def _read(self, source: ByteSource, length: int) -> Reply:
        with self._turn:
            return Reply(200, [weights_to_bytes(self._weights.read())])

    def _update(self, source: ByteSource, length: int) -> Reply:
        try:
            delta = read(source, length)
            with self._turn:
                self._weights.subtract_bytes(delta)
        except (ValueError, CutShortError) as error:
            return Reply(400, [str(error).encode()])
        return Reply(200, [b"Update done"])


class BaseParameterClient(abc.ABC):
    """Reads the weights of a parameter server and sends updates. Made on the driver, pickled to the workers.

    A subclass with its own `client_type` is returned by `get_client`.

    Args:
        port: of the server; default 4000.
        token: the server's; None takes the token that a server of this process left in the environment.
        host: the server's address as workers reach it; None takes this machine, the driver.
        timeout: seconds without a byte in either direction; default 60.

    Raises:
        ValueError: `port` is a range, as that of a server that has not started: it does not say where to connect.
    """

    client_type: ClassVar[str] = "base"
    headers: ClassVar[dict[str, str]] = {}
    _line: ClassVar[type[Line]]
    _types: ClassVar[dict[str, type[BaseParameterClient]]] = {}

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        cls._types[cls.client_type] = cls

    def __init__(
        self, port: int = 4000, *, token: str | None = None, host: str | None = None, timeout: float = 60.0
    ) -> None:
        number = checks.port("port", port)
        if isinstance(number, str):
            raise ValueError(
                f"a client needs the one port that its server listens on; got {port!r}. Start the server first: its `port` then "
                "holds that number."
            )
        self.port = number
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

    def _request(self, chunks: Sequence[bytes], method: str = "POST", path: str = "") -> tuple[int, bytearray]:
        """Return the status and the body of the reply. A server that is not there yet is retried for three seconds.

        Raises:
            RefusedError: the token is wrong or missing (401).
            ConnectionLostError: no server answers.
        """
        token = self.token or os.environ.get(TOKEN_VARIABLE) or ""
        line = self._line(*split_address(self.master_url), token, connect_timeout=self.timeout, timeout=self.timeout)
        with closing(line):
            try:
                self._open(line)
                incoming = line.call(chunks, method, path, self.headers)
                return incoming.status, read(incoming.source, incoming.length or 0)
            except TokenError as error:
                raise RefusedError(
                    "the parameter server refused (401): it wants its token. Give token=, or make the client in the "
                    f"process of the server, which leaves it in the environment as {TOKEN_VARIABLE}."
                ) from error
            except ConnectionLostError:
                raise
            except (OSError, CutShortError) as error:
                raise ConnectionLostError(f"the parameter server at {self.master_url} went away: {error}") from error

    def _open(self, line: Line) -> None:
        for pause in (*_CONNECT_PAUSES, None):
            try:
                line.open()
                return
            except OSError as error:
                if pause is None:
                    raise ConnectionLostError(
                        f"there is no parameter server at {self.master_url} ({error}). Was it started, and is that an "
                        "address that this machine reaches?"
                    ) from error
            time.sleep(pause)


class HttpClient(BaseParameterClient):
    """The client of an HttpServer."""

    client_type = "http"
    headers = {"Content-Type": "application/elephas"}
    _line = HttpLine

    def get_parameters(self) -> Weights:
        """Return the server's current weights.

        Raises:
            RefusedError: the token is wrong or missing (401).
            ConnectionLostError: no server answers.
        """
        return bytes_to_weights(_carried_out(*self._request((), "GET", "/parameters")))

    def update_parameters(self, delta: Sequence[Array]) -> bytes:
        """Subtract `delta` from the server's weights. Return the server's answer, b"Update done".

        Raises:
            RefusedError: the token is wrong or missing (401), or the delta does not fit (400, 413).
            ConnectionLostError: no server answers.
        """
        return bytes(_carried_out(*self._request([weights_to_bytes(delta)], "POST", "/update")))


class SocketClient(BaseParameterClient):
    """The client of a SocketServer."""

    client_type = "socket"
    _line = SocketLine

    def get_parameters(self) -> Weights:
        """Return the server's current weights.

        Raises:
            RefusedError: the token is wrong or missing (401).
            ConnectionLostError: no server answers.
        """
        return bytes_to_weights(self._command([b"g"]))

    def update_parameters(self, delta: Sequence[Array]) -> None:
        """Subtract `delta` from the server's weights; return when that is done.

        Raises:
            RefusedError: the token is wrong or missing (401), or the delta does not fit (400).
            ConnectionLostError: no server answers.
        """
        self._command([b"u", weights_to_bytes(delta)])

    def _command(self, chunks: Sequence[bytes]) -> bytearray | memoryview:
        reply = memoryview(self._request(chunks)[1])
        return _carried_out(200 if reply[:1] == WELCOME else 400, reply[1:])


def _carried_out(status: int, body: bytearray | memoryview) -> bytearray | memoryview:
    """Return the body of a reply.

    Raises:
        RefusedError: the server did not carry the request out.
    """
    if status != 200:
        raise RefusedError(f"the parameter server refused ({status}). {bytes(body).decode('utf-8', 'replace')}")
    return body
