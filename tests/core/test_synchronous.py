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
from exchanges import three_rounds
from plain_numpy import LAYOUT, floats, state, update

from elephas_like.core.averaging import Round
from elephas_like.core.layout import Layout, LayoutEntry
from elephas_like.core.messages import Sender
from elephas_like.core.strategies import (
    BMUF,
    Average,
    Clipped,
    Context,
    DiLoCo,
    FedAdagrad,
    FedAdam,
    FedAvgM,
    FedYogi,
    Mean,
    Nesterov,
    NesterovBMUF,
    OneShot,
    SlowMo,
    Strategy,
    Total,
)
from elephas_like.core.strategies.synchronous import OneWorker, of_one_worker
from elephas_like.core.types import Frequency, Mode, Role


def averages(strategy: Strategy, samples: tuple[int, int]) -> tuple[list[list[float]], dict[str, list[float]]]:
    """The weights after each round, and what the strategy remembers at the end."""
    return three_rounds(strategy, samples=samples)[:2]


def test_average() -> None:
    # (1, -1) + (1, 3); + (2, 2); + (-3, 2)
    assert averages(Average(), (1, 3)) == ([[2, 2], [4, 4], [1, 6]], {})


def test_one_shot_is_the_average_of_whole_fits() -> None:
    # three fits, one after the other: (1, -1) + (2, 2); + (0, 4); + (-2, 0)
    assert averages(OneShot(), (1, 1)) == ([[3, 1], [3, 5], [1, 5]], {})


def test_one_worker_s_weights_are_taken_over_to_the_last_bit() -> None:
    # 0.1 + (1e-9 - 0.1) is 0 in float32; the drift is still measured by the step, (-0.1, 1)
    served, end = floats(0.1, 1), floats(1e-9, 2)
    strategy = of_one_worker(Average())
    message = Sender(strategy).message(served, end, 5, Context(0, 1))
    exchange = Round(state(0.1, 1), {}, LAYOUT, strategy, Context(0, 1))
    exchange.add(update(0, *message.tolist(), samples=21))
    assert exchange.finish()[0].weights.tolist() == end.tolist()
    assert exchange.monitor.directions[0].tolist() == pytest.approx([-0.1 / 1.01**0.5, 1 / 1.01**0.5])
    assert served + (end - served) != pytest.approx(end, rel=1e-6, abs=0)


@pytest.mark.parametrize("strategy", [Nesterov(), DiLoCo(), Average(reduce=Clipped(1.0)), OneShot(reduce=Total())])
def test_other_strategies_of_one_worker_step_by_its_delta(strategy: Strategy) -> None:
    assert of_one_worker(strategy) is strategy


@pytest.mark.parametrize("strategy", [Average(reduce=Mean(equal=True)), OneShot(), OneShot(reduce=Mean())])
def test_means_of_one_worker_are_its_weights(strategy: Strategy) -> None:
    assert of_one_worker(strategy) == OneWorker()


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
    after, outer = averages(Nesterov(momentum=0.5), (1, 3))
    assert after == [[2.5, 3.5], [5.75, 7.25], [1.875, 11.125]]
    assert outer == {"momentum": [-1.75, 3.75]}


def test_nesterov_with_a_learning_rate() -> None:
    # lr = 1/2 halves every step from (1, -1): the steps were (1.5, 4.5), (3.25, 3.75), (-3.875, 3.875)
    after, outer = averages(Nesterov(learning_rate=0.5, momentum=0.5), (1, 3))
    assert after == [[1.75, 1.25], [3.375, 3.125], [1.4375, 5.0625]]
    assert outer == {"momentum": [-1.75, 3.75]}


def test_nesterov_as_it_comes() -> None:
    # lr = 1, mu = 0.7: the first step is 1.7 d: (1 + 1.7, -1 + 5.1). Then b = 0.7 (1, 3) + (2, 2) = (2.7, 4.1),
    # x = (2.7, 4.1) + (2, 2) + (1.89, 2.87) = (6.59, 8.97). Then b = (1.89, 2.87) + (-3, 2) = (-1.11, 4.87),
    # x = (6.59, 8.97) + (-3, 2) + (-0.777, 3.409) = (2.813, 14.379)
    after, _ = averages(Nesterov(), (1, 3))
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


def test_diloco_is_nesterov_with_its_own_numbers() -> None:
    # lr = 0.7, mu = 0.9; b = (1, 3): x = (1, -1) + 0.7 ((1, 3) + (0.9, 2.7)) = (2.33, 2.99)
    # b = (2.9, 4.7): x += 0.7 ((2, 2) + (2.61, 4.23)) = (3.227, 4.361); b = (-0.39, 6.23): += 0.7 (-3.351, 7.607)
    after, outer, served = three_rounds(DiLoCo())
    assert after == [pytest.approx([2.33, 2.99]), pytest.approx([5.557, 7.351]), pytest.approx([3.2113, 12.6759])]
    assert outer["momentum"] == pytest.approx([-0.39, 6.23])
    assert served == after[-1]
    assert Nesterov(learning_rate=0.7, momentum=0.9) != DiLoCo()
    assert three_rounds(Nesterov(learning_rate=0.7, momentum=0.9))[0] == after


def test_fedavgm() -> None:
    # m = (1, 3); (0.5, 1.5) + (2, 2) = (2.5, 3.5); (1.25, 1.75) + (-3, 2) = (-1.75, 3.75); x adds them up
    after, outer, _ = three_rounds(FedAvgM(momentum=0.5))
    assert after == [[2, 2], [4.5, 5.5], [2.75, 9.25]]
    assert outer == {"momentum": [-1.75, 3.75]}
    # lr = 1/2 halves each step
    assert three_rounds(FedAvgM(learning_rate=0.5, momentum=0.5))[0] == [[1.5, 0.5], [2.75, 2.25], [1.875, 4.125]]


def test_slowmo_counts_in_learning_rates() -> None:
    # beta = 1/2; g = 1/2: u = 2 (1, 3) = (2, 6), x = (1, -1) + u/2 = (2, 2); u = (1, 3) + (4, 4) = (5, 7), x + u/2 =
    # (4.5, 5.5); g = 1/4: u = (2.5, 3.5) + 4 (-3, 2) = (-9.5, 11.5), x + u/4 = (2.125, 8.375)
    after, outer, _ = three_rounds(SlowMo(), rates=(0.5, 0.5, 0.25))
    assert after == [[2, 2], [4.5, 5.5], [2.125, 8.375]]
    assert outer == {"momentum": [-9.5, 11.5]}
    # alpha = 1/2 halves each step: 1 + 0.5, -1 + 1.5; 2.5/2, 3.5/2; -2.375/2, 2.875/2
    after, _, _ = three_rounds(SlowMo(learning_rate=0.5), rates=(0.5, 0.5, 0.25))
    assert after == [[1.5, 0.5], [2.75, 2.25], [1.5625, 3.6875]]


@pytest.mark.parametrize("rate", [1.0, 0.125])
def test_slowmo_at_one_learning_rate_is_fedavgm(rate: float) -> None:
    assert three_rounds(SlowMo(), rates=(rate,) * 3)[:1] == three_rounds(FedAvgM(momentum=0.5))[:1]


def test_slowmo_survives_a_learning_rate_of_nought() -> None:
    # x + d, and u stays: (1, -1) + (1, 3), + (2, 2), + (-3, 2)
    assert three_rounds(SlowMo(), rates=(0.0, 0.0, 0.0))[0] == [[2, 2], [4, 4], [1, 6]]
    # u = (2, 6), stays in between, and becomes (1, 3) + 2 (-3, 2) = (-5, 7)
    after, outer, _ = three_rounds(SlowMo(), rates=(0.5, 0.0, 0.5))
    assert after == [[2, 2], [4, 4], [1.5, 7.5]]
    assert outer == {"momentum": [-5, 7]}


def test_bmuf() -> None:
    # K = 2: eta = 1/2, zeta = 1: D as m above, and so x
    after, outer, served = three_rounds(BMUF())
    assert after == [[2, 2], [4.5, 5.5], [2.75, 9.25]]
    assert outer == {"momentum": [-1.75, 3.75]}
    assert served == [2.75, 9.25]
    # zeta = 2, eta = 1/4: D = (2, 6); (0.5, 1.5) + (4, 4) = (4.5, 5.5); (1.125, 1.375) + (-6, 4) = (-4.875, 5.375)
    after, _, _ = three_rounds(BMUF(learning_rate=2.0, momentum=0.25))
    assert after == [[3, 5], [7.5, 10.5], [2.625, 15.875]]


def test_bmuf_of_one_worker_has_no_momentum() -> None:
    assert BMUF().eta(Context(0, 1)) == 0.0
    assert BMUF().eta(Context(0, 4)) == 0.75


def test_bmuf_nesterov_sends_workers_ahead() -> None:
    # the same x, served x + eta D = (2.75, 9.25) + (-1.75, 3.75)/2
    after, _, served = three_rounds(NesterovBMUF())
    assert after[-1] == [2.75, 9.25]
    assert served == [1.875, 11.125]


def test_fedadam() -> None:
    # b1 = 1/2, b2 = 3/4, tau = 1/2, lr = 1; v = 1/4 at first.
    # m = (0.5, 1.5), v = 3/16 + (1, 9)/4 = (0.4375, 2.4375): x = (1 + 0.5/1.16143783, -1 + 1.5/2.06124950)
    # m = (1.25, 1.75), v = (1.328125, 2.828125): + (1.25/1.65244306, 1.75/2.18170301)
    # m = (-0.875, 1.875), v = (3.24609375, 3.12109375): + (-0.875/2.30169192, 1.875/2.26666173)
    after, outer, _ = three_rounds(FedAdam(learning_rate=1.0, beta1=0.5, beta2=0.75, tau=0.5))
    assert after[0] == pytest.approx([1.43050087, -0.27228606])
    assert after[1] == pytest.approx([2.18695659, 0.52983962])
    assert after[2] == pytest.approx([1.80680146, 1.35704729])
    assert outer == {"momentum": [-0.875, 1.875], "velocity": [3.24609375, 3.12109375]}
    half, _, _ = three_rounds(FedAdam(learning_rate=0.5, beta1=0.5, beta2=0.75, tau=0.5))
    assert half[0] == pytest.approx([1 + 0.43050087 / 2, -1 + 0.72771394 / 2])


def test_fedyogi() -> None:
    # v - (1 - b2) d^2 sign(v - d^2): (1/4 + 1/4, 1/4 + 9/4); (0.5 + 1, 2.5 + 1); (1.5 + 2.25, 3.5 + 1): the last because
    # 3.5 < 4; m as above, x + m / (sqrt v + 1/2)
    after, outer, _ = three_rounds(FedYogi(learning_rate=1.0, beta1=0.5, beta2=0.75, tau=0.5))
    assert after[0] == pytest.approx([1.41421356, -0.27924078])
    assert after[1] == pytest.approx([2.13895843, 0.45889775])
    assert after[2] == pytest.approx([1.77983552, 1.17418613])
    assert outer["velocity"] == [3.75, 4.5]


def test_yogi_also_comes_down_by_no_more_than_the_square() -> None:
    # v = 9, d = 2: 9 - (1 - 3/4) 4 = 8, where Adam would go to 3/4 9 + 1 = 7.75
    strategy = FedYogi(beta2=0.75)
    assert strategy.second(floats(9), floats(4)).tolist() == [8]


def test_fedadagrad() -> None:
    # v = 1/4 + d^2 + ... = (1.25, 9.25), (5.25, 13.25), (14.25, 17.25); no momentum: x + d / (sqrt v + 1/2)
    after, outer, _ = three_rounds(FedAdagrad(learning_rate=1.0, tau=0.5))
    assert after[0] == pytest.approx([1.61803399, -0.15287291])
    assert after[1] == pytest.approx([2.33454913, 0.33021246])
    assert after[2] == pytest.approx([1.63278115, 0.76001387])
    assert outer["velocity"] == [14.25, 17.25]


def test_a_first_adaptive_step_is_about_as_long_as_its_learning_rate() -> None:
    # as they come: m = 0.1 d, v = 0.99e-6 + 0.01 d^2: 0.01 x 0.1 / (sqrt(0.01 + 1e-6) + 1e-3) for d = 1
    after, _, _ = three_rounds(FedAdam())
    assert after[0][0] == pytest.approx(1 + 0.00990050, rel=1e-6)


def test_elephas_counts_all_partitions_the_same() -> None:
    # (1, -1) + ((4, 0) + (0, 4))/2, whatever the samples; and so on: + (0, 4), + (-2, 0)
    assert three_rounds(OneShot(reduce=Mean(equal=True)))[0] == [[3, 1], [3, 5], [1, 5]]
    assert three_rounds(Average(reduce=Mean(equal=True)))[0] == [[3, 1], [3, 5], [1, 5]]
    assert three_rounds(Average())[0] == [[2, 2], [4, 4], [1, 6]]


@pytest.mark.parametrize("kind", [Nesterov, DiLoCo, FedAvgM, SlowMo, BMUF, NesterovBMUF])
@pytest.mark.parametrize("bad", [{"learning_rate": 0}, {"learning_rate": -1.0}, {"momentum": 1.0}, {"momentum": -0.1}])
def test_numbers_that_make_no_sense(kind: type[Strategy], bad: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=next(iter(bad))):
        kind(**bad)


@pytest.mark.parametrize("bad", [{"learning_rate": float("nan")}, {"beta1": 1.0}, {"beta2": 2}, {"tau": 0.0}])
def test_adaptive_numbers_that_make_no_sense(bad: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=next(iter(bad))):
        FedAdam(**bad)


def test_a_part_that_is_none() -> None:
    with pytest.raises(TypeError, match=r"nesterov: reduce must be a Reduce such as Median\(\); got 'median'"):
        Nesterov(reduce="median")
