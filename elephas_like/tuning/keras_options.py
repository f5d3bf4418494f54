"""Keras objects among the options of a space: every model that is built gets copies of its own."""

from __future__ import annotations

import copy
from typing import Any

import keras


def with_own_objects(params: Any) -> Any:
    """Return a trial's parameters with copies of the Keras objects in them.

    An optimizer serves the variables of one model, and a layer has its weights: those of an earlier trial, if it is used again.

    Raises:
        TypeError: an object cannot be copied, with what to do.
    """
    return _copied(params, {})


def _copied(value: Any, made: dict[int, Any]) -> Any:
    """Return the copy. made: copies by the id of the original, so that what two parameters share is shared by their copies."""
    if isinstance(value, dict):
        return {name: _copied(item, made) for name, item in value.items()}
    if type(value) in (tuple, list):
        return type(value)(_copied(item, made) for item in value)
    if isinstance(value, type) or not hasattr(value, "get_config"):
        return value
    kind = type(value)
    try:
        with keras.saving.custom_object_scope({kind.__name__: kind}):
            return copy.deepcopy(value, made)
    except Exception as error:
        raise TypeError(
            f"the space holds a {kind.__name__} that cannot be copied for each trial: {error}. Give its name or a function that "
            "makes it as the option, and make it in build(params)."
        ) from error
