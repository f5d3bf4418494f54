"""What a model is made of, in words that are the same in every process: for a checkpoint, which may be another model's.

A state has no shapes: models of equally many weights have states of the same size.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress

import keras

from elephas_like.core.types import Role
from elephas_like.trainer.graph import layers_of
from elephas_like.trainer.state import Variables

_TOLD_ELSEWHERE = ("name", "trainable", "dtype", "batch_shape", "batch_input_shape", "mean", "variance", "seed")
"""Settings that `variables_in_words` has, that Keras numbers, or that a program computes of its rows, to another last digit."""


def variables_in_words(model: keras.Model, variables: Variables) -> list[str]:
    """Return role, dtype and shape of each variable of a model, layer by layer: which of two equal layers is frozen, too."""
    known = {id(variable): entry for variable, entry in zip(variables, variables.layout.entries, strict=True)}
    entries = [known[id(variable)] for variable in model.variables if id(variable) in known]
    return [f"{entry.role.value} of {entry.dtype} {entry.shape}" for entry in entries if entry.role is not Role.SEED]


def layers_in_words(model: keras.Model) -> list[str]:
    """Return each of Keras' own layers of a model with its settings, as "Dense (activation: relu, units: 8, use_bias: True)"."""
    return [
        _in_words(layer)
        for layer in layers_of(model)
        if type(layer).__module__.startswith("keras.") and not isinstance(layer, keras.Model)  # which is its layers
    ]


def _in_words(layer: keras.layers.Layer) -> str:
    settings: dict[str, str | None] = {}
    with suppress(Exception):  # whatever a function of the user's raises
        settings = {name: _words(value) for name, value in layer.get_config().items() if _counts(name)}
    policy = layer.dtype_policy.name
    if policy != layer.variable_dtype:  # as mixed_bfloat16
        settings["dtype"] = policy
    said = ", ".join(f"{name}: {words}" for name, words in sorted(settings.items()) if words is not None)
    return f"{type(layer).__name__} ({said})"


def _counts(name: str) -> bool:
    """Return whether a setting changes what a layer does with the weights that it has."""
    return name not in _TOLD_ELSEWHERE and not name.endswith("initializer")


def _words(value: object) -> str | None:
    """Return a setting in words; None for what is not set, or off, and for what has no words that are the same in every process.

    Lists and tuples are the same, and of a number six digits count: programs compute some of their rows.
    """
    if value is None or value is False:  # another version of Keras may not have that setting
        return None
    if isinstance(value, int | str):
        return str(value)
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, list | tuple) and len(value) <= 8:  # longer ones are vocabularies
        return f"({', '.join(_words(part) or '-' for part in value)})"
    if isinstance(value, Mapping) and str(value.get("module")).startswith(("keras.reg", "keras.con", "keras.act")):
        settings = {name: _words(part) for name, part in dict(value.get("config") or {}).items()}
        return f"{value['class_name']} {', '.join(f'{name} {words}' for name, words in sorted(settings.items()))}"
    return None
