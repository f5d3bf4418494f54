"""Models and rows that only TensorFlow can compute with, refused in a sentence where Keras runs on another backend."""

from __future__ import annotations

import dis
import inspect
import types
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import keras

from elephas_like.core.errors import ElephasError
from elephas_like.trainer.backends.text import is_text
from elephas_like.trainer.code import is_foreign
from elephas_like.trainer.model_facts import overrides

_TEXT_LAYERS = ("TextVectorization", "StringLookup")
"""Keras' layers that compute with TensorFlow whatever the backend is."""
_FOR_ALL_BACKENDS = ("keras_hub", "keras_nlp", "keras_rs")
"""Packages of Keras' own team: where they use TensorFlow, it is to prepare rows or text, or because Keras runs on it."""
_OTHERWISE = "set KERAS_BACKEND=tensorflow before keras is imported"


def without_text(tree: object, backend: str) -> object:
    """Return a tree of arrays as it is.

    Args:
        backend: as people call it.

    Raises:
        ElephasError: it holds text.
    """
    if any(is_text(leaf) for leaf in keras.tree.flatten(tree)):
        raise ElephasError(
            f"Keras on {backend} computes with numbers, and the rows hold text. Convert it before, or {_OTHERWISE}."
        )
    return tree


def not_a_number(dtype: str, backend: str) -> ElephasError:
    """Return the error of a column of a dtype that the backend cannot compute with."""
    return ElephasError(
        f"Keras on {backend} computes with numbers, and the rows have a column of {dtype}. Convert it before the fit, or {_OTHERWISE}."
    )


def check_no_tensorflow(model: keras.Model, reached: Iterable[object], backend: str) -> None:
    """Do nothing if no part of a model computes with TensorFlow, as far as its code shows.

    Args:
        reached: everything that the model refers to (trainer/graph.py).

    Raises:
        ElephasError: a layer or a function does.
    """
    for thing in reached:
        if isinstance(thing, keras.Layer) and type(thing).__name__ in _TEXT_LAYERS:
            raise ElephasError(
                f"the layer {thing.name!r} of the model {model.name!r} is a {type(thing).__name__}, which computes with "
                f"TensorFlow, and this Keras runs on {backend}. Convert the texts before the fit, or {_OTHERWISE}."
            )
        for function in _functions_of(thing):
            if _uses_tensorflow(function):
                raise ElephasError(
                    f"{function.__qualname__} of the model {model.name!r} uses TensorFlow, and this Keras runs on {backend}. Use "
                    f"keras.ops, or {_OTHERWISE}."
                )


def takes_state(method: Callable[..., object]) -> bool:
    """Return whether a bound step takes (state, data), as JAX's do, and not data alone."""
    parameters = inspect.signature(method).parameters.values()
    taken = [each for each in parameters if each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD)]
    return len(taken) >= 2 or any(each.kind is each.VAR_POSITIONAL for each in parameters)


def requires_state(method: Callable[..., object]) -> bool:
    """Return whether a bound step cannot be called with the data alone."""
    parameters = inspect.signature(method).parameters.values()
    positional = [each for each in parameters if each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD)]
    return sum(each.default is each.empty for each in positional) >= 2


def own_steps(model: keras.Model) -> Iterator[tuple[str, Callable[..., object]]]:
    """Yield the steps that the user has written: the name for a message, and the bound method."""
    for method in ("train_step", "test_step"):
        if overrides(model, method):
            yield f"{type(model).__name__}.{method}", getattr(model, method)


def _functions_of(thing: object) -> Iterator[types.FunctionType]:
    """Yield the user's own functions: an object itself, or the methods of its class."""
    if isinstance(thing, types.FunctionType):
        if _is_the_users(thing):
            yield thing
        return
    for kind in type(thing).__mro__:
        if kind is not object and _is_the_users(kind):
            yield from (value for value in vars(kind).values() if isinstance(value, types.FunctionType))


def _is_the_users(thing: Any) -> bool:
    return not is_foreign(thing) and (thing.__module__ or "").split(".")[0] not in _FOR_ALL_BACKENDS


def _uses_tensorflow(function: types.FunctionType) -> bool:
    """Return whether a function names a module of TensorFlow, by its globals or by an import of its own."""
    names = set(function.__code__.co_names)
    if "backend" in names:  # it asks which one there is
        return False
    held = [function.__globals__.get(name) for name in names]
    if any(getattr(module, "__name__", "").split(".")[0] == "tensorflow" for module in held if _is_module(module)):
        return True
    imports = (each.argval for each in dis.get_instructions(function) if each.opname == "IMPORT_NAME")
    return any(str(name).split(".")[0] == "tensorflow" for name in imports)


def _is_module(thing: object) -> bool:
    return isinstance(thing, types.ModuleType)
