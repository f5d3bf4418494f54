"""A Keras model as a dict of its architecture and weights, as Elephas hands it to parameter servers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import keras


def model_to_dict(model: keras.Model) -> dict[str, Any]:
    """{"model": the architecture as JSON, "weights": the arrays of `get_weights()`}."""
    return {"model": model.to_json(), "weights": model.get_weights()}


def dict_to_model(_dict: Mapping[str, Any], custom_objects: Mapping[str, object] | None = None) -> keras.Model:
    """The model that `model_to_dict` described, with its weights, not compiled.

    Args:
        custom_objects: names of classes and functions that the architecture refers to.
    """
    model = keras.models.model_from_json(_dict["model"], custom_objects=dict(custom_objects or {}))
    model.set_weights(_dict["weights"])
    return model


def is_multiple_input_model(model: keras.Model) -> bool:
    """Whether a model has more than one input."""
    return input_count(model) > 1


def is_multiple_output_model(model: keras.Model) -> bool:
    """Whether a model has more than one output."""
    return output_count(model) > 1


def input_count(model: keras.Model) -> int:
    """Inputs of a model; 1 for a model that does not say."""
    return len(getattr(model, "inputs", None) or [None])


def output_count(model: keras.Model) -> int:
    """Outputs of a model; 1 for a model that does not say."""
    return len(getattr(model, "outputs", None) or [None])


def overrides(model: keras.Model, method: str) -> bool:
    """Whether a method of `keras.Model` is the user's own, or a kind of model's: of its class, or put on the object."""
    return getattr(getattr(model, method), "__func__", None) is not getattr(keras.Model, method)


def wants_target(model: keras.Model) -> bool:
    """Whether rows are pairs: the model was compiled with a loss, or computes one of its own."""
    own = overrides(model, "compute_loss") and not overrides(model, "train_step")
    return getattr(model, "loss", None) is not None or own


def target_count(model: keras.Model) -> int:
    """Targets that a row has: one for each output with a loss, unless a `train_step` or `compute_loss` of the user's makes
    something else of them: then 1.
    """
    if overrides(model, "train_step") or overrides(model, "compute_loss"):
        return 1
    loss = getattr(model, "loss", None)
    if not isinstance(loss, list | tuple | dict):
        return output_count(model)
    return max(1, sum(part is not None for part in keras.tree.flatten(loss)))
