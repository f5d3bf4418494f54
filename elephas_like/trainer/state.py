"""Keras variables of a compiled, built model, read into a TrainState and written back.

Variables are addressed by position, shape and dtype: their names are numbered anew in each process.
"""

from __future__ import annotations

from collections.abc import Mapping

import h5py
import keras
import numpy as np
import tensorflow as tf

from elephas_like.core.layout import Entry, Layout
from elephas_like.core.types import Array, Role, TrainState


class Variables:
    """The variables of one model in the order of its layout: trainable, non-trainable, optimizer.

    The model must be built, and so must its optimizer (`optimizer.build(model.trainable_variables)`).
    """

    def __init__(self, model: keras.Model) -> None:
        entries: list[Entry] = []
        variables: list[keras.Variable] = []
        for role, variable in _roles(model):
            variables.append(variable)
            entries.append(
                Entry(
                    name=variable.path,
                    role=role,
                    shape=tuple(variable.shape),
                    dtype=keras.backend.standardize_dtype(variable.dtype),
                )
            )
        self.layout = Layout(tuple(_paired(entries, variables)))
        self._variables = variables

    def read(self) -> TrainState:
        """A copy of the values of all variables."""
        return self.layout.flatten([_value(variable) for variable in self._variables])

    def place(self, variable: keras.Variable) -> slice:
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


def _assign(variable: keras.Variable, value: Array) -> None:
    """Sets a variable to an array of its shape; the array stays the caller's."""
    held = variable.value
    tf.raw_ops.AssignVariableOp(resource=held.handle, value=value.astype(held.dtype.as_numpy_dtype, copy=False))


def _value(variable: keras.Variable) -> Array:
    """A copy of a variable's value, bfloat16 as float32."""
    held = variable.value
    value = np.asarray(tf.raw_ops.ReadVariableOp(resource=held.handle, dtype=held.dtype).numpy())
    return value if value.dtype.kind in "fiub" else value.astype(np.float32)


def _roles(model: keras.Model) -> list[tuple[Role, keras.Variable]]:
    """Every variable with its role, in a fixed order."""
    found = [(Role.WEIGHT, variable) for variable in model.trainable_variables]
    for variable in model.non_trainable_variables:
        if variable.name == "seed_generator_state":
            role = Role.SEED
        elif _is_float(variable):
            role = Role.STATISTIC
        else:
            role = Role.COUNTER
        found.append((role, variable))
    optimizer = getattr(model, "optimizer", None)
    for variable in optimizer.variables if optimizer is not None else []:
        if not _is_float(variable):
            role = Role.COUNTER
        elif variable.name == "learning_rate" and tuple(variable.shape) == ():
            role = Role.LEARNING_RATE
        elif variable.name == "dynamic_scale" and tuple(variable.shape) == ():
            role = Role.LOSS_SCALE
        else:
            role = Role.SLOT
        found.append((role, variable))
    return found


def _is_float(variable: keras.Variable) -> bool:
    return "float" in keras.backend.standardize_dtype(variable.dtype)


def _paired(entries: list[Entry], variables: list[keras.Variable]) -> list[Entry]:
    """The entries, each moving variance with the place of its moving mean: by name and shape, one after the other."""
    paired: list[Entry] = []
    statistics = 0
    mean: tuple[int, tuple[int, ...]] | None = None
    for entry, variable in zip(entries, variables, strict=True):
        if entry.role is not Role.STATISTIC:
            paired.append(entry)
            continue
        if variable.name == "moving_variance" and mean is not None and mean[1] == entry.shape:
            paired.append(Entry(entry.name, entry.role, entry.shape, entry.dtype, variance_of=mean[0]))
        else:
            paired.append(entry)
        mean = (statistics, entry.shape) if variable.name == "moving_mean" else None
        statistics += 1
    return paired


def own_optimizer(model: keras.Model) -> keras.optimizers.Optimizer | None:
    """The optimizer that moves the weights: the inner one of a LossScaleOptimizer. None where a model has none."""
    optimizer = getattr(model, "optimizer", None)
    return getattr(optimizer, "inner_optimizer", optimizer)


def build_optimizer(model: keras.Model) -> bool:
    """Builds the optimizer of a built model, so that its layout is known; False where the model needs a row to be built."""
    if not model.built:
        return False
    optimizer = getattr(model, "optimizer", None)  # a model that was never compiled has no such attribute
    if optimizer is not None and not optimizer.built:
        optimizer.build(model.trainable_variables)
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
    """Builds whatever of model, optimizer and metrics is not built yet, from a batch of one row.

    The row goes through `test_step` as `evaluate` would hand it over. What that draws or counts is put back.

    Args:
        model: compiled.
        sample: (x,), (x, y) or (x, y, sample_weight), arrays with a leading axis of 1.
    """
    before = [(variable, variable.numpy()) for variable in model.non_trainable_variables]
    batch = keras.tree.map_structure(tf.convert_to_tensor, sample)
    try:
        model.test_step(keras.utils.pack_x_y_sample_weight(*batch))
    except Exception:
        # A model with a train step of its own may have no test step that works, a GAN for one: `fit` needs none.
        if type(model).train_step is keras.Model.train_step:
            raise
        if not model.built:
            model(batch[0])
    for variable, value in before:
        variable.assign(value)
    model.reset_metrics()
    build_optimizer(model)


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
