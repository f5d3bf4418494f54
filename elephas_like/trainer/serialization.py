"""A Keras model as a dict of its architecture and weights, as Elephas passes it to parameter servers, and weights written back."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeGuard

import keras
import numpy as np

from elephas_like.trainer.graph import layers_of


def model_to_dict(model: keras.Model) -> dict[str, Any]:
    """Return {"model": the architecture as JSON, "weights": the arrays of `get_weights()`}."""
    return {"model": model.to_json(), "weights": model.get_weights()}


def dict_to_model(_dict: Mapping[str, Any], custom_objects: Mapping[str, object] | None = None) -> keras.Model:
    """Return the model that `model_to_dict` described, with its weights, not compiled.

    Args:
        custom_objects: classes and functions that the architecture refers to, by name.
    """
    model = keras.models.model_from_json(_dict["model"], custom_objects=dict(custom_objects or {}))
    write_weights(model, _dict["weights"])
    return model


def write_weights(model: keras.Model, weights: Sequence[np.ndarray]) -> None:
    """Write weights as `model.set_weights` does, and have Normalization layers use those that are theirs.

    Keras' layer computes with constants that it makes of its weights after `adapt` and after loading a file, and not after `set_weights`.
    """
    model.set_weights(list(weights))
    use_state([layer for layer in layers_of(model) if is_adapted(layer)], [model, *layers_of(model)])


def is_adapted(layer: object) -> TypeGuard[keras.layers.Normalization]:
    """Return whether a layer is a Normalization with a mean and a variance of its own, for `use_state`."""
    return (
        isinstance(layer, keras.layers.Normalization)
        and layer.built
        and layer.input_mean is None
        and hasattr(layer, "adapt_mean")  # a subclass may have other weights
        and hasattr(layer, "adapt_variance")
    )


def use_state(layers: Iterable[keras.layers.Normalization], around: Iterable[object]) -> None:
    """Have Normalization layers compute with the mean and variance that they hold.

    Args:
        around: layers and models; what Keras has compiled of these models has the constants before, and is compiled anew.
    """
    changed = list(layers)
    for layer in changed:
        layer.finalize_state()
    for each in around if changed else ():
        if isinstance(each, keras.Model):
            each.train_function = each.test_function = each.predict_function = None
