"""Two workers, two weights, three exchanges each, by hand. Start (1, -1); the workers come in turn and bring

w0: (4, 0)   w1: (0, 4)   w0: (-4, 8)   w1: (4, 0)   w0: (0, -4)   w1: (-4, 4)
"""

from __future__ import annotations

import pytest
from plain_numpy import LAYOUT, nothing, state, update

from elephas_like.core.center import LockedCenter
from elephas_like.core.strategies import Context, DownPour, MomentumLookAhead, Strategy
from elephas_like.core.types import Mode

DELTAS = [(4, 0), (0, 4), (-4, 8), (4, 0), (0, -4), (-4, 4)]


def six_exchanges(strategy: Strategy) -> tuple[list[list[float]], list[float]]:
    """The weights after each round of two exchanges, and what is served at the end."""
    center, after = LockedCenter(state(1, -1), LAYOUT, strategy, 2), []
    for exchange, delta in enumerate(DELTAS):
        # Neither strategy weighs by samples: 1 and 3 of them make no difference.
        assert center.commit(update(exchange % 2, *delta, samples=1 + 2 * (exchange % 2)))
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
    # x = (1, -1) + 0.70710678 X; served is x + 0.70710678 M / 2 = x + (-0.59662135, 0.57452426)
    after, served = six_exchanges(MomentumLookAhead(learning_rate=1.0, momentum=0.5))
    assert after[0] == pytest.approx([4.88908730, 2.53553391])
    assert after[1] == pytest.approx([4.80069894, 10.84403858])
    assert after[2] == pytest.approx([1.59662135, 11.15339780])
    assert served == pytest.approx([1.0, 11.72792206])


def test_momentum_look_ahead_as_it_comes() -> None:
    # K = 4: s = 1/2. lr = 0.7, mu = 0.9; delta (4, -8): d = (2, -4), m = 0.1 d = (0.2, -0.4),
    # x = 0.7 (d + 0.9 m) = 0.7 (2.18, -4.36) = (1.526, -3.052), served x + 0.63 m = (1.652, -3.304)
    center = LockedCenter(state(0, 0), LAYOUT, MomentumLookAhead(), 4)
    assert center.served()[1].weights.tolist() == [0, 0]
    center.commit(update(2, 4, -8, samples=7))
    assert center.snapshot().weights.tolist() == pytest.approx([1.526, -3.052])
    assert center.served()[1].weights.tolist() == pytest.approx([1.652, -3.304])


@pytest.mark.parametrize("strategy", [DownPour(), MomentumLookAhead()])
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


def test_modes() -> None:
    assert MomentumLookAhead.modes == {Mode.ASYNCHRONOUS}
    assert DownPour.modes == {Mode.ASYNCHRONOUS, Mode.HOGWILD}
    assert DownPour.additive
    assert not MomentumLookAhead.additive
