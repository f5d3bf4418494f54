"""Connections that break on purpose: the client tries again, and its update counts once."""

from __future__ import annotations

import logging
import pickle
from collections.abc import Callable

import pytest
from small_world import LAYOUT, SIZES, Background, joined, train_order, update

from elephas_like.core.fault_plan import Fault, FaultPlan, Injection, drop
from elephas_like.core.types import Order
from elephas_like.exchange.client import ClientSettings
from elephas_like.exchange.faulty_client import AskDriver, FaultyClient, FaultySettings
from elephas_like.exchange.round_store import RoundStore
from elephas_like.exchange.server import HttpExchangeServer, TcpExchangeServer
from elephas_like.exchange.tls import Identity, identity
from elephas_like.exchange.trial_reports import NO_STATE, TrialRequestHandler, TrialStore

SERVERS = {"http": HttpExchangeServer, "socket": TcpExchangeServer}
TOKEN = "token-of-this-run"


@pytest.fixture(params=["plain", "tls"])
def own(request: pytest.FixtureRequest) -> Identity | None:
    return identity(None) if request.param == "tls" else None


def settings_of(kind: str, server: object, own: Identity | None, sizes: object = SIZES) -> ClientSettings:
    host, port = server.address  # type: ignore[attr-defined]
    return ClientSettings(kind, host, port, TOKEN, sizes, fingerprint=own and own.fingerprint)  # type: ignore[arg-type]


def always(*_: int) -> bool:
    return True


@pytest.mark.parametrize("kind", SERVERS)
@pytest.mark.parametrize(("when", "refused"), [("sending", 1), ("reply", 0)])
def test_a_dropped_update_is_sent_again_and_counts_once(
    kind: str, own: Identity | None, when: str, refused: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    store = RoundStore(1, LAYOUT.hash)
    plan = FaultPlan((drop(0, 1, when=when),), True, always)  # type: ignore[arg-type]
    with SERVERS[kind](store, TOKEN, SIZES, "127.0.0.1", identity=own) as server:
        client = FaultySettings(settings_of(kind, server, own), plan).connect(0, 100)
        brought = []

        def rounds() -> None:
            for number in range(3):
                brought.extend(one.delta.tolist() for one in store.train(train_order(number)))
            store.stop()

        driver = Background(rounds)
        order = client.join(joined(0))
        while order.kind == "train":
            assert order.version == order.number
            order = client.answer(update(0, order.number, order.number, 1.0, version=order.version))
        driver.result()
        client.close()
    assert brought == [[0.0, 1.0], [1.0, 1.0], [2.0, 1.0]]
    assert caplog.text.count("trying again") == 1
    assert caplog.text.count("before the other side went away") >= refused


@pytest.mark.parametrize("kind", SERVERS)
def test_heartbeats_and_other_requests_are_left_alone(kind: str) -> None:
    store = RoundStore(1, LAYOUT.hash)
    with SERVERS[kind](store, TOKEN, SIZES, "127.0.0.1") as server:
        faults = FaultPlan((drop(0, every_round=True), drop(1, every_round=True)), True, always)
        client = FaultySettings(settings_of(kind, server, None), faults).connect(0, 100)
        client.announce("here")
        assert not client._waiting
        updates = store.train(train_order(0))
        client.join(joined(0))
        again = Background(lambda: client.answer(update(0, 0, 1.0, 1.0)))
        assert [one.delta.tolist() for one in updates] == [[1.0, 1.0]]
        store.stop()
        assert again.result() == Order("stop")
        client.close()


def test_an_update_that_is_asked_for_again_is_no_second_one() -> None:
    asked: list[tuple[int, ...]] = []

    def ask(*question: int) -> bool:
        asked.append(question)
        return True

    client = FaultyClient(
        ClientSettings("http", "127.0.0.1", 1, TOKEN, SIZES),
        0,
        100,
        FaultPlan((drop(0, every_round=True),), False, ask),
    )
    for number in (0, 0, 1):
        client._look_up(update(0, number))
    assert asked == [(0, 0, 100, 0), (0, 0, 100, 1)]


@pytest.mark.parametrize("kind", SERVERS)
def test_workers_ask_the_driver_over_its_server(kind: str, own: Identity | None) -> None:
    faults = Injection((drop(0, 0), drop(1, 2)))
    store = TrialStore(faults.judge, 2)
    with SERVERS[kind](store, TOKEN, NO_STATE, "127.0.0.1", handler=TrialRequestHandler, identity=own) as server:
        ask = pickle.loads(pickle.dumps(AskDriver(settings_of(kind, server, own, NO_STATE))))  # noqa: S301
        questions: list[tuple[int, int, int, int]] = [(1, 1, 41, 2), (1, 1, 40, 2), (1, 1, 41, 2), (0, 0, 39, 0)]
        assert [ask(*question) for question in questions] == [True, False, True, True]
    told: Callable[[Fault], int] = faults.faults.index
    assert [(told(each.fault), each.round, each.attempt) for each in faults.happened] == [(1, 2, 0), (0, 0, 0)]
