"""The optimizers that step a model's weights, also where Keras' wrappers hold them."""

from __future__ import annotations

from typing import Any, TypeGuard

import keras


def own_optimizer(model: keras.Model) -> keras.optimizers.Optimizer | None:
    """Return a model's optimizer: the inner one of a LossScaleOptimizer. None if the model has none."""
    optimizer = getattr(model, "optimizer", None)
    return getattr(optimizer, "inner_optimizer", optimizer)


def own_optimizers(model: keras.Model) -> list[keras.optimizers.Optimizer]:
    """Return the optimizers that update the weights; none if the model has no optimizer.

    They are those inside a MultiOptimizer. Once it is built, those that step no weight are left out; before, it may not know all of them.
    """
    own = own_optimizer(model)
    if own is None:
        return []
    if not _holds_others(own):
        return [own]
    inside: list[keras.optimizers.Optimizer] = list(own.optimizers)
    return [each for each in inside if each.built] if own.built else inside


def accumulations(model: keras.Model) -> list[int]:
    """Return Keras' `gradient_accumulation_steps` of each optimizer that updates the weights; 1 for one without."""
    optimizers: list[Any] = list(own_optimizers(model))
    return [int(getattr(each, "gradient_accumulation_steps", None) or 1) for each in optimizers]


def _holds_others(optimizer: keras.optimizers.Optimizer) -> TypeGuard[Any]:
    """Return whether an optimizer is a MultiOptimizer, which an older Keras has not."""
    kind = getattr(keras.optimizers, "MultiOptimizer", None)
    return kind is not None and isinstance(optimizer, kind)
