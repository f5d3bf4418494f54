"""exchange/printed_lines.py, over both transports: lines are shown once and whole."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from elephas_like.core.errors import ElephasError
from elephas_like.exchange.client import ClientSettings
from elephas_like.exchange.printed_lines import PrintedLines, PrintedRequestHandler
from elephas_like.exchange.server import HttpExchangeServer, TcpExchangeServer
from elephas_like.exchange.trial_reports import NO_STATE

TOKEN = "token-of-this-run"
Shown = list[tuple[int, str]]


@pytest.fixture
def shown() -> Shown:
    return []


@pytest.fixture(params=["http", "socket"])
def settings(request: pytest.FixtureRequest, shown: Shown) -> Iterator[ClientSettings]:
    kind = {"http": HttpExchangeServer, "socket": TcpExchangeServer}[request.param]
    lines = PrintedLines(lambda worker, line: shown.append((worker, line)), 2)
    with kind(lines, TOKEN, NO_STATE, "127.0.0.1", handler=PrintedRequestHandler) as server:
        yield ClientSettings(request.param, *server.address, TOKEN, NO_STATE, retries=2)
    lines.stop()


def test_lines_are_shown_when_they_are_whole(settings: ClientSettings, shown: Shown) -> None:
    one, two = settings.connect(0, attempt=1), settings.connect(1, attempt=2)
    one.print(0, "first\nsec")
    two.print(0, "zwei \u2013 \U0001f418\n")
    assert shown == [(0, "first"), (1, "zwei \u2013 \U0001f418")]
    one.print(9, "ond\n\n")
    assert shown[2:] == [(0, "second"), (0, "")]
    one.close(), two.close()


def test_a_text_that_is_sent_twice_is_shown_once(settings: ClientSettings, shown: Shown) -> None:
    line = settings.connect(0, attempt=1)
    line.print(0, "a\nb")
    line.print(0, "a\nb")
    line.print(2, "bc\n")
    assert shown == [(0, "a"), (0, "bc")]
    line.close()


def test_a_line_that_a_lost_attempt_began_is_not_glued_to_the_next_one_s(shown: Shown) -> None:
    lines = PrintedLines(lambda worker, line: shown.append((worker, line)), 1)
    lines.take(0, 1, 0, "first\nhalf a l")
    lines.take(0, 2, 0, "first\nsecond\n")
    assert shown == [(0, "first"), (0, "first"), (0, "second")]
    lines.stop()
    assert shown[3:] == [(0, "half a l")]


def test_a_request_of_another_kind_is_refused(settings: ClientSettings) -> None:
    line = settings.connect(0, attempt=1)
    with pytest.raises(ElephasError, match="what a worker has printed"):
        line.progress(0, {})
    line.close()


def test_what_has_no_end_is_shown_at_the_end(shown: Shown) -> None:
    lines = PrintedLines(lambda worker, line: shown.append((worker, line)), 2)
    lines.take(1, 1, 0, "no end")
    lines.take(0, 1, 0, "end\n")
    assert shown == [(0, "end")]
    lines.stop()
    assert shown == [(0, "end"), (1, "no end")]
