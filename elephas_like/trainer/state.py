"""Keras variables of a compiled, built model, read into a TrainState and written back.

Variables are addressed by position, shape and dtype: their names are numbered anew in each process.
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
    """The variables of one model in the order of its layout: trainable, non-trainable, optimizers', others.

    The model must be built, and so must its optimizer (`optimizer.build(model.trainable_variables)`).

    optimizers: the model's, its own first, those inside others too.
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
        self.layout = Layout(tuple(_paired(entries, variables)))
        self._variables = variables

    def __iter__(self) -> Iterator[AnyVariable]:
        """The variables, in the order of the layout."""
        return iter(self._variables)

    def read(self) -> TrainState:
        """A copy of the values of all variables."""
        return self.layout.flatten([_value(variable) for variable in self._variables])

    def place(self, variable: AnyVariable) -> slice:
        """Where one of the variables lies in the flat vector of its role."""
        number = next(number for number, held in enumerate(self._variables) if held is variable)
        role = self.layout.entries[number].role
        return self.layout.slices(role)[sum(entry.role is role for entry in self.layout.entries[:number])]

    def write(self, state: TrainState, roles: frozenset[Role] = frozenset(Role)) -> None:
        """Assigns a state, or the roles of it that are named."""
        values = self.layout.unflatten(state)
        for entry, variable, value in zip(self.layout.entries, self._variables, values, strict=True):
            if entry.role in roles:
                _assign(variable, value)


# A state is assigned and read at every exchange. Such ops cost a third or less of what Keras' `assign` and
# `convert_to_numpy` take around them, and need no trace: benchmarks/state.py prints the numbers.


def _assign(variable: AnyVariable, value: Array) -> None:
    """Sets a variable to an array of its shape; the array stays the caller's."""
    held = backend_variable(variable)
    tf.raw_ops.AssignVariableOp(resource=held.handle, value=value.astype(held.dtype.as_numpy_dtype, copy=False))


def _value(variable: AnyVariable) -> Array:
    """A copy of a variable's value, bfloat16 as float32."""
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
    """Every variable that training may change, with its role, in a fixed order: the model's, its optimizers', and others.

    Others are variables that no layer tracks: raw `tf.Variable` attributes, those that a loss closes over. Metrics' variables
    are sums, which go another way.
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

    for variable in model.trainable_variables:
        take(Role.WEIGHT, variable)
    for variable in model.non_trainable_variables:
        take(untrained(variable), variable)
    for optimizer in optimizers:
        for variable in optimizer.variables:
            take(_role_in_optimizer(optimizer, variable), variable)
    metrics = [*model.metrics, *(thing for thing in reached if isinstance(thing, keras.metrics.Metric))]
    seen |= {id(backend_variable(variable)) for metric in metrics for variable in metric.variables}
    for thing in reached:
        if is_variable(thing) and _is_number(thing):
            take(untrained(thing), thing)
    return found


def _role_of(variable: AnyVariable) -> Role:
    """The role of a variable that no optimizer owns or moves."""
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
    """Whether a variable can be part of a state: of a known shape, and no text."""
    held = backend_variable(variable)
    return held.shape.is_fully_defined() and (held.dtype.is_floating or held.dtype.is_integer or held.dtype.is_bool)


def _is_float(variable: AnyVariable) -> bool:
    return "float" in _dtype(variable)


def _paired(entries: list[LayoutEntry], variables: list[AnyVariable]) -> list[LayoutEntry]:
    """The entries, each moving variance with the place of its moving mean: by name and shape, one after the other."""
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
    """The optimizer that moves the weights: the inner one of a LossScaleOptimizer. None where a model has none."""
    optimizer = getattr(model, "optimizer", None)
    return getattr(optimizer, "inner_optimizer", optimizer)


def build_optimizer(model: keras.Model) -> bool:
    """Builds the optimizer of a built model, so that its layout is known; False where the model needs a row to be built.

    A train step of the user's may have optimizers for parts of the model, which it alone knows: they need a row.
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
    """Gives the optimizer of a model that was loaded from `.h5` the slots that the file has for it.

    Keras 3 itself builds such an optimizer for the variables of the model's own, of which there are none, so that the
    loaded model could neither be trained nor would it have its slots.
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
    """Builds whatever of model, optimizers and metrics is not built yet, from a batch of rows.

    The batch goes through `test_step` as `evaluate` would hand it over, and through the user's own `train_step` as `fit`
    would where that alone knows how to build a part, or which variables an optimizer moves. No weight is moved, and what the
    steps draw, count or assign is put back.

    Args:
        model: compiled.
        sample: a batch, (x,), (x, y) or (x, y, sample_weight), arrays with a leading axis of rows. Its first row is enough
            for most models that are built; others, and those that count on the size of their batches, see the whole.
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
    """The number of rows that a model's inputs insist on."""
    return next((tensor.shape[0] for tensor in getattr(model, "inputs", None) or [] if tensor.shape), None)


def _first_rows(sample: tuple[object, ...], rows: int) -> tuple[object, ...]:
    """As many rows as a model asks for, the first one over and over."""
    return tuple(
        keras.tree.map_structure(lambda leaf: None if leaf is None else np.repeat(leaf[:1], rows, axis=0), part)
        for part in sample
    )


def _build(model: keras.Model, sample: tuple[object, ...]) -> None:
    with undisturbed(model):
        batch = _batch(sample)
        if not overrides(model, "train_step"):
            model.test_step(batch)
        else:
            if overrides(model, "call") and not model.built:
                model(keras.utils.unpack_x_y_sample_weight(batch)[0])
            with suppress(Exception):  # a GAN has none that works, and `fit` needs none
                model.test_step(batch)
            optimizers = optimizers_of(model) if len(optimizers_of(model)) > 1 else []
            if model not in _built_by_step and not all(part.built for part in [*layers_of(model), *optimizers]):
                _build_by_train_step(model, batch)
                _built_by_step.add(model)
    build_optimizer(model)


Seen = TypeVar("Seen")


def measured(model: keras.Model, sample: tuple[object, ...], look: Callable[[], Seen]) -> list[Seen]:
    """What `look` says of a built model before, after one and after two test steps on a batch; the model stays as it was."""
    with undisturbed(model):
        batch = _batch(sample)
        model.reset_metrics()
        seen = [look()]
        for _ in range(2):
            model.test_step(batch)
            seen.append(look())
    return seen


def _batch(sample: tuple[object, ...]) -> object:
    """A batch of arrays as a train or test step takes it."""
    x, *rest = (tensor_tree(part) for part in sample)
    return keras.utils.pack_x_y_sample_weight(x, *rest)


@contextmanager
def undisturbed(model: keras.Model) -> Iterator[None]:
    """Whatever steps draw, count or assign meanwhile is put back; metrics are reset."""
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
"""Models whose own train step has built all that it uses. What it does not use stays unbuilt, as in Keras' fit."""


def _build_by_train_step(model: keras.Model, batch: object) -> None:
    """Builds what a train step builds when it is called first: traced and not run, as Keras' fit traces it.

    A model that runs eagerly cannot be traced: its step is run, with optimizers that are built and move nothing.
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
    """The variables of all metrics, the loss tracker first, as Keras orders them."""
    return [variable for metric in model.metrics for variable in metric.variables]


def read_metrics(model: keras.Model) -> np.ndarray:
    """All metric variables in one float64 vector: sums, which add up across workers."""
    values = [_value(variable).ravel() for variable in metric_variables(model)]
    return np.concatenate(values).astype(np.float64) if values else np.zeros(0)


def write_metrics(model: keras.Model, sums: np.ndarray) -> None:
    """Sets all metric variables: what `read_metrics` gave, or sums of it."""
    start = 0
    for variable in metric_variables(model):
        size = int(np.prod(variable.shape))
        variable.assign(sums[start : start + size].reshape(variable.shape))
        start += size


def metric_results(model: keras.Model, sums: np.ndarray, sample: tuple[object, ...] | None = None) -> dict[str, float]:
    """What the metrics say of summed states, by name; an empty state gives {}. The model's metrics are left reset.

    Args:
        sample: a batch like those that the sums come from, to build metrics that are not built yet.
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
    """What the metrics say of the state that they are in, by name; without a loss that nobody has kept.

    A train step of the user's own may leave Keras' loss tracker alone, which would say 0.
    """
    results = _plain(model.get_metrics_result())
    tracker = model.metrics[0] if model.metrics else None
    if isinstance(tracker, keras.metrics.Mean) and tracker.name == "loss" and not float(_value(tracker.count)):
        results.pop("loss", None)
    return results


def in_order(model: keras.Model, results: Mapping[str, float]) -> list[float]:
    """Metric results as a list in the order of Keras' `evaluate`: as `model.metrics` has them, what is left by name."""
    names = [part.name for metric in model.metrics for part in getattr(metric, "metrics", [metric])]
    listed = [results[name] for name in names if name in results]
    return listed + [results[name] for name in sorted(results) if name not in names]


def _plain(results: dict[str, object]) -> dict[str, float]:
    plain: dict[str, float] = {}
    for name, value in results.items():
        if isinstance(value, dict):
            plain.update(_plain(value))
        else:
            array = np.asarray(keras.ops.convert_to_numpy(value))
            plain[name] = float(array) if array.ndim == 0 else array  # type: ignore[assignment]  # per-class metrics
    return plain
