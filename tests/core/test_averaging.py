from __future__ import annotations

import pickle
import tracemalloc
from dataclasses import asdict, replace

import numpy as np
import pytest
from plain_numpy import LAYOUT, floats, integers, nothing, state, update

from elephas_like.core.averaging import Round, admit, record
from elephas_like.core.errors import ElephasError, NonFiniteError
from elephas_like.core.merging import StatisticsMean, finite, mix_statistics
from elephas_like.core.strategies import Average, Context, Nesterov, Strategy
from elephas_like.core.types import OnNaN, RoundRecord, TrainState, Update, WorkerRecord

NAN, INF = float("nan"), float("inf")


def exchange(
    *updates: Update,
    start: TrainState | None = None,
    strategy: Strategy | None = None,
    on_nan: OnNaN = OnNaN.RAISE,
    num_workers: int = 2,
) -> Round:
    strategy = strategy or Average()
    start = start or state(1, 2)
    taken = Round(start, strategy.init(start.weights), LAYOUT, strategy, Context(0, num_workers), on_nan)
    for brought in updates:
        taken.add(brought)
    return taken


def after(*updates: Update, **options: object) -> TrainState:
    return exchange(*updates, **options).finish()[0]


def test_weights_are_weighted_by_samples() -> None:
    # 1 + (1 x 4 + 3 x 0)/4 = 2 and 2 + (1 x 0 + 3 x 8)/4 = 8
    assert after(update(0, 4, 0, samples=1), update(1, 0, 8, samples=3)).weights.tolist() == [2, 8]


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


def test_the_learning_rate_is_the_drivers() -> None:
    start = state(learning_rate=0.125)
    assert after(update(0), update(1), start=start).learning_rate is start.learning_rate


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


def test_total_variance_of_two_workers() -> None:
    # n = 1, 3; means 0, 4; variances 1, 2: mean = 12/4 = 3; E[var] = (1 + 6)/4 = 1.75;
    # Var[mean] = (1 (0 - 3)^2 + 3 (4 - 3)^2)/4 = 3; together 4.75
    updates = update(0, samples=1, statistics=floats(0, 1)), update(1, samples=3, statistics=floats(4, 2))
    assert after(*updates).statistics.tolist() == [3, 4.75]
    assert after(*updates, strategy=Nesterov()).statistics.tolist() == [3, 4.75]  # no outer momentum


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


@pytest.mark.parametrize(
    "empty",
    [
        nothing(1),
        update(
            1,
            1e3,
            -1e3,
            samples=0,
            statistics=floats(9, 9),
            slots=floats(9, 9),
            counters=integers(99),
            loss_scale=floats(0, 0.5),
        ),
    ],
)
@pytest.mark.parametrize("strategy", [Average(), Nesterov()])
def test_a_worker_without_samples_changes_nothing(empty: Update, strategy: Strategy) -> None:
    full = update(0, 0.1, 0.7, samples=3, statistics=floats(0.3, 0.2), slots=floats(0.9, 1.1), counters=integers(5))
    alone = after(full, strategy=strategy)
    for both in (after(full, empty, strategy=strategy), after(empty, full, strategy=strategy)):
        assert {k: v.tobytes() for k, v in both.parts().items()} == {k: v.tobytes() for k, v in alone.parts().items()}


def test_records_of_a_long_history_are_small_and_travel() -> None:
    def records(count: int) -> list[WorkerRecord]:
        return [
            record(
                update(number % 50, samples=int(f"{1000 + number % 3}"), steps=int("500"), seconds=float(number)),
                0,
                False,
            )
            for number in range(count)
        ]

    records(10)
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        kept = records(5000)
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (after - before) / len(kept) < 140  # eight words of an object, a float, a pointer to it
    assert (kept[4].samples, kept[4].steps, kept[4].seconds) == (1001, 500, 4.0)
    finished = RoundRecord(0, 0, tuple(kept[:3]))
    assert pickle.loads(pickle.dumps(finished)) == finished  # noqa: S301
    assert asdict(finished)["workers"][1]["samples"] == 1001


def test_a_worker_without_samples_is_on_record() -> None:
    taken = exchange(update(0, 1, 1, samples=3), nothing(1))
    assert [(record.worker, record.samples, record.dropped) for record in taken.records] == [(0, 3, 0), (1, 0, 0)]
    assert len(taken.metrics) == 1


@pytest.mark.parametrize("updates", [[], [nothing(0), nothing(1)], [update(0, 5, 5, samples=0)]])
def test_a_round_of_nothing_is_the_start(updates: list[Update]) -> None:
    start, outer = state(1, 2), {"momentum": floats(3, 4)}
    taken = Round(start, outer, LAYOUT, Nesterov(), Context(0, 2))
    for brought in updates:
        taken.add(brought)
    same, remembered = taken.finish()
    assert same is start
    assert remembered is outer


def test_nothing_that_was_given_is_changed() -> None:
    start = state(1, 2)
    updates = update(0, 4, 0, samples=1), update(1, 0, 8, samples=3)
    arrays = [*start.parts().values(), *updates[0].arrays().values(), *updates[1].arrays().values()]
    before = [array.tobytes() for array in arrays]
    after(*updates, start=start, strategy=Nesterov())
    assert [array.tobytes() for array in arrays] == before


@pytest.mark.parametrize("bad", [NAN, INF, -INF])
def test_a_bad_number_names_worker_round_and_variable(bad: float) -> None:
    brought = replace(update(3, 0, bad), number=17)
    with pytest.raises(NonFiniteError, match=r"worker 3 brought NaN or infinity in round 17 \(in kernel\)") as caught:
        after(brought)
    assert isinstance(caught.value, ElephasError)
    brought = replace(update(3, statistics=floats(0, bad)), number=17)
    with pytest.raises(NonFiniteError, match=r"round 17 \(in variance\)\. Expected finite numbers"):
        after(brought)


def test_dropped_updates_are_counted(caplog: pytest.LogCaptureFixture) -> None:
    taken = exchange(
        update(0, 4, 0, samples=1),
        update(1, NAN, 0, samples=3),
        update(2, 0, 8, samples=1),
        on_nan=OnNaN.DROP,
        num_workers=3,
    )
    # 1 + (4 + 0)/2, 2 + (0 + 8)/2: of workers 0 and 2 alone
    assert taken.finish()[0].weights.tolist() == [3, 6]
    assert [record.dropped for record in taken.records] == [0, 1, 0]
    assert [record.samples for record in taken.records] == [1, 3, 1]  # it was trained on, all the same
    assert len(taken.metrics) == 2
    assert "worker 1 brought NaN or infinity in round 0 (in kernel); the update is dropped" in caplog.text


def test_a_round_of_dropped_updates_is_the_start() -> None:
    start = state(1, 2)
    assert after(update(0, NAN, 0), update(1, 0, INF), start=start, on_nan=OnNaN.DROP) is start


def test_finite() -> None:
    assert finite(floats())
    assert finite(floats(3e38, 3e38))  # the sum overflows, the numbers do not
    assert finite(floats(-3e38, -3e38, 3e38))
    assert not finite(floats(INF, -INF))
    assert not finite(floats(1, NAN))


def test_admit() -> None:
    held = state().but(statistics=floats(0, 1))
    assert admit(update(0, 1, 1), OnNaN.RAISE, LAYOUT, held)
    assert not admit(update(0, NAN, 1), OnNaN.DROP, LAYOUT, held)


def test_infinity_that_was_there_before_is_no_mistake() -> None:
    """The mask of an attention layer, or the bounds of an observer that has seen nothing yet."""
    masked = update(0, statistics=floats(-np.inf, 1))
    assert admit(masked, OnNaN.RAISE, LAYOUT, state().but(statistics=floats(-np.inf, 1)))
    assert not admit(masked, OnNaN.DROP, LAYOUT, state().but(statistics=floats(0, 1)))
    assert admit(update(0, statistics=floats(3, 1)), OnNaN.RAISE, LAYOUT, state().but(statistics=floats(np.inf, 1)))
    assert admit(update(0, frozen=floats(INF, 1)), OnNaN.RAISE, LAYOUT, state().but(frozen=floats(INF, 1)))
    assert not admit(update(0, frozen=floats(INF, 1)), OnNaN.DROP, LAYOUT, state().but(frozen=floats(0, 1)))
