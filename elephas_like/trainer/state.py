"""Keras variables of a compiled, built model, read into a TrainState and written back.

Variables are identified by position, shape and dtype: Keras numbers their names anew in each process.
"""

from __future__ import annotations

import ctypes
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import keras
import numpy as np

from elephas_like.core.layout import Layout, LayoutEntry
from elephas_like.core.types import Array, Role, TrainState
from elephas_like.trainer.graph import layers_of, nodes_in, reachable
from elephas_like.trainer.serialization import is_adapted, state_is_used
from elephas_like.trainer.tensors import (
    AnyVariable,
    assign,
    backend_variable,
    content_of,
    dtype_of,
    generators,
    is_number,
    is_variable,
    name_of,
    value_of,
)

LARGE = 32 * 2**20
"""Bytes of a state whose writing leaves holes in the process's memory that count: they were up to two more states."""


def _give_back() -> None:
    """Give free memory back to the system, where the C library can: a tenth of the time that a large state takes to be written."""
    with suppress(OSError, AttributeError, TypeError):  # not glibc, or Windows, where None names no library
        ctypes.CDLL(None).malloc_trim(0)


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
        momenta = _momenta(reached)
        for role, variable in _roles(model, reached, self.optimizers):
            variables.append(variable)
            name = variable.path if isinstance(variable, keras.Variable) else name_of(variable)
            momentum = momenta.get(id(variable), 0.0)
            shape = tuple(variable.shape)
            entries.append(LayoutEntry(name, role, shape, dtype_of(variable), momentum=momentum))
        self.layout = Layout(tuple(_with_variances_paired(entries, variables)))
        self._variables = variables
        roles = zip(variables, self.layout.entries, strict=True)
        self._rates = [variable for variable, entry in roles if entry.role is Role.LEARNING_RATE]
        self._normalizations: list[keras.layers.Normalization] = [layer for layer in reached if is_adapted(layer)]
        self._models = [each for each in reached if isinstance(each, keras.Model)]

    def __iter__(self) -> Iterator[AnyVariable]:
        """Iterate over the variables in the order of the layout."""
        return iter(self._variables)

    def rates(self) -> list[float]:
        """Return the optimizers' learning rates, as far as they are numbers of their own."""
        return [float(value_of(variable)) for variable in self._rates]

    def read(self) -> TrainState:
        """Return a copy of the values of all variables."""
        return self.layout.flatten(content_of(variable) for variable in self._variables)

    @property
    def nbytes(self) -> int:
        """Bytes of all variables, counted as float32."""
        return 4 * sum(entry.size for entry in self.layout.entries)

    def place(self, variable: AnyVariable) -> slice:
        """Return the slice of a variable in the flat vector of its role."""
        number = self._number(variable)
        role = self.layout.entries[number].role
        return self.layout.slices(role)[sum(entry.role is role for entry in self.layout.entries[:number])]

    def role(self, variable: AnyVariable) -> Role:
        """Return the role of a variable."""
        return self.layout.entries[self._number(variable)].role

    def _number(self, variable: AnyVariable) -> int:
        return next(number for number, held in enumerate(self._variables) if held is variable)

    def write(self, state: TrainState, roles: frozenset[Role] = frozenset(Role)) -> None:
        """Assign a state, or only some of its roles; what it holds of the others does not matter.

        Normalization layers whose mean or variance changes by it compute with the new ones.
        """
        values = {role: iter(self.layout.views(state.part(role), role)) for role in roles}
        roles_of = (entry.role for entry in self.layout.entries)
        self.write_values(next(values[role]) if role in roles else None for role in roles_of)

    def values(self) -> tuple[Array | None, ...]:
        """Return copies of the values in the order of the layout, each in its own type, where a state has one type for each role.

        None for those of optimizers, and of the process's own generators.
        """
        owned = [*(each for optimizer in self.optimizers for each in optimizer.variables), *generators()]
        left_out = {id(backend_variable(variable)) for variable in owned}
        return tuple(None if id(backend_variable(each)) in left_out else value_of(each) for each in self._variables)

    def write_values(self, values: Iterable[Array | None]) -> None:
        """Assign a value to each variable, in the order of the layout; those with None stay. Normalization layers are as after `write`."""
        with state_is_used(self._normalizations, self._models):
            for variable, value in zip(self._variables, values, strict=True):
                if value is not None:
                    assign(variable, value)
        if self.nbytes >= LARGE:
            _give_back()


class BesideState:
    """The variables of a model that no state carries: of text, complex numbers, or no fixed shape."""

    def __init__(self, model: keras.Model) -> None:
        held: list[Any] = [thing for thing in reachable(model) if is_variable(thing) and not is_number(thing)]
        self._values = [(variable, np.array(variable.numpy())) for variable in held]

    @property
    def is_as_made(self) -> bool:
        """Whether they have the values that they had when this was made."""
        return all(np.array_equal(value, np.array(variable.numpy())) for variable, value in self._values)


def _momenta(reached: Sequence[object]) -> dict[int, float]:
    """Return the momentum of every moving average of a BatchNormalization, by the id of its variable.

    Those of layers that a step may call several times are left out: a step keeps less of them than their momentum.
    """
    wrapped = [thing.layer for thing in reached if isinstance(thing, keras.layers.TimeDistributed)]
    known = nodes_in(reached)
    wrapped += [thing for thing in reached if isinstance(thing, keras.Layer) and len(_calls(thing, known)) > 1]
    repeated = {id(layer) for each in wrapped for layer in (each, *layers_of(each))}
    layers = [each for each in reached if isinstance(each, keras.layers.BatchNormalization) and each.built]
    return {
        id(variable): momentum for layer in layers if id(layer) not in repeated for variable, momentum in _moving(layer)
    }


def _moving(layer: keras.layers.BatchNormalization) -> list[tuple[keras.Variable, float]]:
    """Return the moving averages of a BatchNormalization, each with its momentum."""
    kept = [(layer.moving_mean, float(layer.momentum)), (layer.moving_variance, float(layer.momentum))]
    if getattr(layer, "renorm", False):  # which old versions of Keras have not
        momentum = float(layer.renorm_momentum)
        kept += [(layer.moving_stddev, float(layer.momentum))]
        kept += [(layer.renorm_mean, momentum), (layer.renorm_stddev, momentum)]
    return kept


def _calls(layer: keras.Layer, known: set[int]) -> list[object]:
    """Return the places of this model's graphs in which a layer is called: there is no public name for them."""
    return [node for node in getattr(layer, "_inbound_nodes", ()) if id(node) in known]


def _optimizers(model: keras.Model, reached: Sequence[object]) -> list[keras.optimizers.Optimizer]:
    own = getattr(model, "optimizer", None)
    others = [thing for thing in reached if isinstance(thing, keras.optimizers.Optimizer) and thing is not own]
    return others if own is None else [own, *others]


def _roles(
    model: keras.Model, reached: Sequence[object], optimizers: Sequence[keras.optimizers.Optimizer]
) -> list[tuple[Role, AnyVariable]]:
    """Return every variable that training may change, with its role: the model's, its optimizers', others.

    Others are variables that no layer tracks: raw `tf.Variable` attributes, and those that a loss closes over. Metrics'
    variables are left out: they are summed, not averaged (`read_metrics`).
    """
    found: list[tuple[Role, AnyVariable]] = []
    seen: set[int] = set()
    frozen = {
        id(backend_variable(variable))
        for layer in reached
        if isinstance(layer, keras.Layer) and layer is not model and not layer.trainable
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
        # What a step overwrites (scales of FP8) is no weight that moves: an outer momentum would carry it off.
        if not is_number(variable):
            raise TypeError(
                f"expected weights that are real numbers; {name_of(variable)!r} is of {dtype_of(variable)}. Keep its real and imaginary "
                "parts as weights of their own."
            )
        overwritten = getattr(variable, "overwrite_with_gradient", False)
        take(Role.STATISTIC if overwritten else Role.WEIGHT, variable)
    for variable in filter(is_number, model.non_trainable_variables):
        take(untrained(variable), variable)
    for optimizer in optimizers:
        for variable in optimizer.variables:
            take(_role_in_optimizer(optimizer, variable), variable)
    for generator in generators():
        take(Role.SEED, generator)
    # Variables that no layer tracks; metrics' are marked as seen, so that they stay out.
    metrics = [*model.metrics, *(thing for thing in reached if isinstance(thing, keras.metrics.Metric))]
    seen |= {id(backend_variable(variable)) for metric in metrics for variable in metric.variables}
    for thing in reached:
        if is_variable(thing) and is_number(thing):
            take(untrained(thing), thing)
    return found


_DRAWN_FROM = ("seed_generator_state", "StateVar")
"""The variables of Keras' SeedGenerator and of `tf.random.Generator`."""


def _role_of(variable: AnyVariable) -> Role:
    """Return the role of a variable that no optimizer owns or trains."""
    if name_of(variable).split(":")[0] in _DRAWN_FROM:
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


def _is_float(variable: AnyVariable) -> bool:
    return "float" in dtype_of(variable)


def _with_variances_paired(entries: list[LayoutEntry], variables: list[AnyVariable]) -> list[LayoutEntry]:
    """Return the entries, each moving variance with the index of its moving mean, found by name, shape and position."""
    paired: list[LayoutEntry] = []
    places: Counter[Role] = Counter()
    mean: tuple[Role, int, tuple[int, ...]] | None = None
    for entry, variable in zip(entries, variables, strict=True):
        if (
            name_of(variable) == "moving_variance"
            and mean is not None
            and (mean[0], mean[2]) == (entry.role, entry.shape)
        ):
            paired.append(replace(entry, variance_of=mean[1]))
        else:
            paired.append(entry)
        mean = (entry.role, places[entry.role], entry.shape) if name_of(variable) == "moving_mean" else None
        places[entry.role] += 1
    return paired


def variables_in_words(model: keras.Model, variables: Variables) -> list[str]:
    """Return role, dtype and shape of each variable of a model, layer by layer, in words that are the same in every process.

    A state has no shapes: models of equally many weights have states of the same size. Layer by layer it is told, too, which of two equal
    layers is frozen.
    """
    known = {id(variable): entry for variable, entry in zip(variables, variables.layout.entries, strict=True)}
    entries = [known[id(variable)] for variable in model.variables if id(variable) in known]
    return [f"{entry.role.value} of {entry.dtype} {entry.shape}" for entry in entries if entry.role is not Role.SEED]


def metric_variables(model: keras.Model) -> list[keras.Variable]:
    """Return the variables of all metrics, the loss tracker first, in Keras' order."""
    return [variable for metric in model.metrics for variable in metric.variables]


def read_metrics(model: keras.Model) -> np.ndarray:
    """Return all metric variables in one float64 vector: sums, which add up across workers."""
    values = [value_of(variable).ravel() for variable in metric_variables(model)]
    return np.concatenate(values).astype(np.float64) if values else np.zeros(0)


def write_metrics(model: keras.Model, sums: np.ndarray) -> None:
    """Set all metric variables from a vector of `read_metrics`, or a sum of such vectors."""
    start = 0
    for variable in metric_variables(model):
        size = int(np.prod(variable.shape))
        variable.assign(sums[start : start + size].reshape(variable.shape))
        start += size
