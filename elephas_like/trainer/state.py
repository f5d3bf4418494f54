"""Keras variables of a compiled, built model, read into a TrainState and written back.

Variables are identified by position, shape and dtype: Keras numbers their names anew in each process.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, TypeVar
from weakref import WeakSet

import h5py
import keras
import numpy as np
import tensorflow as tf

from elephas_like.core.layout import Layout, LayoutEntry
from elephas_like.core.types import Array, Role, TrainState
from elephas_like.trainer.graph import layers_of, optimizers_of, reachable
from elephas_like.trainer.serialization import overrides
from elephas_like.trainer.tensors import backend_variable, is_variable, tensor_tree, traced_only

AnyVariable = Any
"""A Keras variable, or a raw `tf.Variable`."""


class Variables:
    """The variables of one model in the order of its layout: trainable, non-trainable, the optimizers', others.

    The model must be built, and so must its optimizer (`optimizer.build(model.trainable_variables)`).

    optimizers: the model's, its own first, including those inside others.
    """

    def __init__(self, model: keras.Model) -> None:
        entries: list[LayoutEntry] = []
        variables: list[AnyVariable] = []
        reached = list(reachable(model))
        self.optimizers = _optimizers(model, reached)
        for role, variable in _roles(model, reached, self.optimizers):
            variables.append(variable)
            name = variable.path if isinstance(variable, keras.Variable) else variable.name
            entries.append(LayoutEntry(name=name, role=role, shape=tuple(variable.shape), dtype=_dtype(variable)))
        self.layout = Layout(tuple(_with_variances_paired(entries, variables)))
        self._variables = variables

    def __iter__(self) -> Iterator[AnyVariable]:
        """Iterate over the variables in the order of the layout."""
        return iter(self._variables)

    def read(self) -> TrainState:
        """Return a copy of the values of all variables."""
        return self.layout.flatten([_value(variable) for variable in self._variables])

    def place(self, variable: AnyVariable) -> slice:
        """Return the slice of a variable in the flat vector of its role."""
        number = next(number for number, held in enumerate(self._variables) if held is variable)
        role = self.layout.entries[number].role
        return self.layout.slices(role)[sum(entry.role is role for entry in self.layout.entries[:number])]

    def write(self, state: TrainState, roles: frozenset[Role] = frozenset(Role)) -> None:
        """Assign a state, or only some of its roles; what it holds of the others does not matter."""
        values = {role: iter(self.layout.views(state.part(role), role)) for role in roles}
        for entry, variable in zip(self.layout.entries, self._variables, strict=True):
            if entry.role in roles:
                _assign(variable, next(values[entry.role]))


# A state is assigned and read at every exchange. Raw ops take a third or less of the time of Keras' `assign` and
# `convert_to_numpy`, and need no trace: benchmarks/state.py prints the numbers.


def _assign(variable: AnyVariable, value: Array) -> None:
    """Set a variable to an array of its shape. The variable does not keep the array."""
    held = backend_variable(variable)
    tf.raw_ops.AssignVariableOp(resource=held.handle, value=value.astype(held.dtype.as_numpy_dtype, copy=False))


def _value(variable: AnyVariable) -> Array:
    """Return a copy of a variable's value; bfloat16 as float32."""
    held = backend_variable(variable)
    value = np.asarray(tf.raw_ops.ReadVariableOp(resource=held.handle, dtype=held.dtype).numpy())
    return value if value.dtype.kind in "fiub" else value.astype(np.float32)


def _optimizers(model: keras.Model, reached: Sequence[object]) -> list[keras.optimizers.Optimizer]:
    own = getattr(model, "optimizer", None)
    others = [thing for thing in reached if isinstance(thing, keras.optimizers.Optimizer) and thing is not own]
    return others if own is None else [own, *others]


def _roles(
    model: keras.Model, reached: Sequence[object], optimizers: Sequence[keras.optimizers.Optimizer]
) -> list[tuple[Role, AnyVariable]]:
    """Return every variable that training may change, with its role: the model's, its optimizers', others.

    Others are variables that no layer tracks: raw `tf.Variable` attributes, and those that a loss closes over. Metrics'
    variables are left
    out: they are summed, not averaged (`read_metrics`).
    """
    found: list[tuple[Role, AnyVariable]] = []
    seen: set[int] = set()
    frozen = {
        id(backend_variable(variable))
        for layer in layers_of(model)
        if not layer.trainable
        for variable in layer.variables
    }

    def untrained(variable: AnyVariable) -> Role:
        role = _role_of(variable)
        still = role is Role.STATISTIC and id(backend_variable(variable)) in frozen
        return Role.FROZEN if still else role

    def take(role: Role, variable: AnyVariable) -> None:
        held = id(backend_variable(variable))
        if held not in seen:
            seen.add(held)
            found.append((role, variable))

    # The model's variables first, then its optimizers'.
    for variable in model.trainable_variables:
        take(Role.WEIGHT, variable)
    for variable in model.non_trainable_variables:
        take(untrained(variable), variable)
    for optimizer in optimizers:
        for variable in optimizer.variables:
            take(_role_in_optimizer(optimizer, variable), variable)
    # Variables that no layer tracks; metrics' are marked as seen, so that they stay out.
    metrics = [*model.metrics, *(thing for thing in reached if isinstance(thing, keras.metrics.Metric))]
    seen |= {id(backend_variable(variable)) for metric in metrics for variable in metric.variables}
    for thing in reached:
        if is_variable(thing) and _is_number(thing):
            take(untrained(thing), thing)
    return found


def _role_of(variable: AnyVariable) -> Role:
    """Return the role of a variable that no optimizer owns or trains."""
    if variable.name == "seed_generator_state":
        return Role.SEED
    return Role.STATISTIC if _is_float(variable) else Role.COUNTER


def _role_in_optimizer(optimizer: keras.optimizers.Optimizer, variable: keras.Variable) -> Role:
    scalar = tuple(variable.shape) == ()
    scales = isinstance(optimizer, keras.optimizers.LossScaleOptimizer)
    if scales and scalar and variable.name in ("step_counter", "dynamic_scale"):
        return Role.LOSS_SCALE
    if not _is_float(variable):
        return Role.COUNTER
    return Role.LEARNING_RATE if scalar and variable.name == "learning_rate" else Role.SLOT


def _dtype(variable: AnyVariable) -> str:
    return backend_variable(variable).dtype.name


def _is_number(variable: AnyVariable) -> bool:
    """Return whether a variable can be part of a state: its shape is known, and it holds no text."""
    held = backend_variable(variable)
    return held.shape.is_fully_defined() and (held.dtype.is_floating or held.dtype.is_integer or held.dtype.is_bool)


def _is_float(variable: AnyVariable) -> bool:
    return "float" in _dtype(variable)


def _with_variances_paired(entries: list[LayoutEntry], variables: list[AnyVariable]) -> list[LayoutEntry]:
    """Return the entries, each moving variance with the index of its moving mean, found by name, shape and position."""
    paired: list[LayoutEntry] = []
    places: Counter[Role] = Counter()
    mean: tuple[Role, int, tuple[int, ...]] | None = None
    for entry, variable in zip(entries, variables, strict=True):
        if variable.name == "moving_variance" and mean is not None and (mean[0], mean[2]) == (entry.role, entry.shape):
            paired.append(LayoutEntry(entry.name, entry.role, entry.shape, entry.dtype, variance_of=mean[1]))
        else:
            paired.append(entry)
        mean = (entry.role, places[entry.role], entry.shape) if variable.name == "moving_mean" else None
        places[entry.role] += 1
    return paired


def own_optimizer(model: keras.Model) -> keras.optimizers.Optimizer | None:
    """Return the optimizer that updates the weights: the inner one of a LossScaleOptimizer. None if the model has none."""
    optimizer = getattr(model, "optimizer", None)
    return getattr(optimizer, "inner_optimizer", optimizer)


def build_optimizer(model: keras.Model) -> bool:
    """Build the optimizer of a built model, so that its layout is known. Return False if that takes a row of data.

    It does where the user's train step has optimizers for parts of the model: only the step knows which.
    """
    if not model.built and (overrides(model, "call") or not all(layer.built for layer in layers_of(model))):
        return False
    own = getattr(model, "optimizer", None)  # a model that was never compiled has no such attribute
    if len(optimizers_of(model)) > 1:
        return model in _built_by_step or all(optimizer.built for optimizer in optimizers_of(model))
    if own is not None and not own.built:
        own.build(model.trainable_variables)
    return True


def restore_slots(model: keras.Model, path: str) -> None:
    """Load the slots in an `.h5` file into the optimizer of the model that was loaded from it.

    Keras 3 builds such an optimizer for no variables at all: the loaded model could not be trained and would have lost
    its slots.
    """
    if not build_optimizer(model):
        return
    with h5py.File(path, "r") as file:
        group = file.get("optimizer_weights")
        names = [] if group is None else [name for key in sorted(group.attrs) for name in group.attrs[key]]
        values = [group[name][()] for name in names]
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
    if not model.built:
        _build(model, sample)
        return
    try:
        _build(model, _first_rows(sample, _fixed_batch_size(model) or 1))
    except Exception as error:
        try:
            _build(model, sample)
        except Exception:
            raise error from None


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
            model.test_step(batch)
        else:
            if overrides(model, "call") and not model.built:
                model(keras.utils.unpack_x_y_sample_weight(batch)[0])
            with suppress(Exception):  # a GAN's test_step may not work, and `fit` does not need it
                model.test_step(batch)
            optimizers = optimizers_of(model) if len(optimizers_of(model)) > 1 else []
            if model not in _built_by_step and not all(part.built for part in [*layers_of(model), *optimizers]):
                _build_by_train_step(model, batch)
                _built_by_step.add(model)
    build_optimizer(model)


Seen = TypeVar("Seen")


def measured(model: keras.Model, sample: tuple[object, ...], look: Callable[[], Seen]) -> list[Seen]:
    """Return what `look` returns before, after one and after two test steps on a batch. The model is left as it was."""
    with state_restored(model):
        batch = _batch(sample)
        model.reset_metrics()
        seen = [look()]
        for _ in range(2):
            model.test_step(batch)
            seen.append(look())
    return seen


def _batch(sample: tuple[object, ...]) -> object:
    """Return a batch of arrays as a train or test step takes it."""
    x, *rest = (tensor_tree(part) for part in sample)
    return keras.utils.pack_x_y_sample_weight(x, *rest)


@contextmanager
def state_restored(model: keras.Model) -> Iterator[None]:
    """Restore afterwards whatever steps draw, count or assign, and reset the metrics."""
    changing = {
        id(backend_variable(thing)): thing for thing in [*model.variables, *reachable(model)] if is_variable(thing)
    }
    before = [(variable, _value(variable)) for variable in changing.values() if _is_number(variable)]
    try:
        yield
    finally:
        for variable, value in before:
            _assign(variable, value)
    model.reset_metrics()


_built_by_step: WeakSet[keras.Model] = WeakSet()
"""Models whose own train step has built everything it uses. What it does not use stays unbuilt, as in Keras' fit."""


def _build_by_train_step(model: keras.Model, batch: object) -> None:
    """Build what a train step builds on its first call. The step is traced but not run, as Keras' fit traces it.

    A model that runs eagerly cannot be traced: its step is run, with optimizers that are built but update nothing.
    """
    if not model.run_eagerly:
        traced_only(model.train_step, batch)
        return
    optimizers = optimizers_of(model)
    for optimizer in optimizers:
        vars(optimizer)["apply"] = _only_building(optimizer)  # which apply_gradients calls
    try:
        model.train_step(batch)
    finally:
        for optimizer in optimizers:
            del vars(optimizer)["apply"]


def _only_building(optimizer: keras.optimizers.Optimizer) -> Callable[..., None]:
    def apply(grads: object, trainable_variables: Sequence[AnyVariable] | None = None) -> None:
        if trainable_variables is not None and not optimizer.built:
            optimizer.build(list(trainable_variables))

    return apply


def metric_variables(model: keras.Model) -> list[keras.Variable]:
    """Return the variables of all metrics, the loss tracker first, in Keras' order."""
    return [variable for metric in model.metrics for variable in metric.variables]


def read_metrics(model: keras.Model) -> np.ndarray:
    """Return all metric variables in one float64 vector: sums, which add up across workers."""
    values = [_value(variable).ravel() for variable in metric_variables(model)]
    return np.concatenate(values).astype(np.float64) if values else np.zeros(0)


def write_metrics(model: keras.Model, sums: np.ndarray) -> None:
    """Set all metric variables from a vector of `read_metrics`, or a sum of such vectors."""
    start = 0
    for variable in metric_variables(model):
        size = int(np.prod(variable.shape))
        variable.assign(sums[start : start + size].reshape(variable.shape))
        start += size


def metric_results(model: keras.Model, sums: np.ndarray, sample: tuple[object, ...] | None = None) -> dict[str, float]:
    """Return the metrics' results for summed states, by name; {} for an empty state. The model's metrics are reset.

    Args:
        sample: a batch like those behind the sums, to build metrics that are not built yet.
    """
    if sums.size == 0:
        return {}
    if sample is not None and sums.size != sum(int(np.prod(v.shape)) for v in metric_variables(model)):
        build(model, sample)
    write_metrics(model, sums)
    results = metrics_of(model)
    model.reset_metrics()
    return results


def metrics_of(model: keras.Model) -> dict[str, float]:
    """Return the metrics' results for their current states, by name, without a loss that was not tracked.

    The user's own train step may not use Keras' loss tracker, whose result would be 0.
    """
    results = _plain_numbers(model.get_metrics_result())
    tracker = model.metrics[0] if model.metrics else None
    if isinstance(tracker, keras.metrics.Mean) and tracker.name == "loss" and not float(_value(tracker.count)):
        results.pop("loss", None)
    return results


def in_order(model: keras.Model, results: Mapping[str, float]) -> list[float]:
    """Return metric results in the order of Keras' `evaluate`: as in `model.metrics`, then the rest by name."""
    names = [part.name for metric in model.metrics for part in getattr(metric, "metrics", [metric])]
    listed = [results[name] for name in names if name in results]
    return listed + [results[name] for name in sorted(results) if name not in names]


def _plain_numbers(results: dict[str, object]) -> dict[str, float]:
    plain: dict[str, float] = {}
    for name, value in results.items():
        if isinstance(value, dict):
            plain.update(_plain_numbers(value))
        else:
            array = np.asarray(keras.ops.convert_to_numpy(value))
            plain[name] = float(array) if array.ndim == 0 else array  # type: ignore[assignment]  # per-class metrics
    return plain
