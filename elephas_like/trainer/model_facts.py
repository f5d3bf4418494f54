"""What a model's class and arguments say about it: how many inputs and outputs it has, what it overrides, what a row is to it."""

from __future__ import annotations

import keras


def is_multiple_input_model(model: keras.Model) -> bool:
    """Return whether a model has more than one input."""
    return input_count(model) > 1


def is_multiple_output_model(model: keras.Model) -> bool:
    """Return whether a model has more than one output."""
    return output_count(model) > 1


def input_count(model: keras.Model) -> int:
    """Return the number of inputs of a model; 1 for a model that does not say."""
    return len(getattr(model, "inputs", None) or [None])


def output_count(model: keras.Model) -> int:
    """Return the number of outputs of a model; 1 for a model that does not say."""
    return len(getattr(model, "outputs", None) or [None])


def overrides(model: keras.Model, method: str) -> bool:
    """Return whether a method of `keras.Model` is overridden, by the model's class or on the object."""
    return getattr(getattr(model, method), "__func__", None) is not getattr(keras.Model, method)


_HUBS = ("keras_hub", "keras_nlp")
"""Packages whose `preprocess_samples` leaves rows alone where a model has no preprocessor."""


_AROUND_STEPS = ("fit", "evaluate", "predict", "predict_on_batch")


def prepares_rows(model: keras.Model, *methods: str) -> bool:
    """Return whether a model prepares rows before any step, as those of keras-hub with a preprocessor do.

    Args:
        methods: in which methods of its own, one at least; `fit`, `evaluate`, `predict` and `predict_on_batch` by default.
    """
    return (
        callable(getattr(model, "preprocess_samples", None))
        and any(overrides(model, method) for method in methods or _AROUND_STEPS)
        and (getattr(model, "preprocessor", None) is not None or not prepares_as_hub(model))
    )


def prepares_as_hub(model: keras.Model) -> bool:
    """Return whether a model's `preprocess_samples` is that of keras-hub, which does what its preprocessor does and no more."""
    return is_of_hub(getattr(model, "preprocess_samples", None))


def is_of_hub(thing: object) -> bool:
    """Return whether a class or function is keras-hub's own, and not a subclass or override of the user's."""
    return (getattr(thing, "__module__", None) or "").split(".")[0] in _HUBS


def wants_target(model: keras.Model) -> bool | None:
    """Return whether rows have a target: True, False, or None for a model that takes them either way.

    It is True where the model was compiled with a loss, or computes a loss of its own; None without a loss where the user's
    `train_step` or `test_step` decides what a row is, or where the model was compiled with metrics.
    """
    own_loss = overrides(model, "compute_loss") and not overrides(model, "train_step")
    if getattr(model, "loss", None) is not None or own_loss:
        return True
    own_step = overrides(model, "train_step") or overrides(model, "test_step")
    return None if own_step or any(metric.name == "compile_metrics" for metric in model.metrics) else False


def target_count(model: keras.Model) -> int:
    """Return the number of targets of a row: one for each output with a loss.

    It is 1 if the user's `train_step` or `compute_loss` decides what targets mean.
    """
    if overrides(model, "train_step") or overrides(model, "compute_loss"):
        return 1
    loss = getattr(model, "loss", None)
    if not isinstance(loss, list | tuple | dict):
        return output_count(model)
    return max(1, sum(part is not None for part in keras.tree.flatten(loss)))
