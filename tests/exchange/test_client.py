from __future__ import annotations

import pickle
import platform
import socket
import threading
from contextlib import ExitStack
from typing import Literal

import pytest
from small_world import LAYOUT, SIZES, Background, joined, train_order, update

from elephas_like.core.errors import ConnectionLostError, ElephasError, Failure, SupersededError
from elephas_like.core.types import Order
from elephas_like.exchange import client as clients
from elephas_like.exchange.client import ClientSettings
from elephas_like.exchange.membership import Waits
from elephas_like.exchange.round_store import RoundStore
from elephas_like.exchange.server import HttpExchangeServer, TcpExchangeServer

Kind = Literal["http", "socket"]
KINDS: list[Kind] = ["http", "socket"]
SERVERS = {"http": HttpExchangeServer, "socket": TcpExchangeServer}


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port: int = listening.getsockname()[1]
        return port


def test_settings_travel_and_keep_the_token_out_of_logs() -> None:
    settings = ClientSettings("http", "127.0.0.1", 1234, "secret", SIZES)
    assert pickle.loads(pickle.dumps(settings)) == settings  # noqa: S301
    assert "secret" not in repr(settings)


@pytest.mark.parametrize("kind", KINDS)
def test_no_server_is_an_error_that_says_where_and_what_to_check(kind: Kind) -> None:
    port = free_port()
    client = ClientSettings(kind, "127.0.0.1", port, "t", SIZES, retries=1).connect(3, 1)
    with pytest.raises(
        ConnectionLostError, match=rf"worker 3 cannot reach .* 127.0.0.1:{port} after 2 tries"
    ) as caught:
        client.join(joined(3, 1))
    assert "engine='jobs'" in str(caught.value)
    client.close()
    advised = ClientSettings(kind, "127.0.0.1", port, "t", SIZES, retries=0, advice="Call a friend.").connect(3, 1)
    with pytest.raises(ConnectionLostError, match=r"address and port\? Call a friend\.$"):
        advised.progress(0, {"loss": 1.0})
    advised.close()


@pytest.mark.fault(
    "The network between a worker and the driver is cut in mid-fit, or refuses connections",
    "the worker tries for a minute",
    "the time until it is back; after a minute one of the tries that Spark has for a task",
)
@pytest.mark.parametrize("kind", KINDS)
def test_a_driver_that_refuses_connections_for_a_minute_is_reached_again(kind: Kind, monkeypatch) -> None:
    port, pauses = free_port(), list[float]()
    client = ClientSettings(kind, "127.0.0.1", port, "t", SIZES).connect(0, 1)
    store = RoundStore(1, LAYOUT.hash, waits=Waits())
    with ExitStack() as stack:

        def wait(seconds: float) -> None:
            """Pause without waiting; the driver comes back after the last but one."""
            pauses.append(seconds)
            if sum(pauses) > 56:
                stack.enter_context(SERVERS[kind](store, "t", SIZES, "127.0.0.1", port))

        monkeypatch.setattr(client._closed, "wait", wait)
        client.fail(Failure.of(0, ValueError("heard at last")))
        client.close()
    with pytest.raises(ValueError, match="heard at last"):
        store.joined()
    assert pauses[:3] == [0.1, 0.2, 0.4]
    assert max(pauses) == 5.0


def test_a_driver_that_is_silent_is_tried_for_a_minute_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each try takes seconds there, as where packets are dropped: a few will do."""
    monkeypatch.setattr(clients, "_PATIENCE_SECONDS", 0.0)
    client = ClientSettings("http", "127.0.0.1", free_port(), "t", SIZES).connect(3, 1)
    monkeypatch.setattr(client._closed, "wait", lambda seconds: None)
    with pytest.raises(ConnectionLostError, match="after 8 tries"):
        client.join(joined(3, 1))
    client.close()


@pytest.mark.parametrize("kind", KINDS)
def test_the_first_contact_gives_up_soon_and_says_what_to_set(kind: Kind) -> None:
    port = free_port()
    client = ClientSettings(kind, "127.0.0.1", port, "t", SIZES).connect(3, 1)
    with pytest.raises(
        ConnectionLostError, match=rf"worker 3 cannot reach .* 127.0.0.1:{port} after 3 tries from {platform.node()}"
    ) as caught:
        client.announce("host-3")
    assert "host=<the driver's address as executors see it>" in str(caught.value)
    client.close()


@pytest.mark.parametrize("kind", KINDS)
def test_a_driver_whose_name_does_not_resolve_is_named(kind: Kind) -> None:
    client = ClientSettings(kind, "driver.invalid", 4040, "t", SIZES).connect(3, 1)
    with pytest.raises(ConnectionLostError, match=r"at driver.invalid:4040 .*gaierror"):
        client.announce("host-3")
    client.close()


@pytest.mark.parametrize("kind", KINDS)
def test_a_server_that_never_answers_runs_into_the_time_out(kind: Kind) -> None:
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        settings = ClientSettings(kind, *deaf.getsockname(), "t", SIZES, request_timeout=0.05, retries=0)
        client = settings.connect(0, 1)
        with pytest.raises(ConnectionLostError, match="timed out"):
            client.join(joined(0, 1))
        client.close()


def test_another_program_on_the_port_is_recognised() -> None:
    def greet(listening: socket.socket) -> None:
        connection, _ = listening.accept()
        with connection:
            connection.recv(2**16)
            connection.sendall(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")

    with socket.create_server(("127.0.0.1", 0)) as stranger:
        greeting = Background(lambda: greet(stranger))
        client = ClientSettings("http", *stranger.getsockname(), "t", SIZES).connect(0, 1)
        with pytest.raises(ElephasError, match=r"status 404 .*another program"):
            client.join(joined(0, 1))
        client.close()
        greeting.result()


def test_a_client_joins_as_itself() -> None:
    client = ClientSettings("http", "127.0.0.1", 1, "t", SIZES).connect(0, 1)
    with pytest.raises(ValueError, match="worker 0, attempt 1 to join; got worker 1, attempt 1"):
        client.join(joined(1, 1))
    client.close()
    with pytest.raises(ElephasError, match="closed"):
        client.answer(update())


@pytest.mark.parametrize("kind", KINDS)
def test_heartbeats_keep_the_lease_and_learn_of_the_end(kind: Kind) -> None:
    """The lease is shorter than the test's waits: only heartbeats can hold it."""
    announced, beaten = threading.Event(), threading.Event()

    class Watched(RoundStore):
        beats = 0
        pending_beats = 0

        def beat(self, worker: int, attempt: int, progress: int = 0) -> bool:
            on = super().beat(worker, attempt, progress)
            if not self._membership.members:
                self.pending_beats += 1
                announced.set()
                return on
            self.beats += 1
            if self.beats >= 5 or not on:
                beaten.set()
            return on

    store = Watched(1, LAYOUT.hash, waits=Waits(poll_seconds=0.0))
    with SERVERS[kind](store, "t", SIZES, "127.0.0.1") as server:
        client = ClientSettings(kind, *server.address, "t", SIZES, beat_seconds=0.01).connect(0, 1)
        store.train(train_order())
        client.announce("host-0")
        assert announced.wait(20)  # it beats before it joins
        client.join(joined(0, 1), lambda: 7 + store.beats)
        first_heard = store._membership.members[0].heard
        assert beaten.wait(20)
        assert store._membership.members[0].heard > first_heard
        assert store._membership.members[0].progress >= 7
        client.close()
        assert not [thread for thread in threading.enumerate() if thread.name == "elephas-like-heartbeat"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_heartbeat_that_learns_of_a_successor_makes_the_next_call_raise(kind: Kind) -> None:
    store = RoundStore(1, LAYOUT.hash, waits=Waits(poll_seconds=0.0, lease_seconds=0.0))
    with SERVERS[kind](store, "t", SIZES, "127.0.0.1") as server:
        client = ClientSettings(kind, *server.address, "t", SIZES, beat_seconds=0.01).connect(0, 1)
        store.train(train_order())
        client.join(joined(0, 1))
        beating = client._beating
        assert beating is not None
        store.join(joined(0, 2))
        beating.join(20)
        assert not beating.is_alive()
        with pytest.raises(SupersededError):
            client.answer(update())
        client.close()


@pytest.mark.parametrize("kind", KINDS)
def test_a_long_error_is_cut_to_what_the_wire_takes(kind: Kind) -> None:
    store = RoundStore(1, LAYOUT.hash)
    with SERVERS[kind](store, "t", SIZES, "127.0.0.1") as server:
        client = ClientSettings(kind, *server.address, "t", SIZES).connect(0, 1)
        client.fail(Failure.of(0, ValueError("\U0001f418" * 100_000)))
        with pytest.raises(ValueError, match="ValueError on worker 0"):
            store.joined()
        client.close()
        client.close()


def test_stop_is_an_order() -> None:
    store = RoundStore(1, LAYOUT.hash)
    with HttpExchangeServer(store, "t", SIZES, "127.0.0.1") as server:
        store.stop()
        client = ClientSettings("http", *server.address, "t", SIZES).connect(0, 1)
        assert client.join(joined(0, 1)) == Order("stop")
        client.close()
