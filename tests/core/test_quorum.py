"""How many workers a quorum is, and when a round ends."""

from __future__ import annotations

import pytest

from elephas_like.core.quorum import Quorum


@pytest.mark.parametrize(
    ("asked", "workers", "expected"),
    [(3, 8, 3), (8, 8, 8), (0.75, 8, 6), (0.7, 8, 6), (1.0, 3, 3), (0.01, 3, 1), (0.28, 25, 7), (1e-12, 3, 1)],
)
def test_a_number_or_a_share_rounded_up(asked: float, workers: int, expected: int) -> None:
    assert Quorum.of(asked, 0.1, workers) == Quorum(expected, 0.1)


def test_more_workers_than_there_are() -> None:
    with pytest.raises(ValueError, match="quorum=9 needs 9 workers; the fit has 8"):
        Quorum.of(9, 0.1, 8)


def test_the_end_by_hand() -> None:
    assert Quorum(6, 0.25).end(began=100.0, reached=108.0) == 110.0
    assert Quorum(6, 0.0).end(began=100.0, reached=108.0) == 108.0


@pytest.mark.parametrize(
    ("answered", "without_rows", "missing"),
    [(0, 0, 2), (1, 0, 1), (2, 0, 0), (2, 1, 1), (2, 2, 2), (3, 2, 1), (3, 3, 1), (4, 3, 0), (4, 4, 0)],
)
def test_answers_without_rows_do_not_count(answered: int, without_rows: int, missing: int) -> None:
    # a quorum of two of four; where three have no rows it is the one that is left
    assert Quorum(2).missing(4, answered, without_rows) == missing
