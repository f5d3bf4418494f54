"""Parts that make many deltas one direction, by hand, and around each other."""

from __future__ import annotations

import numpy as np
import pytest
from exchanges import three_rounds
from plain_numpy import LAYOUT, floats, state, update

from elephas_like.core.averaging import Round
from elephas_like.core.layout import Layout, LayoutEntry
from elephas_like.core.strategies import (
    RDA,
    Average,
    Clipped,
    Context,
    DownPour,
    Mean,
    Median,
    MedianAverage,
    MomentumLookAhead,
    Nesterov,
    Radial,
    Reduce,
    Total,
    TrimmedAverage,
    TrimmedMean,
)
from elephas_like.core.types import Role

CONTEXT = Context(0, 3)
TWO_TENSORS = Layout((LayoutEntry("a", Role.WEIGHT, (1,), "float32"), LayoutEntry("b", Role.WEIGHT, (1, 1), "float32")))
PARTS = [Mean(), Mean(equal=True), Total(), Median(), TrimmedMean(0.25), Radial(), Clipped(1.5), Clipped(1.0, Median())]


def made(
    part: Reduce, *deltas: tuple[float, ...], weights: list[float] | None = None, context: Context = CONTEXT
) -> list:
    reduction = part.begin(context)
    for delta, weight in zip(deltas, weights or [1.0] * len(deltas), strict=True):
        reduction.add(floats(*delta), weight)
    return reduction.result().tolist()


def test_median() -> None:
    assert made(Median(), (1, 9), (100, 5), (2, -7)) == [2, 5]
    assert made(Median(), (1, 9), (100, 5), (2, -7), (4, 6)) == [3, 5.5]  # the middle two: (2 + 4)/2, (5 + 6)/2
    assert made(Median(), (1, 9), (100, 5), (2, -7), weights=[50, 1, 1]) == [2, 5]  # whatever they weigh
    assert made(Median(), (1, 9), (100, 5), weights=[1, 0]) == [1, 9]  # but nothing is nothing


def test_trimmed_mean() -> None:
    # of 5 at 0.2 one goes at each end: (1 + 2 + 3)/3 and (5 + 6 + 7)/3
    assert made(TrimmedMean(0.2), (1, 9), (100, 5), (2, -7), (3, 6), (-5, 7)) == [2, 6]
    assert made(TrimmedMean(0.2), (1, 9), (100, 5)) == [50.5, 7]  # of 2 none goes
    assert made(TrimmedMean(0.4), (1, 9), (100, 5), (2, -7)) == [2, 5]  # floor(1.2) at each end: the median


@pytest.mark.parametrize("share", [0.5, 0.9, -0.1, "0.1"])
def test_what_cannot_be_trimmed(share: object) -> None:
    with pytest.raises(ValueError, match="share"):
        TrimmedMean(share)


def test_radial_keeps_the_length() -> None:
    # at right angles, both 5 long: the mean is 3.54 long, this 5
    assert made(Radial(), (5, 0), (0, 5)) == pytest.approx([5 / 2**0.5, 5 / 2**0.5])
    # lengths 2 and 6, weights 3 and 1: (6 + 6)/4 = 3 along (3, 0) + (0, 1)
    assert made(Radial(), (2, 0), (0, 6), weights=[3, 1]) == pytest.approx([9 / 10**0.5, 3 / 10**0.5])


def test_radial_looks_at_each_tensor() -> None:
    # tensor a: lengths 4 and 2 one way: 3. tensor b: lengths 0 and 6: 3, and only one direction
    assert made(Radial(), (4, 0), (2, -6), context=Context(0, 2, TWO_TENSORS)) == pytest.approx([3, -3])


def test_radial_where_nothing_moved_or_all_cancels() -> None:
    assert made(Radial(), (0, 0), (0, 0)) == [0, 0]
    assert made(Radial(), (1, 0), (-1, 0)) == [0, 0]


def test_radial_weighs_samples_by_samples_a_step() -> None:
    assert Radial().weight(update(samples=6, steps=3), CONTEXT) == 12
    assert RDA().weight(update(samples=6, steps=3), CONTEXT) == 12
    assert Nesterov(reduce=Radial()).weight(update(samples=6, steps=3), CONTEXT) == 12
    assert Nesterov(reduce=Clipped(1.0, Radial())).weight(update(samples=6, steps=3), CONTEXT) == 12
    assert Nesterov().weight(update(samples=6, steps=3), CONTEXT) == 6
    assert Total().weight(update(samples=6, steps=3), CONTEXT) == 6
    assert Nesterov(reduce=Mean(equal=True)).weight(update(samples=6), CONTEXT) == 1
    assert Nesterov(reduce=Mean(equal=True)).weight(update(samples=0), CONTEXT) == 0


def test_rda_of_one_worker_is_what_it_did() -> None:
    rng = np.random.default_rng(2)
    for _ in range(20):
        delta = rng.normal(size=2).astype(np.float32)
        after = Round(state(1, 2), {}, LAYOUT, RDA(), Context(0, 1, TWO_TENSORS))
        after.add(update(0, *delta, samples=5))
        np.testing.assert_allclose(after.finish()[0].weights, floats(1, 2) + delta, rtol=1e-6)


def test_clipped() -> None:
    # (6, 8) is 10 long and becomes (3, 4); (0, 3) is short enough: ((3, 4) + (0, 3))/2
    assert made(Clipped(5.0), (6, 8), (0, 3)) == [1.5, 3.5]
    assert made(Clipped(5.0, Total()), (6, 8), (0, 3), weights=[1, 2]) == [3, 10]
    # medians of 3, 0, 0 and 4, 3, 4.5
    assert made(Clipped(5.0, then=Median()), (6, 8), (0, 3), (0, 4.5)) == [0, 4]


def test_what_cannot_be_clipped() -> None:
    with pytest.raises(ValueError, match="norm must be a number above 0; got 0"):
        Clipped(0)
    with pytest.raises(TypeError, match="then must be a Reduce"):
        Clipped(1.0, then=Median)


@pytest.mark.parametrize("strategy", [Nesterov(reduce=Median(), momentum=0.5), Nesterov(0.5, 0.5, reduce=Median())])
def test_a_median_goes_through_the_outer_step(strategy: Nesterov) -> None:
    # median (2, 5): x + lr (d + d/2) = lr (3, 7.5)
    exchange = Round(state(0, 0), strategy.init(floats(0, 0)), LAYOUT, strategy, CONTEXT)
    for worker, delta in enumerate([(1, 9), (100, 5), (2, -7)]):
        exchange.add(update(worker, *delta))
    assert exchange.finish()[0].weights.tolist() == [3 * strategy.learning_rate, 7.5 * strategy.learning_rate]


def test_names_are_short_for_parts() -> None:
    for named, spelled in [(RDA, Radial()), (MedianAverage, Median()), (TrimmedAverage, TrimmedMean())]:
        deltas = [(1, 9), (100, 5), (2, -7), (3, 3), (-8, 4)]
        ends = []
        for strategy in (named(), Average(reduce=spelled)):
            exchange = Round(state(1, 2), {}, LAYOUT, strategy, Context(0, 5))
            for worker, delta in enumerate(deltas):
                exchange.add(update(worker, *delta, samples=worker + 1))
            ends.append(exchange.finish()[0].weights.tolist())
        assert ends[0] == ends[1]
        assert ends[0] != [1, 2]


@pytest.mark.parametrize("part", PARTS)
def test_nothing_has_no_direction(part: Reduce) -> None:
    assert part.begin(CONTEXT).result() is None
    assert part.begin(CONTEXT).held() == {}


@pytest.mark.parametrize("part", PARTS)
def test_the_order_of_deltas_does_not_matter(part: Reduce) -> None:
    rng = np.random.default_rng(3)
    deltas = [tuple(row) for row in rng.normal(size=(7, 2))]
    weights = rng.uniform(1, 9, 7).tolist()
    forwards = made(part, *deltas, weights=weights)
    assert made(part, *deltas[::-1], weights=weights[::-1]) == pytest.approx(forwards, abs=1e-5)


@pytest.mark.parametrize("part", [part for part in PARTS if not isinstance(part, Total)])
def test_only_shares_matter(part: Reduce) -> None:
    deltas = [(1, 9), (100, 5), (2, -7)]
    plain = made(part, *deltas, weights=[1, 2, 3])
    assert made(part, *deltas, weights=[10, 20, 30]) == pytest.approx(plain, rel=1e-5)


@pytest.mark.parametrize("part", PARTS)
def test_deltas_stay_what_they_are(part: Reduce) -> None:
    deltas = [floats(1, 9), floats(100, 5), floats(2, -7)]
    reduction = part.begin(CONTEXT)
    for delta in deltas:
        reduction.add(delta, 1.0)
    reduction.result()
    assert [delta.tolist() for delta in deltas] == [[1, 9], [100, 5], [2, -7]]


@pytest.mark.parametrize("part", PARTS)
def test_a_reduction_goes_on_from_what_it_held(part: Reduce) -> None:
    deltas = [(1, 9), (100, 5), (2, -7), (3, 3)]
    whole = made(part, *deltas, weights=[1, 2, 3, 4])
    first = part.begin(CONTEXT)
    for delta, weight in zip(deltas[:2], [1, 2], strict=True):
        first.add(floats(*delta), weight)
    second = part.begin(CONTEXT, first.held())
    for delta, weight in zip(deltas[2:], [3, 4], strict=True):
        second.add(floats(*delta), weight)
    assert second.result().tolist() == whole


def test_asynchronous_strategies_take_parts_too() -> None:
    # |(6, 8)| = 10: halved. What downpour adds up is added up, and what weighs by K weighs: 4 workers, 4 ** -1/2
    for strategy, expected in [
        (DownPour(reduce=Clipped(5.0, Total())), [3, 4]),
        (DownPour(reduce=Clipped(5.0)), [3, 4]),
        (MomentumLookAhead(reduce=Clipped(5.0)), [1.5, 2]),
        (MomentumLookAhead(reduce=Clipped(9.0, Clipped(5.0))), [1.5, 2]),
    ]:
        context = Context(0, 4)
        reduction = strategy.reduction(context)
        reduction.add(floats(6, 8), strategy.weight(update(samples=9), context))
        assert reduction.result().tolist() == expected


def test_rda() -> None:
    # weights n^2 / steps = 1, 9. Round 1: both 4 long; towards (1, 0) + 9 (0, 1), so 4 (1, 9) / sqrt 82
    # round 2: lengths 8.94427191, 4: (8.94427191 + 36)/10 = 4.49442719 along (-0.4472136, 0.8944272) + (9, 0)
    # round 3: lengths 4, 5.65685425: 5.49116883 along (0, -1) + 9 (-0.70710678, 0.70710678)
    after, outer, _ = three_rounds(RDA())
    assert after[0] == pytest.approx([1.44172610, 2.97553494])
    assert after[1] == pytest.approx([5.91177661, 3.44300069])
    assert after[2] == pytest.approx([1.71309252, 6.98192523])
    assert outer == {}
