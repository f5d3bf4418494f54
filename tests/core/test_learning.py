"""Every strategy and codec learns: four workers of plain NumPy, each with rows of its own, through the whole loop."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from plain_numpy import LAYOUT, Notes, Regression, Row, state

from elephas_like.core.async_loop import fit_asynchronously
from elephas_like.core.loop import FitPlan, fit_synchronously
from elephas_like.core.messages import Sender
from elephas_like.core.progress import FitProgress
from elephas_like.core.strategies import (
    CODECS,
    STRATEGIES,
    Average,
    Clipped,
    Codec,
    Context,
    DownPour,
    Median,
    MomentumLookAhead,
    Nesterov,
    Strategy,
    TopK,
    TrimmedMean,
)
from elephas_like.core.types import Frequency, Mode, Order, Update
from elephas_like.engine.in_process import InProcessAsyncWorkers, InProcessSyncWorkers

GOAL = np.array([1.0, -2.0])
WORKERS, ROWS, EPOCHS, ROUNDS = 4, 24, 4, 6
RATE = 0.05


def data() -> list[list[Row]]:
    random = np.random.default_rng(5)
    x = random.normal(size=(WORKERS, ROWS, 2))
    y = x @ GOAL + 0.05 * random.normal(size=(WORKERS, ROWS))
    return [
        [(*map(float, row), float(value)) for row, value in zip(*part, strict=True)] for part in zip(x, y, strict=True)
    ]


class Sends(Regression):
    """A worker that goes on from where its strategy wants it to, and sends what strategy and codec make of it."""

    def __init__(self, worker: int, rows: Sequence[Row], strategy: Strategy, codec: Codec | None) -> None:
        super().__init__(worker, rows)
        self.sender = Sender(strategy, codec)

    def train(self, order: Order) -> Update:
        served, context = order.state.weights, Context(order.version, WORKERS, LAYOUT, learning_rate=RATE)
        start = self.sender.start(served, context)
        brought = super().train(replace(order, state=order.state.but(weights=start)))
        if not brought.steps:
            return replace(brought, delta=self.sender.nothing(np.zeros(2, np.float32)))
        return replace(brought, delta=self.sender.message(served, start + brought.delta, brought.steps, context))


def distance(strategy: Strategy, mode: Mode = Mode.SYNCHRONOUS, codec: Codec | None = None) -> float:
    """How far from the goal a fit ends that begins sqrt(5) = 2.24 away."""
    workers = [Sends(index, rows, strategy, codec) for index, rows in enumerate(data())]
    plan = FitPlan(
        layout=LAYOUT,
        mode=mode,
        strategy=strategy,
        codec=codec,
        frequency=Frequency.FIT if strategy.frequencies else 1,
        rounds_per_epoch=ROUNDS,
        worker_rounds=(ROUNDS,) * WORKERS,
        num_workers=WORKERS,
        rows=WORKERS * ROWS,
        initial_epoch=0,
        epochs=EPOCHS,
        validates=False,
    )
    progress, notes = FitProgress(state(0, 0, learning_rate=RATE)), Notes()
    if mode is Mode.SYNCHRONOUS:
        end = fit_synchronously(InProcessSyncWorkers(workers), plan, notes, progress, loss_of)
    else:
        end = fit_asynchronously(InProcessAsyncWorkers(workers, seed=3), plan, notes, progress, loss_of)
    assert sum(epoch.samples for epoch in notes.epochs) >= EPOCHS * WORKERS * ROWS
    return float(np.linalg.norm(end.weights - GOAL))


def loss_of(metrics: np.ndarray) -> float | None:
    return float(metrics[0] / metrics[1]) if metrics.size else None


LONGER = {"fedadam": 0.05, "fedyogi": 0.05, "fedadagrad": 0.5, "downpour_adagrad": 0.5}
"""Learning rates of those whose steps are of a length of their own: 24 rounds are few at the rate they come with."""


SWINGING = ("fedavgm", "delayed_nesterov", "fedadam", "fedyogi")
"""Those whose momentum has not come to rest by then."""


@pytest.mark.parametrize(
    ("name", "mode"), [(name, mode) for name, kind in STRATEGIES.items() for mode in sorted(kind.modes)]
)
def test_strategies_learn(name: str, mode: Mode) -> None:
    given = {"learning_rate": LONGER[name]} if name in LONGER else {}
    found = distance(STRATEGIES[name](**given), mode)
    assert found < (0.5 if name in SWINGING else 0.2)
    if name in LONGER:
        assert distance(STRATEGIES[name](), mode) < 2.2


def test_parts_in_a_strategys_place_for_reduction() -> None:
    plain = distance(Nesterov())
    assert abs(distance(Nesterov(reduce=Median())) - plain) < 0.05
    assert abs(distance(Nesterov(reduce=Clipped(0.5, then=TrimmedMean()))) - plain) < 0.05
    assert distance(Average(reduce=Clipped(1e-6))) == pytest.approx(5**0.5, abs=1e-3)  # nothing gets through


@pytest.mark.parametrize("mode", [Mode.SYNCHRONOUS, Mode.ASYNCHRONOUS, Mode.HOGWILD])
def test_codecs_lose_little(mode: Mode) -> None:
    strategy = DownPour() if mode is Mode.HOGWILD else Nesterov() if mode is Mode.SYNCHRONOUS else MomentumLookAhead()
    plain = distance(strategy, mode)
    for codec in [*(kind() for kind in CODECS.values()), TopK(0.5)]:
        found = distance(strategy, mode, codec)
        assert abs(found - plain) < 0.02, codec
        assert (found == plain) == (codec.name == "fp32"), codec
