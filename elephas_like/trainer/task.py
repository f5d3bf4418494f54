"""A model's inputs and outputs, and how to read its outputs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import keras

from elephas_like.core.decisions import Task
from elephas_like.core.model_types import LossModelTypeMapper, ModelType, snake_case
from elephas_like.core.structure import flatten
from elephas_like.core.types import Slot
from elephas_like.trainer.backends.chosen import BACKEND

ONE_HOT = ("categorical_crossentropy", "categorical_focal_crossentropy", "categorical_hinge")
_WIDE = ("float64", "int32", "uint32", "int64", "uint64")
_PROBABILITIES = ("softmax", "sparsemax")
_SHAPES_SAID_WRONG = (
    keras.layers.TextVectorization,
    keras.layers.StringLookup,
    keras.layers.IntegerLookup,
    keras.layers.Discretization,
    keras.layers.Hashing,
)
"""Layers whose outputs have other shapes than Keras says, in one release or another and for some of their arguments."""


def inputs(model: keras.Model) -> object:
    """Return a model's inputs in its own structure: a Slot, or a tuple or dict of Slots, which are named by its keys.

    An unbuilt model's has no shape.
    """
    return _slots(model, "input", "inputs")


def outputs(model: keras.Model) -> object:
    """Return a model's outputs in its own structure, like `inputs`."""
    return _slots(model, "output", "outputs")


def targets(model: keras.Model) -> object:
    """Return the outputs for which a row has targets: those whose entry in a list of losses is not None."""
    slots, losses = outputs(model), getattr(model, "loss", None)
    if isinstance(slots, dict) and len(slots) == 1 and isinstance(next(iter(model.output.values())), list | tuple):
        return next(iter(slots.values()))  # {"price": [output]}: Keras takes no dict of labels for it
    if not isinstance(slots, tuple) or not isinstance(losses, list | tuple) or len(losses) != len(slots):
        return slots  # Keras takes a dict of losses with targets for all outputs only
    kept = tuple(slot for slot, loss in zip(slots, losses, strict=True) if loss is not None)
    return kept[0] if len(kept) == 1 else kept or slots


def one_hot_classes(model: keras.Model) -> int | None:
    """Return the length of one-hot labels if the loss of a model with one output needs them, else None."""
    slot = outputs(model)
    if not isinstance(slot, Slot) or slot.shape is None or not slot.shape or _loss_name(model) not in ONE_HOT:
        return None
    return slot.shape[-1]


def task(model: keras.Model, model_type: ModelType | None = None) -> Task:
    """Return how the output of a model is read.

    An unknown loss of the user's own leaves it to the activation of the last layer (P28), unless `model_type` or
    `LossModelTypeMapper.register_loss` says it.
    """
    slot = outputs(model)
    if not isinstance(slot, Slot) or slot.shape is None:
        return Task.VALUES
    width = slot.shape[-1] if slot.shape else 1
    flat = len(slot.shape) <= 1
    name, activation = _loss_name(model), last_activation(model)
    kind = model_type or LossModelTypeMapper().get_model_type(single_loss(model))
    if kind is None:
        kind = ModelType.CLASSIFICATION if activation in ("softmax", "sigmoid") else ModelType.REGRESSION
    if not flat or kind is ModelType.REGRESSION:
        return Task.VALUE if flat and width == 1 else Task.VALUES
    logits, hinge = bool(loss_setting(single_loss(model), "from_logits")), name.endswith("hinge")
    if width == 1:
        signed = hinge and activation != "sigmoid"
        return Task.BINARY_LOGITS if logits or signed else Task.BINARY
    if activation == "sigmoid" or name.startswith("binary"):
        return Task.VALUES  # several labels a row: each has its own probability
    scores = activation not in _PROBABILITIES if activation else hinge  # without a known activation the loss decides
    return Task.CLASSES_LOGITS if logits or scores else Task.CLASSES


def _slots(model: keras.Model, tree: str, flat: str) -> object:
    try:
        tensors = getattr(model, flat)
    except (AttributeError, ValueError):  # a model that is not built, or a class of the user's
        tensors = None
    if not tensors:
        return Slot(tree)
    try:
        found = getattr(model, tree)
    except (AttributeError, ValueError):  # a Sequential has the list only
        found = tensors
    shapes = iter(_shapes(model, tensors) if tree == "output" else [tensor.shape[1:] for tensor in tensors])
    names = iter(model.output_names if tree == "output" and len(tensors) > 1 else [tensor.name for tensor in tensors])

    def slot(tensor: keras.KerasTensor) -> Slot:
        dtype = keras.backend.standardize_dtype(tensor.dtype)
        return Slot(next(names), tuple(next(shapes)), text=dtype == "string", wide=dtype in _WIDE)

    slots = _as_tuple(keras.tree.map_structure(slot, found))
    named = _named_by_key(slots)
    distinct = {leaf.name for leaf in flatten(named)[0] if isinstance(leaf, Slot)}
    return named if len(distinct) == len(tensors) else slots  # nested dicts may hold a key twice


def _shapes(model: keras.Model, tensors: Sequence[keras.KerasTensor]) -> Sequence[tuple[int | None, ...]]:
    """Return the shapes of a model's outputs, without rows.

    Keras says wrong ones where some of its layers of preprocessing are in a model: an axis too many for `TextVectorization` with
    "tf_idf" over `Input((1,))`. So such a model is traced.
    """
    said = [tuple(tensor.shape[1:]) for tensor in tensors]
    found = BACKEND.output_shapes(model) if _is_graph(model) and _preprocesses(model) else None
    return said if found is None or len(found) != len(said) else found


def _preprocesses(model: keras.Model) -> bool:
    return any(
        _preprocesses(layer) if isinstance(layer, keras.Model) else isinstance(layer, _SHAPES_SAID_WRONG)
        for layer in model.layers
    )


def _as_tuple(tree: object) -> object:
    if isinstance(tree, list | tuple):
        return _as_tuple(tree[0]) if len(tree) == 1 else tuple(map(_as_tuple, tree))
    if isinstance(tree, dict):
        return {key: _as_tuple(value) for key, value in tree.items()}
    return tree


def _named_by_key(tree: object, key: object = None) -> object:
    """Return a tree of Slots in which those that are values of a dict have the names of their keys, as in Keras' `compile`."""
    if isinstance(tree, tuple):
        return tuple(map(_named_by_key, tree))
    if isinstance(tree, dict):
        return {name: _named_by_key(value, name) for name, value in tree.items()}
    return tree if key is None or not isinstance(tree, Slot) else replace(tree, name=str(key))


def loss_name(loss: object) -> str:
    """Return the name of a loss: "CategoricalCrossentropy" and "categorical_crossentropy" are one."""
    known = keras.losses.get(loss) if isinstance(loss, str) else loss
    return snake_case(getattr(known, "__name__", type(known).__name__))  # an object's own name may be its user's


def single_loss(model: keras.Model) -> object:
    """Return the loss of a model with one output, out of the list or dict that may hold it; None where there are several or none."""
    loss = getattr(model, "loss", None)
    while isinstance(loss, dict | list | tuple):
        loss = next(iter(loss.values() if isinstance(loss, dict) else loss)) if len(loss) == 1 else None
    return loss


def _loss_name(model: keras.Model) -> str:
    loss = single_loss(model)
    return "" if loss is None else loss_name(loss)


def loss_setting(loss: object, name: str) -> Any:
    """Return what a loss was made with, such as `from_logits`; None where it has no such setting.

    Some losses of Keras 3.16 keep their settings in the configuration alone.
    """
    held = getattr(loss, name, None)
    return loss.get_config().get(name) if held is None and isinstance(loss, keras.losses.Loss) else held


def last_activation(model: keras.Model) -> str:
    """Return the name of the activation that makes a model's one output; "" where that cannot be told.

    Any activation but softmax and sigmoid must be certain: of a layer of Keras' own that surely is the last.
    """
    end = _end(model)
    if isinstance(end, keras.Model):
        return last_activation(end)
    function = getattr(end, "activation", end)
    if isinstance(function, keras.Operation):  # layers.Softmax, or what keras.ops.softmax adds to a model
        return {"Softmax": "softmax", "Sigmoid": "sigmoid"}.get(type(function).__name__, "")
    name = str(getattr(function, "__name__", ""))
    if name in ("softmax", "softmax_v2", "sigmoid"):  # tf.nn.softmax is the second
        return name.removesuffix("_v2")
    certain = type(end).__module__.startswith("keras.") and _is_graph(model)
    return name if certain and hasattr(keras.activations, name) else ""


def _end(model: keras.Model) -> object:
    """Return the operation that makes a model's one output, before casts by `Activation("linear")`; None where that is unknown."""
    if not _is_graph(model) or isinstance(model, keras.Sequential):
        layers = [layer for layer in getattr(model, "layers", None) or [] if not _passes(layer)]
        return layers[-1] if layers else None
    operations = {one.name: one for one in model.operations}
    end = operations.get(model.output_names[0])
    while end is not None and _passes(end):  # its input is the output of another, unless that is called more than once
        end = next((one for one in operations.values() if one.output is end.input), None)
    return end


def _is_graph(model: keras.Model) -> bool:
    """Whether a model says which operation makes its output: one that is no subclass with a `call` of its own."""
    return isinstance(model, keras.Sequential) or hasattr(model, "operations")


def _passes(layer: object) -> bool:
    """Whether a layer leaves values as they are; `Activation("linear", dtype="float32")` ends models of mixed precision."""
    return isinstance(layer, keras.layers.Activation) and layer.activation is keras.activations.linear
