from __future__ import annotations

import numpy as np
import pytest

from elephas_like.core.pieces import PIECE, add_scaled, move_towards, same_bits
from elephas_like.core.strategies import STRATEGIES, Nesterov
from elephas_like.core.strategies.algebra import Context

RNG = np.random.default_rng(3)


def vector(size: int) -> np.ndarray:
    return RNG.normal(size=size).astype(np.float32)


@pytest.mark.parametrize("kind", [np.float32, np.float64])
@pytest.mark.parametrize("size", [0, 1, PIECE - 1, PIECE, PIECE + 1, 3 * PIECE + 7])
def test_pieces_have_the_bits_of_the_whole(size: int, kind: type[np.floating]) -> None:
    total, term, theirs = (vector(size).astype(kind) / kind(3) for _ in range(3))
    share = 0.37
    moved = total + kind(share) * (theirs - total)
    assert move_towards(total, theirs, share, np.empty_like(total)).tobytes() == moved.tobytes()
    summed = total + term * kind(1.7)
    assert add_scaled(total, term, 1.7) is total
    assert total.tobytes() == summed.tobytes()
    ours = total.copy()
    assert move_towards(ours, theirs, 0.25, ours) is ours
    assert ours.tobytes() == (total + kind(0.25) * (theirs - total)).tobytes()


def test_a_sum_begins_with_a_vector_of_its_own() -> None:
    term = vector(3)
    total = add_scaled(None, term, 1.0)
    add_scaled(total, term, 1.0)
    np.testing.assert_array_equal(total, 2 * term)
    assert not np.shares_memory(total, term)


ELEMENTWISE = [name for name, kind in STRATEGIES.items() if hasattr(kind.step, "__wrapped__")]


@pytest.mark.parametrize("name", ELEMENTWISE)
def test_a_step_by_pieces_has_the_bits_of_the_whole(name: str) -> None:
    strategy = STRATEGIES[name]()
    size = 2 * PIECE + 1
    whole = by_pieces = strategy.init(vector(size))
    context = Context(version=3, num_workers=2, learning_rate=0.1, weight=2.0)
    weights = vector(size)
    for _ in range(3):
        direction = vector(size)
        expected, whole = type(strategy).step.__wrapped__(strategy, weights, direction, whole, context)
        before = weights.copy()
        found, by_pieces = strategy.step(weights, direction, by_pieces, context)
        assert same_bits(weights, before)
        assert same_bits(found, expected)
        assert by_pieces.keys() == whole.keys()
        assert all(same_bits(by_pieces[key], whole[key]) for key in whole)
        weights = found


def test_most_strategies_step_by_pieces_and_the_one_that_looks_at_tensors_does_not() -> None:
    assert {"nesterov", "mla", "fedadam"} <= set(ELEMENTWISE)
    assert "heloco" not in ELEMENTWISE


def test_a_step_of_a_users_own_sees_whole_vectors() -> None:
    class Normalized(Nesterov):
        def step(self, weights, direction, outer, context):
            seen.append(direction.size)
            return super().step(weights, direction / np.linalg.norm(direction), outer, context)

    seen: list[int] = []
    strategy, weights = Normalized(), vector(PIECE + 5)
    strategy.step(weights, weights, strategy.init(weights), Context(0, 1))
    assert seen == [PIECE + 5]


def test_bits_are_compared_and_not_numbers() -> None:
    one = np.zeros(PIECE + 2, np.float32)
    other = one.copy()
    assert same_bits(one, other)
    other[-1] = -0.0
    assert not same_bits(one, other)
    one[0] = other[0] = np.nan
    other[-1] = 0.0
    assert same_bits(one, other)
    assert not same_bits(one, one[:-1])
    assert same_bits(np.zeros(0, np.int64), np.zeros(0, np.int64))
