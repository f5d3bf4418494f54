"""Predictions and metrics of a shard's rows: what is sent to executors, and compiled models kept per Python process."""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import keras
import numpy as np

from elephas_like.core import rounds
from elephas_like.core.decisions import Task, columns_of
from elephas_like.core.structure import flatten, unflatten
from elephas_like.core.types import (
    Array,
    FitConfig,
    Floats,
    Order,
    Role,
    ShardRef,
    Structure,
    WorkerFactory,
)
from elephas_like.trainer.batches import ShardData
from elephas_like.trainer.graph import layers_of
from elephas_like.trainer.programs import PROGRAM_BYTES_KEPT, check_width
from elephas_like.trainer.spec import Carry, ModelSpec
from elephas_like.trainer.state import Variables
from elephas_like.trainer.tensors import AnyVariable, assign, backend_variable, text_tensors, value_of

_MODELS_KEPT = 2


class _Kept:
    """Models that belong together, with the values that predictions may change in them.

    nbytes: size of all variables, and of what is kept beside them.
    """

    def __init__(self, models: tuple[keras.Model, ...]) -> None:
        every = [(model, Variables(model)) for model in models]
        changing = [variable for model, variables in every for variable in _changed_by_calls(model, variables)]
        self._models, self._start = models, [(variable, value_of(variable)) for variable in changing]
        self.nbytes = sum(variables.nbytes for _, variables in every) + sum(value.nbytes for _, value in self._start)

    def as_shipped(self) -> tuple[keras.Model, ...]:
        """Return the models without what earlier predictions have changed in them."""
        for variable, value in self._start:
            assign(variable, value)
        return self._models


def _changed_by_calls(model: keras.Model, variables: Variables) -> Iterator[AnyVariable]:
    """Yield the variables that a call may change, such as the states of an RNN.

    Seeds are left out: as in Keras' predict, a layer that draws goes on from its last draw.
    """
    trained = [
        layer._trainable_variables for layer in (model, *layers_of(model))
    ]  # `trainable_variables` lacks frozen ones
    owned = [*trained, *(optimizer.variables for optimizer in variables.optimizers)]
    constant = {id(backend_variable(variable)) for each in owned for variable in each}
    for entry, variable in zip(variables.layout.entries, variables, strict=True):
        counts = entry.role in (Role.STATISTIC, Role.COUNTER, Role.FROZEN)
        if counts and id(backend_variable(variable)) not in constant:
            yield variable


class KeptModels:
    """Models that a process predicts with, kept under the keys of predictors. Thread-safe.

    Args:
        count: maximum number of keys.
        nbytes: maximum size of all variables in bytes. The least recently used models are dropped first. The last ones that were
            asked for always stay.
    """

    def __init__(self, count: int = _MODELS_KEPT, nbytes: int = PROGRAM_BYTES_KEPT) -> None:
        self._count, self._nbytes = count, nbytes
        self._kept: OrderedDict[str, _Kept] = OrderedDict()
        self._lock, self._building = threading.Lock(), threading.Lock()

    def get(self, key: str, specs: Sequence[ModelSpec]) -> tuple[keras.Model, ...]:
        """Return the models that belong together under one key, built when this process first uses them, in the state that was shipped."""
        kept = self._used(key)
        if kept is None:
            with self._building:  # one after the other; others may predict with what is kept meanwhile
                kept = self._used(key) or self._keep(key, tuple(spec.build() for spec in specs))
        return kept.as_shipped()

    def _used(self, key: str) -> _Kept | None:
        with self._lock:
            if key in self._kept:
                self._kept.move_to_end(key)
            return self._kept.get(key)

    def _keep(self, key: str, models: tuple[keras.Model, ...]) -> _Kept:
        kept = _Kept(models)
        with self._lock:
            self._kept[key] = kept
            while len(self._kept) > 1 and (len(self._kept) > self._count or self._size() > self._nbytes):
                self._kept.popitem(last=False)
        return kept

    def _size(self) -> int:
        return sum(kept.nbytes for kept in self._kept.values())


MODELS = KeptModels()
"""Of this process, which Spark uses for one task after another."""


@dataclass(frozen=True)
class Predictor:
    """Predicts with one model on executors. The driver sends it as plain data.

    key: digest of the model with its weights, the key of the process's cache.
    """

    spec: ModelSpec
    key: str
    batch_size: int

    @classmethod
    def of(cls, model: keras.Model, batch_size: int) -> Predictor:
        """Return the predictor of a model."""
        spec = ModelSpec.from_model(model, Carry.WEIGHTS)
        return cls(spec, spec.content_key(), batch_size)

    def __call__(self, ref: ShardRef) -> Iterator[tuple[list[Array], Structure]]:
        """Yield (output arrays with a leading axis of rows, their structure) for each batch, in row order."""
        model = self.model()
        for features, *_ in batches(ref, self.batch_size):
            yield _predicted(model, features)

    def of_arrays(self, features: object, rows: int) -> Iterator[tuple[list[Array], Structure]]:
        """Yield the same for features in memory: an array, or a tuple or dict of arrays, with `rows` rows."""
        model = self.model()
        for batch in _batches_in_memory(features, rows, self.batch_size):
            yield _predicted(model, batch)

    def model(self) -> keras.Model:
        """Return the model in the state that was shipped, built when this process first uses it."""
        (model,) = MODELS.get(self.key, [self.spec])
        return model


@dataclass(frozen=True)
class EnsemblePredictor:
    """Predicts with several models of one output each, in one pass over the rows.

    combine: picklable function of the members' outputs for a batch; returns the ensemble's output.
    """

    members: tuple[Predictor, ...]
    combine: Callable[[Sequence[Array]], Array]
    batch_size: int

    def __call__(self, ref: ShardRef) -> Iterator[tuple[list[Array], Structure]]:
        """Yield ([the ensemble's output], its structure) for each batch, in row order."""
        models = self.models()
        for features, *_ in batches(ref, self.batch_size):
            yield [self._combined(models, features)], 0

    def of_arrays(self, features: object, rows: int) -> Iterator[tuple[list[Array], Structure]]:
        """Yield the same for features in memory: an array, or a tuple or dict of arrays, with `rows` rows."""
        models = self.models()
        for batch in _batches_in_memory(features, rows, self.batch_size):
            yield [self._combined(models, batch)], 0

    def models(self) -> tuple[keras.Model, ...]:
        """Return the members in the state that was shipped, built when this process first uses them."""
        key = hashlib.blake2b("".join(member.key for member in self.members).encode(), digest_size=16).hexdigest()
        return MODELS.get(key, [member.spec for member in self.members])

    def _combined(self, models: Sequence[keras.Model], features: object) -> Array:
        return self.combine([_predicted(model, features)[0][0] for model in models])


def batches(ref: ShardRef, batch_size: int) -> Iterator[tuple[object, ...]]:
    """Yield successive batches of a shard's rows as a model takes them: (x,), (x, y) or (x, y, sample_weight)."""
    data = ShardData(ref, FitConfig(batch_size=batch_size, shuffle=False))
    for step in range(rounds.steps(ref.rows, batch_size)):
        rows = np.arange(step * batch_size, min((step + 1) * batch_size, ref.rows))
        batch = unflatten(data.structure, data.take(rows))
        assert isinstance(batch, tuple)
        yield batch


def _batches_in_memory(features: object, rows: int, batch_size: int) -> Iterator[object]:
    """Yield successive batches of features that are in memory."""
    leaves, structure = flatten(features)
    for begin in range(0, rows, batch_size):
        yield unflatten(structure, [leaf[begin : begin + batch_size] for leaf in leaves])  # type: ignore[index]  # arrays


@dataclass(frozen=True)
class Scorer:
    """Predicts for a SQL function: features in, the arrays of the prediction columns out (core/decisions.py).

    thresholds: of a classifier, one per class.
    """

    predictor: Predictor | EnsemblePredictor
    task: Task
    thresholds: tuple[float, ...] | None = None

    def __call__(self, features: object, rows: int) -> list[Array]:
        """Return the arrays of `rows` rows, rows first."""
        batches = self.predictor.of_arrays(features, rows)
        parts = [columns_of(self.task, outputs, self.thresholds) for outputs, _ in batches]
        return [np.concatenate(arrays) for arrays in zip(*parts, strict=True)]


def _predicted(model: keras.Model, features: object) -> tuple[list[Array], Structure]:
    check_width(model, (features,))
    outputs, structure = flatten(_as_tuple(model.predict_on_batch(text_tensors(features))))
    return [np.asarray(output) for output in outputs], structure


def _as_tuple(outputs: object) -> object:
    """Return several outputs as a tuple, whatever kind of list Keras makes of them."""
    return tuple(outputs) if isinstance(outputs, list) else outputs


@dataclass(frozen=True)
class MetricSums:
    """Sums the metrics of a state over the rows of a shard: what the driver sends to executors to evaluate."""

    factory: WorkerFactory
    order: Order

    def __call__(self, ref: ShardRef) -> Floats:
        """The sums, over all rows of the shard."""
        worker = self.factory(ref.worker, ref, ref)
        try:
            return worker.evaluate(self.order).metrics
        finally:
            worker.close()
