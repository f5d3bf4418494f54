"""Which optimizers are averaged without an outer momentum unless the user says otherwise."""

from __future__ import annotations

import keras
import pytest

from elephas_like.trainer.momentum import gathers_speed
from trainer.small import mlp

OPTIMIZERS = keras.optimizers
LATER = [getattr(OPTIMIZERS, name)() for name in ("Muon", "ScheduleFreeAdamW") if hasattr(OPTIMIZERS, name)]


@pytest.mark.parametrize(
    "optimizer",
    [
        OPTIMIZERS.SGD(0.1, momentum=0.9),
        OPTIMIZERS.SGD(0.1, momentum=0.5, nesterov=True),
        OPTIMIZERS.Lion(),
        OPTIMIZERS.LossScaleOptimizer(OPTIMIZERS.Lion()),
        *LATER,
    ],
    ids=lambda one: type(one).__name__,
)
def test_these_gather_speed_by_themselves(optimizer: keras.optimizers.Optimizer) -> None:
    assert gathers_speed(mlp(optimizer))


@pytest.mark.parametrize(
    "optimizer",
    [OPTIMIZERS.SGD(0.1), OPTIMIZERS.Adam(), OPTIMIZERS.AdamW(), OPTIMIZERS.RMSprop(), OPTIMIZERS.Adagrad()],
    ids=lambda one: type(one).__name__,
)
def test_these_do_not(optimizer: keras.optimizers.Optimizer) -> None:
    assert not gathers_speed(mlp(optimizer))


def test_a_model_without_an_optimizer_does_not() -> None:
    assert not gathers_speed(keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)]))
