"""exchange/trial_reports.py, over HTTP: who may report, and what a report is answered with."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

import pytest
from small_world import joined

from elephas_like.core.errors import ElephasError, SupersededError
from elephas_like.exchange import protocol, wire
from elephas_like.exchange.client import ClientSettings
from elephas_like.exchange.server import HttpExchangeServer, TcpExchangeServer
from elephas_like.exchange.trial_reports import NO_STATE, TrialRequestHandler, TrialStore

TOKEN = "token-of-this-search"
Reports = list[tuple[int, int, dict[str, float]]]


@pytest.fixture
def reports() -> Reports:
    return []


@pytest.fixture(params=["http", "socket"])
def settings(request: pytest.FixtureRequest, reports: Reports) -> Iterator[ClientSettings]:
    def judge(trial: int, epoch: int, metrics: dict[str, float]) -> bool:
        reports.append((trial, epoch, dict(metrics)))
        return metrics["val_loss"] < 1.0

    kind = {"http": HttpExchangeServer, "socket": TcpExchangeServer}[request.param]
    with kind(TrialStore(judge), TOKEN, NO_STATE, "127.0.0.1", handler=TrialRequestHandler) as server:
        yield ClientSettings(request.param, *server.address, TOKEN, NO_STATE, retries=2)


def test_a_trial_goes_on_until_it_is_told_to_stop(settings: ClientSettings, reports: Reports) -> None:
    line = settings.connect(7, attempt=1)
    assert line.progress(0, {"val_loss": 0.5, "loss": math.nan})  # what is not finite stays at home
    assert not line.progress(1, {"val_loss": 1.5})
    assert reports == [(7, 0, {"val_loss": 0.5}), (7, 1, {"val_loss": 1.5})]
    line.close()


def test_the_newest_attempt_has_the_trial(settings: ClientSettings) -> None:
    first, second, other = settings.connect(7, 1), settings.connect(7, 2), settings.connect(8, 1)
    assert first.progress(0, {"val_loss": 0.5})
    assert second.progress(0, {"val_loss": 0.5})
    with pytest.raises(SupersededError, match="trial 7: attempt 2 has taken over from attempt 1"):
        first.progress(1, {"val_loss": 0.4})
    assert other.progress(0, {"val_loss": 0.5})
    for line in (first, second, other):
        line.close()


def test_without_the_token_nothing_is_learned(settings: ClientSettings, reports: Reports) -> None:
    stranger = replace(settings, token="another").connect(7, 1)
    with pytest.raises(ElephasError, match="does not know this run's token"):
        stranger.progress(0, {"val_loss": 0.5})
    stranger.close()
    assert not reports


def test_other_requests_are_refused(settings: ClientSettings, reports: Reports) -> None:
    line = settings.connect(0, 100)
    with pytest.raises(wire.FrameError, match="expected a trial's progress, got 'join'"):
        line.join(joined(0, 100))
    line.close()
    assert not reports


def test_a_search_that_is_over_stops_its_trials() -> None:
    store = TrialStore(lambda trial, epoch, metrics: True)
    assert store.progress(0, 1, 0, {})
    store.stop()
    assert not store.progress(0, 1, 1, {})


@pytest.mark.parametrize("metrics", [[1.0], {"loss": "low"}, {"loss": True}, {"x" * 300: 1.0}, {"loss": 1e999}])
def test_frames_hold_numbers_by_name(metrics: object) -> None:
    import io
    import json
    import struct

    head = {"message": "progress", "fields": {"worker": 0, "attempt": 0, "epoch": 0, "metrics": metrics}, "arrays": []}
    header = json.dumps(head).encode()
    frame = struct.pack("<4sI", protocol.MAGIC, len(header)) + header
    with pytest.raises(wire.FrameError):
        wire.decode(io.BytesIO(frame), len(frame), NO_STATE)
