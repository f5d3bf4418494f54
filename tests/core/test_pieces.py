from __future__ import annotations

import numpy as np
import pytest

from elephas_like.core.pieces import PIECE, add_scaled, move_towards

RNG = np.random.default_rng(3)


def vector(size: int) -> np.ndarray:
    return RNG.normal(size=size).astype(np.float32)


@pytest.mark.parametrize("size", [0, 1, PIECE - 1, PIECE, PIECE + 1, 3 * PIECE + 7])
def test_pieces_have_the_bits_of_the_whole(size: int) -> None:
    total, term, theirs = vector(size), vector(size), vector(size)
    share = 0.37
    moved = total + np.float32(share) * (theirs - total)
    assert move_towards(total, theirs, share, np.empty_like(total)).tobytes() == moved.tobytes()
    summed = total + term * np.float32(1.7)
    assert add_scaled(total, term, 1.7) is total
    assert total.tobytes() == summed.tobytes()
    ours = total.copy()
    assert move_towards(ours, theirs, 0.25, ours) is ours
    assert ours.tobytes() == (total + np.float32(0.25) * (theirs - total)).tobytes()


def test_a_sum_begins_with_a_vector_of_its_own() -> None:
    term = vector(3)
    total = add_scaled(None, term, 1.0)
    add_scaled(total, term, 1.0)
    np.testing.assert_array_equal(total, 2 * term)
    assert not np.shares_memory(total, term)
