"""Elephas' parameter servers for code that starts them by hand: weights of a Keras model behind a port and a token."""

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
    Listener,
    SharedWeights,
    SocketClient,
    http_listener,
    socket_listener,
    token_of_this_process,
)
from elephas_like.compat.weight_lists import Weights
from elephas_like.core.checks import choice, near, positive_int
from elephas_like.core.errors import ElephasError, ElephasWarning
from elephas_like.core.types import Mode
from elephas_like.trainer.serialization import dict_to_model

Given = ParamSpec("Given")
Result = TypeVar("Result")
_OPTIONS = ("custom_objects", "token", "debug", "threaded", "use_reloader")


class BaseParameterServer(abc.ABC):
    """Holds the weights of a model; `start` and `stop`, or a `with`, are for its subclasses, one of your own among them.

    Args:
        model: what `model_to_dict` makes of a Keras model.
        port: to listen on; 0 takes a free one, which `port` then says.
        mode: "hogwild" reads and updates without a lock.
        custom_objects: names of classes and functions that the architecture refers to.
        token: what clients must show; None takes that of this process, making one if there is none. Clients that are
            made in this process find it in the environment.
        debug, use_reloader: accepted for Elephas' sake and never honoured: a debugger on the network is a way in.
        threaded: whether an HttpServer answers requests at the same time.
    """

    def __init__(self, model: Mapping[str, Any], port: int, mode: str, **options: Any) -> None:
        for name in options:
            if name not in _OPTIONS:
                raise TypeError(f"{type(self).__name__} does not know {name!r}.{near(name, _OPTIONS)}")
        for name in ("debug", "use_reloader"):
            if options.get(name):
                warnings.warn(
                    f"{name}=True is not honoured: it would let anyone who reaches the port run code on the driver.",
                    ElephasWarning,
                    stacklevel=3,
                )
        if not isinstance(model, Mapping):
            raise TypeError(f"model must be what model_to_dict(model) gives; got {type(model).__name__}.")
        self.port = positive_int("port", port, least=0)
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
        """A copy of the weights now."""
        return self._shared.read()

    @property
    def master_network(self) -> keras.Model:
        """The model with the weights that the server has now."""
        if self._network is None:
            self._network = dict_to_model(self._model, self._custom_objects)
        self._network.set_weights(self.weights)
        return self._network

    @abc.abstractmethod
    def start(self) -> None:
        """Listens, and returns when clients can connect."""

    @abc.abstractmethod
    def stop(self) -> None:
        """Ends connections and frees the port; the weights stay. May be called again, and `start()` after it."""

    def __enter__(self) -> BaseParameterServer:
        """The running server."""
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stops it."""
        self.stop()

    def make_threadsafe_if_necessary(
        self, func: Callable[Given, Result], lock_aquire_callable: Callable[[], None]
    ) -> Callable[Given, Result]:
        """`func` under the lock; as it is where the mode is hogwild."""
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
        """`func` under the readers' lock."""
        return self.make_threadsafe_if_necessary(func, self.lock.acquire_read)

    def make_write_threadsafe_if_necessary(self, func: Callable[Given, Result]) -> Callable[Given, Result]:
        """`func` under the writer's lock."""
        return self.make_threadsafe_if_necessary(func, self.lock.acquire_write)


class _ListeningServer(BaseParameterServer):
    """What both transports share: a Listener from start to stop."""

    _listener: Listener | None = None

    @property
    def server(self) -> threading.Thread | None:
        """The thread that answers clients, a process in Elephas; None while nobody listens."""
        return None if self._listener is None else self._listener.thread

    def start(self) -> None:
        """Listens, and returns when clients can connect.

        Raises:
            PortError: the port is taken.
        """
        if self._listener is not None:
            raise ElephasError("expected start() once; this server is running.")
        host, _ = split_address(determine_master(self.port))
        self._listener = self._listen(host)
        self.port = self._listener.port
        self.master_url = determine_master(self.port)

    def stop(self) -> None:
        """Ends connections and frees the port; the weights stay. May be called again, and `start()` after it."""
        listener, self._listener = self._listener, None
        if listener is not None:
            listener.stop()

    @abc.abstractmethod
    def _listen(self, host: str) -> Listener: ...


class HttpServer(_ListeningServer):
    """The parameter server over HTTP: GET /parameters, POST /update."""

    def _listen(self, host: str) -> Listener:
        return http_listener(self._shared, self.token, host, self.port, threaded=self.threaded)


class SocketServer(_ListeningServer):
    """The parameter server over plain TCP."""

    def _listen(self, host: str) -> Listener:
        return socket_listener(self._shared, self.token, host, self.port)


class ClientServerFactory(abc.ABC):
    """Makes a server and the clients that fit it; a subclass with a `_type` of its own can be had from `get_factory`."""

    _type: ClassVar[str] = "base"
    _types: ClassVar[dict[str, type[ClientServerFactory]]] = {}

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        cls._types[cls._type] = cls

    @classmethod
    def get_factory(cls, _type: str) -> ClientServerFactory:
        """The factory of a type.

        Raises:
            ValueError: listing the known ones.
        """
        if _type not in cls._types:
            raise ValueError(f"Unknown factory type {_type!r}; expected one of {', '.join(map(repr, cls._types))}.")
        return cls._types[_type]()

    @abc.abstractmethod
    def create_client(self, *args: Any, **kwargs: Any) -> BaseParameterClient:
        """A client, from the arguments of its class."""

    @abc.abstractmethod
    def create_server(self, *args: Any, **kwargs: Any) -> BaseParameterServer:
        """A server, from the arguments of its class."""


class HttpFactory(ClientServerFactory):
    """HttpServer and HttpClient."""

    _type = "http"

    def create_client(self, *args: Any, **kwargs: Any) -> HttpClient:
        """An HttpClient."""
        return HttpClient(*args, **kwargs)

    def create_server(self, *args: Any, **kwargs: Any) -> HttpServer:
        """An HttpServer."""
        return HttpServer(*args, **kwargs)


class SocketFactory(ClientServerFactory):
    """SocketServer and SocketClient."""

    _type = "socket"

    def create_client(self, *args: Any, **kwargs: Any) -> SocketClient:
        """A SocketClient."""
        return SocketClient(*args, **kwargs)

    def create_server(self, *args: Any, **kwargs: Any) -> SocketServer:
        """A SocketServer."""
        return SocketServer(*args, **kwargs)
