"""What strategies are made of, and the laws that all of them keep."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import pytest
from plain_numpy import LAYOUT, floats, state, update

from elephas_like.core.averaging import Round
from elephas_like.core.center import LockedCenter
from elephas_like.core.strategies import STRATEGIES, Average, Context, Nesterov, OuterState, Strategy
from elephas_like.core.strategies.algebra import Sum, WeightedMean
from elephas_like.core.types import Mode, TrainState, Update

CONTEXT = Context(version=0, num_workers=2)


def rounds_of(strategy: Strategy, start: TrainState, *rounds: list[Update]) -> list[np.ndarray]:
    """The weights after each synchronous round."""
    outer, after = strategy.init(start.weights), []
    for version, updates in enumerate(rounds):
        exchange = Round(start, outer, LAYOUT, strategy, Context(version, len(updates)))
        for brought in updates:
            exchange.add(brought)
        start, outer = exchange.finish()
        after.append(start.weights)
    return after


def random_round(seed: int, workers: int = 8) -> list[Update]:
    rng = np.random.default_rng(seed)
    return [
        update(
            worker,
            *rng.normal(size=2),
            samples=int(rng.integers(1, 100)),
            statistics=floats(rng.normal(), rng.uniform(0, 3)),
            slots=floats(*rng.normal(size=2)),
        )
        for worker in range(workers)
    ]


def test_weighted_mean() -> None:
    mean = WeightedMean()
    mean.add(floats(1, 10), 1)
    mean.add(floats(5, 2), 3)
    mean.add(floats(100, 100), 0)
    found = mean.result()
    assert found.tolist() == [4, 4]  # (1 + 15) / 4, (10 + 6) / 4
    assert found.dtype == np.float32
    goes_on = WeightedMean({"sum": np.array([1 / 3]), "weight": np.array([1.0])})
    assert goes_on.result().tolist() == [1 / 3]  # of float64


def test_the_mean_of_one_vector_is_that_vector() -> None:
    """To the last bit: of 21 rows, 21 * 0.3 / 21 is another number. A weight that a constraint has put to 0 would go below."""
    one = np.random.default_rng(0).random(999).astype("float32")
    assert (one * np.float32(21) / np.float32(21) != one).any()
    whole, cut = WeightedMean(), WeightedMean()
    for mean in (whole, cut):
        mean.add(one, 21.0)
    goes_on = WeightedMean(cut.held())
    np.testing.assert_array_equal(whole.result(), one)
    np.testing.assert_array_equal(WeightedMean(cut.held()).result(), one)
    # Another one counts as it would have without a break.
    for mean in (goes_on, cut):
        mean.add(2 * one, 7.0)
    np.testing.assert_allclose(goes_on.result(), (21 * one + 7 * 2 * one) / 28, rtol=1e-6)
    np.testing.assert_array_equal(WeightedMean(cut.held()).result(), cut.result())


def test_sum() -> None:
    total = Sum()
    total.add(floats(1, 10), 1)
    total.add(floats(5, 2), 0.5)
    assert total.result().tolist() == [3.5, 11]


@pytest.mark.parametrize("reduction", [WeightedMean(), Sum()])
def test_no_vectors_have_no_direction(reduction: WeightedMean | Sum) -> None:
    assert reduction.result() is None


@pytest.mark.parametrize("kind", [WeightedMean, Sum])
def test_reductions_leave_what_they_are_given(kind: type[WeightedMean | Sum]) -> None:
    first, second = floats(1, 2), floats(3, 4)
    reduction = kind()
    for vector in (first, second, first):
        reduction.add(vector, 1)
    assert first.tolist() == [1, 2]
    assert second.tolist() == [3, 4]


OWN_MESSAGES = {"easgd", "aeasgd", "eamsgd", "adag", "fedasync"}


@pytest.mark.parametrize("kind", [kind for name, kind in STRATEGIES.items() if name not in OWN_MESSAGES])
def test_what_is_sent_is_the_way_that_was_gone(kind: type[Strategy]) -> None:
    sent, memory = kind().encode(floats(1, 2), floats(1.5, -2), 7, {}, CONTEXT)
    assert sent.tolist() == [0.5, -4]
    assert memory == {}
    assert kind().merge(floats(1, 2), {}, CONTEXT).tolist() == [1, 2]


@pytest.mark.parametrize("kind", STRATEGIES.values())
def test_a_step_changes_nothing_that_it_is_given(kind: type[Strategy]) -> None:
    strategy = kind()
    weights, direction = floats(1, 2), floats(3, 4)
    outer = strategy.init(weights)
    before = {name: vector.copy() for name, vector in outer.items()}
    after, _ = strategy.step(weights, direction, outer, CONTEXT)
    after += 100
    strategy.serve(weights, outer, CONTEXT)
    assert weights.tolist() == [1, 2]
    assert direction.tolist() == [3, 4]
    assert {name: vector.tolist() for name, vector in outer.items()} == {k: v.tolist() for k, v in before.items()}


def test_one_worker_that_averages_is_alone() -> None:
    # 1 + 0.25 and 2 - 0.5; then + 1 and + 1
    first, second = rounds_of(Average(), state(1, 2), [update(0, 0.25, -0.5, samples=32)], [update(0, 1, 1, samples=4)])
    assert first.tolist() == [1.25, 1.5]
    assert second.tolist() == [2.25, 2.5]


SYNCHRONOUS = [kind() for kind in STRATEGIES.values() if Mode.SYNCHRONOUS in kind.modes]


@pytest.mark.parametrize("strategy", SYNCHRONOUS)
def test_the_order_of_updates_does_not_matter(strategy: Strategy) -> None:
    for seed in range(20):
        updates = random_round(seed)
        (forwards,) = rounds_of(strategy, state(1, 2), updates)
        (backwards,) = rounds_of(strategy, state(1, 2), updates[::-1])
        np.testing.assert_allclose(forwards, backwards, rtol=0, atol=1e-6)


@pytest.mark.parametrize("strategy", SYNCHRONOUS)
@pytest.mark.parametrize("factor", [2, 10, 1000])
def test_only_shares_of_samples_matter(strategy: Strategy, factor: int) -> None:
    def times(updates: list[Update], factor: int) -> list[Update]:
        return [update(u.worker, *u.delta, samples=u.samples * factor) for u in updates]

    updates = random_round(factor)
    (plain,) = rounds_of(strategy, state(1, 2), updates)
    (scaled,) = rounds_of(strategy, state(1, 2), times(updates, factor))
    np.testing.assert_allclose(scaled, plain, rtol=0, atol=1e-6)


def test_nesterov_without_momentum_is_average() -> None:
    rounds = [random_round(seed) for seed in (1, 2, 3)]
    plain = rounds_of(Average(), state(1, 2), *rounds)
    outer = rounds_of(Nesterov(learning_rate=1.0, momentum=0.0), state(1, 2), *rounds)
    np.testing.assert_array_equal(outer, plain)


@dataclass(frozen=True)
class Clipped(Strategy):
    """A user's own: the average, cut to a length, in whatever precision NumPy makes of it; served one step ahead."""

    name: ClassVar[str] = "clipped"
    most: float = 1.0

    def step(
        self, weights: np.ndarray, direction: np.ndarray, outer: OuterState, context: Context
    ) -> tuple[np.ndarray, OuterState]:
        length = np.linalg.norm(direction.astype(np.float64))
        return weights + direction.astype(np.float64) * min(1.0, self.most / length), outer

    def serve(self, weights: np.ndarray, outer: OuterState, context: Context) -> np.ndarray:
        return weights.astype(np.float64) + 1


def test_a_strategy_of_ones_own() -> None:
    # the mean of (6, 0) and (0, 8) is (3, 4), of length 5; cut to 1: (0.6, 0.8)
    (after,) = rounds_of(Clipped(), state(1, 2), [update(0, 6, 0), update(1, 0, 8)])
    np.testing.assert_allclose(after, [1.6, 2.8], rtol=1e-6)


@pytest.mark.parametrize("name", STRATEGIES)
def test_weights_of_float64_keep_their_bits_under_every_strategy(name: str) -> None:
    """A step of 2 ** -40 beside weights of 1 is none to float32."""
    strategy, start = STRATEGIES[name](), state(1, 2).but(weights=np.array([1.0, 2.0]))
    delta = np.array([2.0**-40, 2.0**-39]) if strategy.deltas else start.weights + 2.0**-39
    brought = [replace(update(worker), delta=delta) for worker in range(2)]
    if Mode.SYNCHRONOUS in strategy.modes:
        (after,) = rounds_of(strategy, start, brought)
    else:
        center = LockedCenter(start, LAYOUT, strategy, 2)
        for each in brought:
            center.commit(each)
        after = center.snapshot().weights
    assert after.dtype == np.float64
    assert (after != after.astype(np.float32)).all()


def test_weights_stay_float32_whatever_a_strategy_computes_in() -> None:
    (after,) = rounds_of(Clipped(), state(1, 2), [update(0, 6, 0)])
    assert after.dtype == np.float32
    (after,) = rounds_of(Nesterov(momentum=np.float64(0.5)), state(1, 2), [update(0, 6, 0)])
    assert after.dtype == np.float32
    center = LockedCenter(state(1, 2), LAYOUT, Clipped(), 2)
    center.commit(update(0, 6, 8))
    assert center.snapshot().weights.dtype == np.float32
    version, served = center.served()
    assert version == 1
    assert served.weights.dtype == np.float32
    np.testing.assert_allclose(served.weights, [2.6, 3.8], rtol=1e-6)
