from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from exchanges import CENTERS, center_of
from plain_numpy import LAYOUT, floats, integers, nothing, state, update

from elephas_like.core.center import HogwildCenter, LockedCenter, mean_rate
from elephas_like.core.errors import ElephasError, NonFiniteError
from elephas_like.core.layout import Layout, LayoutEntry
from elephas_like.core.merging import begun_anew
from elephas_like.core.strategies import (
    STRATEGIES,
    Context,
    FedBuff,
    Median,
    MomentumLookAhead,
    OuterState,
    Strategy,
)
from elephas_like.core.strategies.asynchronous import DownPour
from elephas_like.core.types import Mode, OnNaN, Role, Update


def test_the_rate_of_a_round_is_the_mean_of_its_steps() -> None:
    def rate(state: object, steps: int) -> float:
        return 1.0 / (1 + steps)

    assert mean_rate(rate, state(), 1) == mean_rate(rate, state(), 0) == 1
    assert mean_rate(rate, state(), 3) == pytest.approx((1 + 1 / 2 + 1 / 3) / 3)
    assert mean_rate(lambda state, steps: float(steps), state(), 400) == pytest.approx(200, abs=1)  # of four of them
    assert mean_rate(lambda state, steps: 0.1, state(), 7) == 0.1  # to the bit


@pytest.mark.parametrize("kind", CENTERS)
def test_weights_step_and_the_version_counts(kind: type) -> None:
    center = center_of(kind)
    assert center.served()[0] == 0
    assert center.commit(update(0, 1, -1, samples=7)).applied
    assert center.commit(update(2, 0.5, 0, samples=1)).applied
    version, served = center.served()
    assert version == center.version == 2
    assert served.weights.tolist() == [2.5, 1]  # 1 + 1 + 0.5, 2 - 1


MOVING = Layout(
    tuple(
        replace(entry, momentum=0.5 if entry.name in ("mean", "variance") else 0.0)
        if entry.role is Role.STATISTIC
        else entry
        for entry in LAYOUT.entries
    )
)
"""The same, and what a step moves half of the way to the batch's are mean and variance."""


def moving(kind: type, num_workers: int = 2) -> LockedCenter:
    """A center whose mean and variance are 8."""
    return kind(state(1, 2).but(statistics=floats(8, 8)), MOVING, DownPour(), num_workers)


@pytest.mark.parametrize("kind", CENTERS)
def test_a_moving_average_is_not_drawn_back_to_where_a_worker_began(kind: type) -> None:
    center = moving(kind)
    center.served(0)
    center.served(1)
    # Two steps over batches of mean 0 and variance 4: a quarter of 8 is left, and three quarters of 4 came in.
    brought = {"statistics": floats(2, 5), "steps": 2}
    center.commit(update(0, **brought))  # the first, taken whole
    assert center.snapshot().statistics.tolist() == [2, 5]
    # Had worker 1 begun with 2 and 5: 2 + (2 - 8)/4 = 0.5 and 5 + (5 - 8)/4 = 4.25. Half of the way there is 1.25 and 4.625, and
    # nothing lies between means of batches that are all 0.
    center.commit(update(1, **brought))
    assert center.snapshot().statistics.tolist() == [1.25, 4.625]


@pytest.mark.parametrize("kind", CENTERS)
def test_a_moving_variance_has_what_lies_between_the_batches_of_workers(kind: type) -> None:
    center = moving(kind)
    center.served(0)
    center.served(1)
    center.commit(update(0, statistics=floats(2, 5), steps=2))  # batches of mean 0, as above
    other = kind(center.snapshot(), MOVING, DownPour(), 2)
    other.restore(center.checkpoint())
    other.served(1)
    # Of mean 4, variance 4: 8/4 + 4 x 3/4 = 5, and 3.5 had it begun with 2. Between 0 and 4 lies 4, of which half of 3/4 came in.
    center.commit(update(1, statistics=floats(5, 5), steps=2))
    assert center.snapshot().statistics.tolist() == [2.75, 4.625 + 1.5]
    # A fit that goes on knows the batches of worker 0, too: from (2, 5), two steps over such batches end at 3.5 and 4.25.
    other.commit(update(1, version=1, statistics=floats(3.5, 4.25), steps=2))
    assert other.snapshot().statistics.tolist() == [2.75, 4.625 + 1.5]


@pytest.mark.parametrize("kind", CENTERS)
def test_the_batches_of_a_worker_that_has_left_are_forgotten(kind: type) -> None:
    center = moving(kind)
    for worker, mean in [(1, 8.0), *[(0, 0.0), (0, 0.0), (0, 0.0)]]:
        version, began = center.served(worker)
        ours = began.statistics / 2 + floats(mean, 4) / 2  # one step over a batch of that mean and variance 4
        before = center.snapshot().statistics
        center.commit(update(worker, version=version, statistics=ours, steps=1))
    # Two updates of worker 0 are all that two workers' last updates are: nothing is between them, and the state halves its way to (0, 4).
    assert center.snapshot().statistics.tolist() == [before[0] * 0.75, before[1] + (4 - before[1]) / 4]


@pytest.mark.parametrize("kind", CENTERS)
@pytest.mark.parametrize("version", [0, 1])
def test_where_a_worker_began_is_known_by_the_version_of_its_update(kind: type, version: int) -> None:
    """Worker 1 was served twice, as the first answer was lost: its update is of the first, whose statistics are not at hand."""
    center = moving(kind)
    center.served(1)
    center.commit(update(0, statistics=floats(4, 6)))
    center.served(1)  # with 4 and 6
    center.commit(update(0, statistics=floats(2, 5), version=1))
    ours = center.snapshot().statistics  # nobody has served worker 0: 4 + (2 - 4)/2 and 6 + (5 - 6)/2 + 1/4 x 2^2
    assert ours.tolist() == [3, 6.5]
    center.commit(update(1, statistics=floats(2, 6), version=version, steps=1))
    # As if it had begun with 3 and 6.5: 2 + (3 - 4)/2 = 1.5 and 6 + (6.5 - 6)/2 = 6.25.
    mean, variance = (1.5, 6.25) if version else (2, 6)
    apart = 0 if version else (mean - 3) ** 2 / 4  # of the batches of others nothing is known
    assert center.snapshot().statistics.tolist() == [(3 + mean) / 2, (6.5 + variance) / 2 + apart]


def test_statistics_that_are_no_moving_averages_may_be_infinite() -> None:
    layout = Layout(
        (
            LayoutEntry("bound", Role.STATISTIC, (1,), "float32"),
            LayoutEntry("mean", Role.STATISTIC, (1,), "float32", momentum=0.5),
        )
    )
    infinite = floats(np.inf, 4)
    assert begun_anew(infinite, floats(np.inf, 8), floats(-np.inf, 2), 1, layout).tolist() == [np.inf, 1]


def test_one_worker_alone_has_its_own_statistics() -> None:
    center = moving(LockedCenter, num_workers=1)
    for number in range(3):
        center.served(0)
        own = floats(0.1 * number, 1.7)
        center.commit(update(0, statistics=own, version=number))
        assert center.snapshot().statistics.tolist() == own.tolist()


def test_what_callbacks_have_set_is_not_moved_by_where_a_worker_began() -> None:
    center = moving(LockedCenter)
    center.served(0)
    before = center.snapshot()
    center.replace(before, before.but(statistics=floats(100, 8)))
    center.commit(update(0, statistics=floats(4, 6)))
    assert center.snapshot().statistics[0] == 100
    # What lies between the batches of 0, above, and of 16 is not added to a variance that a callback has set, either.
    version, began = center.served(1)
    before = center.snapshot()
    center.replace(before, before.but(statistics=floats(0, 1)))
    center.commit(update(1, version=version, statistics=began.statistics / 2 + floats(8, 2), steps=1))
    assert center.snapshot().statistics.tolist() == [0, 1]


def test_a_variance_that_a_step_moves_more_than_once_stays_above_zero() -> None:
    # Called twice a step, a layer keeps a quarter, not half: of 8, over batches of variance 0, 2. Ours is 1 meanwhile: 2 + (1 - 8)/2
    # would be below zero. It stays at half of the lower one.
    assert begun_anew(floats(0, 2), floats(0, 8), floats(0, 1), 1, MOVING).tolist() == [0, 0.5]


@pytest.mark.parametrize("kind", CENTERS)
def test_constraints_hold_for_what_is_served(kind: type) -> None:
    center = center_of(kind, constrain=lambda weights: np.minimum(weights, np.float32(2)))
    center.commit(update(0, 1.5, -1))  # 1 + 1.5, 2 - 1
    for live in (False, True):
        assert center.served(live=live)[1].weights.tolist() == [2, 1]
    assert center.snapshot().weights.tolist() == [2, 1]


@pytest.mark.parametrize("kind", CENTERS)
def test_slots_move_a_share_of_the_way(kind: type) -> None:
    # K = 4: the first is taken whole, then the mean of two, (4 + 6)/2 and (0 + 2)/2, of three, 5 + (8 - 5)/3 and
    # 1 + (1 - 1)/3, of four, 6 + (10 - 6)/4 and 1 + (5 - 1)/4, and a quarter of the way from then on, 7 - 4/4 and 2 + 4/4
    center = center_of(kind, state().but(slots=floats(0, 8)))
    seen = []
    for slots in ((4, 0), (6, 2), (8, 1), (10, 5), (3, 6)):
        center.commit(update(0, slots=floats(*slots)))
        seen.append(center.snapshot().slots.tolist())
    np.testing.assert_allclose(seen, [[4, 0], [5, 1], [6, 1], [7, 2], [6, 3]], rtol=0, atol=1e-6)
    center.commit(update(1, slots=floats()))  # left out
    np.testing.assert_allclose(center.snapshot().slots, [6, 3], rtol=0, atol=1e-6)


@pytest.mark.parametrize("kind", CENTERS)
def test_statistics_move_too_with_the_spread_between_them(kind: type) -> None:
    # K = 2, the first: mean 0, variance 1; theirs 2 and 3: mean 1, variance 1 + (3 - 1)/2 + 1/2 x 1/2 x 2^2 = 3
    center = center_of(kind, num_workers=2)
    center.commit(update(0, statistics=floats(0, 1)))
    center.commit(update(0, statistics=floats(2, 3)))
    assert center.snapshot().statistics.tolist() == [1, 3]
    center.commit(update(1, statistics=floats(1, 3)))
    assert center.snapshot().statistics.tolist() == [1, 3]


@pytest.mark.parametrize("kind", CENTERS)
def test_counters_scale_and_seeds(kind: type) -> None:
    center = center_of(kind)
    center.commit(update(0, counters=integers(5), steps=2, loss_scale=floats(3, 4), seeds=integers(1, 1)))
    center.commit(update(1, counters=integers(3), steps=1, loss_scale=floats(6, 16), seeds=integers(2, 2)))
    after = center.snapshot()
    assert after.counters.tolist() == [5]
    assert after.loss_scale.tolist() == [3, 4]  # the second worker began before the scale was lowered
    assert after.seeds.tolist() == [7, 8]  # of several workers each folds its own
    assert after.learning_rate.tolist() == [0.5]


@pytest.mark.parametrize("kind", CENTERS)
def test_integers_follow_the_worker_with_the_most_steps_so_far(kind: type) -> None:
    center = center_of(kind)
    seen = []
    for worker, steps, pointer in ((0, 4, 4), (1, 3, 3), (1, 3, 0), (0, 1, 5)):
        center.commit(update(worker, counters=integers(pointer), steps=steps))
        seen += center.snapshot().counters.tolist()
    assert seen == [4, 4, 0, 0]  # 4 steps; 3 are fewer; 6, and the pointer has gone round; 5 are fewer


@pytest.mark.parametrize("kind", CENTERS)
def test_the_loss_scale_grows_from_where_it_was_lowered(kind: type) -> None:
    center = center_of(kind)  # at 8
    center.commit(update(0, loss_scale=floats(0, 16)))  # grown after its last good step, from version 0
    assert center.snapshot().loss_scale.tolist() == [0, 16]
    center.commit(update(1, loss_scale=floats(0, 4)))  # overflowed, from version 0
    assert center.snapshot().loss_scale.tolist() == [0, 4]
    center.commit(update(2, loss_scale=floats(0, 16)))  # from version 0 too: it has not heard of the overflow
    assert center.snapshot().loss_scale.tolist() == [0, 4]
    center.commit(update(0, loss_scale=floats(0, 8), version=center.version))  # heard of it, and grew
    assert center.snapshot().loss_scale.tolist() == [0, 8]


@pytest.mark.parametrize("kind", CENTERS)
def test_an_infinite_statistic_becomes_what_a_worker_found(kind: type) -> None:
    center = center_of(kind, state(1, 2).but(statistics=floats(np.inf, 1)))
    center.commit(update(0, statistics=floats(3, 1)))
    assert center.snapshot().statistics.tolist()[0] == 3


@pytest.mark.parametrize("kind", CENTERS)
def test_one_worker_alone_keeps_its_own_state(kind: type) -> None:
    center = center_of(kind, num_workers=1)
    center.commit(update(0, 1, 1, slots=floats(3, 4), statistics=floats(5, 6), seeds=integers(9, 9)))
    after = center.snapshot()
    assert after.weights.tolist() == [2, 3]
    assert after.slots.tolist() == [3, 4]
    assert after.statistics.tolist() == [5, 6]
    assert after.seeds.tolist() == [9, 9]


@pytest.mark.parametrize("kind", CENTERS)
@pytest.mark.parametrize("empty", [nothing(0), update(0, 9, 9, samples=0, slots=floats(9, 9))])
def test_who_trained_nothing_changes_nothing(kind: type, empty: Update) -> None:
    center = center_of(kind)
    assert center.commit(empty).applied
    assert center.version == 0
    assert {k: v.tolist() for k, v in center.snapshot().parts().items()} == {
        k: v.tolist() for k, v in state(1, 2).parts().items()
    }


@pytest.mark.parametrize("kind", CENTERS)
def test_bad_numbers(kind: type) -> None:
    bad = update(3, float("nan"), 0, number=6)
    with pytest.raises(NonFiniteError, match="worker 3 brought NaN or infinity in round 6"):
        center_of(kind).commit(bad)
    center = center_of(kind, on_nan=OnNaN.DROP)
    assert not center.commit(bad).applied
    assert center.version == 0
    assert center.snapshot().weights.tolist() == [1, 2]


@pytest.mark.parametrize("kind", CENTERS)
def test_a_snapshot_stays(kind: type) -> None:
    start = state(1, 2)
    center = center_of(kind, start)
    _, served = center.served()
    taken = center.snapshot()
    center.commit(update(0, 1, 1, slots=floats(4, 4), statistics=floats(3, 3), counters=integers(1)))
    center.replace(state(1, 2), state(1, 2).but(learning_rate=floats(0.125)))
    for one in (start, served, taken):
        assert {k: v.tolist() for k, v in one.parts().items()} == {
            k: v.tolist() for k, v in state(1, 2).parts().items()
        }


@pytest.mark.parametrize("kind", CENTERS)
def test_callbacks_replace_parts(kind: type) -> None:
    center = center_of(kind)
    center.commit(update(0, 1, 1))
    seen = state(1, 2)  # a worker was faster than the callback: 1 + 1 + 3, 2 + 1 + 3
    center.replace(seen, seen.but(learning_rate=floats(0.125), weights=floats(4, 5)))
    after = center.served()[1]
    assert after.learning_rate.tolist() == [0.125]
    assert after.weights.tolist() == [5, 6]
    assert after.seeds.tolist() == [7, 8]


@pytest.mark.parametrize("kind", CENTERS)
def test_what_a_callback_sets_is_not_undone_by_workers_that_began_before(kind: type) -> None:
    center = center_of(kind)
    center.commit(update(0, counters=integers(4), statistics=floats(0, 1)))
    seen = center.snapshot()
    center.commit(update(0, counters=integers(6), statistics=floats(0, 3)))  # a worker was faster than the callback
    center.replace(seen, seen.but(statistics=floats(5, 1), counters=integers(0)))
    after = center.snapshot()
    # The variance, which the callback left alone, is as it is by now: 1 + (3 - 1)/2.
    assert (after.statistics.tolist(), after.counters.tolist()) == ([5, 2], [0])
    # Workers that began before carry what was there then; it is no result of their training. The variance is: 2 + (5 - 2)/3.
    center.commit(update(1, counters=integers(7), statistics=floats(0, 5), steps=9, version=1))
    after = center.snapshot()
    assert (after.statistics.tolist(), after.counters.tolist()) == ([5, 3], [0])
    # One that began with it goes on from it: a quarter of the way to 9.
    center.commit(update(1, counters=integers(2), statistics=floats(9, 3), steps=9, version=3))
    after = center.snapshot()
    assert (after.statistics.tolist()[0], after.counters.tolist()) == (6, [2])


def test_slots_that_a_callback_sets_are_another_array() -> None:
    """Stores leave slots out of orders as long as they are the same array: with optimizer_state="reset" nothing else changes them."""
    center = center_of(HogwildCenter)
    before, seen = center.served(live=True)[1].slots, center.snapshot()
    given = floats(4, 4)
    center.replace(seen, seen.but(slots=given))
    after = center.served(live=True)[1].slots
    assert after is not before
    assert after is not given
    assert after.tolist() == [4, 4]


def test_without_other_threads_hogwild_is_downpour() -> None:
    rng = np.random.default_rng(5)
    locked, free = center_of(LockedCenter), center_of(HogwildCenter)
    for exchange in range(200):
        brought = update(
            exchange % 4,
            *rng.normal(size=2),
            samples=int(rng.integers(0, 4)),
            statistics=floats(rng.normal(), rng.uniform()),
            slots=floats(*rng.normal(size=2)),
            counters=integers(exchange),
            loss_scale=floats(exchange, rng.uniform(1, 9)),
        )
        assert locked.commit(brought) == free.commit(brought)
        one, other = locked.served(), free.served()
        assert one[0] == other[0]
        assert {k: v.tobytes() for k, v in one[1].parts().items()} == {
            k: v.tobytes() for k, v in other[1].parts().items()
        }


def test_a_live_state_is_the_one_that_hogwild_adds_to_and_no_other_is() -> None:
    locked, free = center_of(LockedCenter), center_of(HogwildCenter)
    kept, sent = free.served()[1], free.served(live=True)[1]
    old = locked.served(live=True)[1]
    for center in (locked, free):
        center.commit(update(0, 10, 20, slots=floats(8, 8), frozen=floats(5)))
    assert sent.weights.tolist() == free.snapshot().weights.tolist() == [11, 22]
    assert kept.weights.tolist() == old.weights.tolist() == [1, 2]
    # A worker gets frozen values again only where they are not those that it was sent: these must not change.
    assert sent.frozen.tolist() == kept.frozen.tolist() != free.snapshot().frozen.tolist()
    assert free.snapshot().frozen.tolist() == locked.snapshot().frozen.tolist()


def test_hogwild_needs_sums() -> None:
    with pytest.raises(ValueError, match="hogwild needs an additive strategy such as 'downpour'; got 'mla'"):
        HogwildCenter(state(), LAYOUT, MomentumLookAhead(), 2)


def test_look_ahead_is_served_but_not_kept() -> None:
    # K = 1: s = 1. lr = 1, mu = 1/2; delta (4, 0): m = (2, 0), x = (0, 0) + (4, 0) + m/2 = (5, 0), served x + m/2
    center = LockedCenter(state(0, 0), LAYOUT, MomentumLookAhead(learning_rate=1.0, momentum=0.5), 1)
    center.commit(update(0, 4, 0))
    assert center.snapshot().weights.tolist() == [5, 0]
    assert center.served()[1].weights.tolist() == [6, 0]


def test_a_quorum_of_several_makes_one_version() -> None:
    # M = 3 of 4 workers: two deltas wait, the third steps: (1 + 2 + 3)/3 and (0 + 3 + 6)/3
    center = LockedCenter(state(0, 0), LAYOUT, FedBuff(buffer=3, power=0.0), 4)
    versions = []
    for worker, delta in enumerate([(1, 0), (2, 3), (3, 6), (9, 9)]):
        assert center.commit(update(worker, *delta, slots=floats(worker, 0))).applied
        versions.append(center.version)
    assert versions == [0, 0, 1, 1]
    assert center.snapshot().weights.tolist() == [2, 3]
    assert center.snapshot().slots[0] == pytest.approx((0 + 1 + 2 + 3) / 4)  # they move with every update


def test_no_worker_takes_back_a_loss_scale_that_another_one_lowered_while_a_buffer_fills() -> None:
    center = LockedCenter(state(0, 0), LAYOUT, FedBuff(buffer=3, power=0.0), 3)  # at 8
    scales, versions = [], []
    for worker, scale, version in ((0, 4, 0), (1, 8, 0), (2, 16, 0), (0, 8, 1)):
        center.commit(update(worker, 1, 1, loss_scale=floats(0, scale), version=version))
        scales.append(center.snapshot().loss_scale[1])
        versions.append(center.version)
    assert versions == [0, 0, 1, 1]
    assert scales == [4, 4, 4, 8]  # the last one started from the lower scale, and grew


def test_an_empty_update_fills_no_buffer() -> None:
    center = LockedCenter(state(0, 0), LAYOUT, FedBuff(buffer=2, power=0.0), 2)
    center.commit(update(0, 2, 2))
    center.commit(nothing(1))
    center.commit(update(1, 9, 9, samples=0))
    assert center.version == 0
    center.commit(update(1, 4, 4))
    assert center.snapshot().weights.tolist() == [3, 3]


class Watching(Strategy):
    """Writes down what it is told."""

    name = "watching"
    modes = frozenset({Mode.ASYNCHRONOUS})

    def __init__(self) -> None:
        super().__init__()
        object.__setattr__(self, "told", [])

    def weight(self, update: Update, context: Context) -> float:
        return 2.0 + context.staleness(update)

    def step(
        self, weights: np.ndarray, direction: np.ndarray, outer: OuterState, context: Context
    ) -> tuple[np.ndarray, OuterState]:
        self.told.append(context)
        return weights + direction, outer


def test_what_a_strategy_is_told() -> None:
    strategy = Watching()
    center = LockedCenter(state(0, 0, learning_rate=0.5), LAYOUT, strategy, 4, budget=40)
    center.commit(update(0, 1, 1, samples=10))
    center.replace(center.snapshot(), center.snapshot().but(learning_rate=floats(0.25)))
    center.commit(update(1, 1, 1, samples=100))
    center.commit(update(2, 1, 1, samples=1))
    told = strategy.told
    assert [one.version for one in told] == [0, 1, 2]
    assert [one.progress for one in told] == [0.0, 0.25, 1.0]
    assert [one.learning_rate for one in told] == [0.5, 0.25, 0.25]
    assert [one.weight for one in told] == [2.0, 3.0, 4.0]
    assert all(one.num_workers == 4 and one.layout is LAYOUT for one in told)
    assert told[0].tensors() == [slice(0, 2)]
    assert Context(0, 1).tensors() == [slice(None)]


def test_the_learning_rate_is_what_the_optimizers_say() -> None:
    strategy = Watching()
    rate = lambda state, steps: float(state.counters[0])  # noqa: E731
    start = state(0, 0, learning_rate=0.5).but(counters=integers(3))
    LockedCenter(start, LAYOUT, strategy, 4, learning_rate=rate).commit(update(0, 1, 1))
    assert [one.learning_rate for one in strategy.told] == [3.0]


def test_staleness_is_never_below_nought() -> None:
    assert Context(3, 2).staleness(update(version=1)) == 2
    assert Context(3, 2).staleness(update(version=5)) == 0


@pytest.mark.parametrize(
    "strategy",
    [
        *(kind() for kind in STRATEGIES.values() if Mode.ASYNCHRONOUS in kind.modes),
        FedBuff(buffer=3, reduce=Median()),
    ],
)
def test_a_restored_center_goes_on_as_if_nothing_had_happened(strategy: Strategy) -> None:
    rng = np.random.default_rng(6)
    brought = [update(i % 3, *rng.normal(size=2), samples=2, version=max(0, i - 3)) for i in range(20)]
    whole = LockedCenter(state(1, 2), LAYOUT, strategy, 3, budget=50)
    first = LockedCenter(state(1, 2), LAYOUT, strategy, 3, budget=50)
    for one in brought[:10]:
        whole.commit(one)
        first.commit(one)
    saved = {name: array.copy() for name, array in first.checkpoint().items()}
    assert all(type(array) is np.ndarray for array in saved.values())
    second = LockedCenter(first.snapshot(), LAYOUT, strategy, 3, budget=50)
    second.restore(saved)
    for one in brought[10:]:
        whole.commit(one)
        second.commit(one)
    assert second.served()[0] == whole.served()[0]
    assert {k: v.tobytes() for k, v in second.served()[1].parts().items()} == {
        k: v.tobytes() for k, v in whole.served()[1].parts().items()
    }


@pytest.mark.parametrize("kind", CENTERS)
def test_integers_do_not_wait_for_workers_that_are_gone(kind: type) -> None:
    first = center_of(kind, num_workers=3)
    for worker, steps in ((0, 4), (2, 9)):
        first.commit(update(worker, counters=integers(steps), steps=steps))
    assert first.snapshot().counters.tolist() == [9]
    for workers, then in ((None, 9), ([0, 1, 2], 9), ([0, 1], 10)):
        second = center_of(kind, first.snapshot(), num_workers=2)
        second.restore(first.checkpoint(), workers)
        second.commit(update(1, counters=integers(11), steps=2))  # fewer than worker 0 has
        second.commit(update(0, counters=integers(10), steps=1))
        assert second.snapshot().counters.tolist() == [then]


def test_a_restored_center_knows_how_far_the_last_updates_agreed() -> None:
    # K = 4 and long rounds: the first update has weight K^-1/2 = 1/2, those that agree with others 1/K = 1/4. So m is
    # 0.05, 0.07, 0.088, 0.1042, and after the fifth 0.9 x 0.1042 + 0.1 / 4 = 0.11878: a step of 0.7 (1/4 + 0.9 m)
    first = LockedCenter(state(0, 0), LAYOUT, MomentumLookAhead(), 4)
    for worker in range(4):
        first.commit(update(worker, 1, 0, steps=10_000))
    np.testing.assert_allclose(first.checkpoint()["outer.momentum"], [0.1042, 0], rtol=1e-6)
    whole = 0.7 * (0.25 + 0.9 * 0.11878)
    # an earlier version's checkpoint has no directions: m is 0.9 x 0.1042 + 0.1 / 2 = 0.14378
    saved = first.checkpoint()
    earlier = {name: array for name, array in saved.items() if not name.startswith("direction.")}
    for arrays, step in ((saved, whole), (earlier, 0.7 * (0.5 + 0.9 * 0.14378))):
        second = LockedCenter(first.snapshot(), LAYOUT, MomentumLookAhead(), 4)
        second.restore(arrays)
        second.commit(update(0, 1, 0, steps=10_000))
        moved = second.snapshot().weights - first.snapshot().weights
        np.testing.assert_allclose(moved, [step, 0], rtol=1e-5)


@pytest.mark.parametrize("kind", CENTERS)
def test_too_stale_updates_are_dropped(kind: type) -> None:
    center = center_of(kind, state(0, 0), max_staleness=1)
    assert center.commit(update(0, 1, 0, version=0)).applied  # staleness 0: version 1
    assert center.commit(update(1, 2, 0, version=0)).applied  # 1: version 2
    assert not center.commit(update(2, 4, 0, version=0, slots=floats(9, 9))).applied  # 2
    assert not center.commit(update(3, float("nan"), 0, version=0)).applied  # not even looked at
    assert center.version == 2
    after = center.snapshot()
    assert after.weights.tolist() == [3, 0]
    assert after.slots.tolist() == [0, 0]
    assert center.commit(update(2, 8, 0, version=1)).applied  # it went on from what was served then
    assert center.snapshot().weights.tolist() == [11, 0]


@pytest.mark.parametrize("kind", CENTERS)
def test_a_learning_rate_that_a_step_has_set_is_an_error(kind: type) -> None:
    center = center_of(kind)
    with pytest.raises(ElephasError, match=r"set the learning rate.*mode='synchronous'"):
        center.commit(update(0, 1.0, 0.0, learning_rate=floats(0.25)))
