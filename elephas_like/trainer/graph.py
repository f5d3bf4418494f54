"""Walk over everything that a model refers to: layers, optimizers, variables and functions, wherever they are kept."""

from __future__ import annotations

import functools
import re
import types
from collections import deque
from collections.abc import Iterable, Iterator, Mapping

import keras

from elephas_like.trainer.code import is_foreign
from elephas_like.trainer.tensors import is_compiled, is_variable, variables_in

# Attributes that Keras adds: the graph of tensors, wrappers of methods, traced functions, bookkeeping. The walk skips
# them: everything they lead to is reached by other attributes.
_KERAS_INTERNALS = frozenset(
    {
        "train_function",
        "test_function",
        "predict_function",
        "history",
        "build",
        "quantize",
        "_inbound_nodes",
        "_outbound_nodes",
        "_nodes_by_depth",
        "_operations_by_depth",
        "_tracker",
        "_tracked",
        "_call_signature",
        "_call_has_context_arg",
        "_call_context_args",
        "call_signature_parameters",
        "_build_shapes_dict",
        "_compiled_trainable_state",
        "_dtype_policy",
        "_loss_ids",
    }
)

_TRACKING = "_self_setattr_tracking"
"""An attribute that TensorFlow gives to objects whose attributes it tracks."""
_TRACKED = frozenset(
    {
        "_self_unconditional_checkpoint_dependencies",
        "_self_unconditional_dependency_names",
        "_self_unconditional_deferred_dependencies",
        "_self_name_based_restores",
        "_self_saveable_object_factories",
        "_self_destruction_context",
        "_last_wrapped_list_snapshot",  # of a list: what was in it
    }
)
"""What it keeps of them: all are attributes, or were some once."""

_PARTS = "keras.src.utils.tracking"
"""Keras' module of the lists, dicts and sets that know which layer they are parts of.

Their attributes lead to nothing else that a step uses, but to graphs that a Sequential had before its last layer was added.
"""

TORCH_REGISTRY = "_torch_params"
"""Where Keras lists a layer's variables for PyTorch: all are reached by other attributes, and what a layer had before it was quantized
stays there."""


def children(thing: object) -> Iterator[tuple[str, object]]:
    """Yield the objects that one refers to, each with its access path: ".loss", "[0]", ".__closure__['rate']"."""
    if isinstance(thing, Mapping):
        for key, value in list(thing.items()):
            if not (isinstance(key, str) and key == TORCH_REGISTRY):  # other keys may refuse to be compared
                yield f"[{key!r}]", value
    elif isinstance(thing, list | tuple | set | frozenset | deque):
        for number, value in enumerate(thing):
            yield f"[{number}]", value
    elif isinstance(thing, types.FunctionType):
        yield from _children_of_function(thing)
    elif isinstance(thing, types.MethodType):
        yield ".__self__", thing.__self__
        yield ".__func__", thing.__func__
    elif isinstance(thing, functools.partial):
        yield ".func", thing.func
        yield ".args", thing.args
        yield ".keywords", thing.keywords
    elif is_compiled(thing):
        yield ".python_function", thing.python_function  # type: ignore[attr-defined]  # a tf.function has it
        return
    if not isinstance(thing, type | types.ModuleType | types.FunctionType) and type(thing).__module__ != _PARTS:
        keras_own = isinstance(thing, KERAS_KINDS)
        for name, value in _attributes(thing):
            internal = keras_own and name in _KERAS_INTERNALS and _is_keras_wrapper(name, value)
            if not internal and name not in _TRACKED:
                yield f".{name}", value


def _attributes(thing: object) -> Iterator[tuple[str, object]]:
    """Yield the attributes of an object by name: those in its `__dict__`, then those in slots."""
    attributes = getattr(thing, "__dict__", None)
    if isinstance(attributes, dict):
        yield from list(attributes.items())
    for name, slot in _slots(type(thing)):  # type: ignore[arg-type]  # every class can be hashed
        if hasattr(thing, name):
            yield name, slot.__get__(thing)


@functools.lru_cache(maxsize=1024)
def _slots(kind: type) -> tuple[tuple[str, types.MemberDescriptorType], ...]:
    """Return the slots of a class and its bases, by the names under which objects have them; private ones bear their class' name."""
    found = []
    for base in kind.__mro__:
        names = vars(base).get("__slots__", ())
        own = base.__name__.lstrip("_")
        for name in [names] if isinstance(names, str) else names:
            known = f"_{own}{name}" if name.startswith("__") and not name.endswith("__") else name
            slot = vars(base).get(known)
            if isinstance(slot, types.MemberDescriptorType):
                found.append((known, slot))
    return tuple(found)


def _is_keras_wrapper(name: str, value: object) -> bool:
    """Return whether Keras made an attribute; False for a method that the user patched."""
    if name not in ("build", "quantize"):
        return True
    return getattr(getattr(value, "__code__", None), "co_qualname", "Layer.__new__").startswith("Layer.__new__")


def _children_of_function(function: types.FunctionType) -> Iterator[tuple[str, object]]:
    code = function.__code__
    for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
        try:
            yield f".__closure__[{name!r}]", cell.cell_contents
        except ValueError:
            continue  # an empty cell
    if function.__defaults__:
        yield ".__defaults__", function.__defaults__
    if function.__kwdefaults__:
        yield ".__kwdefaults__", function.__kwdefaults__
    if not is_foreign(function):
        for name in names_in(code):
            if name in function.__globals__:
                yield f".__globals__[{name!r}]", function.__globals__[name]
    for name, value in function.__dict__.items():
        yield f".{name}", value


def names_in(code: types.CodeType) -> Iterator[str]:
    """Yield the names of globals and attributes that code uses, functions inside of it included."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from names_in(constant)


KERAS_KINDS: tuple[type, ...] = (
    keras.Layer,
    keras.losses.Loss,
    keras.metrics.Metric,
    keras.optimizers.Optimizer,
    keras.optimizers.schedules.LearningRateSchedule,
    keras.initializers.Initializer,
    keras.regularizers.Regularizer,
    keras.constraints.Constraint,
)


def reachable(model: keras.Model, *, into_functions: bool = True, without: object = None) -> Iterator[object]:
    """Yield, once each, every object reachable from a model that may hold code, variables or layers.

    The walk starts from the model and its compile arguments.

    The walk enters Keras' objects, functions and the user's objects; it does not enter data, modules and classes.

    Args:
        into_functions: whether to enter functions: what they close over and refer to.
        without: an object that the walk does not enter.
    """
    seen: set[int] = {id(without)}
    queue: list[object] = [model]
    while queue:
        thing = queue.pop()
        if id(thing) in seen or not _is_visited(thing):
            continue
        seen.add(id(thing))
        if not isinstance(thing, list | tuple | dict | set | frozenset | deque):
            yield thing
        if is_variable(thing):
            continue
        queue.extend(variables_in(thing))
        if into_functions or not isinstance(thing, types.FunctionType):
            queue.extend(reversed([value for _, value in children(thing)]))


def nodes_in(reached: Iterable[object]) -> set[int]:
    """Return the ids of the nodes that make up the functional graphs among some objects.

    A layer that other models share has nodes of their graphs, too: of the heads that a base was given before, of what was cut off.
    """
    graphs = [vars(thing).get("_nodes_by_depth") or {} for thing in reached if isinstance(thing, _GRAPHS)]
    return {id(node) for graph in graphs for nodes in graph.values() for node in nodes}


_GRAPHS: tuple[type, ...] = (keras.Function, keras.Model)


def old_graphs(model: keras.Sequential) -> set[int]:
    """Return the ids of the graphs that a Sequential had before its last layer was added: Keras keeps them in a list that nobody reads.

    There is no public name for it. Models that are attributes of a subclass are in that list, too.
    """
    used = {id(value) for value in vars(model).values()} | set(map(id, model._layers))
    return {id(each) for each in model._tracker.config["layers"][1] if isinstance(each, keras.Function)} - used


def _is_visited(thing: object) -> bool:
    if thing is None or isinstance(thing, str | bytes | int | float | type | types.ModuleType):
        return False
    if isinstance(thing, (list, tuple, dict, set, frozenset, deque)):
        return True
    if isinstance(thing, types.FunctionType | types.MethodType | functools.partial):
        return True
    if is_variable(thing) or is_compiled(thing):
        return True
    module = type(thing).__module__
    if module.startswith("keras."):
        return not module.startswith("keras.src.dtype_policies")
    if module.split(".")[0] == "tensorflow":
        return _may_keep_variables(thing)
    return isinstance(thing, KERAS_KINDS) or (_has_attributes(thing) and not _is_library(module))


def _has_attributes(thing: object) -> bool:
    return hasattr(thing, "__dict__") or bool(_slots(type(thing)))  # type: ignore[arg-type]  # likewise


def _may_keep_variables(thing: object) -> bool:
    """Return whether an object of a class of TensorFlow's has variables, or attributes that TensorFlow tracks.

    Tensors, graphs and devices have neither; they lead to everything that a process has.
    """
    attributes = getattr(thing, "__dict__", {})
    return _TRACKING in attributes or any(map(_is_or_has_variable, list(attributes.values())))


def _is_or_has_variable(thing: object) -> bool:
    """Return whether an object is a variable, or a list or dict of some, such as those of an ExponentialMovingAverage."""
    held = thing.values() if isinstance(thing, dict) else thing if isinstance(thing, list | tuple) else [thing]
    return any(map(is_variable, held))


def _is_library(module: str) -> bool:
    """Return whether objects of a module are data or library internals, not the user's own."""
    return module.split(".")[0] in (
        "numpy",
        "pandas",
        "pyspark",
        "py4j",
        "scipy",
        "tensorflow",
        "jax",
        "jaxlib",
        "inspect",
        "re",
    )


def path_to(root: object, target: object) -> str | None:
    """Return the shortest path from one object to another, such as ".loss.handle"; None where there is none."""
    seen = {id(root)}
    queue: deque[tuple[str, object]] = deque([("", root)])
    while queue:
        path, thing = queue.popleft()
        if thing is target:
            return path
        for step, value in children(thing):
            if id(value) not in seen:
                seen.add(id(value))
                queue.append((path + step, value))
    return None


def layers_of(model: keras.Model) -> list[keras.layers.Layer]:
    """Return every layer that a model reaches (nested, wrapped, kept in attributes), ordered by their first weight."""
    place = {id(variable): number for number, variable in enumerate(model.weights)}
    found = [thing for thing in reachable(model) if isinstance(thing, keras.layers.Layer) and thing is not model]
    return sorted(
        found, key=lambda layer: min((place.get(id(v), len(place)) for v in layer.weights), default=len(place))
    )


def optimizers_of(model: keras.Model) -> list[keras.optimizers.Optimizer]:
    """Return the optimizers that a model reaches, its own first. Those inside others (of a loss scale) are left out."""
    found = [thing for thing in reachable(model) if isinstance(thing, keras.optimizers.Optimizer)]
    own = getattr(model, "optimizer", None)
    inner = {id(part) for each in found for part in inner_optimizers(each)}
    others = [each for each in found if each is not own and id(each) not in inner]
    return ([own] if own is not None else []) + others


def plain_attributes(model: keras.Model) -> dict[str, object]:
    """Return the numbers, texts and flags that layers, the user's own model and optimizers hold in attributes, by "layer.attribute"."""
    optimizer = getattr(model, "optimizer", None)
    optimizers = [] if optimizer is None else [optimizer, *inner_optimizers(optimizer)]
    found: dict[str, object] = {}
    for thing in dict.fromkeys((model, *layers_of(model), *optimizers)):
        if isinstance(thing, keras.Model) and type(thing).__module__.startswith("keras."):
            continue
        for name, value in vars(thing).items():
            if (
                type(value) in (bool, int, float, str, type(None))
                and not name.startswith("_")
                and name not in _KERAS_SETS
            ):
                found[f"{thing.name}.{name}"] = value
    return found


_KERAS_SETS = frozenset({"stop_training", "built", "name", "training"})
"""Attributes that callbacks set as Keras' own do."""


def inner_optimizers(optimizer: keras.optimizers.Optimizer) -> list[keras.optimizers.Optimizer]:
    """Return the optimizers inside one whose variables belong to it: a LossScaleOptimizer's."""
    found: list[keras.optimizers.Optimizer] = []
    for value in vars(optimizer).values():
        parts = value if isinstance(value, list | tuple) else [value]
        found += [part for part in parts if isinstance(part, keras.optimizers.Optimizer)]
    return found


def code_of(model: keras.Model, *, into_functions: bool = True) -> list[object]:
    """Return the user's classes and functions that a model refers to."""
    found: dict[int, object] = {}
    for thing in reachable(model, into_functions=into_functions):
        code = thing if isinstance(thing, types.FunctionType) else type(thing)
        if not is_foreign(code):
            found[id(code)] = code
    return list(found.values())


_NUMBERED = re.compile(r"_(\d|\\d|\[0-9]|$)")
"""What looks in a pattern like the number of an automatic name, or like where one begins."""


def reads_names(function: types.FunctionType) -> bool:
    """Return whether a function of the user's may go by how variables and layers are numbered: it reads paths, or names that it compares."""
    code = function.__code__
    names = set(names_in(code))
    if "path" in names and "os" not in names:
        return True
    return "name" in names and any(map(_NUMBERED.search, _texts_in(code)))


def _texts_in(code: types.CodeType) -> Iterator[str]:
    """Yield the strings in code, functions inside of it included."""
    for constant in code.co_consts:
        if isinstance(constant, str):
            yield constant
        elif isinstance(constant, types.CodeType):
            yield from _texts_in(constant)


def automatic_name(kind: str) -> str:
    """Return the name that Keras gives to the first object of a class: conv2d_transpose for Conv2DTranspose."""
    return re.sub("([a-z])([A-Z])", r"\1_\2", re.sub("(.)([A-Z][a-z]+)", r"\1_\2", kind)).lower()
