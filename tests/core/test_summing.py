"""Updates whose vectors are added up in slices, elsewhere: the round is the one of whole updates, to the last bit."""

from __future__ import annotations

import pickle
from dataclasses import replace

import numpy as np
import pytest
from plain_numpy import floats, integers, nothing, state, update

from elephas_like.core.averaging import Round
from elephas_like.core.errors import NonFiniteError
from elephas_like.core.layout import Layout, LayoutEntry
from elephas_like.core.strategies import (
    Average,
    Clipped,
    Context,
    FedAdam,
    Mean,
    Median,
    Nesterov,
    Strategy,
    Total,
)
from elephas_like.core.strategies.algebra import WeightedMean
from elephas_like.core.strategies.codecs import Int8
from elephas_like.core.summing import Summed, Weighed, adds_up, cut
from elephas_like.core.types import OnNaN, Role, TrainState, Update

SIZE = 1000
LAYOUT = Layout(
    (
        LayoutEntry("kernel", Role.WEIGHT, (SIZE,), "float32"),
        LayoutEntry("mean", Role.STATISTIC, (1,), "float32"),
        LayoutEntry("variance", Role.STATISTIC, (1,), "float32", variance_of=0),
        LayoutEntry("frozen", Role.FROZEN, (2,), "float32"),
        LayoutEntry("moments", Role.SLOT, (2 * SIZE,), "float32"),
        LayoutEntry("iteration", Role.COUNTER, (), "int64"),
        LayoutEntry("learning_rate", Role.LEARNING_RATE, (), "float32"),
        LayoutEntry("step_counter", Role.LOSS_SCALE, (), "int64"),
        LayoutEntry("scale", Role.LOSS_SCALE, (), "float32"),
        LayoutEntry("seed", Role.SEED, (2,), "int64"),
    )
)


def large(seed: int = 0) -> TrainState:
    random = np.random.default_rng(seed)
    return state().but(
        weights=random.normal(size=SIZE).astype("float32"), slots=random.normal(size=2 * SIZE).astype("float32")
    )


def updates(count: int = 5, seed: int = 0) -> list[Update]:
    """Of 1, 2, 0, 3, 4, ... samples; without samples nothing was trained."""
    random = np.random.default_rng(seed)
    found = []
    for worker, samples in zip(range(count), [1, 2, 0, 3, 4, 5, 6][:count], strict=True):
        brought = update(
            worker,
            samples=samples,
            statistics=floats(random.normal(), random.random()),
            counters=integers(worker),
            steps=samples,
        )
        delta = random.normal(size=SIZE).astype("float32")
        found.append(replace(brought, delta=delta, slots=random.normal(size=2 * SIZE).astype("float32")))
    return [nothing(2) if not one.samples else one for one in found]


def both(
    strategy: Strategy, brought: list[Update], slices: int, on_nan: OnNaN = OnNaN.RAISE, **options: object
) -> tuple[Round, Round]:
    """A round of whole updates, and one of slices that were added up one by one, after a journey, and came in another order."""
    start = large()
    whole, summed = (
        Round(
            start, strategy.init(start.weights), LAYOUT, strategy, Context(0, len(brought), LAYOUT), on_nan, **options
        )
        for _ in range(2)
    )
    for one in brought:
        whole.add(one)
    weighing = pickle.loads(pickle.dumps(summed.weighing))  # noqa: S301
    weighed = [weighing.weigh(one, start) for one in brought]
    places: list[list[object]] = [[] for _ in range(slices)]
    for one in reversed(weighed):
        if one.counts:
            for place, term in enumerate(cut(one, slices)):
                places[place].append(term)
    partials = [weighing.added(place, terms) for place, terms in enumerate(places)]
    summed.add_summed(Summed.of([one.without_vectors() for one in reversed(weighed)], reversed(partials)))
    return whole, summed


def check_equal(whole: Round, summed: Round) -> None:
    """The same next state, strategy's memory, records and drift, to the last bit."""
    (expected, outer), (found, found_outer) = whole.finish(), summed.finish()
    for name, part in expected.parts().items():
        assert part.tobytes() == found.parts()[name].tobytes(), name
    assert {name: vector.tobytes() for name, vector in outer.items()} == {
        name: vector.tobytes() for name, vector in found_outer.items()
    }
    assert (whole.records, whole.agreement) == (summed.records, summed.agreement)
    assert [one.tolist() for one in whole.metrics] == [one.tolist() for one in summed.metrics]


@pytest.mark.parametrize("slices", [1, 2, 3, 7, 2500])
@pytest.mark.parametrize(
    "strategy",
    [Average(), Nesterov(), FedAdam(), Average(reduce=Mean(equal=True)), Nesterov(reduce=Total())],
    ids=["average", "nesterov", "fedadam", "equal", "total"],
)
def test_a_round_of_slices_is_the_round_of_whole_updates(strategy: Strategy, slices: int) -> None:
    assert adds_up(strategy, Context(0, 5, LAYOUT))
    check_equal(*both(strategy, updates(), slices))


def test_a_slice_says_whose_it_is() -> None:
    brought = updates()
    weighing = Round(large(), {}, LAYOUT, Average(), Context(0, 5, LAYOUT)).weighing
    weighed = [weighing.weigh(one, large()) for one in brought]
    terms = [term for one in (weighed[4], weighed[0]) for term in cut(one, 1)]
    assert weighing.added(0, terms).workers == (0, 4)


class Forgetful(Average):
    """A strategy whose reduction does not go on from a checkpoint."""

    def reduction(self, context, held=None):
        return WeightedMean()


def test_a_strategy_whose_reduction_knows_no_checkpoint_is_stepped_as_well() -> None:
    check_equal(*both(Forgetful(), updates(), 3))


def test_the_drift_of_weights_in_place_of_deltas_is_that_of_the_way_they_went() -> None:
    class Weights(Average):
        deltas = False

    (one,) = updates(1)
    start = large()
    weighing = Round(start, {}, LAYOUT, Weights(), Context(0, 1, LAYOUT)).weighing
    assert weighing.weigh(one, start).direction.tolist() == (one.delta - start.weights).tolist()


def test_what_a_codec_has_packed_is_unpacked_before_it_is_cut() -> None:
    codec = Int8()
    packed = [replace(one, delta=codec.pack(one.delta)) if one.samples else one for one in updates()]
    check_equal(*both(Nesterov(), packed, 3, codec=codec))


def test_slots_that_workers_keep_are_not_there() -> None:
    kept = [replace(one, slots=floats()) for one in updates()]
    check_equal(*both(Average(), kept, 2))
    assert both(Average(), kept, 2)[1].finish()[0].slots.tolist() == large().slots.tolist()


def test_an_update_with_nan_is_left_out_of_every_slice() -> None:
    brought = updates()
    brought[1] = replace(brought[1], delta=np.full(SIZE, np.nan, np.float32))
    brought[3] = replace(brought[3], slots=np.full(2 * SIZE, np.inf, np.float32))
    whole, summed = both(Average(), brought, 3, OnNaN.DROP)
    assert [record.dropped for record in summed.records] == [0, 1, 0, 1, 0]
    check_equal(whole, summed)


def test_an_update_with_nan_is_the_error_of_whole_updates() -> None:
    brought = [replace(one, number=17) for one in updates()]
    brought[3] = replace(brought[3], slots=np.full(2 * SIZE, np.inf, np.float32))
    weighing = Round(large(), {}, LAYOUT, Average(), Context(0, 5, LAYOUT)).weighing
    summed = Round(large(), {}, LAYOUT, Average(), Context(0, 5, LAYOUT))
    with pytest.raises(NonFiniteError, match=r"worker 3 brought NaN or infinity in round 17 \(in moments\)"):
        summed.add_summed(Summed([weighing.weigh(one, large()).without_vectors() for one in brought], {}, {}))


def test_nobody_trained() -> None:
    _, summed = both(Nesterov(), [nothing(0), nothing(1)], 2)
    assert summed.finish()[0] is summed.start


def test_left_behind_are_only_the_vectors() -> None:
    (one,) = updates(1)
    weighed = Round(large(), {}, LAYOUT, Average(), Context(0, 1, LAYOUT)).weighing.weigh(one, large())
    left = weighed.without_vectors()
    assert isinstance(left, Weighed)
    assert (left.update.delta.size, left.update.slots.size, left.weight, left.counts) == (0, 0, 1.0, True)
    assert Summed([left], {}, {}).nbytes < 4 * SIZE + 200  # 1,000 numbers tell the drift, of more weights 2^14


@pytest.mark.parametrize("strategy", [Average(reduce=Median()), Nesterov(reduce=Clipped(1.0))], ids=["median", "norm"])
def test_what_needs_whole_updates_does_not_add_up(strategy: Strategy) -> None:
    assert not adds_up(strategy, Context(0, 5, LAYOUT))


def test_weights_in_place_of_deltas_do_not_add_up() -> None:
    class Weights(Average):
        deltas = False

    assert not adds_up(Weights(), Context(0, 5, LAYOUT))
