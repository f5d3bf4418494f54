"""Custom gradients, which TensorFlow registers for as long as the process lives, go with the graphs that they are of.

Each call of `tf.custom_gradient` in a graph, such as Keras' `silu`, registers a gradient under a new name, and through it holds the whole graph:
a search over a hundred EfficientNets would keep a hundred of them in memory.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from functools import wraps
from typing import Any, ParamSpec, TypeVar

import keras
import tensorflow as tf
from tensorflow.python.framework import ops as registries

Arguments = ParamSpec("Arguments")
Returned = TypeVar("Returned")
_BRANCHES = ("While", "StatelessWhile", "If", "StatelessIf", "Case", "StatelessCase")


class CustomGradients:
    """Those registered for the graphs of `owner`: they are unregistered when it dies, and its graphs with it."""

    def __init__(self, owner: object) -> None:
        self._names: set[str] = set()
        weakref.finalize(owner, _unregister, self._names).atexit = False

    def noted(self, step: Callable[Arguments, Returned]) -> Callable[Arguments, Returned]:
        """Return the step, which notes what it registers for the graph that it is called in, also where it fails."""

        def noting(*arguments: Arguments.args, **named: Arguments.kwargs) -> Returned:
            if tf.executing_eagerly():
                return step(*arguments, **named)
            before = set(_registered())
            try:
                return step(*arguments, **named)
            finally:
                if new := set(_registered()) - before:
                    self._names |= new & _used_in(tf.compat.v1.get_default_graph())

        vars(noting)["__func__"] = getattr(step, "__func__", None)  # as a bound method says whose it is
        return noting


def free_graphs_of_fits() -> None:
    """Have what Keras' own fit, evaluate and predict compile of a model go with it, from now on in this process.

    For functions of the user's that train one model after another on executors. Steps that a class of the user's has are left out, but for what
    they call of Keras' own.
    """
    for name in ("train_step", "test_step", "predict_step"):
        own = getattr(keras.Model, name)
        if not hasattr(own, "_frees"):
            setattr(keras.Model, name, _freeing(own))


def _freeing(own: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(own)
    def step(model: keras.Model, *arguments: Any, **named: Any) -> Any:
        traced = own if tf.executing_eagerly() else CustomGradients(model).noted(own)
        return traced(model, *arguments, **named)

    vars(step)["_frees"] = True
    return step


def _used_in(graph: tf.Graph) -> set[str]:
    """Return the names of gradients in a graph, and in the branches and loops in it.

    Functions that it calls are left out: a `tf.function` of the user's may be called, and differentiated, in other graphs, too.
    """
    try:
        definition = graph.as_graph_def()
    except (ValueError, tf.errors.OpError):  # constants of more than 2 GiB: they stay in memory, and train
        return set()
    functions = {function.signature.name: function.node_def for function in definition.library.function}
    names: set[str] = set()
    seen: set[str] = set()
    left = [definition.node]
    while left:
        for node in left.pop():
            if "_gradient_op_type" in node.attr:
                names.add(node.attr["_gradient_op_type"].s.decode())
            if node.op in _BRANCHES:
                called = {name for value in node.attr.values() for name in _functions_of(value)} - seen
                seen |= called
                left += [functions[name] for name in called if name in functions]
    return names


def _functions_of(value: Any) -> list[str]:
    """Return the functions that an attribute of a node names."""
    return [called.name for called in (value.func, *value.list.func) if called.name]


def _unregister(names: set[str]) -> None:
    for name in names:
        _registered().pop(name, None)


def _registered() -> dict[str, object]:
    """Return TensorFlow's gradients by name. There is no public way to take one out."""
    return getattr(registries.gradient_registry, "_registry", {})
