"""Building a compiled model, its optimizers and its metrics, so that their variables are all known, without changing any."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, TypeVar
from weakref import WeakKeyDictionary, WeakSet

import h5py
import keras
import numpy as np

from elephas_like.trainer.backends.chosen import BACKEND
from elephas_like.trainer.graph import layers_of, optimizers_of, reachable
from elephas_like.trainer.model_facts import overrides
from elephas_like.trainer.state import metric_variables
from elephas_like.trainer.tensors import (
    AnyVariable,
    assign,
    backend_variable,
    dtype_of,
    generators,
    is_number,
    is_variable,
    tensor_tree,
    value_of,
)

building_lock = threading.RLock()
"""Lock for what builds a model, or has to see all of it: a thread may evaluate a model that another one begins to fit."""


def build_optimizer(model: keras.Model, *, complete: bool = False) -> bool:
    """Build the optimizer of a built model, so that its layout is known. Return False if that takes a row of data.

    It does where the user's train step has optimizers for parts of the model, or may give the one it has a variable of no layer, as one of the
    loss: only the step knows which. Keras' own step has one, whatever else the model reaches: a model inside it may have been compiled.

    Args:
        complete: whether a model that is built has all its variables: what is not built in it is not used.
    """
    if _needs_rows(model) and not (complete and model.built):
        return False
    own = getattr(model, "optimizer", None)  # a model that was never compiled has no such attribute
    if _step_builds_optimizers(model):
        return _was_built_by_step(model) or all(optimizer.built for optimizer in optimizers_of(model))
    with building_lock:
        if own is not None and not own.built:
            with BACKEND.where_built(model):
                own.build(model.trainable_variables)
    return True


def _step_builds_optimizers(model: keras.Model) -> bool:
    """Return whether only the user's train step knows which variables its optimizers update.

    Keras on PyTorch and JAX builds the one optimizer of a model for the weights that the model lists.
    """
    if not overrides(model, "train_step"):
        return False
    optimizers = optimizers_of(model)
    if len(optimizers) != 1 or not BACKEND.TRACES:
        return len(optimizers) > 1
    listed = {id(backend_variable(variable)) for variable in model.variables}
    others = [thing for thing in reachable(model) if is_variable(thing) and id(backend_variable(thing)) not in listed]
    return any(getattr(variable, "trainable", False) and "float" in dtype_of(variable) for variable in others)


def _needs_rows(model: keras.Model) -> bool:
    """Return whether some variable may be missing. `model.build(shape)` of a subclass says "built" and may build none of its layers."""
    if all(layer.built for layer in layers_of(model)):
        return not model.built and overrides(model, "call")
    return not model.built or (overrides(model, "call") and model not in _saw_rows)


_saw_rows: WeakSet[keras.Model] = WeakSet()
"""Models that rows have passed through: what is still not built is not used."""


def restore_slots(model: keras.Model, path: str) -> None:
    """Load the slots in an `.h5` file into the optimizer of the model that was loaded from it.

    Keras 3 builds such an optimizer for no variables at all: the loaded model could not be trained and would have lost
    its slots.
    """
    with h5py.File(path, "r") as file:
        group = file.get("optimizer_weights")
        names = [] if group is None else [name for key in sorted(group.attrs) for name in group.attrs[key]]
        values = [group[name][()] for name in names]
    if not build_optimizer(model, complete=True):
        if len(optimizers_of(model)) != 1:
            return
        plain = type(model.optimizer).from_config(model.optimizer.get_config())
        plain.build(model.trainable_variables)
        if [value.shape for value in values] != [tuple(variable.shape) for variable in plain.variables]:
            return  # its step gave it more than the model's weights, which only rows tell
        model.optimizer.build(model.trainable_variables)
    variables = model.optimizer.variables
    if [value.shape for value in values] == [tuple(variable.shape) for variable in variables]:
        for variable, value in zip(variables, values, strict=True):
            variable.assign(value)


def build(model: keras.Model, sample: tuple[object, ...]) -> None:
    """Build the parts of model, optimizers and metrics that are not built yet, from a batch of rows.

    The batch goes through `test_step` as in `evaluate`. It also goes through the user's own `train_step`, as in `fit`,
    where only that builds a part, or knows which variables an optimizer updates. No weight changes: what the steps
    draw, count or assign is restored.

    Args:
        model: compiled.
        sample: a batch, (x,), (x, y) or (x, y, sample_weight), arrays with a leading axis of rows. Its first row is
            enough for most built models. Other models, and those that rely on the batch size, get the whole batch.
    """
    with building_lock, BACKEND.where_built(model):
        if not _is_built_for(model, sample):
            _build_parts(model, sample)
            _built_for[model] = _parts(model), _shapes(sample)
        model.reset_metrics()  # as a step would


def _build_parts(model: keras.Model, sample: tuple[object, ...]) -> None:
    if not model.built:
        _build_for_any_batch(model, sample)
        _build(model, sample)
        return
    try:
        _build(model, _first_rows(sample, _fixed_batch_size(model) or 1))
    except Exception as error:
        try:
            _build(model, sample)
        except Exception:
            raise error from None


_built_for: WeakKeyDictionary[keras.Model, tuple[list[AnyVariable], object]] = WeakKeyDictionary()
"""The variables that models had when `build` was through with them, and what rows it saw."""


def _is_built_for(model: keras.Model, sample: tuple[object, ...]) -> bool:
    """Return whether `build` has been through with this model for such rows, and nothing of it is new since then.

    A train step of the user's own is not known so well.
    """
    if model not in _built_for or overrides(model, "train_step"):
        return False
    parts, shapes = _built_for[model]
    now = _parts(model)
    same = len(now) == len(parts) and all(one is other for one, other in zip(now, parts, strict=True))
    return same and shapes == _shapes(sample) and model.built and all(layer.built for layer in layers_of(model))


def _parts(model: keras.Model) -> list[AnyVariable]:
    """Return all variables of a model, its optimizer and its metrics. A model that is compiled again has other ones."""
    optimizer = getattr(model, "optimizer", None)
    return [*model.variables, *metric_variables(model), *([] if optimizer is None else optimizer.variables)]


def _shapes(sample: tuple[object, ...]) -> object:
    """Return the structure of a batch, with the shape of a row and the dtype of each array."""
    return keras.tree.map_structure(lambda leaf: None if leaf is None else (leaf.shape[1:], str(leaf.dtype)), sample)


def _build_for_any_batch(model: keras.Model, sample: tuple[object, ...]) -> None:
    """Build a Sequential model without Input for batches of any size, where it can be: else it would show that of the sample."""
    x = sample[0]
    if type(model) is not keras.Sequential or not isinstance(x, np.ndarray) or x.dtype.kind not in "biuf":
        return
    if not model.layers or any(getattr(layer, "stateful", False) for layer in layers_of(model)):
        return
    layers = list(model._layers)
    try:
        with state_restored(model):
            model.build((None, *x.shape[1:]))
    except Exception:  # a layer that needs to know the batch: built from one, as before
        model._layers, model._functional, model.built = layers, None, False


def _fixed_batch_size(model: keras.Model) -> int | None:
    """Return the number of rows that a model's inputs require, or None."""
    return next((tensor.shape[0] for tensor in getattr(model, "inputs", None) or [] if tensor.shape), None)


def _first_rows(sample: tuple[object, ...], rows: int) -> tuple[object, ...]:
    """Return the first row, repeated `rows` times."""
    return tuple(
        keras.tree.map_structure(lambda leaf: None if leaf is None else np.repeat(leaf[:1], rows, axis=0), part)
        for part in sample
    )


def _build(model: keras.Model, sample: tuple[object, ...]) -> None:
    with state_restored(model):
        batch = _batch(sample)
        if not overrides(model, "train_step"):
            _build_by_step(model, batch)
            if not _metrics_built(model):  # a test step of the user's that leaves them to the train step
                _build_by_train_step(model, batch)
        else:
            if overrides(model, "call") and not model.built:
                model(keras.utils.unpack_x_y_sample_weight(batch)[0])
            with suppress(Exception):  # a GAN's test_step may not work, and `fit` does not need it
                BACKEND.build_by_test_step(model, batch)
            optimizers = optimizers_of(model) if _step_builds_optimizers(model) else []
            built = _was_built_by_step(model) or not BACKEND.STEPS_BUILD
            parts_built = all(part.built for part in [*layers_of(model), *optimizers])
            if not built and not (parts_built and _metrics_built(model)):
                _build_by_train_step(model, batch)
                _built_by_step[model] = [weakref.ref(part) for part in _given_by_compile(model)]
    _saw_rows.add(model)
    build_optimizer(model)


def _metrics_built(model: keras.Model) -> bool:
    """Return whether all metrics have their variables: those of `compile` get them by the step that first uses them."""
    return all(getattr(metric, "built", True) for metric in model.metrics)


def _build_by_step(model: keras.Model, batch: object) -> None:
    """Build what a test step builds; or, for a model that can only be trained, a train step."""
    try:
        BACKEND.build_by_test_step(model, batch)
    except Exception as error:
        try:
            _build_by_train_step(model, batch)
        except Exception:
            raise error from None  # of the rows, or of the model: it cannot be trained either


Seen = TypeVar("Seen")


def measured(model: keras.Model, sample: tuple[object, ...], look: Callable[[], Seen]) -> list[Seen]:
    """Return what `look` returns before, after one and after two test steps on a batch. The model is left as it was."""
    with state_restored(model):
        batch = _batch(sample)
        model.reset_metrics()
        seen = [look()]
        for _ in range(2):
            BACKEND.test_step(model, batch)
            seen.append(look())
    return seen


def evaluate_once(model: keras.Model, sample: tuple[object, ...]) -> None:
    """Run a test step on a batch, or trace it, as the backend does to build a model. The model is left as it was."""
    with state_restored(model):
        BACKEND.build_by_test_step(model, _batch(sample))


def _batch(sample: tuple[object, ...]) -> object:
    """Return a batch of arrays as a train or test step takes it."""
    x, *rest = (tensor_tree(part) for part in sample)
    return keras.utils.pack_x_y_sample_weight(x, *rest)


@contextmanager
def state_restored(model: keras.Model) -> Iterator[None]:
    """Restore afterwards whatever steps draw, count or assign."""
    changing = {
        id(backend_variable(thing)): thing
        for thing in [*model.variables, *reachable(model), *generators()]
        if is_variable(thing)
    }
    numbers = [variable for variable in changing.values() if is_number(variable)]
    others: list[Any] = [
        each for each in changing.values() if not is_number(each) and hasattr(each, "assign")
    ]  # as text
    before = [(variable, value_of(variable)) for variable in numbers]
    beside = [(variable, np.array(variable.numpy())) for variable in others]
    try:
        yield
        model.reset_metrics()  # those that are built only now
    finally:
        for variable, value in before:
            assign(variable, value)
        for other, held in beside:
            other.assign(held)


_built_by_step: WeakKeyDictionary[keras.Model, list[weakref.ref[object]]] = WeakKeyDictionary()
"""Models whose own train step has built everything it uses, with the optimizers and metrics that they had.

What the step does not use stays unbuilt, as in Keras' fit.
"""


def _was_built_by_step(model: keras.Model) -> bool:
    """Return whether the model's own train step has built what it uses. It has not if the model was compiled again since then."""
    had, has = _built_by_step.get(model), _given_by_compile(model)
    return had is not None and len(had) == len(has) and all(one() is part for one, part in zip(had, has, strict=True))


def _given_by_compile(model: keras.Model) -> list[object]:
    return [*optimizers_of(model), *model.metrics]


def _build_by_train_step(model: keras.Model, batch: object) -> None:
    """Build what a train step builds on its first call. The step is traced but not run, as Keras' fit traces it.

    Where nothing can be traced (PyTorch, models that run eagerly), the step is run, with optimizers that are built but update nothing.
    """
    if BACKEND.TRACES and not model.run_eagerly:
        BACKEND.trace_train_step(model, batch)
        return
    optimizers = optimizers_of(model)
    for optimizer in optimizers:
        vars(optimizer)["apply"] = _only_building(optimizer)  # which apply_gradients calls
    try:
        BACKEND.train_step(model, batch)
    finally:
        for optimizer in optimizers:
            del vars(optimizer)["apply"]


def _only_building(optimizer: keras.optimizers.Optimizer) -> Callable[..., None]:
    def apply(grads: object, trainable_variables: Sequence[AnyVariable] | None = None) -> None:
        if trainable_variables is not None and not optimizer.built:
            optimizer.build(list(trainable_variables))

    return apply
