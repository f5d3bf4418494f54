"""Optimizers whose own steps gather speed, so that an outer step with momentum on top of theirs goes too far."""

from __future__ import annotations

import keras

from elephas_like.trainer.own_optimizers import own_optimizers

_GATHERING = ("Lion", "Muon", "ScheduleFreeAdamW")
"""Names in keras.optimizers, of which an older Keras has not all: steps of one length whatever the gradients are, or an average."""


def gathers_speed(model: keras.Model) -> bool:
    """Return whether plain averages suit a model's optimizer better than an outer momentum.

    SGD with momentum, Lion, Muon and ScheduleFreeAdamW: docs/convergence.md, from benchmarks/inner_optimizers.py. Adam and its
    like divide their steps by the gradients' size, and gain by an outer momentum, as plain SGD does. Of several optimizers, one that
    gathers speed is enough.
    """
    return any(map(_gathers_speed, own_optimizers(model)))


def _gathers_speed(optimizer: keras.optimizers.Optimizer) -> bool:
    if isinstance(optimizer, keras.optimizers.SGD):
        return bool(optimizer.momentum)
    kinds = tuple(getattr(keras.optimizers, name) for name in _GATHERING if hasattr(keras.optimizers, name))
    return isinstance(optimizer, kinds)
