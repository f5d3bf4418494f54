"""A Keras model as a dict of its architecture and weights, as Elephas passes it to parameter servers, and weights written back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

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
    for layer in layers_of(model):
        if isinstance(layer, keras.layers.Normalization):
            layer.finalize_state()
