"""Elephas' parameter servers, started by hand: one suite for both transports, with real connections."""

from __future__ import annotations

import http.client
import io
import pickle
import socket
import threading
from collections.abc import Iterator
from contextlib import closing

import keras
import numpy as np
import pytest
from port_blocks import port_of, range_of, taken_ports

from elephas_like.compat.parameter_server import BaseParameterServer, ClientServerFactory, HttpServer, SocketServer
from elephas_like.compat.parameters import (
    TOKEN_VARIABLE,
    BaseParameterClient,
    RefusedError,
    SharedWeights,
    WeightsRequestHandler,
)
from elephas_like.compat.weight_bytes import weights_to_bytes
from elephas_like.core.errors import ConnectionLostError, ElephasError, ElephasWarning
from elephas_like.exchange.address import PortError
from elephas_like.exchange.connections import LINES, SocketLine
from elephas_like.exchange.lines import UNKNOWN, WELCOME
from elephas_like.exchange.wire import read
from elephas_like.trainer.serialization import model_to_dict

SERVERS = {"http": HttpServer, "socket": SocketServer}


@pytest.fixture(autouse=True)
def here(monkeypatch) -> None:
    monkeypatch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
    monkeypatch.delenv(TOKEN_VARIABLE, raising=False)


@pytest.fixture(params=["http", "socket"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def model() -> dict[str, object]:
    network = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1, kernel_initializer="ones")])
    return model_to_dict(network)


@pytest.fixture
def server(kind, model) -> Iterator[BaseParameterServer]:
    with SERVERS[kind](model, 0, "asynchronous") as running:
        yield running


def plain(weights: list[np.ndarray]) -> list[object]:
    return [weight.tolist() for weight in weights]


def test_clients_read_and_subtract(kind, server) -> None:
    client = BaseParameterClient.get_client(kind, server.port)
    assert plain(client.get_parameters()) == [[[1.0], [1.0]], [0.0]]
    client.update_parameters([np.array([[0.25], [0.5]], "float32"), np.array([1.0], "float32")])
    assert plain(client.get_parameters()) == plain(server.weights) == [[[0.75], [0.5]], [-1.0]]
    assert plain(server.master_network.get_weights()) == plain(server.weights)


@pytest.mark.parametrize("mode", ["asynchronous", "hogwild"])
def test_many_clients_at_once_lose_nothing_under_the_lock(kind, model, mode) -> None:
    delta = [np.full((2, 1), 0.5, "float32"), np.ones(1, "float32")]
    with SERVERS[kind](model, 0, mode) as server:
        client = BaseParameterClient.get_client(kind, server.port)

        def bring() -> None:
            for _ in range(10):
                client.update_parameters(delta)

        threads = [threading.Thread(target=bring) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        if mode == "asynchronous":
            assert plain(client.get_parameters()) == [[[-19.0], [-19.0]], [-40.0]]


def test_without_the_token_nobody_gets_anything(kind, server, monkeypatch) -> None:
    monkeypatch.delenv(TOKEN_VARIABLE)
    for client in (
        BaseParameterClient.get_client(kind, server.port),
        BaseParameterClient.get_client(kind, server.port, token="wrong"),
    ):
        for ask in (client.get_parameters, lambda c=client: c.update_parameters([np.ones((2, 1), "float32")])):
            with pytest.raises(RefusedError, match=rf"401.*{TOKEN_VARIABLE}"):
                ask()
    assert plain(server.weights) == [[[1.0], [1.0]], [0.0]]
    BaseParameterClient.get_client(kind, server.port, token=server.token).get_parameters()


def test_http_without_the_token_is_an_empty_401(model) -> None:
    with HttpServer(model, 0, "asynchronous") as server:
        for method, path in (("GET", "/"), ("GET", "/parameters"), ("POST", "/update"), ("GET", "/console")):
            connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=10)
            connection.request(method, path, body=b"x" * 10 if method == "POST" else None)
            response = connection.getresponse()
            assert (response.status, response.read()) == (401, b"")
            connection.close()
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=10)
        connection.request("GET", "/", headers={"Authorization": f"Bearer {server.token}"})
        assert connection.getresponse().read() == b"Elephas"
        connection.close()


def test_what_does_not_fit_is_refused_and_changes_nothing(kind, server) -> None:
    client = BaseParameterClient.get_client(kind, server.port)
    bias = np.ones(1, "float32")
    for delta, why in (
        ([np.ones((2, 1), "float32")], r"\(400\)\. expected 2 arrays, got 1"),
        ([np.ones((1, 2), "float32"), bias], r"\(400\)\. array 0: expected shape \(2, 1\)"),
        ([np.ones(9999)], r"\(413\)" if kind == "http" else r"\(400\)\. expected .* as large as the weights"),
        ([np.ones(2**20)], r"\(413\)" if kind == "http" else r"\(400\)\. expected .* as large as the weights"),
    ):
        with pytest.raises(RefusedError, match=why):
            client.update_parameters(delta)
    assert plain(client.get_parameters()) == [[[1.0], [1.0]], [0.0]]


def test_a_pickle_is_never_read(kind, server, tmp_path) -> None:
    class Trap:
        def __reduce__(self):
            return open, (str(tmp_path / "opened"), "w")

    body = pickle.dumps(Trap())
    if kind == "http":
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=10)
        connection.request("POST", "/update", body, {"Authorization": f"Bearer {server.token}"})
        assert connection.getresponse().status in (400, 413)
        connection.close()
    assert not (tmp_path / "opened").exists()


def test_a_connection_serves_several_requests(kind, server) -> None:
    weights = weights_to_bytes(server.weights)
    line = LINES[kind]("127.0.0.1", server.port, server.token)
    with closing(line):
        connection = line.open()
        for _ in range(2):
            reply = line.call([b"g"] if kind == "socket" else [], "GET", "/parameters")
            body = read(reply.source, reply.length or 0)
            assert body == (WELCOME if kind == "socket" else b"") + weights
            assert line._socket is connection


@pytest.mark.parametrize("body", [b"", b"x", b"gg", b"u", b"u" + pickle.dumps([1.0])])
def test_over_tcp_other_commands_are_refused(model, body) -> None:
    with SocketServer(model, 0, "asynchronous") as server:
        with closing(SocketLine("127.0.0.1", server.port, server.token)) as line:
            reply = line.call([body])
            assert read(reply.source, 1) == UNKNOWN
        assert plain(server.weights) == [[[1.0], [1.0]], [0.0]]


def test_a_server_without_threads_answers_one_request_at_a_time(model) -> None:
    weights = SharedWeights(model["weights"], locked=False)
    body = weights_to_bytes(weights.read())
    handler = WeightsRequestHandler(weights, threaded=False)
    inside, most = [], []

    def subtract(delta: object) -> None:
        inside.append(delta)
        threading.Event().wait(0.01)
        most.append(len(inside))
        inside.pop()

    weights.subtract = subtract  # type: ignore[method-assign, assignment]
    threads = [threading.Thread(target=lambda: handler.serve(io.BytesIO(b"u" + body), len(body) + 1)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert most == [1, 1, 1, 1]


def test_a_server_stops_for_good_and_starts_again(kind, model) -> None:
    before = threading.active_count()
    server = SERVERS[kind](model, 0, "asynchronous")
    server.start()
    with pytest.raises(ElephasError, match="this server is running"):
        server.start()
    assert server.server is not None
    assert server.server.is_alive()
    port = server.port
    client = BaseParameterClient.get_client(kind, port)
    client.update_parameters([np.ones((2, 1), "float32"), np.ones(1, "float32")])
    server.stop()
    server.stop()
    assert server.server is None
    for _ in range(500):
        if threading.active_count() == before:
            break
        threading.Event().wait(0.01)
    assert threading.active_count() == before
    server.start()
    assert server.port == port
    assert plain(client.get_parameters())[1] == [-1.0]
    server.stop()


def test_a_taken_port_says_what_to_do(kind, model) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        with pytest.raises(PortError, match="is taken by another program: give port=0"):
            SERVERS[kind](model, taken.getsockname()[1], "asynchronous").start()


def test_a_range_of_ports_ends_in_one_that_clients_are_told(kind, model) -> None:
    with taken_ports(3) as block:
        given = range_of(block)
        server = SERVERS[kind](model, given, "asynchronous")
        assert server.port == given
        with pytest.raises(ValueError, match=rf"one port that its server listens on; got '{given}'. Start the server"):
            BaseParameterClient.get_client(kind, server.port)
        with pytest.raises(PortError, match=f"{given} .* all 3 ports of the range are taken"):
            server.start()
        wanted = port_of(block[1])
        block[1].close()
        with server:
            assert server.port == wanted
            assert plain(BaseParameterClient.get_client(kind, server.port).get_parameters())[1] == [0.0]
    with pytest.raises(ValueError, match=r"port must be a port .* got '9:8'"):
        SERVERS[kind](model, "9:8", "asynchronous")


def test_nobody_there_is_said_within_seconds(kind, monkeypatch) -> None:
    monkeypatch.setattr("elephas_like.compat.parameters._CONNECT_PAUSES", (0.01,))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with pytest.raises(ConnectionLostError, match=f"no parameter server at 127.0.0.1:{port}"):
        BaseParameterClient.get_client(kind, port, token="x").get_parameters()


def test_debug_is_accepted_and_never_honoured(model) -> None:
    with pytest.warns(ElephasWarning, match="debug=True is not honoured"):
        server = HttpServer(model, 0, "asynchronous", debug=True, threaded=True, use_reloader=False)
    assert server.debug is False
    with pytest.raises(TypeError, match=r"does not know 'debugg'.*'debug'"):
        HttpServer(model, 0, "asynchronous", debugg=True)


def test_a_server_takes_a_dict_of_the_model(kind) -> None:
    with pytest.raises(TypeError, match=r"model must be what model_to_dict\(model\) gives; got Sequential"):
        SERVERS[kind](keras.Sequential(), 0, "asynchronous")


def test_factories_and_clients_by_their_type(kind, model) -> None:
    factory = ClientServerFactory.get_factory(kind)
    server = factory.create_server(model, 0, "hogwild", custom_objects={})
    assert type(server) is SERVERS[kind]
    assert factory.create_client(4000).client_type == kind
    with pytest.raises(ValueError, match=r"Unknown factory type 'no'; expected one of 'http', 'socket'"):
        ClientServerFactory.get_factory("no")
    with pytest.raises(ValueError, match="one of 'http', 'socket'"):
        BaseParameterClient.get_client("no")


def test_a_subclass_registers_a_type_of_its_own() -> None:
    class Mine(BaseParameterClient):
        client_type = "mine"

        def get_parameters(self):
            return []

        def update_parameters(self, delta):
            return None

    try:
        assert isinstance(BaseParameterClient.get_client("mine"), Mine)
    finally:
        del BaseParameterClient._types["mine"]


def test_a_server_of_one_s_own_defines_start_and_stop(model) -> None:
    class Mine(BaseParameterServer):
        started = 0

        def start(self) -> None:
            self.started += 1

        def stop(self) -> None:
            self.started -= 1

    with Mine(model, 0, "asynchronous") as server:
        assert (server.started, plain(server.weights)[1]) == (1, [0.0])
    assert server.started == 0


def test_a_request_is_as_large_as_the_weights_and_no_larger(model) -> None:
    with HttpServer(model, 0, "asynchronous") as server:
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=10)
        connection.putrequest("POST", "/update")
        connection.putheader("Authorization", f"Bearer {server.token}")
        connection.putheader("Content-Length", str(10**12))
        connection.endheaders()
        assert connection.getresponse().status == 413
        connection.close()
        assert server._shared.nbytes == len(weights_to_bytes(server.weights))
