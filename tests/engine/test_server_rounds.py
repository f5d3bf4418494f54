"""What a long task does between its join and the order to stop."""

from __future__ import annotations

from test_in_process import LAYOUT, START, Adds

from elephas_like.core.errors import Failure
from elephas_like.core.types import Evaluation, Joined, Order, Span, Update
from elephas_like.engine.server_rounds import serve


class Script:
    """A line to a driver that gives these orders, one after the other."""

    def __init__(self, *orders: Order) -> None:
        self._orders = iter(orders)
        self.heard: list[Joined | Update | Evaluation] = []

    def join(self, joined: Joined) -> Order:
        self.heard.append(joined)
        return next(self._orders)

    def answer(self, result: Update | Evaluation) -> Order:
        self.heard.append(result)
        return next(self._orders)

    def fail(self, failure: Failure) -> None:
        raise AssertionError(failure)

    def close(self) -> None:
        """Nothing is open."""


def test_each_order_is_answered_with_its_number_until_stop() -> None:
    line = Script(
        Order("train", 0, state=START, span=Span(0)),
        Order("evaluate", 1, state=START),
        Order("train", 2, state=START, span=Span(1)),
        Order("stop"),
    )
    serve(line, Adds(0, 6), attempt=41)
    joined, *answers = line.heard
    assert isinstance(joined, Joined)
    assert (joined.attempt, joined.rows, joined.layout_hash) == (41, 6, LAYOUT.hash)
    assert [(type(answer).__name__, answer.number) for answer in answers] == [
        ("Update", 0),
        ("Evaluation", 1),
        ("Update", 2),
    ]


def test_a_run_that_is_over_asks_for_nothing() -> None:
    line = Script(Order("stop"))
    serve(line, Adds(0, 6), attempt=1)
    assert len(line.heard) == 1
