"""What is not a weight, merged by its role: statistics, slots, counters, loss scales, seeds, frozen layers."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from exchanges import after
from plain_numpy import LAYOUT, floats, integers, state, update

from elephas_like.core.layout import Layout
from elephas_like.core.merging import RoundMerge, StatisticsMean, finite, mix_statistics
from elephas_like.core.strategies import Nesterov

NAN, INF = float("nan"), float("inf")


def test_slots_are_weighted_by_samples_whatever_the_strategy() -> None:
    # (1 x 4 + 3 x 0)/4, (1 x 0 + 3 x 8)/4
    updates = update(0, samples=1, slots=floats(4, 0)), update(1, samples=3, slots=floats(0, 8))
    assert after(*updates).slots.tolist() == [1, 6]
    assert after(*updates, strategy=Nesterov()).slots.tolist() == [1, 6]


def test_slots_that_are_left_out_stay() -> None:
    start = state(1, 2).but(slots=floats(5, 6))
    left_out = after(update(0, 4, 0, slots=floats()), update(1, 0, 4, slots=floats()), start=start)
    assert left_out.slots.tolist() == [5, 6]


def test_counters_are_those_of_the_worker_with_the_most_steps() -> None:
    start = state().but(counters=integers(10))
    updates = update(0, counters=integers(14), steps=4), update(1, counters=integers(2), steps=5)
    assert after(*updates, start=start).counters == [2]  # a ring pointer may go back
    assert after(update(0, counters=integers(3)), update(1, counters=integers(4)), start=start).counters == [3]  # a tie
    big = integers(2**53 + 1)  # no float64 holds it
    assert after(update(0, counters=big), update(1, counters=integers(1))).counters.tolist() == [9007199254740993]
    assert after(update(0, counters=big)).counters.dtype == np.int64


def test_a_learning_rate_that_steps_have_set_is_that_of_the_worker_with_the_most_steps() -> None:
    start = state().but(learning_rate=floats(0.5))
    rates = update(0, learning_rate=floats(0.25), steps=4), update(1, learning_rate=floats(0.125), steps=5)
    assert after(*rates, start=start).learning_rate.tolist() == [0.125]
    assert after(update(0), update(1), start=start).learning_rate.tolist() == [0.5]  # nobody has set one


def test_a_workers_integers_are_its_own_where_it_is_alone() -> None:
    start = state().but(counters=integers(10))
    assert after(update(0, counters=integers(3)), start=start).counters == [3]


def test_the_loss_scale_is_the_lowest_with_its_own_step_counter() -> None:
    updates = [update(worker, loss_scale=floats(*pair)) for worker, pair in enumerate([(9, 64), (3, 16), (5, 32)])]
    assert after(*updates).loss_scale.tolist() == [3, 16]  # the start's own 8 was before
    assert after(update(0, loss_scale=floats(0, 64))).loss_scale.tolist() == [0, 64]  # it may grow, and count anew


def test_equal_loss_scales_have_the_counter_of_the_worker_with_the_most_steps() -> None:
    updates = update(0, loss_scale=floats(2, 16), steps=4), update(1, loss_scale=floats(7, 16), steps=5)
    assert after(*updates).loss_scale.tolist() == [7, 16]
    assert after(*reversed(updates)).loss_scale.tolist() == [7, 16]


def test_several_loss_scales_are_taken_one_by_one() -> None:
    updates = update(0, loss_scale=floats(1, 4, 2, 64)), update(1, loss_scale=floats(3, 8, 4, 32))
    assert after(*updates).loss_scale.tolist() == [1, 4, 4, 32]


def test_seeds_are_carried_on_by_one_worker_alone() -> None:
    drawn = update(0, seeds=integers(70, 80))
    assert after(drawn, num_workers=1).seeds.tolist() == [70, 80]
    assert after(drawn, update(1, seeds=integers(71, 81))).seeds.tolist() == [7, 8]


def test_statistics_of_float64_keep_their_bits() -> None:
    mean = StatisticsMean(LAYOUT)
    for late in (0.0, 2.0**-30):
        mean.add(np.array([1.0 + late, 1.0]), 1)
    assert mean.result().tolist() == [1.0 + 2.0**-31, 1.0]
    mixed = mix_statistics(np.array([1.0, 1.0]), np.array([1.0 + 2.0**-30, 1.0]), 0.5, LAYOUT)
    assert mixed.tolist() == [1.0 + 2.0**-31, 1.0]


def test_total_variance_of_two_workers() -> None:
    # n = 1, 3; means 0, 4; variances 1, 2: mean = 12/4 = 3; E[var] = (1 + 6)/4 = 1.75;
    # Var[mean] = (1 (0 - 3)^2 + 3 (4 - 3)^2)/4 = 3; together 4.75
    updates = update(0, samples=1, statistics=floats(0, 1)), update(1, samples=3, statistics=floats(4, 2))
    assert after(*updates).statistics.tolist() == [3, 4.75]
    assert after(*updates, strategy=Nesterov()).statistics.tolist() == [3, 4.75]  # no outer momentum


def test_the_variance_between_moving_means_is_that_of_steps_over_the_batches_of_all() -> None:
    # from mean 0 and variance 1, at a momentum of 1/2: batches of means 0 and 8, n = 1, 3, variances 1. Together: mean 6, variance
    # 1 + (36 + 3 x 4)/4 = 13; so one step is at 3 and (1 + 13)/2 = 7, of two workers at (0, 1) and (4, 1)
    one, other = floats(0, 1), floats(4, 1)
    moving = Layout(tuple(replace(each, momentum=0.5) for each in LAYOUT.entries))
    mean = StatisticsMean(moving)
    for statistics, samples in ((one, 1), (other, 3)):
        mean.add(statistics, samples, steps=1)
    assert mean.result().tolist() == [3, 7]
    # the same batches twice: 3/4 of the way to mean 6 and variance 13, of two workers at (0, 1) and (6, 1)
    mean = StatisticsMean(moving)
    for statistics, samples in ((floats(0, 1), 1), (floats(6, 1), 3)):
        mean.add(statistics, samples, steps=2)
    assert mean.result().tolist() == [4.5, 10]
    # a straggler began with other averages than the others: then it is their own variance, 1 + 3
    parts = RoundMerge(moving, 2)
    parts.add(update(0, samples=1, statistics=one))
    parts.add(update(1, samples=3, statistics=other), late=True)
    assert parts.result(state())["statistics"].tolist() == [3, 4]
    # a momentum of 1 never moves
    still = StatisticsMean(Layout(tuple(replace(each, momentum=1.0) for each in LAYOUT.entries)))
    still.add(one, 1, steps=1)
    assert still.result().tolist() == [0, 1]


def test_total_variance_is_that_of_all_rows_together() -> None:
    # rows 1, 3 | 5, 5, 5, 11: mean 30/6 = 5, squares from 5: 16 + 4 + 0 + 0 + 0 + 36 = 56, variance 28/3
    # the shards: mean 2, variance 1 | mean 6.5, variance (3 x 2.25 + 20.25)/4 = 6.75
    pooled = after(
        update(0, samples=2, statistics=floats(2, 1)), update(1, samples=4, statistics=floats(6.5, 6.75))
    ).statistics
    np.testing.assert_allclose(pooled, [5, 28 / 3], rtol=1e-7)


def test_frozen_statistics_come_back_to_the_last_bit() -> None:
    rng = np.random.default_rng(7)
    for _ in range(300):
        frozen = floats(rng.normal() * 100, rng.uniform() * 1e-3)
        samples = [int(n) for n in rng.integers(1, 10_000, 3)]
        pooled = after(*[update(w, samples=n, statistics=frozen) for w, n in enumerate(samples)]).statistics
        assert pooled.tobytes() == frozen.tobytes()
        assert mix_statistics(frozen, frozen, 1 / 3, LAYOUT).tobytes() == frozen.tobytes()


def test_what_frozen_layers_hold_stays_where_nobody_brings_it() -> None:
    start = state(1, 2).but(frozen=floats(0, 1))
    assert after(update(0), update(1), start=start).frozen is start.frozen


def test_what_frozen_layers_hold_is_averaged_where_somebody_changed_it() -> None:
    # n = 1, 3; means 4, 0; variances 2, 1: mean = 4/4 = 1; E[var] = (2 + 3)/4; Var[mean] = (3^2 + 3 x 1^2)/4; together 4.25
    start = state(1, 2).but(frozen=floats(0, 1))
    changed = update(0, samples=1, frozen=floats(4, 2))
    for other in (update(1, samples=3), update(1, samples=3, frozen=floats(0, 1))):
        assert after(changed, other, start=start).frozen.tolist() == [1, 4.25]
        assert after(other, changed, start=start).frozen.tolist() == [1, 4.25]


def test_a_variance_is_never_negative() -> None:
    rng = np.random.default_rng(8)
    for _ in range(300):
        far = rng.normal() * 10.0 ** rng.integers(-3, 9)
        updates = [
            update(
                w, samples=int(rng.integers(1, 50)), statistics=floats(far * (1 + 1e-7 * w), rng.choice([0, 1e-30, 1]))
            )
            for w in range(4)
        ]
        assert after(*updates).statistics[1] >= 0
        assert mix_statistics(updates[0].statistics, updates[1].statistics, 1 / 3, LAYOUT)[1] >= 0


def test_a_variance_that_rounding_would_make_negative() -> None:
    # One row at 1e8 and n = 1e9 rows at 1e8 + 8: 64 n / (n + 1)^2 = 6.4e-8, where a float64 of 1e8 is good to 1.5e-8.
    for more in range(100):
        updates = update(0, statistics=floats(1e8, 0)), update(1, samples=10**9 + more, statistics=floats(1e8 + 8, 0))
        variance = after(*updates).statistics[1]
        assert 0 <= variance < 1e-6


def test_a_small_variance_survives_a_large_mean() -> None:
    # equal means: the variance is (1 x 1e-4 + 1 x 3e-4)/2; E[x^2] - mean^2 would lose it in 1e8
    updates = update(0, statistics=floats(1e4, 1e-4)), update(1, statistics=floats(1e4, 3e-4))
    np.testing.assert_allclose(after(*updates).statistics, [1e4, 2e-4], rtol=1e-6)


def test_statistics_of_nobody() -> None:
    mean = StatisticsMean(LAYOUT)
    mean.add(floats(), 3)
    mean.add(floats(1, 1), 0)
    assert mean.result() is None


def test_statistics_of_a_mixture() -> None:
    # a quarter theirs: mean 0 + 4/4 = 1, variance 1 + (5 - 1)/4 + 1/4 x 3/4 x 4^2 = 5
    assert mix_statistics(floats(0, 1), floats(4, 5), 0.25, LAYOUT).tolist() == [1, 5]
    assert mix_statistics(floats(0, 1), floats(4, 5), 1.0, LAYOUT).tolist() == [4, 5]
    assert mix_statistics(floats(0, 1), floats(), 0.25, LAYOUT).tolist() == [0, 1]


def test_finite() -> None:
    assert finite(floats())
    assert finite(floats(3e38, 3e38))  # the sum overflows, the numbers do not
    assert finite(floats(-3e38, -3e38, 3e38))
    assert not finite(floats(INF, -INF))
    assert not finite(floats(1, NAN))
