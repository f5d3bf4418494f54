"""A Keras model as a dict of its architecture and weights, as Elephas passes it to parameter servers, and weights written back."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeGuard

import keras
import numpy as np

from elephas_like.trainer.graph import layers_of
from elephas_like.trainer.tensors import array_of, content_of


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
    layers = layers_of(model)
    with state_is_used([layer for layer in layers if is_adapted(layer)], [model, *layers]):
        model.set_weights(list(weights))


def is_adapted(layer: object) -> TypeGuard[keras.layers.Normalization]:
    """Return whether a layer is a Normalization with a mean and a variance of its own, for `state_is_used`."""
    return (
        isinstance(layer, keras.layers.Normalization)
        and layer.built
        and layer.input_mean is None
        and hasattr(layer, "adapt_mean")  # a subclass may have other weights
        and hasattr(layer, "adapt_variance")
    )


def computes_with_others(layer: object) -> bool:
    """Return whether a Normalization computes with another mean or variance than its weights hold, as after Keras' `set_weights`."""
    if type(layer) is not keras.layers.Normalization or not is_adapted(layer):  # a subclass may have its own ways
        return False
    pairs = ((layer.mean, layer.adapt_mean), (layer.variance, layer.adapt_variance))
    try:  # there may be none yet, or those of a graph in which the layer was built
        arrays = [(array_of(used), array_of(keras.ops.cast(held, layer.compute_dtype))) for used, held in pairs]
    except (TypeError, ValueError, NotImplementedError):
        return False
    return any(not np.array_equal(used.ravel(), held.ravel(), equal_nan=True) for used, held in arrays)


@contextmanager
def state_is_used(layers: Sequence[keras.layers.Normalization], around: Iterable[object]) -> Iterator[None]:
    """Have Normalization layers whose mean or variance is written meanwhile compute with the new ones.

    Args:
        layers: those for which `is_adapted` is true.
        around: layers and models; what Keras has compiled of these models has the constants before, and is compiled anew.
    """
    before = _adapted_to(layers)
    yield
    pairs = zip(layers, before, _adapted_to(layers), strict=True)
    changed = [layer for layer, was, now in pairs if not np.array_equal(was, now, equal_nan=True)]
    for layer in changed:
        layer.finalize_state()
    for each in around if changed else ():
        if isinstance(each, keras.Model):
            each.train_function = each.test_function = each.predict_function = None


def _adapted_to(layers: Sequence[keras.layers.Normalization]) -> list[np.ndarray]:
    return [np.stack([content_of(layer.adapt_mean), content_of(layer.adapt_variance)]) for layer in layers]
