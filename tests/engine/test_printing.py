from __future__ import annotations

import sys

from elephas_like.core.errors import ConnectionLostError
from elephas_like.engine.printing import KEPT_LETTERS, printing
from elephas_like.exchange.protocol import PRINTED_LETTERS


class Sent:
    """Keeps what arrives; after `most` messages nothing does."""

    def __init__(self, most: int = 10**6) -> None:
        self.texts: list[tuple[int, str]] = []
        self.closed, self._most = 0, most

    def print(self, number: int, text: str) -> None:
        if len(self.texts) == self._most:
            raise ConnectionLostError("nobody there")
        self.texts.append((number, text))

    def close(self) -> None:
        self.closed += 1


def test_all_is_sent_in_order_and_in_pieces_that_fit() -> None:
    sent = Sent()
    with printing(sent) as output:
        print("a line")
        print("x" * 3 * PRINTED_LETTERS, file=sys.stderr)
    assert "".join(text for _, text in sent.texts) == "a line\n" + "x" * 3 * PRINTED_LETTERS + "\n"
    assert [number for number, _ in sent.texts] == [
        sum(len(text) for _, text in sent.texts[:index]) for index in range(len(sent.texts))
    ]
    assert max(len(text) for _, text in sent.texts) == PRINTED_LETTERS
    assert (output.rest, sent.closed) == ("", 1)


def test_what_does_not_arrive_is_kept() -> None:
    sent = Sent(1)
    with printing(sent) as output:
        print("y" * PRINTED_LETTERS + "the end")
    assert sent.texts == [(0, "y" * PRINTED_LETTERS)]
    assert (output.rest, sent.closed) == ("the end\n", 1)


def test_without_a_way_the_last_letters_are_kept() -> None:
    with printing(None) as output:
        print("a" * KEPT_LETTERS)
        print("last")
    assert output.rest == "a" * (KEPT_LETTERS - 6) + "\nlast\n"


def test_it_prints_again_as_before(capsys) -> None:
    with printing(None):
        print("caught")
    print("seen")
    assert capsys.readouterr().out == "seen\n"


def test_a_handler_that_kept_the_stream_goes_on_to_the_one_before(capsys) -> None:
    with printing(None) as output:
        kept = sys.stderr
    kept.write("later")
    assert (output.rest, capsys.readouterr().err) == ("", "later")
