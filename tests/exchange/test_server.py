"""One suite for both transports."""

from __future__ import annotations

import http.client
import io
import itertools
import os
import resource
import socket
import struct
import threading
import time
import weakref
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace

import numpy as np
import pytest
from fuzzing import no_frames
from hypothesis import given, settings
from hypothesis import strategies as st
from leftovers import eventually
from port_blocks import port_of, range_of, taken_ports
from small_world import LAYOUT, SIZES, Background, HandClock, integers, joined, state, train_order, update, work
from wire_frames import raw

from elephas_like.core.async_progress import AsyncProgress, AsyncSchedule
from elephas_like.core.center import LockedCenter
from elephas_like.core.errors import ElephasError, Failure, SupersededError
from elephas_like.core.layout import Layout, LayoutEntry
from elephas_like.core.strategies.asynchronous import DownPour
from elephas_like.core.types import Order, Role
from elephas_like.exchange import protocol, wire
from elephas_like.exchange import server as server_module
from elephas_like.exchange.address import PortError
from elephas_like.exchange.center_store import CenterStore
from elephas_like.exchange.client import Client, ClientSettings
from elephas_like.exchange.lines import HELLO, LENGTH, UNKNOWN, WELCOME
from elephas_like.exchange.membership import Waits
from elephas_like.exchange.round_store import RoundStore
from elephas_like.exchange.server import HttpExchangeServer, TcpExchangeServer
from elephas_like.exchange.store import Store
from elephas_like.exchange.tls import Identity, identity

SERVERS = {"http": HttpExchangeServer, "socket": TcpExchangeServer}
TOKEN = "token-of-this-run"


@dataclass
class Place:
    """A running server, and how to reach it."""

    kind: str
    store: RoundStore
    clock: HandClock
    settings: ClientSettings


def settings_of(
    kind: str, server: HttpExchangeServer | TcpExchangeServer, sizes: protocol.Sizes = SIZES
) -> ClientSettings:
    fingerprint = server._identity and server._identity.fingerprint
    return ClientSettings(kind, *server.address, TOKEN, sizes, retries=2, fingerprint=fingerprint)  # type: ignore[arg-type]


@pytest.fixture(params=["http", "socket"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=["plain", "encrypted"])
def own(request: pytest.FixtureRequest) -> Identity | None:
    return identity() if request.param == "encrypted" else None


@pytest.fixture
def place(kind: str) -> Iterator[Place]:
    clock = HandClock()
    store = RoundStore(2, LAYOUT.hash, waits=Waits(poll_seconds=0.0), clock=clock)
    with SERVERS[kind](store, TOKEN, SIZES, "127.0.0.1") as server:
        yield Place(kind, store, clock, settings_of(kind, server))


def say(settings: ClientSettings, frame: bytes, announced: int | None = None) -> protocol.Message:
    """The reply to raw bytes, over a connection of its own that ends after them."""
    length = len(frame) if announced is None else announced
    with socket.create_connection((settings.host, settings.port), 10) as connection:
        if settings.kind == "http":
            head = f"POST /exchange HTTP/1.1\r\nAuthorization: Bearer {TOKEN}\r\nContent-Length: {length}\r\n\r\n"
            connection.sendall(head.encode() + frame)
            connection.shutdown(socket.SHUT_WR)
            response = http.client.HTTPResponse(connection)
            response.begin()
            body = response.read()
        else:
            connection.sendall(HELLO.pack(protocol.MAGIC, len(TOKEN)) + TOKEN.encode())
            assert connection.recv(1) == WELCOME
            connection.sendall(LENGTH.pack(length) + frame)
            connection.shutdown(socket.SHUT_WR)
            file = connection.makefile("rb")
            body = file.read(LENGTH.unpack(file.read(LENGTH.size))[0])
    return wire.decode(io.BytesIO(body), len(body), SIZES)


def test_a_server_says_whether_its_clients_have_left(kind: str) -> None:
    store = RoundStore(2, LAYOUT.hash, waits=Waits(poll_seconds=0.0))
    with SERVERS[kind](store, TOKEN, SIZES, "127.0.0.1") as server:
        one, two = (settings_of(kind, server).connect(worker, 100) for worker in range(2))
        store.train(train_order())
        for worker, client in enumerate((one, two)):
            assert client.join(joined(worker)).kind == "train"
        one.close()
        assert not server.left(0.0)
        leaving = Background(lambda: server.left(60.0))
        two.close()
        assert leaving.result() is True
    assert server.left(0.0)


def test_two_workers_exchange_for_three_rounds_and_stop(kind: str, own: Identity | None) -> None:
    store = RoundStore(2, LAYOUT.hash)
    with SERVERS[kind](store, TOKEN, SIZES, "127.0.0.1", identity=own) as server:
        settings = settings_of(kind, server)
        workers = [
            Background(lambda w=worker: work(settings.connect(w, 100), w, 100, w + 1.0, 10.0)) for worker in (0, 1)
        ]
        assert [one.host for one in store.joined()] == ["host-0", "host-1"]
        for number in range(3):
            updates = list(store.train(train_order(number)))
            assert [one.delta.tolist() for one in updates] == [[1.0, 10.0], [2.0, 10.0]]
        evaluations = list(store.evaluate(Order("evaluate", 3, state=state(2.0, 3.0))))
        assert [one.metrics.tolist() for one in evaluations] == [[5.0, 1.0], [5.0, 1.0]]
        assert [one.memory["trained"].tolist() for one in store.recall(3)] == [[0, 1, 2]] * 2
        store.remind({0: {"trained": integers(7)}, 1: {"trained": integers()}}, after=3)
        assert len(list(store.train(train_order(4)))) == 2
        assert [one.memory["trained"].tolist() for one in store.recall(4)] == [[7, 4], [4]]
        store.stop()
        assert [worker.result() for worker in workers] == [8, 8]


def test_asynchronous_workers_go_on_alone(kind: str) -> None:
    store = CenterStore(2, LAYOUT.hash)
    with SERVERS[kind](store, TOKEN, SIZES, "127.0.0.1") as server:
        settings = settings_of(kind, server)
        workers = [Background(lambda w=worker: work(settings.connect(w, 100), w, 100, 1.0, 2.0)) for worker in (0, 1)]
        store.joined()
        progress = AsyncProgress(8, 3, AsyncSchedule((2, 2)))
        store.begin(LockedCenter(state(), LAYOUT, DownPour(), 2), progress, lambda epoch: epoch == 2)
        epochs = list(iter(store.next_epoch, None))
        store.stop()
        assert [epoch.state.weights.tolist() for epoch in epochs] == [[2.0, 4.0], [4.0, 8.0], [6.0, 12.0]]
        assert [epoch.validation is None for epoch in epochs] == [True, True, False]
        assert epochs[2].validation is not None
        assert epochs[2].validation.tolist() == [36.0, 2.0]  # both workers saw the sum 18
        assert sum(worker.result() for worker in workers) >= 8  # type: ignore[misc]


def test_a_duplicate_is_applied_once_and_a_lost_reply_is_had_again(place: Place) -> None:
    say(place.settings, raw(joined(0)))
    say(place.settings, raw(joined(1)))
    updates = place.store.train(train_order(0))
    assert say(place.settings, raw(protocol.Answer(100, update(0, 0, 1.0, 1.0)))) == Order("wait")
    assert say(place.settings, raw(protocol.Answer(100, update(0, 0, 7.0, 7.0)))) == Order("wait")
    say(place.settings, raw(protocol.Answer(100, update(1, 0, 2.0, 2.0))))
    assert [one.delta.tolist() for one in updates] == [[1.0, 1.0], [2.0, 2.0]]
    place.store.train(train_order(1))
    lost = say(place.settings, raw(protocol.Answer(100, update(1, 0, 7.0, 7.0))))
    again = say(place.settings, raw(protocol.Next(1, 100)))
    assert isinstance(lost, Order)
    assert isinstance(again, Order)
    assert lost.number == again.number == 1
    assert place.store.dropped == 2


@pytest.mark.fault(
    "A reply is lost after its update was applied", "the worker asks again; the update is not applied twice", "nothing"
)
def test_a_reply_that_is_lost_on_its_way_is_asked_for_again(kind: str, own: Identity | None) -> None:
    """The server's end is cut while the worker waits for the reply to its answer."""
    store = RoundStore(1, LAYOUT.hash)
    with SERVERS[kind](store, TOKEN, SIZES, "127.0.0.1", identity=own) as server:
        client = settings_of(kind, server).connect(0, 100)
        updates = store.train(train_order(0))
        assert client.join(joined(0)).number == 0
        asking = Background(lambda: client.answer(update(0, 0, 1.0, 1.0)))
        assert next(updates).delta.tolist() == [1.0, 1.0]
        with server._running._guard:
            open_now = list(server._running._open.values())
        for connection in open_now:
            connection.shutdown(socket.SHUT_RDWR)
        second = store.train(train_order(1))
        assert asking.result().number == 1  # type: ignore[attr-defined]
        final = Background(lambda: client.answer(update(0, 1, 5.0, 5.0)))
        assert [one.delta.tolist() for one in second] == [[5.0, 5.0]]
        store.stop()
        assert final.result() == Order("stop")
        client.close()


@pytest.mark.parametrize("offered", [True, False])
def test_large_answers_are_read_in_turn_and_the_largest_are_offered_first(
    monkeypatch, kind: str, own: Identity | None, offered: bool
) -> None:
    sent: list[type] = []
    call = Client._call

    def noted(self: Client, message: protocol.Message, tries: int | None = None) -> protocol.Message:
        sent.append(type(message))
        return call(self, message, tries)

    monkeypatch.setattr(Client, "_call", noted)
    monkeypatch.setattr("elephas_like.exchange.client.OFFER_BYTES", 2**20 if offered else 8 * 2**20)
    layout = Layout((LayoutEntry("kernel", Role.WEIGHT, (400_000,), "float32"),))
    sizes = protocol.Sizes.of(layout)
    store = RoundStore(3, layout.hash, waits=Waits(read_ahead=1000))
    empty = replace(
        update(),
        statistics=np.zeros(0, np.float32),
        slots=np.zeros(0, np.float32),
        counters=np.zeros(0, np.int64),
        seeds=np.zeros(0, np.int64),
    )
    parts = ("statistics", "slots", "counters", "seeds", "frozen")
    start = state().but(**{name: getattr(empty, name) for name in parts})
    start = start.but(weights=np.zeros(400_000, np.float32), learning_rate=np.zeros(0, np.float32))

    def one_round(worker: int, client: object) -> object:
        order = client.join(joined(worker, layout_hash=layout.hash))  # type: ignore[attr-defined]
        delta = np.full(400_000, worker + 1, np.float32)
        return client.answer(replace(empty, worker=worker, number=order.number, delta=delta))  # type: ignore[attr-defined]

    with SERVERS[kind](store, TOKEN, sizes, "127.0.0.1", identity=own) as server:
        clients = [settings_of(kind, server, sizes).connect(worker, 100) for worker in range(3)]
        answers = [Background(lambda w=w, c=c: one_round(w, c)) for w, c in enumerate(clients)]
        store.joined()
        updates = store.train(replace(train_order(), state=start))
        assert [float(one.delta.sum()) for one in updates] == [400_000.0, 800_000.0, 1_200_000.0]
        assert (protocol.Offer in sent) == offered
        store.stop()
        assert [answer.result() for answer in answers] == [Order("stop")] * 3
        for client in clients:
            client.close()


def test_a_newcomer_is_parked_until_the_lease_expires_and_the_old_attempt_must_raise(place: Place) -> None:
    place.store.train(train_order())
    old = place.settings.connect(0, 1)
    assert old.join(joined(0, 1)).number == 0
    assert say(place.settings, raw(joined(0, 2))) == Order("wait")
    place.clock.now += 100.0
    new = place.settings.connect(0, 2)
    assert new.join(joined(0, 2)).number == 0
    with pytest.raises(SupersededError, match="lost its place to attempt 2"):
        old.answer(update())
    old.close()
    new.close()


def test_a_workers_error_reaches_the_driver_and_the_others_stop(kind: str) -> None:
    store = RoundStore(2, LAYOUT.hash)
    with SERVERS[kind](store, TOKEN, SIZES, "127.0.0.1") as server:
        settings = settings_of(kind, server)
        other = Background(lambda: work(settings.connect(1, 100), 1))
        client = settings.connect(0, 100)
        first = Background(lambda: client.join(joined(0)))
        store.joined()
        updates = store.train(train_order())
        first.result()
        try:
            raise ValueError("no column 'price'")
        except ValueError as error:
            client.fail(Failure.of(0, error))
        with pytest.raises(ValueError, match="no column 'price'") as caught:
            list(updates)
        assert "test_server.py" in str(caught.value)
        assert other.result() in (0, 1)  # whether it had its order before the others failed
        client.close()


@pytest.mark.parametrize("given", ["", "wrong", "token-of-this-ru", "t" * 250])
def test_another_token_is_refused_and_learns_nothing(place: Place, given: str) -> None:
    client = replace(place.settings, token=given).connect(0, 100)
    with pytest.raises(ElephasError, match=r"127.0.0.1:\d+ does not know this run's token"):
        client.join(joined(0))
    client.close()
    assert place.store._membership.members == {}


def test_the_token_is_asked_for_before_a_byte_of_the_body(kind: str) -> None:
    with SERVERS[kind](Store(1, "", waits=Waits()), TOKEN, SIZES, "127.0.0.1") as server:
        with socket.create_connection(server.address, 10) as connection:
            if kind == "http":  # the body never comes
                connection.sendall(b"POST /exchange HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n")
                reply = connection.makefile("rb").read()
                assert reply.startswith(b"HTTP/1.1 401 ")
                assert b"erkzeug" not in reply
                assert reply.endswith(b"\r\n\r\n")  # nothing in it
            else:
                connection.sendall(HELLO.pack(protocol.MAGIC, 5) + b"wrong")
                assert connection.makefile("rb").read() == UNKNOWN
        with socket.create_connection(server.address, 10) as connection:
            request = b"GET /other HTTP/1.1\r\n\r\n" if kind == "http" else b"\x80\x04pickle" * 2
            connection.sendall(request)
            reply = connection.makefile("rb").read()
            assert reply.startswith(b"HTTP/1.1 401 ") if kind == "http" else reply == UNKNOWN


def test_http_refuses_bodies_that_are_too_large_or_of_unknown_length_before_reading() -> None:
    with HttpExchangeServer(Store(1, ""), TOKEN, SIZES, "127.0.0.1") as server:
        for header, status in (
            (f"Content-Length: {SIZES.most + 1}", b" 413 "),
            ("Transfer-Encoding: chunked", b" 411 "),
            ("Content-Length: -1", b" 411 "),
        ):
            with socket.create_connection(server.address, 10) as connection:
                head = f"POST /exchange HTTP/1.1\r\nAuthorization: Bearer {TOKEN}\r\n{header}\r\n\r\n"
                connection.sendall(head.encode())
                assert status in connection.makefile("rb").readline()


def connection_threads() -> int:
    return len([thread for thread in threading.enumerate() if thread.name == "elephas-like-connection"])


@pytest.mark.fault(
    "Strangers hold connections open", "they are closed after a few seconds; workers are served", "nothing"
)
def test_many_idle_connections_are_few_threads_and_keep_no_worker_out(kind: str, own: Identity | None) -> None:
    store = RoundStore(2, LAYOUT.hash)
    with SERVERS[kind](store, TOKEN, SIZES, "127.0.0.1", identity=own) as server, ExitStack() as stack:
        settings = settings_of(kind, server)

        def crowd() -> None:
            for _ in range(40):  # more than are allowed after two crowds, and no more than the system lets wait
                stack.enter_context(socket.create_connection(server.address, 10))

        crowd()
        workers = [Background(lambda w=worker: work(settings.connect(w, 100), w, 100)) for worker in (0, 1)]
        store.joined()
        for number in range(3):
            crowd()
            assert len(list(store.train(train_order(number)))) == 2
            assert connection_threads() <= 4 * 2 + 64
        store.stop()
        assert [worker.result() for worker in workers] == [3, 3]


def test_a_process_that_may_open_no_more_files_says_so_and_serves_later(
    kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    with SERVERS[kind](RoundStore(1, LAYOUT.hash), TOKEN, SIZES, "127.0.0.1") as server, ExitStack() as stack:
        peer = stack.enter_context(socket.socket())
        limits = resource.getrlimit(resource.RLIMIT_NOFILE)
        try:
            last = stack.enter_context(open(os.devnull)).fileno()
            resource.setrlimit(resource.RLIMIT_NOFILE, (last + 1, limits[1]))
            with pytest.raises(OSError, match="Too many open files"):
                for _ in range(last + 1):
                    stack.enter_context(open(os.devnull))
            peer.connect(server.address)
            assert eventually(lambda: "connections of workers wait: Too many open files" in caplog.text)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        client = settings_of(kind, server).connect(0, 100)
        client.announce("host")
        client.close()
    assert caplog.text.count("ulimit -n") == 1


def test_where_all_connections_are_workers_another_one_is_refused(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "_MORE_CONNECTIONS", -2)
    store = RoundStore(1, LAYOUT.hash)
    with SERVERS[kind](store, TOKEN, SIZES, "127.0.0.1") as server, ExitStack() as stack:
        settings = settings_of(kind, server)
        for _ in range(2):
            client = settings.connect(0, 100)
            client._call(protocol.Beat(0, 100))  # a connection that is kept
            stack.callback(client.close)
        third = stack.enter_context(socket.create_connection(server.address, 10))
        assert third.recv(1) == b""
        assert connection_threads() == 2


def test_a_connection_for_which_there_is_no_thread_is_closed_and_the_next_is_served(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    start, refused = threading.Thread.start, []

    def limited(thread: threading.Thread) -> None:
        if thread.name == "elephas-like-connection" and not refused:
            refused.append(thread)
            raise RuntimeError("can't start new thread")
        start(thread)

    server = SERVERS[kind](RoundStore(1, LAYOUT.hash, waits=Waits(poll_seconds=0.0)), TOKEN, SIZES, "127.0.0.1")
    with server:
        monkeypatch.setattr(threading.Thread, "start", limited)
        with socket.create_connection(server.address, 10) as connection:
            assert connection.recv(1) == b""
        assert len(refused) == 1
        assert server._running._open == server._running._unauthenticated == {}
        assert say(settings_of(kind, server), raw(joined(0))) == Order("wait")


def ended(connection: socket.socket) -> bool:
    """Whether the other side ends a connection on which a byte comes now and then."""
    connection.settimeout(0.01)
    for _ in range(500):
        try:
            return connection.recv(1) in (b"", UNKNOWN)
        except TimeoutError:
            try:
                connection.sendall(b"E")
            except OSError:
                return True
        except OSError:
            return True
    return False


def test_who_does_not_show_the_token_has_little_time(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "UNAUTHENTICATED_SECONDS", 0.05)
    store = RoundStore(1, LAYOUT.hash, waits=Waits(poll_seconds=0.3))
    with SERVERS[kind](store, TOKEN, SIZES, "127.0.0.1") as server:
        with socket.create_connection(server.address, 10) as silent, socket.create_connection(server.address) as slow:
            assert silent.recv(1) == b""
            assert ended(slow)
        # a first request that is held for longer than that is a worker's, and is not cut
        assert say(settings_of(kind, server), raw(joined(0))) == Order("wait")


def test_http_reads_no_more_headers_than_a_request_of_ours_has() -> None:
    with HttpExchangeServer(Store(1, ""), TOKEN, SIZES, "127.0.0.1") as server:
        with socket.create_connection(server.address, 10) as connection:
            more = "".join(f"X-{number}: {'x' * 1000}\r\n" for number in range(40))
            connection.sendall(f"POST /exchange HTTP/1.1\r\n{more}Authorization: Bearer {TOKEN}\r\n\r\n".encode())
            assert b" 431 " in connection.makefile("rb").readline()


@pytest.mark.fault("A malformed or oversized message arrives", "it is refused before it is read", "nothing")
@pytest.mark.parametrize("fault", ["magic", "header", "dtype", "size", "truncated", "kind", "pickle", "long"])
def test_malformed_frames_are_refused_and_change_nothing(place: Place, fault: str) -> None:
    say(place.settings, raw(joined(0)))
    place.store.train(train_order())
    good = raw(protocol.Answer(100, update(0)))
    before = (dict(place.store._reserved), set(place.store._answered), place.store.dropped)
    bad = {
        "magic": b"ELX9" + good[4:],
        "header": good[:4] + struct.pack("<I", 2**31) + good[8:],
        "dtype": good.replace(b'["delta", "float32", 2]', b'["delta", "float64", 1]'),
        "size": good.replace(b'["delta", "float32", 2]', b'["delta", "float32", 9]'),
        "truncated": good[:-8],
        "kind": raw(train_order()),
        "pickle": b"\x80\x04\x95" + b"x" * 200,
        "long": good,
    }[fault]
    announced = len(good) if fault == "truncated" else 2**50 if fault == "long" and place.kind == "socket" else None
    if fault == "long" and place.kind == "http":
        bad += b"more"
    reply = say(place.settings, bad, announced)
    assert isinstance(reply, protocol.Refusal)
    assert reply.type_name == "FrameError"
    assert (place.store._reserved, place.store._answered, place.store.dropped) == before
    assert say(place.settings, good) == Order("wait")  # and the server goes on


def test_a_taken_port_is_named_with_what_to_do(kind: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(PortError, match=rf"127.0.0.1:{port} .*; port {port} is taken .* port=0") as caught:
            SERVERS[kind](Store(1, ""), TOKEN, SIZES, "127.0.0.1", port).start()
        assert isinstance(caught.value, OSError)
    with pytest.raises(PortError, match="an address of this machine"):
        SERVERS[kind](Store(1, ""), TOKEN, SIZES, "192.0.2.1").start()


def test_servers_share_a_range_of_ports(kind: str) -> None:
    with taken_ports(2) as block:
        given = range_of(block)
        wanted = [port_of(each) for each in block]
        for each in block:
            each.close()
        servers = [SERVERS[kind](RoundStore(1, LAYOUT.hash), TOKEN, SIZES, "127.0.0.1", given) for _ in range(3)]
        with servers[0], servers[1]:
            assert [server.address[1] for server in servers[:2]] == wanted
            for server in servers[:2]:
                assert isinstance(say(settings_of(kind, server), b"no frame"), protocol.Refusal)  # somebody answers
            with pytest.raises(PortError, match=f"{given} .* all 2 ports"):
                servers[2].start()
        with servers[2]:  # a port that was freed is free
            assert servers[2].address[1] == wanted[0]


def test_stop_leaves_no_thread_and_no_port(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "STOP_SECONDS", 10.0)
    before = set(threading.enumerate())
    store = RoundStore(1, LAYOUT.hash)
    server = SERVERS[kind](store, TOKEN, SIZES, "127.0.0.1").start()
    settings = settings_of(kind, server)
    with socket.create_connection(server.address, 10) as silent:
        held = Background(lambda: work(settings.connect(0, 100), 0))  # waits for an order
        store.joined()
        other = settings.connect(0, 100)
        other._call(protocol.Beat(0, 100))  # a connection that is kept and idle
        server.stop()
        server.stop()
        assert held.result() == 0
        assert silent.recv(1) == b""
    other.close()
    assert set(threading.enumerate()) <= before
    with socket.create_server(server.address):
        pass


@pytest.mark.parametrize("when", ["listening", "before its thread", "while its thread begins"])
def test_a_start_that_is_interrupted_leaves_no_thread_and_no_port(
    kind: str, when: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C comes at any time, also before the `with` block that would end the server."""
    begin = threading.Thread.start
    before = set(threading.enumerate())
    server = SERVERS[kind](RoundStore(1, LAYOUT.hash), TOKEN, SIZES, "127.0.0.1")

    def interrupted(*given: object) -> None:
        if when == "while its thread begins":
            begin(*given)
        raise KeyboardInterrupt

    place = (server, "_make") if when == "listening" else (threading.Thread, "start")
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(*place, interrupted)
        patch.setattr(time, "sleep", lambda _: None)  # a thread that does not begin is looked for a hundred times
        server.start()
    assert set(threading.enumerate()) <= before
    with socket.create_server(server.address):
        pass


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_process_that_is_forked_meanwhile_does_not_keep_the_port(kind: str) -> None:
    """A callback may start processes of its own; forked ones inherit every socket."""
    until, go = os.pipe()
    with SERVERS[kind](RoundStore(1, LAYOUT.hash), TOKEN, SIZES, "127.0.0.1") as server:
        address = server.address
        child = os.fork()
        if not child:
            os.close(go)
            os.read(until, 1)
            os._exit(0)
    try:
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(address, timeout=5)
        with socket.create_server(address):
            pass
    finally:
        os.close(go)
        os.waitpid(child, 0)
        os.close(until)


def test_a_server_starts_once(kind: str) -> None:
    with SERVERS[kind](Store(1, ""), TOKEN, SIZES, "127.0.0.1") as server, pytest.raises(ElephasError, match="once"):
        server.start()


def test_proxies_of_the_environment_are_ignored(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    place.store.train(train_order())
    client = place.settings.connect(0, 100)
    assert client.join(joined(0)).number == 0
    client.close()


def test_an_order_is_encoded_once_for_all_workers(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    orders = []
    encode = wire.encode

    def counted(message: protocol.Message) -> list[wire.Chunk]:
        if isinstance(message, Order) and message.kind == "train":
            orders.append(message)
        return encode(message)

    monkeypatch.setattr(wire, "encode", counted)
    place.store.train(train_order())
    for worker in (0, 1):
        say(place.settings, raw(joined(worker)))
    assert len(orders) == 1


def test_an_update_is_in_memory_no_longer_than_the_driver_holds_it(kind: str) -> None:
    """Its worker waits for the next order meanwhile: the request that brought the update must not keep it."""
    store = RoundStore(1, LAYOUT.hash)
    with SERVERS[kind](store, TOKEN, SIZES, "127.0.0.1") as server:
        working = Background(lambda: work(settings_of(kind, server).connect(0, 100), 0))
        updates = store.train(train_order())
        brought = weakref.ref(next(updates).delta)
        assert eventually(lambda: brought() is None)
        store.stop()
        working.result()


def test_a_state_that_is_replaced_is_in_memory_no_longer_than_it_is_sent(kind: str) -> None:
    layout = Layout((LayoutEntry("kernel", Role.WEIGHT, (20_000,), "float32"),))  # too large to be copied as it is sent
    sizes, none = protocol.Sizes.of(layout), np.zeros(0, np.float32)
    nothing = {name: none.astype(np.int64) if name in ("counters", "seeds") else none for name in state().parts()}
    store = CenterStore(2, layout.hash)
    with SERVERS[kind](store, TOKEN, sizes, "127.0.0.1") as server:
        clients = [settings_of(kind, server, sizes).connect(worker, 100) for worker in (0, 1)]
        joining = [
            Background(lambda w=w, c=c: c.join(joined(w, layout_hash=layout.hash))) for w, c in enumerate(clients)
        ]
        store.joined()
        start = state().but(**nothing | {"weights": np.zeros(20_000, np.float32)})
        first = weakref.ref(start.weights)
        progress = AsyncProgress(80, 1, AsyncSchedule((9, 9)))
        store.begin(LockedCenter(start, layout, DownPour(), 2), progress, lambda epoch: False)
        del start
        assert [one.result().kind for one in joining] == ["train", "train"]  # type: ignore[attr-defined]
        assert first() is not None
        brought = {name: array for name, array in nothing.items() if name not in ("weights", "learning_rate")}
        clients[0].answer(replace(update(), delta=np.ones(20_000, np.float32), **brought))
        assert eventually(lambda: first() is None)
        store.stop()
        for client in clients:
            client.close()


def requests_of_strangers() -> st.SearchStrategy[bytes]:
    """Over HTTP: without the token, on other paths or with other methods; or with it, and no frame in the body."""
    values = {
        "Content-Length": st.sampled_from(["-1", "0", "5", "1e3", "", "9" * 18, "9" * 400]),
        "Transfer-Encoding": st.sampled_from(["chunked", "gzip, chunked", "identity"]),
        "Connection": st.sampled_from(["close", "keep-alive", "Upgrade"]),
        "Expect": st.just("100-continue"),
        "Host": st.sampled_from(["", "x:y", "[::", "a" * 300]),
        "X-More": st.text(st.characters(codec="latin-1", exclude_characters="\r\n"), max_size=40)
        | st.just("x" * 20_000),
        "Authorization": st.sampled_from(["", "Bearer", "Bearer wrong", "Basic dG9rZW4=", f"Bearer {TOKEN} "[:-2]]),
    }
    headers = st.lists(
        st.sampled_from(sorted(values)).flatmap(lambda name: st.tuples(st.just(name), values[name])), max_size=5
    )
    harm = raw(protocol.Report(0, 100, "ValueError", "of a stranger", ""))
    methods = st.sampled_from(["GET", "PUT", "DELETE", "HEAD", "OPTIONS", "PATCH", "CONNECT", "X", ""])
    paths = st.sampled_from(
        ["/exchange", "/", "//exchange", "/exchange/", "/../exchange", "http://[/exchange", "*", ""]
    )
    chunked = f"{len(harm):x}\r\n".encode() + harm + b"\r\n0\r\n\r\n"

    def request(line: str, headers: list[tuple[str, str]], body: bytes, length: bool) -> bytes:
        own = [("Content-Length", str(len(body)))] if length else []
        text = "".join(f"{name}: {value}\r\n" for name, value in [*headers, *own])
        return f"{line}\r\n{text}\r\n".encode("latin-1") + body

    unknown = st.builds(request, paths.map(lambda path: f"POST {path} HTTP/1.1"), headers, st.just(harm), st.booleans())
    token = headers.map(lambda given: [("Authorization", f"Bearer {TOKEN}"), *given])
    elsewhere = st.builds(
        request,
        st.builds(
            lambda method, path, version: f"{method} {path} {version}",
            methods,
            paths,
            st.sampled_from(["HTTP/1.1", "HTTP/9", ""]),
        ),
        token,
        st.sampled_from([harm, chunked]),
        st.booleans(),
    )
    bodies = no_frames() | st.just(chunked)
    no_frame = st.builds(request, st.just("POST /exchange HTTP/1.1"), token, bodies, st.booleans())
    return unknown | elsewhere | no_frame | st.binary(max_size=300)


def greetings_of_strangers() -> st.SearchStrategy[bytes]:
    """Over TCP: another token, or lengths that lie and no frames."""
    hello = HELLO.pack(protocol.MAGIC, len(TOKEN)) + TOKEN.encode()
    lengths = st.integers(0, 300) | st.integers(0, 2**64 - 1)
    wrong = st.builds(lambda token: HELLO.pack(protocol.MAGIC, len(token)) + token, st.binary(max_size=300))
    requests = st.builds(lambda length, body: hello + LENGTH.pack(length) + body, lengths, no_frames())
    return st.binary(max_size=300) | wrong | requests


def is_answered(address: tuple[str, int], request: bytes) -> None:
    """Send a stranger's request, end it, and wait until the server has ended the connection, too."""
    with socket.create_connection(address, 10) as connection:
        try:
            connection.sendall(request)
            connection.shutdown(socket.SHUT_WR)
            connection.makefile("rb").read()
        except TimeoutError:
            raise
        except OSError:  # the server was faster: a reset, a broken pipe, or no connection any more to end
            pass


def test_whatever_strangers_send_the_worker_trains_on(kind: str) -> None:
    """A round goes on during each request; the store knows of nothing but the worker."""
    store = RoundStore(1, LAYOUT.hash)
    numbers = itertools.count()
    with SERVERS[kind](store, TOKEN, SIZES, "127.0.0.1") as server:
        working = Background(lambda: work(settings_of(kind, server).connect(0, 100), 0))
        store.joined()

        @settings(max_examples=30)
        @given(requests_of_strangers() if kind == "http" else greetings_of_strangers())
        def one_request(request: bytes) -> None:
            updates = store.train(train_order(next(numbers)))
            is_answered(server.address, request)
            assert [one.delta.tolist() for one in updates] == [[1.0, 2.0]]
            assert (store._membership.pending, store._reserved, store.dropped) == ({}, {}, 0)
            assert store._failure is None
            assert store._membership.members[0].joined == joined(0)

        one_request()
        store.stop()
        assert working.result() == next(numbers)
