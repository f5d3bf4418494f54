"""Pickle a live Keras model by value: its current state, whatever its constructors and `get_config` say.

Keras' own format rebuilds a model from a configuration. What no configuration holds is lost: constructor arguments of
subclasses, attributes set later, losses without `get_config`, two functions of one name, an optimizer's exclusions,
layers frozen after construction. Here each object is written as pickle writes a plain Python object, by its class and
its attributes, with these exceptions:

- Values of variables lie in a table beside the program. So does what no training depends on, such as the seeds that
  Keras draws for initializers. The program alone determines whether two models train alike.
- All objects are first written without attributes, then the attributes: a deep graph needs no deep recursion.
- Of the graphs of functional models, those of this model alone: a layer that others share leads to them, and to their layers.
- Addresses (ids of tracked objects, keys of an optimizer's variables) are recomputed on loading.
"""

from __future__ import annotations

import collections
import copyreg
import functools
import io
import pickle
import re
import types
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import keras
import numpy as np
from keras.src.models.functional import Functional
from keras.src.models.model import inject_functional_model_class

from elephas_like.core.garbage import collection_paused
from elephas_like.core.pickle_digest import digest
from elephas_like.trainer.code import CodePickler, is_broadcast, is_foreign
from elephas_like.trainer.graph import (
    KERAS_KINDS,
    TORCH_REGISTRY,
    automatic_name,
    nodes_in,
    old_graphs,
    reachable,
    reads_names,
)
from elephas_like.trainer.model_facts import is_of_hub
from elephas_like.trainer.tensors import backend_variable, is_number, reduction, value_of, variable_attributes

_CONSTANT_BYTES = 4096
"""Bytes from which on the array of a `Constant` initializer lies in the table: a built layer does not need it."""


@dataclass(frozen=True)
class LivePickle:
    """A model as bytes.

    program: structure, code and attributes.
    values: the table: arrays for variables; None for a variable without its value.
    digest: equal for models that train alike from the same state; automatic names count by their order.
    variables: all that were written.
    """

    program: bytes
    values: tuple[object, ...]
    digest: str
    variables: tuple[Any, ...] = ()


class PickleError(TypeError):
    """The model holds something that cannot be pickled. culprit: that object."""

    def __init__(self, message: str, culprit: object) -> None:
        super().__init__(message)
        self.culprit = culprit


def dumps(
    model: keras.Model,
    *,
    without: Iterable[object] = (),
    constants: bool = True,
    kept_names: Iterable[str] = (),
) -> LivePickle:
    """Pickle a model by value.

    Args:
        model: any Keras model.
        without: Keras variables whose values are left out; they are zeros in the loaded model.
        constants: whether to include the matrices of `Constant` initializers; the weights of a built layer contain them
            already.
        kept_names: automatic names that the digest takes as they are, because rows are keyed by them. It takes all as they are where code of
            the user's may go by them.

    Raises:
        PickleError: the model holds something that cannot be pickled.
    """
    omitted = {id(backend_variable(variable)) for variable in without}
    nodes = nodes_in(reachable(model))
    while True:
        pickler, program, ends = _pickled(model, omitted, constants, nodes)
        met = nodes_in(pickler.keras_objects)
        if met <= nodes:
            break
        nodes |= met  # of a model that a method uses, such as a teacher that is a global of the script
    view = [program[begin:end] for begin, end in pairwise(ends)]
    names = {} if pickler.reads_names else pickler.automatic_names(frozenset(kept_names))
    return LivePickle(pickler.pickled(program), tuple(pickler.values), digest(view, names), tuple(pickler.variables))


def _pickled(
    model: keras.Model, omitted: set[int], constants: bool, nodes: set[int]
) -> tuple[_Pickler, bytes, list[int]]:
    """Return the pickler that has written a model, the program, and where its parts end."""
    file, ends = io.BytesIO(), [0]
    pickler = _Pickler(file, omitted, model, constants, nodes)

    def dump(thing: object) -> None:
        pickler.dump(thing)
        ends.append(file.tell())

    try:
        dump(model)
        while pickler.pending:
            batch, pickler.pending = pickler.pending, []
            dump([(thing, pickler.state_of(thing)) for thing in batch])
        dump(None)
    except Exception as error:  # of any kind: those of TensorFlow are its own
        raise PickleError(str(error), pickler.last) from error
    return pickler, file.getvalue(), ends


def loads(program: bytes, values: Sequence[object]) -> keras.Model:
    """Return the model that `dumps` wrote. The bytes come from this package's own driver, through Spark."""
    unpickler = _Unpickler(program, values)
    with collection_paused():
        model = unpickler.load()
        restored: list[tuple[object, object]] = []
        while (batch := unpickler.load()) is not None:
            for thing, state in batch:
                _restore(thing, state)
            restored += batch
        for thing, state in restored:
            _recompute_addresses(thing, state)
    assert isinstance(model, keras.Model)
    return model


@dataclass(frozen=True)
class _TableValue:
    """A value that is stored in the table."""

    value: object


@dataclass(frozen=True)
class _VariableKeyed:
    """The items of an optimizer's dict or set whose keys are the optimizer's keys of variables."""

    optimizer: Any
    variables: tuple[object, ...]
    values: tuple[object, ...] | None

    def items(self) -> Any:
        """Return the items with the keys of this process."""
        keys = [self.optimizer._var_key(variable) for variable in self.variables]
        return keys if self.values is None else list(zip(keys, self.values, strict=True))


class _Pickler(CodePickler):
    """Writes the program.

    pending: objects that are written without their attributes so far.
    values: the table.
    variables: those that were written so far.
    last: the object that was reduced last, the likely culprit of an error.
    reads_names: whether a function of the user's that was written may go by how variables and layers are numbered.
    """

    def __init__(
        self, file: io.BytesIO, omitted: set[int], model: keras.Model, constants: bool, nodes: set[int]
    ) -> None:
        super().__init__(file)
        self.keras_objects: list[object] = []
        self.pending: list[object] = []
        self.values: list[object] = []
        self.variables: list[object] = []
        self.last: object = None
        self.reads_names = False
        self._omitted = omitted
        self._model = model
        self._constants = constants
        self._nodes = nodes
        self._old_graphs: dict[int, set[int]] = {}  # by the id of the Sequential's tracker
        self._keyed: dict[int, _VariableKeyed] = {}
        self._named: list[tuple[str, str]] = []
        self._slots: list[Any] = []
        self._written_functions: dict[tuple[types.CodeType, int], types.FunctionType] = {}

    def persistent_id(self, thing: object) -> int | None:
        if type(thing) is not _TableValue:
            return None
        self.values.append(thing.value)
        return len(self.values) - 1

    def reducer_override(self, thing: object) -> Any:
        self.last = thing
        kind: Any = type(thing)
        if isinstance(thing, types.FunctionType):
            self.reads_names = self.reads_names or (not is_foreign(thing) and reads_names(thing))
            duplicate = self._duplicate_of(thing)
            return super().reducer_override(thing) if duplicate is thing else (_same, (duplicate,))
        if isinstance(thing, type | functools.cached_property) or is_broadcast(thing):
            return super().reducer_override(thing)
        if isinstance(thing, io.IOBase) and not isinstance(thing, io.BytesIO | io.StringIO):
            raise TypeError("cannot pickle an open file")  # cloudpickle would send its content
        if isinstance(thing, weakref.ref):
            target = thing()
            return (weakref.ref, (target,)) if target is not None else (_dead_reference, ())
        found = reduction(thing, self._value_of)
        if found is not None:
            return found
        if _is_shell(kind):
            self.pending.append(thing)
            graph = isinstance(thing, keras.Model) and "_nodes_by_depth" in vars(thing)
            return _graph_shell if graph else _shell, (kind,)
        return super().reducer_override(thing)

    def state_of(self, thing: object) -> object:
        """Return the attributes of an object, and the items of a container, as they are pickled."""
        own = getattr(type(thing), "__getstate__", None)
        attributes = dict(vars(thing)) if own is _GETSTATE else thing.__getstate__()
        if not isinstance(attributes, dict):
            return attributes  # for the class' own __setstate__
        self._note_name(thing, attributes)
        if isinstance(thing, KERAS_KINDS) or type(thing).__module__.startswith("keras."):
            attributes = _pickled_attributes(thing, attributes, constants=self._constants)
            attributes |= self._own_graph(attributes)
            if isinstance(thing, keras.Sequential):
                self._old_graphs[id(thing._tracker)] = old_graphs(thing)
            elif old := self._old_graphs.get(id(thing)):  # of the tracker of one
                stores = attributes["config"].items()
                attributes["config"] = {name: (test, _without(parts, old)) for name, (test, parts) in stores}
            self.keras_objects.append(thing)
        if isinstance(thing, keras.optimizers.Optimizer):
            self._slots += thing.variables
            for name, keyed in _keyed_by_variables(thing, attributes, self._model).items():
                self._keyed[id(attributes[name])] = keyed
                kind: Any = type(attributes[name])
                if not _is_shell(kind):
                    attributes[name] = keyed
        if isinstance(thing, keras.Variable):
            attributes |= variable_attributes(thing, self._value_of)
        attributes = _without_stale_dependencies(attributes)
        if isinstance(thing, dict | list | set):
            return attributes, self._keyed.get(id(thing)) or list(thing.items() if isinstance(thing, dict) else thing)
        return attributes

    def _own_graph(self, attributes: Mapping[str, Any]) -> dict[str, object]:
        """Return the attributes that tie a layer or a tensor to graphs, without those of other models that share the layer."""
        own: dict[str, object] = {
            name: [node for node in attributes[name] if id(node) in self._nodes]
            for name in ("_inbound_nodes", "_outbound_nodes")
            if name in attributes
        }
        made_by = attributes.get("_keras_history")
        if made_by is not None and made_by.operation is not None:
            before = made_by.operation._inbound_nodes[: made_by.node_index]
            own["_keras_history"] = made_by._replace(node_index=sum(id(node) in self._nodes for node in before))
        return own

    def automatic_names(self, kept: frozenset[str]) -> dict[str, str]:
        """Return replacements for the automatic names found: "dense_7", the first of its kind, becomes "dense#0"."""
        names: dict[str, str] = {}
        seen: collections.Counter[str] = collections.Counter()
        for base, name in self._named:
            if name not in names and name not in kept:
                names[name] = f"{base}#{seen[base]}"
                seen[base] += 1
        for base in seen:  # the first one's name has no number, and may be an attribute's name too
            names.setdefault(base, f"{base}#0")
        for number, variable in enumerate(self._slots):  # slots are named after their variables
            names[variable.name] = names[variable.path] = f"slot#{number}"
        return names

    def _duplicate_of(self, function: Any) -> types.FunctionType:
        """Return a Keras function that was written before and differs only in identity, or else the function itself.

        Each of Keras' trackers has its own copies of six lambdas: 1,100 in a MobileNetV2, half of the time to write
        one.
        """
        bound = function.__closure__ or function.__defaults__ or function.__kwdefaults__ or vars(function)
        if bound or not str(function.__module__).startswith("keras.") or "<locals>" not in function.__qualname__:
            return function
        return self._written_functions.setdefault((function.__code__, id(function.__globals__)), function)

    def _value_of(self, variable: Any) -> object:
        """Return a variable's value for the table, or the value itself if no state can bring another one: it is part of the program."""
        self.variables.append(variable)
        if id(variable) in self._omitted:
            return _TableValue(None)
        return _TableValue(value_of(variable)) if is_number(variable) else np.asarray(variable.numpy())

    def _note_name(self, thing: object, attributes: Mapping[str, object]) -> None:
        base = automatic_name(type(thing).__name__)
        found = [attributes.get("name") or attributes.get("_name")]
        if isinstance(thing, keras.metrics.Metric):
            # A metric that is a function is called like it, and its variables as if it were not.
            own: Any = attributes.get("_variables", ())
            found += [each.path.partition("/")[0] for each in own if isinstance(each, keras.Variable)]
        for name in found:
            # Bidirectional calls what it wraps forward_gru and backward_gru.
            known = isinstance(name, str) and re.fullmatch(rf"((?:for|back)ward_)?{re.escape(base)}(_\d+)?", name)
            if known:
                self._named.append(((known[1] or "") + base, known[0]))


class _Unpickler(pickle.Unpickler):
    """Reads the program, with values from the table."""

    def __init__(self, program: bytes, values: Sequence[object]) -> None:
        super().__init__(io.BytesIO(program))
        self._values = values

    def persistent_load(self, number: int) -> object:
        return self._values[number]


def _same(function: Callable[..., object]) -> Callable[..., object]:
    return function


def _dead_reference() -> Callable[[], None]:
    return _nothing


def _nothing() -> None:
    return None


def _shell(kind: type) -> object:
    """Return an object without its attributes."""
    bases: tuple[Any, ...] = (OrderedDict, dict, list, set, object)
    return next(base for base in bases if issubclass(kind, base)).__new__(kind)


OrderedDict = collections.OrderedDict


def _graph_shell(kind: type) -> object:
    """Return a model of a graph without its attributes.

    Keras gives the class of such a model another base when it makes the first one; here none may have been made yet. There is no public way.
    """
    if not issubclass(kind, Functional):
        inject_functional_model_class(kind)
    return _shell(kind)


_GETSTATE = object.__getstate__ if hasattr(object, "__getstate__") else None


@functools.cache
def _is_shell(kind: Any) -> bool:
    """Return whether an object's attributes describe it fully (for Keras' containers, attributes and items)."""
    of_keras = kind.__module__.startswith("keras.")
    # Keras' own __reduce__ writes an archive, which this module exists to avoid.
    archives = kind.__reduce__ is getattr(keras.Layer, "__reduce__", None)
    plain = kind.__reduce__ is object.__reduce__ and not hasattr(kind, "__setstate__")
    plain = plain and getattr(kind, "__getstate__", None) is _GETSTATE
    if not (archives or plain) or kind.__reduce_ex__ is not object.__reduce_ex__ or not kind.__dictoffset__:
        return False
    if kind in copyreg.dispatch_table or hasattr(kind, "__getnewargs__") or hasattr(kind, "__getnewargs_ex__"):
        return False
    slots = [base.__dict__.get("__slots__", ()) for base in kind.__mro__]
    if any(names and set(names) - {"__dict__", "__weakref__"} for names in slots):
        return False
    if issubclass(kind, list | dict | set):
        return of_keras
    try:
        object.__new__(kind)
    except TypeError:
        return False  # a class implemented in C
    return kind is not types.ModuleType and not issubclass(kind, type | BaseException)


# Everything below uses private attributes of Keras: there is no public way to a live object's whole state.


def _pickled_attributes(thing: object, attributes: dict[str, Any], *, constants: bool) -> dict[str, Any]:
    """Return the attributes of a Keras object that are pickled: without traces, addresses and what a run leaves behind."""
    # What a run leaves behind: traced functions, counters, the last history.
    if isinstance(thing, keras.Model):
        left = ("train_function", "test_function", "predict_function", "_initial_epoch")
        attributes |= {name: None for name in left if name in attributes}
        for name in ("stop_evaluating", "stop_predicting", "_eval_epoch_iterator"):
            attributes.pop(name, None)
        if isinstance(attributes.get("history"), keras.callbacks.History):  # left by the last fit
            del attributes["history"]
        attributes["stop_training"] = False
    # What no training depends on goes to the table: drawn seeds, and constants that weights already contain.
    if isinstance(thing, keras.Layer):
        _without_old_parameters(thing, attributes)
        if "_losses" in attributes:
            attributes |= {"_losses": [], "_loss_ids": set()}
        _move_to_table(attributes, "_called")
        # Some layers have it from a call on; nothing is named by it any more.
        if attributes.get("built") and "_parent_path" in attributes:
            attributes["_parent_path"] = _TableValue(attributes["_parent_path"])
        # A module's mode is that of the last call, and a model is built at rest.
        if _inherits(type(thing), "torch.", "Module"):
            _move_to_table(attributes, "training")
        if _inherits(type(thing), "keras.", "DropoutRNNCell"):
            _with_empty_masks(attributes)
        if "_functional_layer_ids" in attributes and any(map(is_of_hub, type(thing).__mro__)):
            attributes["_functional_layer_ids"] = set()  # addresses that keras-hub takes down, and does not read
        draws = any(isinstance(value, keras.random.SeedGenerator) for value in attributes.values())
        if draws and type(thing).__module__.startswith("keras."):
            _move_to_table(
                attributes, "seed"
            )  # drawn by Keras if the user gave none; the generator's state is what matters
    elif isinstance(thing, keras.random.SeedGenerator):
        _move_to_table(attributes, "_initial_seed")
    elif isinstance(thing, keras.initializers.Initializer):
        if attributes.get("_init_seed", 0) is None:
            _move_to_table(attributes, "seed")
        large = getattr(attributes.get("value"), "nbytes", 0) >= _CONSTANT_BYTES
        if large and type(thing) is keras.initializers.Constant:
            attributes["value"] = _TableValue(np.asarray(attributes["value"]) if constants else None)
    elif isinstance(thing, keras.optimizers.Optimizer):
        attributes.pop("_exclude_from_weight_decay_cache", None)
    elif "stored_ids" in attributes:  # a Tracker
        attributes["stored_ids"] = None
    # Addresses are None here; `_recompute_addresses` recomputes them.
    if isinstance(thing, keras.Function | keras.Model) and "_nodes_by_depth" in attributes:
        attributes["_nodes"] = None
    return attributes


def _without(parts: list[object], old: set[int]) -> list[object]:
    """Return a list without some objects, by their ids; itself, which other objects may share, where it has none of them."""
    return [part for part in parts if id(part) not in old] if any(id(part) in old for part in parts) else parts


def _without_old_parameters(layer: keras.Layer, attributes: dict[str, Any]) -> None:
    """Limit Keras' registry of a layer's parameters for PyTorch to those that it has: quantizing a layer leaves its old ones there."""
    modules = attributes.get("_modules")
    if isinstance(modules, dict) and TORCH_REGISTRY in modules:
        made = type(modules[TORCH_REGISTRY])({variable.path: variable.value for variable in layer.variables})
        attributes["_modules"] = modules | {TORCH_REGISTRY: made}


def _inherits(kind: type, package: str, name: str) -> bool:
    """Return whether a class has a base of a name in a package, which need not be imported. Attributes of the user's own may have any name."""
    return any(base.__name__ == name and base.__module__.startswith(package) for base in kind.__mro__)


def _with_empty_masks(attributes: dict[str, Any]) -> None:
    """Give a cell of an RNN what a call leaves in it, whether it was called or not: empty places for masks of dropout.

    Keras makes them where they are asked for. On TensorFlow each mask's name is also listed at each call, for a list of masks.
    """
    masks = ("_dropout_mask", "_recurrent_dropout_mask")
    for mask in masks:
        attributes.setdefault(mask, None)
    if "_tracked" in attributes:
        attributes["_tracked"] = [name for name in attributes["_tracked"] if name not in masks]


def _without_stale_dependencies(attributes: dict[str, Any]) -> dict[str, Any]:
    """Limit TensorFlow's list of checkpoint dependencies to the current attributes, once each."""
    listed, named = "_self_unconditional_checkpoint_dependencies", "_self_unconditional_dependency_names"
    if listed in attributes:
        current = [part for part in attributes[listed] if attributes.get(part.name) is part.ref]
        attributes[listed] = current
        attributes[named] = {part.name: part.ref for part in current}
    return attributes


def _move_to_table(attributes: dict[str, Any], name: str) -> None:
    if isinstance(attributes.get(name), int):
        attributes[name] = _TableValue(attributes[name])


def _keyed_by_variables(optimizer: Any, attributes: Mapping[str, Any], model: keras.Model) -> dict[str, _VariableKeyed]:
    """Return the attributes of an optimizer that are dicts or sets keyed by variables."""
    variables = [*getattr(optimizer, "_trainable_variables", ()), *model.variables]
    known = {optimizer._var_key(variable): variable for variable in reversed(variables)}
    place = {key: number for number, key in enumerate(known)}
    found: dict[str, _VariableKeyed] = {}
    for name, value in attributes.items():
        if isinstance(value, dict | set) and value and all(key in known for key in value):
            keys = sorted(value, key=place.__getitem__)
            values = tuple(value[key] for key in keys) if isinstance(value, dict) else None
            found[name] = _VariableKeyed(optimizer, tuple(known[key] for key in keys), values)
    return found


def _restore(thing: Any, state: Any) -> None:
    """Set the attributes of an object, and the items of a container."""
    if hasattr(type(thing), "__setstate__"):
        thing.__setstate__(state)
        return
    attributes, items = state if isinstance(state, tuple) else (state, None)
    vars(thing).update(attributes)
    if items is not None and not isinstance(items, _VariableKeyed):
        _fill(thing, items)


def _fill(container: Any, items: Iterable[Any]) -> None:
    """Put items into one of Keras' containers without its tracking: they are tracked already."""
    if isinstance(container, dict):
        for key, value in items:
            (OrderedDict if isinstance(container, OrderedDict) else dict).__setitem__(container, key, value)
    elif isinstance(container, list):
        list.extend(container, items)
    else:
        set.update(container, items)


def _recompute_addresses(thing: Any, state: Any) -> None:
    """Recompute addresses, once every object has its attributes."""
    if isinstance(state, tuple) and isinstance(state[1], _VariableKeyed):
        _fill(thing, state[1].items())
    elif isinstance(thing, keras.optimizers.Optimizer):
        for name, value in list(vars(thing).items()):
            if isinstance(value, _VariableKeyed):
                vars(thing)[name] = set(value.items()) if value.values is None else dict(value.items())
    elif isinstance(thing, keras.Function | keras.Model) and "_nodes_by_depth" in vars(thing):
        vars(thing)["_nodes"] = set(_node_keys(thing))
    elif vars(thing).get("stored_ids", 0) is None:
        thing.stored_ids = {name: {id(item) for item in store} for name, (_, store) in thing.config.items()}


def _node_keys(function: Any) -> Iterator[str]:
    """Yield the keys of a functional graph's nodes, as `keras.src.ops.function.make_node_key` writes them."""
    for nodes in function._nodes_by_depth.values():
        for node in nodes:
            number = next(i for i, other in enumerate(node.operation._inbound_nodes) if other is node)
            yield f"{id(node.operation)}_ib-{number}"
