"""The optimizers that step a model's weights, also where Keras' wrappers hold them."""

from __future__ import annotations

import keras


def own_optimizer(model: keras.Model) -> keras.optimizers.Optimizer | None:
    """Return the optimizer that updates the weights: the inner one of a LossScaleOptimizer. None if the model has none."""
    optimizer = getattr(model, "optimizer", None)
    return getattr(optimizer, "inner_optimizer", optimizer)


def own_optimizers(model: keras.Model) -> list[keras.optimizers.Optimizer]:
    """Return the optimizers that update the weights; none if the model has no optimizer."""
    own = own_optimizer(model)
    return [] if own is None else [own]
