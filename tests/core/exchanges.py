"""One exchange of plain updates, or three: what the tests of averaging, merging, centers and strategies share."""

from __future__ import annotations

from plain_numpy import LAYOUT, state, update

from elephas_like.core.averaging import Round
from elephas_like.core.center import HogwildCenter, LockedCenter
from elephas_like.core.strategies import Average, Context, DownPour, Strategy
from elephas_like.core.types import OnNaN, TrainState, Update

CENTERS = [LockedCenter, HogwildCenter]
DELTAS = [((4, 0), (0, 4)), ((-4, 8), (4, 0)), ((0, -4), (-4, 4))]
"""Those of test_synchronous.py: (1, 3), (2, 2) and (-3, 2) for workers of 1 and 3 samples."""


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


def center_of(kind: type, start: TrainState | None = None, *, num_workers: int = 4, **options: object) -> LockedCenter:
    return kind(start or state(1, 2), LAYOUT, DownPour(), num_workers, **options)


def three_rounds(
    strategy: Strategy, *, rates: tuple[float, ...] = (1.0, 1.0, 1.0), samples: tuple[int, int] = (1, 3)
) -> tuple[list[list[float]], dict[str, list[float]], list[float]]:
    """The weights after each round, what the strategy remembers at the end, and what it serves then."""
    now, after = state(1, -1), []
    outer = strategy.init(now.weights)
    for version, (deltas, rate) in enumerate(zip(DELTAS, rates, strict=True)):
        context = Context(version, 2, learning_rate=rate)
        exchange = Round(now, outer, LAYOUT, strategy, context)
        for worker, delta in enumerate(deltas):
            exchange.add(update(worker, *delta, samples=samples[worker]))
        now, outer = exchange.finish()
        after.append(now.weights.tolist())
    served = strategy.serve(now.weights, outer, Context(3, 2)).tolist()
    return after, {name: vector.tolist() for name, vector in outer.items()}, served
