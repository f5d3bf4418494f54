"""Two workers, two weights, three rounds, by hand.

Start (1, -1). Worker 0 has 1 sample, worker 1 has 3; d = (d0 + 3 d1) / 4:
    round 1: d0 = ( 4,  0), d1 = ( 0, 4): d = ( 4/4, 12/4)             = ( 1, 3)
    round 2: d0 = (-4,  8), d1 = ( 4, 0): d = ((-4 + 12)/4, 8/4)       = ( 2, 2)
    round 3: d0 = ( 0, -4), d1 = (-4, 4): d = (-12/4, (-4 + 12)/4)     = (-3, 2)
With 1 sample each, d = (d0 + d1) / 2: (2, 2), (0, 4), (-2, 0).
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from plain_numpy import LAYOUT, state, update

from elephas_like.core.averaging import Round
from elephas_like.core.layout import Layout, LayoutEntry
from elephas_like.core.strategies import Average, Context, Nesterov, OneShot, Strategy
from elephas_like.core.types import Frequency, Mode, Role

DELTAS = [((4, 0), (0, 4)), ((-4, 8), (4, 0)), ((0, -4), (-4, 4))]


def three_rounds(strategy: Strategy, samples: tuple[int, int]) -> tuple[list[list[float]], dict[str, list[float]]]:
    """The weights after each round, and what the strategy remembers at the end."""
    now, after = state(1, -1), []
    outer = strategy.init(now.weights)
    for version, deltas in enumerate(DELTAS):
        exchange = Round(now, outer, LAYOUT, strategy, Context(version, 2))
        for worker, delta in enumerate(deltas):
            exchange.add(update(worker, *delta, samples=samples[worker]))
        now, outer = exchange.finish()
        after.append(now.weights.tolist())
    return after, {name: vector.tolist() for name, vector in outer.items()}


def test_average() -> None:
    # (1, -1) + (1, 3); + (2, 2); + (-3, 2)
    assert three_rounds(Average(), (1, 3)) == ([[2, 2], [4, 4], [1, 6]], {})


def test_one_shot_is_the_average_of_whole_fits() -> None:
    # three fits, one after the other: (1, -1) + (2, 2); + (0, 4); + (-2, 0)
    assert three_rounds(OneShot(), (1, 1)) == ([[3, 1], [3, 5], [1, 5]], {})


def test_one_shot_is_elephas_formula_where_shards_are_equal() -> None:
    # elephas: new = old - mean(old - new_i), whatever the number of rows, here 5 each
    old, ends = np.array([1.0, -1.0]), np.array([[3.0, 0.5], [-2.0, 4.5]])
    expected = old - ((old - ends[0]) + (old - ends[1])) / 2  # = (0.5, 2.5)
    exchange = Round(state(1, -1), {}, LAYOUT, OneShot(), Context(0, 2))
    for worker, end in enumerate(ends):
        exchange.add(update(worker, *(end - old), samples=5))
    after, _ = exchange.finish()
    assert expected.tolist() == [0.5, 2.5]
    assert after.weights.tolist() == [0.5, 2.5]


def test_one_shot_has_one_frequency() -> None:
    assert OneShot.frequencies == {Frequency.FIT}
    assert OneShot.modes == {Mode.SYNCHRONOUS}


def test_nesterov() -> None:
    # lr = 1, mu = 1/2
    # b = (1, 3)                                        x = (1, -1) + (1, 3) + b/2              = (2.5, 3.5)
    # b = (1, 3)/2 + (2, 2)           = ( 2.5 , 3.5 )   x = (2.5, 3.5) + (2, 2) + (1.25, 1.75)  = (5.75, 7.25)
    # b = (2.5, 3.5)/2 + (-3, 2)      = (-1.75, 3.75)   x = (5.75, 7.25) + (-3, 2) + b/2        = (1.875, 11.125)
    after, outer = three_rounds(Nesterov(momentum=0.5), (1, 3))
    assert after == [[2.5, 3.5], [5.75, 7.25], [1.875, 11.125]]
    assert outer == {"momentum": [-1.75, 3.75]}


def test_nesterov_with_a_learning_rate() -> None:
    # lr = 1/2 halves every step from (1, -1): the steps were (1.5, 4.5), (3.25, 3.75), (-3.875, 3.875)
    after, outer = three_rounds(Nesterov(learning_rate=0.5, momentum=0.5), (1, 3))
    assert after == [[1.75, 1.25], [3.375, 3.125], [1.4375, 5.0625]]
    assert outer == {"momentum": [-1.75, 3.75]}


def test_nesterov_as_it_comes() -> None:
    # lr = 1, mu = 0.7: the first step is 1.7 d: (1 + 1.7, -1 + 5.1). Then b = 0.7 (1, 3) + (2, 2) = (2.7, 4.1),
    # x = (2.7, 4.1) + (2, 2) + (1.89, 2.87) = (6.59, 8.97). Then b = (1.89, 2.87) + (-3, 2) = (-1.11, 4.87),
    # x = (6.59, 8.97) + (-3, 2) + (-0.777, 3.409) = (2.813, 14.379)
    after, _ = three_rounds(Nesterov(), (1, 3))
    assert after == [pytest.approx([2.7, 4.1]), pytest.approx([6.59, 8.97]), pytest.approx([2.813, 14.379])]


def test_nesterov_of_many_workers_is_stretched() -> None:
    # 32 workers, each in a direction of its own: 16 weights, one up and one down each, so the mean is 0 but for the two
    # of weight 0 that both go up by 1: 2/32 = 1/16. Cosines: one pair at 1, fifteen at -1: -14/496, noise: stretched by 2
    deltas = [np.zeros(16, np.float32) for _ in range(32)]
    for worker, delta in enumerate(deltas):
        delta[worker // 2] = 1 if worker % 2 == 0 or worker < 2 else -1
    layout = Layout((LayoutEntry("w", Role.WEIGHT, (16,), "float32"),))
    start = layout.flatten([np.zeros(16, np.float32)])
    for strategy, expected in ((Nesterov(stretch=False), 1 / 16), (Nesterov(), 2 / 16)):
        exchange = Round(start, strategy.init(start.weights), layout, strategy, Context(0, 32))
        for worker, delta in enumerate(deltas):
            nothing = update(worker, statistics=start.statistics, slots=start.slots, counters=start.counters)
            exchange.add(replace(nothing, delta=delta, loss_scale=start.loss_scale, seeds=start.seeds))
        after, outer = exchange.finish()
        assert exchange.agreement.cosine == pytest.approx(-14 / 496)
        assert outer["momentum"][0] == pytest.approx(expected)
        assert after.weights[0] == pytest.approx(1.7 * expected)  # lr (d + mu b) = d + 0.7 d
        assert np.abs(after.weights[1:]).max() == 0
