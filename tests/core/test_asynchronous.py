"""Two workers, two weights, three exchanges each, by hand. Start (1, -1); the workers come in turn and bring

w0: (4, 0)   w1: (0, 4)   w0: (-4, 8)   w1: (4, 0)   w0: (0, -4)   w1: (-4, 4)
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from plain_numpy import LAYOUT, floats, nothing, state, update

from elephas_like.core.center import LockedCenter
from elephas_like.core.drift import Agreement
from elephas_like.core.layout import Layout, LayoutEntry
from elephas_like.core.strategies import (
    ADAG,
    STRATEGIES,
    Context,
    DelayedNesterov,
    DownPour,
    DownPourAdagrad,
    DynSGD,
    FedAsync,
    FedBuff,
    HeLoCo,
    Median,
    MomentumLookAhead,
    Nesterov,
    StalenessAware,
    Strategy,
)
from elephas_like.core.types import Mode, Role

DELTAS = [(4, 0), (0, 4), (-4, 8), (4, 0), (0, -4), (-4, 4)]


def six_exchanges(strategy: Strategy) -> tuple[list[list[float]], list[float]]:
    """The weights after each round of two exchanges, and what is served at the end."""
    center, after = LockedCenter(state(1, -1), LAYOUT, strategy, 2), []
    for exchange, delta in enumerate(DELTAS):
        # Neither strategy weighs by samples: 1 and 3 of them make no difference.
        assert center.commit(update(exchange % 2, *delta, samples=1 + 2 * (exchange % 2))).applied
        after.append(center.snapshot().weights.tolist())
    return after[1::2], center.served()[1].weights.tolist()


def test_downpour_adds_up() -> None:
    # (1 + 4, -1 + 4); (5 - 4 + 4, 3 + 8); (5 - 4, 11 - 4 + 4)
    after, served = six_exchanges(DownPour())
    assert after == [[5, 3], [5, 11], [1, 11]]
    assert served == [1, 11]


def test_momentum_look_ahead() -> None:
    # lr = 1, mu = 1/2. In units of s = 2^-1/2, from X = 0, M = 0:  M <- M/2 + d/2,  X <- X + d + M/2
    #   ( 4,  0): M = ( 2      ,  0    )   X = ( 5      ,  0     )
    #   ( 0,  4): M = ( 1      ,  2    )   X = ( 5.5    ,  5     )
    #   (-4,  8): M = (-1.5    ,  5    )   X = ( 0.75   , 15.5   )
    #   ( 4,  0): M = ( 1.25   ,  2.5  )   X = ( 5.375  , 16.75  )
    #   ( 0, -4): M = ( 0.625  , -0.75 )   X = ( 5.6875 , 12.375 )
    #   (-4,  4): M = (-1.6875 ,  1.625)   X = ( 0.84375, 17.1875)
    # x = (1, -1) + 0.70710678 X; one other comes in between: r = 1/2 + 3/2 = 2, served is x + 2 (-1.19324270, 1.14904852)
    after, served = six_exchanges(MomentumLookAhead(learning_rate=1.0, momentum=0.5))
    assert after[0] == pytest.approx([4.88908730, 2.53553391])
    assert after[1] == pytest.approx([4.80069894, 10.84403858])
    assert after[2] == pytest.approx([1.59662135, 11.15339780])
    assert served == pytest.approx([-0.78986404, 13.45149484])


def test_momentum_look_ahead_as_it_comes() -> None:
    # K = 4: s = 1/2. lr = 0.7, mu = 0.9; delta (4, -8): d = (2, -4), m = 0.1 d = (0.2, -0.4),
    # x = 0.7 (d + 0.9 m) = 0.7 (2.18, -4.36) = (1.526, -3.052); r = 0.9 + 1.9 x 3 = 6.6, served x + 4.62 m = (2.45, -4.9)
    center = LockedCenter(state(0, 0), LAYOUT, MomentumLookAhead(), 4)
    assert center.served()[1].weights.tolist() == [0, 0]
    center.commit(update(2, 4, -8, samples=7))
    assert center.snapshot().weights.tolist() == pytest.approx([1.526, -3.052])
    assert center.served()[1].weights.tolist() == pytest.approx([2.45, -4.9])


@pytest.mark.parametrize("strategy", [kind() for kind in STRATEGIES.values() if Mode.ASYNCHRONOUS in kind.modes])
def test_who_trained_nothing_does_not_shake_the_momentum(strategy: Strategy) -> None:
    center = LockedCenter(state(1, -1), LAYOUT, strategy, 2)
    center.commit(update(0, 4, 0))
    before = center.served()
    center.commit(nothing(1))
    center.commit(update(1, 0, 0, samples=0))
    assert center.served()[0] == before[0]
    assert center.served()[1].weights.tolist() == before[1].weights.tolist()


def test_what_updates_weigh() -> None:
    # K = 4: 1/2, whatever the samples, but nothing for none; downpour takes all of every delta
    assert MomentumLookAhead().weight(update(samples=7), Context(0, 4)) == 0.5
    assert MomentumLookAhead().weight(update(samples=0), Context(0, 4)) == 0.0
    assert DownPour().weight(update(samples=7), Context(0, 4)) == 1.0


@pytest.mark.parametrize(
    ("cosine", "steps", "weight"),
    [
        (None, 100, 0.5),  # nothing to compare with: K^-1/2
        (-0.5, 100, 0.5),
        (0.0, 100, 0.5),
        (0.25, 100, 0.37796447),  # 1 / (4 sqrt(1/4 + 3/16)), four such updates together are as long as one
        (1.0, 100, 0.25),
        (1.0, 3, 0.33333333),  # 4 steps / (4 x 3)
        (1.0, 2, 0.5),  # four of them together are 4 steps long
        (1.0, 0, 0.5),
    ],
)
def test_updates_that_agree_weigh_less_if_they_are_long(cosine: float | None, steps: int, weight: float) -> None:
    context = Context(0, 4, agreement=Agreement(cosine, updates=4))
    for strategy in (MomentumLookAhead(), HeLoCo()):
        assert strategy.weight(replace(update(samples=7), steps=steps), context) == pytest.approx(weight, rel=1e-6)


@pytest.mark.parametrize(
    ("steps", "reach"),
    [
        (1, 6.6),  # 0.9 + 1.9 x 3: the three others' whole way
        (8, 6.6),  # 4 x 1/2 x 8: 16 steps
        (16, 3.75),  # half of that way
        (3200, 0.91425),
    ],
)
def test_workers_are_sent_where_the_others_will_have_led(steps: int, reach: float) -> None:
    # lr = 1; the first delta (4, 0), K = 4: d = (2, 0), m = (0.2, 0), x = (2.18, 0). A quarter of it where all agree: the next test
    center = LockedCenter(state(0, 0), LAYOUT, MomentumLookAhead(learning_rate=1.0), 4)
    center.commit(replace(update(1, 4, 0), steps=steps))
    assert center.snapshot().weights.tolist() == pytest.approx([2.18, 0])
    assert center.served()[1].weights.tolist() == pytest.approx([2.18 + reach * 0.2, 0])


def test_updates_of_less_weight_are_told_further_in_advance() -> None:
    # K = 4, 16 steps: 1/2 gives 3.75 (above); 1/4, of updates that agree: 4 x 1/4 x 16 = 16 steps, all of the way
    strategy = MomentumLookAhead(learning_rate=1.0)
    outer = strategy.init(floats(0, 0))
    for weight, reach in ((0.5, 3.75), (0.25, 6.6)):
        _, after = strategy.step(floats(0, 0), floats(1, 0), outer, Context(0, 4, weight=weight, steps=16))
        assert after["reach"].tolist() == pytest.approx([reach])


@pytest.mark.parametrize(
    ("version", "others"),
    [
        (4, 2.25),
        (3, 2.5),
        (0, 3),
    ],  # of 4 exchanges: none, one and four came in between, so that b = 3 moves by a quarter of -3, -2 and 1; there are three others
)
def test_workers_that_do_not_exchange_are_counted_less_and_less(version: int, others: float) -> None:
    # lr = 1, K = 4; four deltas (4, 0), and a fifth that started from `version`
    center = LockedCenter(state(0, 0), LAYOUT, MomentumLookAhead(learning_rate=1.0), 4)
    for worker in range(4):
        center.commit(update(worker, 4, 0))
    before = center.served()[1].weights[0] - center.snapshot().weights[0]
    center.commit(update(0, 4, 0, version=version))
    momentum = 2 * (1 - 0.9**5)  # of five deltas times 1/2
    assert before == pytest.approx(6.6 * 2 * (1 - 0.9**4), rel=1e-5)
    reach = 0.9 + 1.9 * others
    assert center.served()[1].weights[0] - center.snapshot().weights[0] == pytest.approx(reach * momentum, rel=1e-5)


def test_the_only_worker_that_exchanges_is_soon_sent_what_its_own_momentum_leads_to() -> None:
    center = LockedCenter(state(0, 0), LAYOUT, MomentumLookAhead(learning_rate=1.0), 4)
    for exchange in range(60):
        center.commit(update(0, 4, 0, version=exchange))
    momentum = 2 * (1 - 0.9**60)
    # b = 3 (3/4)^56, after four exchanges that tell nothing
    assert center.served()[1].weights[0] - center.snapshot().weights[0] == pytest.approx(0.9 * momentum, rel=1e-4)


def test_one_worker_is_sent_what_its_own_momentum_leads_to() -> None:
    # lr = 1, mu = 1/2: m = (2, 0), x = (5, 0); nobody else comes in between: x + m/2
    center = LockedCenter(state(0, 0), LAYOUT, MomentumLookAhead(1.0, 0.5), 1)
    center.commit(update(0, 4, 0))
    assert center.served()[1].weights.tolist() == [6, 0]


def test_checkpoints_of_before_say_nothing_of_the_others() -> None:
    # their workers were sent x + lr mu m
    strategy = MomentumLookAhead(learning_rate=1.0, momentum=0.5)
    assert strategy.serve(floats(5, 0), {"momentum": floats(2, 0)}, Context(0, 4)).tolist() == [6, 0]
    _, after = strategy.step(floats(5, 0), floats(4, 0), {"momentum": floats(2, 0)}, Context(0, 4, weight=0.5, steps=1))
    assert set(after) == {"momentum", "reach", "others"}
    assert after["others"].tolist() == [3]


def test_the_center_knows_how_far_the_last_updates_agree() -> None:
    # lr = 1, mu = 0: x is the sum of weighted deltas. One update alone weighs 2^-1/2; the other worker's goes the same
    # way: 1/2. Then worker 0 turns: (0, 1) against (1, 0), a cosine of 0.
    center = LockedCenter(state(0, 0), LAYOUT, MomentumLookAhead(learning_rate=1.0, momentum=0.0), 2)
    seen = []
    for worker, delta in ((0, (4, 0)), (1, (2, 0)), (0, (0, 8))):
        center.commit(replace(update(worker, *delta), steps=1000))
        seen.append(center.snapshot().weights.tolist())
    np.testing.assert_allclose(seen, [[2.828427, 0], [3.828427, 0], [3.828427, 5.656854]], rtol=1e-6)


def test_modes() -> None:
    assert MomentumLookAhead.modes == {Mode.ASYNCHRONOUS}
    assert DownPour.modes == {Mode.ASYNCHRONOUS, Mode.HOGWILD}
    assert DownPour.additive
    assert not MomentumLookAhead.additive


def pushes(strategy: Strategy, *brought: tuple[tuple[float, float], int], num_workers: int = 2) -> list[list[float]]:
    """The weights after each (delta, version that it started from), from (1, -1)."""
    center, after = LockedCenter(state(1, -1), LAYOUT, strategy, num_workers), []
    for exchange, (delta, version) in enumerate(brought):
        assert center.commit(update(exchange % num_workers, *delta, samples=1 + exchange, version=version)).applied
        after.append(center.snapshot().weights.tolist())
    return after


def test_downpour_with_adagrad() -> None:
    # lr = epsilon = 1: v = (16, 0): + 4/5; v = (16, 16): + 4/5; v = (32, 80): (-4/6.65685425, 8/9.94427191); ...
    after, _ = six_exchanges(DownPourAdagrad(learning_rate=1.0, epsilon=1.0))
    assert after[0] == pytest.approx([1.8, -0.2])
    assert after[1] == pytest.approx([1.70364352, 0.60448323])
    assert after[2] == pytest.approx([1.25919907, 0.57937638])
    # as it comes, a first step is as long as the learning rate, in each coordinate that moves
    assert pushes(DownPourAdagrad(), ((4, -8), 0))[0] == pytest.approx([1.01, -1.01])


def test_adag_sends_the_mean_step() -> None:
    sent, _ = ADAG().encode(floats(1, 1), floats(5, -7), 4, {}, Context(0, 8))  # (4, -8)/4, whatever K
    assert sent.tolist() == [1, -2]
    assert pushes(ADAG(), ((1, -2), 0), ((1, 0), 0)) == [[2, -3], [3, -3]]
    assert ADAG.additive


# A delta's staleness is the center's version less the one it started from: 0, 1, 2, 1 here.
STALE = [((4, 0), 0), ((0, 4), 0), ((-6, 6), 0), ((4, 0), 2)]


def test_dynsgd() -> None:
    # 1, 1/2, 1/3, 1/2 of the deltas: (5, -1), (5, 1), (3, 3), (5, 3)
    assert pushes(DynSGD(), *STALE) == [[5, -1], [5, 1], pytest.approx([3, 3]), pytest.approx([5, 3])]


def test_staleness_aware() -> None:
    # 1, 1, 1/2, 1: (5, -1), (5, 3), (2, 6), (6, 6)
    assert pushes(StalenessAware(), *STALE) == [[5, -1], [5, 3], [2, 6], [6, 6]]


def test_fedasync_mixes_weights_in() -> None:
    # alpha = 1/2, power = 1: a = 1/2, 1/4, 1/6. Sent are weights: (5, -1): x = (3, -1); (1, 3): x = (3, -1) + (-2, 4)/4 =
    # (2.5, 0); (-3.5, 6): x = (2.5, 0) + (-6, 6)/6 = (1.5, 1)
    brought = ((5, -1), 0), ((1, 3), 0), ((-3.5, 6), 0)
    assert pushes(FedAsync(alpha=0.5, power=1.0), *brought) == [[3, -1], [2.5, 0], pytest.approx([1.5, 1])]
    sent, _ = FedAsync().encode(floats(1, 1), floats(5, -7), 4, {}, Context(0, 8))
    assert sent.tolist() == [5, -7]
    # as it comes: 0.6, and 0.6 / sqrt 4 at a staleness of 3
    assert FedAsync().weight(update(version=2), Context(2, 4)) == pytest.approx(0.6)
    assert FedAsync().weight(update(version=2), Context(5, 4)) == pytest.approx(0.3)


def test_fedbuff_steps_when_its_buffer_is_full() -> None:
    # M = 2, power = 1, lr = 1: nothing; ((4, 0) + (0, 4))/2; nothing; then both are one step stale:
    # ((-4, 8)/2 + (4, 0)/2)/2 = (0, 2); the next one is not stale, the last by 1: ((0, -4) + (-4, 4)/2)/2 = (-1, -1)
    strategy = FedBuff(buffer=2, power=1.0)
    brought = [((4, 0), 0), ((0, 4), 0), ((-4, 8), 0), ((4, 0), 0), ((0, -4), 2), ((-4, 4), 1)]
    assert pushes(strategy, *brought) == [[1, -1], [3, 1], [3, 1], [3, 3], [3, 3], [2, 2]]
    assert pushes(FedBuff(buffer=2, power=0.0, learning_rate=2.0), *brought[:2])[-1] == [5, 3]
    assert FedBuff().quorum(8) == 8
    assert FedBuff(buffer=3).quorum(8) == 3
    assert FedBuff(buffer=1).weight(update(version=0), Context(3, 4)) == 0.5  # (1 + 3)^-1/2


def test_delayed_nesterov() -> None:
    # N = K = 2, lr = 1, mu = 1/2. (4, 0)/2: (3, -1). (0, 4)/2: (3, 1), m = (2, 2), + m/2: (4, 2)
    # (-4, 8)/2: (2, 6). (4, 0)/2: (4, 6), m = (1, 1) + (0, 4) = (1, 5), + m/2: (4.5, 8.5)
    # (0, -4)/2: (4.5, 6.5). (-4, 4)/2: (2.5, 8.5), m = (0.5, 2.5) + (-2, 0) = (-1.5, 2.5), + m/2: (1.75, 9.75)
    strategy = DelayedNesterov(learning_rate=1.0, momentum=0.5)
    brought = [(delta, 0) for delta in DELTAS]
    assert pushes(strategy, *brought) == [[3, -1], [4, 2], [2, 6], [4.5, 8.5], [4.5, 6.5], [1.75, 9.75]]


@pytest.mark.parametrize("delay", [1, 2, 3, 6])
def test_delayed_nesterov_moves_as_nesterov_does(delay: int) -> None:
    # N pushes move as one Nesterov step over their mean; with N = 1 it is Nesterov
    ours = pushes(DelayedNesterov(delay=delay, learning_rate=0.7, momentum=0.9), *((delta, 0) for delta in DELTAS))
    nesterov, outer, weights = Nesterov(0.7, 0.9), {"momentum": floats(0, 0)}, floats(1, -1)
    for begin in range(0, 6, delay):
        mean = np.mean(DELTAS[begin : begin + delay], axis=0).astype(np.float32)
        weights, outer = nesterov.step(weights, mean, outer, Context(0, 2))
        np.testing.assert_allclose(ours[begin + delay - 1], weights, rtol=1e-5)


def heloco(direction: tuple[float, ...], momentum: tuple[float, ...] = (2, 0), **other: object) -> list[float]:
    context = Context(0, 1, weight=1.0, layout=other.pop("layout", Layout(())))
    return HeLoCo(**other).corrected(floats(*direction), floats(*momentum), context).tolist()


def test_heloco_leaves_what_goes_along() -> None:
    assert heloco((3, 4)) == [3, 4]  # cosine 0.6
    assert heloco((1, 4)) == [1, 4]  # 0.243, just above 0.2
    assert heloco((-3, 4), momentum=(0, 0)) == [-3, 4]  # no momentum yet
    assert heloco((0, 0)) == [0, 0]


def test_heloco_turns_what_goes_aside() -> None:
    # |d| = 5, |m| = 2: conf = 5/(5 + 3 x 2) = 5/11; cosine 0: l = 5/11; (5/11, 6/11) made 5 long
    assert heloco((0, 5)) == pytest.approx([3.20092200, 3.84110640])
    # turn = 10 would be more than all: m's own direction
    assert heloco((0, 5), turn=10.0) == pytest.approx([5, 0])


def test_heloco_shrinks_what_goes_against() -> None:
    # cosine -0.6: s = 0.5 x 0.6 x 5/11 = 3/22; (-3, 4) + 3/22 x 0.6 x 5 (1, 0)
    assert heloco((-3, 4)) == pytest.approx([-2.59090909, 4])
    # never more than half of what goes against: (-3 + 1.5, 4)
    assert heloco((-3, 4), shrink=100.0) == pytest.approx([-1.5, 4])


def test_heloco_looks_at_each_tensor() -> None:
    # tensor a: against, cosine -1: conf = 5/11, s = 5/22: -5 + 25/22. tensor b: along
    layout = Layout((LayoutEntry("a", Role.WEIGHT, (1,), "float32"), LayoutEntry("b", Role.WEIGHT, (1,), "float32")))
    assert heloco((-5, 4), momentum=(2, 7), layout=layout) == pytest.approx([-5 + 25 / 22, 4])


def test_heloco_corrects_the_delta_before_it_weighs_it() -> None:
    # K = 4: d arrives as (-1.5, 2); corrected as (-3, 4), then halved
    context = Context(0, 4, weight=0.5)
    corrected = HeLoCo().corrected(floats(-1.5, 2), floats(2, 0), context)
    assert corrected.tolist() == pytest.approx([-2.59090909 / 2, 2])


def test_heloco_steps_as_mla_does() -> None:
    # the first delta meets no momentum: the same; the second is corrected
    first = [pushes(kind(1.0, 0.5), ((4, 0), 0), num_workers=1) for kind in (HeLoCo, MomentumLookAhead)]
    assert first[0] == first[1] == [[6, -1]]  # m = (2, 0), x + (4, 0) + (1, 0)
    # d = (-3, 4) becomes (-2.59090909, 4); m = (1, 0) + d/2 = (-0.29545455, 2); x + d + m/2
    second = pushes(HeLoCo(1.0, 0.5), ((4, 0), 0), ((-3, 4), 1), num_workers=1)[1]
    assert second == pytest.approx([6 - 2.59090909 - 0.14772727, -1 + 4 + 1])


@pytest.mark.parametrize(
    "make",
    [
        lambda: FedAsync(alpha=0),
        lambda: FedAsync(alpha=1.5),
        lambda: FedAsync(power=-1),
        lambda: FedBuff(buffer=0),
        lambda: FedBuff(power=-0.5),
        lambda: DelayedNesterov(delay=0),
        lambda: DelayedNesterov(momentum=1.0),
        lambda: DownPourAdagrad(learning_rate=0),
        lambda: MomentumLookAhead(momentum=1.5),
    ],
)
def test_numbers_that_make_no_sense(make: object) -> None:
    with pytest.raises(ValueError, match="must be"):
        make()


def test_weights_are_not_for_parts() -> None:
    with pytest.raises(TypeError, match="fedasync sends weights, not deltas"):
        FedAsync(reduce=Median())
