"""Elephas' parameter servers, for code that starts them by hand: weights of a Keras model behind a port and a token."""

from __future__ import annotations

import abc
import threading
import warnings
from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any, ClassVar, ParamSpec, TypeVar

import keras

from elephas_like.compat.framing import determine_master, split_address
from elephas_like.compat.parameters import (
    BaseParameterClient,
    HttpClient,
    SharedWeights,
    SocketClient,
    WeightsRequestHandler,
    token_of_this_process,
)
from elephas_like.compat.weight_lists import Weights
from elephas_like.core.checks import choice, did_you_mean
from elephas_like.core.checks import port as checked_port
from elephas_like.core.errors import ElephasError, ElephasWarning
from elephas_like.core.types import Mode
from elephas_like.exchange.protocol import Sizes
from elephas_like.exchange.server import HttpExchangeServer, TcpExchangeServer
from elephas_like.trainer.serialization import dict_to_model, write_weights

Given = ParamSpec("Given")
Result = TypeVar("Result")
_OPTIONS = ("custom_objects", "token", "debug", "threaded", "use_reloader")


class BaseParameterServer(abc.ABC):
    """Holds the weights of a model. Subclasses implement `start` and `stop`; your own may too.

    Args:
        model: the result of `model_to_dict`.
        port: to listen on; 0 takes a free one, and a range such as "4000:4100" its first free one. Once the server listens, `port`
            holds the one taken.
        mode: "hogwild" reads and updates without a lock.
        custom_objects: classes and functions that the architecture refers to, by name.
        token: what clients must send; None takes this process's token, or makes one. Clients made in this process find
            it in the environment.
        debug, use_reloader: accepted for compatibility and ignored: a debugger on the network is a security hole.
        threaded: whether an HttpServer answers requests in parallel.

    Raises:
        TypeError: an unknown option, or `model` is no mapping.
        ValueError: `port` or `mode` is invalid.
    """

    def __init__(self, model: Mapping[str, Any], port: int | str, mode: str, **options: Any) -> None:
        for name in options:
            if name not in _OPTIONS:
                raise TypeError(f"{type(self).__name__} does not know {name!r}.{did_you_mean(name, _OPTIONS)}")
        for name in ("debug", "use_reloader"):
            if options.get(name):
                warnings.warn(
                    f"{name}=True is not honoured: it would let anyone who reaches the port run code on the driver.",
                    ElephasWarning,
                    stacklevel=3,
                )
        if not isinstance(model, Mapping):
            raise TypeError(f"model must be what model_to_dict(model) gives; got {type(model).__name__}.")
        self.port = checked_port("port", port)
        self.mode = choice("mode", mode, Mode)
        self.threaded = bool(options.get("threaded", True))
        self.debug = self.use_reloader = False
        self.token = token_of_this_process(options.get("token"))
        self.master_url: str | None = None
        self._model = dict(model)
        self._custom_objects = options.get("custom_objects")
        self._network: keras.Model | None = None
        self._shared = SharedWeights(model["weights"], locked=self.mode is not Mode.HOGWILD)
        self.lock = self._shared.lock

    @property
    def weights(self) -> Weights:
        """A copy of the current weights."""
        return self._shared.read()

    @property
    def master_network(self) -> keras.Model:
        """The model with the server's current weights."""
        if self._network is None:
            self._network = dict_to_model(self._model, self._custom_objects)
        write_weights(self._network, self.weights)
        return self._network

    @abc.abstractmethod
    def start(self) -> None:
        """Listen; return when clients can connect."""

    @abc.abstractmethod
    def stop(self) -> None:
        """End connections and free the port. The weights stay; `stop` may be called again, and `start` after it."""

    def __enter__(self) -> BaseParameterServer:
        """Start the server and return it."""
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop the server."""
        self.stop()

    def make_threadsafe_if_necessary(
        self, func: Callable[Given, Result], lock_aquire_callable: Callable[[], None]
    ) -> Callable[Given, Result]:
        """Return `func` under the lock; in mode hogwild unchanged."""
        if self.mode is Mode.HOGWILD:
            return func

        @wraps(func)
        def held(*args: Given.args, **kwargs: Given.kwargs) -> Result:
            lock_aquire_callable()
            try:
                return func(*args, **kwargs)
            finally:
                self.lock.release()

        return held

    def make_read_threadsafe_if_necessary(self, func: Callable[Given, Result]) -> Callable[Given, Result]:
        """Return `func` under the readers' lock; in mode hogwild unchanged."""
        return self.make_threadsafe_if_necessary(func, self.lock.acquire_read)

    def make_write_threadsafe_if_necessary(self, func: Callable[Given, Result]) -> Callable[Given, Result]:
        """Return `func` under the writer's lock; in mode hogwild unchanged."""
        return self.make_threadsafe_if_necessary(func, self.lock.acquire_write)


class _ListeningServer(BaseParameterServer):
    """What both transports share: a server of `exchange` between `start` and `stop`."""

    _kind: ClassVar[type[HttpExchangeServer | TcpExchangeServer]]
    _running: HttpExchangeServer | TcpExchangeServer | None = None

    @property
    def server(self) -> threading.Thread | None:
        """The thread that answers clients (a process in Elephas); None while the server is stopped."""
        return None if self._running is None else self._running.thread

    def start(self) -> None:
        """Listen; return when clients can connect.

        Raises:
            ElephasError: the server is running already.
            PortError: the port, or each one of the range, is taken.
        """
        if self._running is not None:
            raise ElephasError("expected start() once; this server is running.")
        handler = WeightsRequestHandler(self._shared, threaded=self.threaded)
        host, _ = split_address(determine_master())
        server = self._kind(self._shared, self.token, Sizes({}), host, self.port, handler=lambda *_: handler)
        self._running = server.start()
        self.port = server.address[1]
        self.master_url = determine_master(self.port)

    def stop(self) -> None:
        """End connections and free the port. The weights stay; `stop` may be called again, and `start` after it."""
        running, self._running = self._running, None
        if running is not None:
            running.stop()


class HttpServer(_ListeningServer):
    """The parameter server over HTTP: GET /parameters, POST /update."""

    _kind = HttpExchangeServer


class SocketServer(_ListeningServer):
    """The parameter server over plain TCP."""

    _kind = TcpExchangeServer


class ClientServerFactory(abc.ABC):
    """Makes a server and matching clients. A subclass with its own `_type` is returned by `get_factory`."""

    _type: ClassVar[str] = "base"
    _types: ClassVar[dict[str, type[ClientServerFactory]]] = {}

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        cls._types[cls._type] = cls

    @classmethod
    def get_factory(cls, _type: str) -> ClientServerFactory:
        """Return the factory of a type.

        Raises:
            ValueError: listing the known ones.
        """
        if _type not in cls._types:
            raise ValueError(f"Unknown factory type {_type!r}; expected one of {', '.join(map(repr, cls._types))}.")
        return cls._types[_type]()

    @abc.abstractmethod
    def create_client(self, *args: Any, **kwargs: Any) -> BaseParameterClient:
        """Return a client, from the arguments of its class."""

    @abc.abstractmethod
    def create_server(self, *args: Any, **kwargs: Any) -> BaseParameterServer:
        """Return a server, from the arguments of its class."""


class HttpFactory(ClientServerFactory):
    """Makes HttpServer and HttpClient."""

    _type = "http"
    create_client = staticmethod(HttpClient)
    create_server = staticmethod(HttpServer)


class SocketFactory(ClientServerFactory):
    """Makes SocketServer and SocketClient."""

    _type = "socket"
    create_client = staticmethod(SocketClient)
    create_server = staticmethod(SocketServer)
