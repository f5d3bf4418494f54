"""Predictions and metrics of a shard's rows: what is sent to executors, and compiled models kept per Python process."""

from __future__ import annotations

import hashlib
import logging
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import keras
import numpy as np

from elephas_like.core import rounds
from elephas_like.core.decisions import Task, columns_of
from elephas_like.core.structure import flatten, unflatten
from elephas_like.core.types import Array, FitConfig, Floats, Order, Role, ShardRef, Structure
from elephas_like.core.workers import WorkerFactory
from elephas_like.trainer.backends.chosen import BACKEND
from elephas_like.trainer.batches import ShardData
from elephas_like.trainer.graph import layers_of
from elephas_like.trainer.model_facts import overrides, prepares_rows
from elephas_like.trainer.programs import PROGRAM_BYTES_KEPT, check_rows_fit
from elephas_like.trainer.spec import Carry, ModelSpec
from elephas_like.trainer.state import Variables
from elephas_like.trainer.tensors import AnyVariable, assign, backend_variable, text_tensors, value_of

log = logging.getLogger(__name__)
_MODELS_KEPT = 2
_OUTPUT_BYTES = 16 * 2**20
"""Outputs that are computed in one call; one batch's are, whatever their size."""
Chunk = tuple[list[Array], Structure]
"""Output arrays with a leading axis of rows, and their structure."""


class Predicting:
    """A model that predicts, batch after batch as Keras does, with many batches a call where the backend can.

    changing: the variables that predictions may change, but for the seeds: as in Keras' predict, a layer that draws goes on
        from its last draw.
    nbytes: size of all variables.
    """

    def __init__(self, model: keras.Model) -> None:
        self.model = model
        variables = Variables(model)
        self.nbytes = variables.nbytes
        self.changing = list(_changed_by_calls(model, variables))
        self._seeds = [
            each for entry, each in zip(variables.layout.entries, variables, strict=True) if entry.role == Role.SEED
        ]
        own = any(overrides(model, name) for name in ("predict_on_batch", "make_predict_function"))
        self._loop = None if own else BACKEND.prediction_loop(model)
        if overrides(model, "predict_step") and not overrides(model, "predict_on_batch"):
            _hand_over_as_predict(model)  # the loop does, and has the step as it was
        self._like: Chunk | None = None

    def __call__(self, features: object, rows: int, batch_size: int) -> Iterator[Chunk]:
        """Yield the outputs of features in memory, an array or a tree of arrays, in row order."""
        leaves, structure = flatten(features)

        def part(begin: int, end: int) -> object:
            return unflatten(structure, [leaf[begin:end] for leaf in leaves])  # type: ignore[index]  # arrays

        begin = 0
        while begin < rows:
            whole = (rows - begin) // batch_size
            found = self._many(part(begin, begin + whole * batch_size), whole, batch_size) if whole > 1 else None
            end = begin + (len(found[0][0]) if found is not None else min(batch_size, rows - begin))
            if found is None:
                found = _predicted(self.model, part(begin, end))
                self._like = found if whole else self._like
            yield found
            begin = end

    def _many(self, features: object, steps: int, batch_size: int) -> Chunk | None:
        """Return the outputs of the first batches of features, as many as may be computed together; None if they go one by one."""
        loop, like = self._loop, self._like
        if loop is None or like is None or not all(len(output) == batch_size for output in like[0]):
            return None
        outputs, structure = like
        steps = min(steps, _OUTPUT_BYTES // max(1, sum(output.nbytes for output in outputs)))
        if steps < 2:
            return None
        before = [(variable, value_of(variable)) for variable in (*self.changing, *self._seeds)]
        try:
            found = loop.run(text_tensors(features), steps, batch_size, outputs)
        except Exception as error:  # a model that Keras can predict with, and no loop
            log.debug("the model %r predicts batch by batch: %s", self.model.name, error)
            for variable, value in before:  # the batches before the one that failed have changed them
                assign(variable, value)
            self._loop = None
            return None
        return found, structure


class _Kept:
    """Models that belong together, with the values that predictions may change in them.

    nbytes: size of all variables, and of what is kept beside them.
    """

    def __init__(self, models: tuple[keras.Model, ...]) -> None:
        self._models = tuple(map(Predicting, models))
        self._start = [(variable, value_of(variable)) for model in self._models for variable in model.changing]
        self.nbytes = sum(model.nbytes for model in self._models) + sum(value.nbytes for _, value in self._start)

    def as_shipped(self) -> tuple[Predicting, ...]:
        """Return the models without what earlier predictions have changed in them."""
        for variable, value in self._start:
            assign(variable, value)
        return self._models


def _changed_by_calls(model: keras.Model, variables: Variables) -> Iterator[AnyVariable]:
    """Yield the variables that a call may change, such as the states of an RNN; no seeds."""
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

    def get(self, key: str, specs: Sequence[ModelSpec]) -> tuple[Predicting, ...]:
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

    def __call__(self, refs: Iterable[ShardRef]) -> Iterator[Chunk]:
        """Yield (output arrays with a leading axis of rows, their structure) of successive batches of shards, in row order.

        A stateful model goes on from one shard to the next.
        """
        predict = self._predicting()
        for features, rows in _features(refs, self.batch_size):
            yield from predict(features, rows, self.batch_size)

    def of_arrays(self, features: object, rows: int) -> Iterator[Chunk]:
        """Yield the same for features in memory: an array, or a tuple or dict of arrays, with `rows` rows."""
        yield from self._predicting()(features, rows, self.batch_size)

    def model(self) -> keras.Model:
        """Return the model in the state that was shipped, built when this process first uses it."""
        return self._predicting().model

    def _predicting(self) -> Predicting:
        (predicting,) = MODELS.get(self.key, [self.spec])
        return predicting


@dataclass(frozen=True)
class EnsemblePredictor:
    """Predicts with several models of one output each, in one pass over the rows.

    combine: picklable function of the members' outputs for a batch; returns the ensemble's output.
    """

    members: tuple[Predictor, ...]
    combine: Callable[[Sequence[Array]], Array]
    batch_size: int

    def __call__(self, refs: Iterable[ShardRef]) -> Iterator[Chunk]:
        """Yield ([the ensemble's output], its structure) of successive batches of shards, in row order."""
        members = self._predicting()
        for features, rows in _features(refs, self.batch_size):
            yield [self._combined(members, features, rows)], 0

    def of_arrays(self, features: object, rows: int) -> Iterator[Chunk]:
        """Yield the same for features in memory: an array, or a tuple or dict of arrays, with `rows` rows."""
        if rows:
            yield [self._combined(self._predicting(), features, rows)], 0

    def models(self) -> tuple[keras.Model, ...]:
        """Return the members in the state that was shipped, built when this process first uses them."""
        return tuple(member.model for member in self._predicting())

    def _predicting(self) -> tuple[Predicting, ...]:
        key = hashlib.blake2b("".join(member.key for member in self.members).encode(), digest_size=16).hexdigest()
        return MODELS.get(key, [member.spec for member in self.members])

    def _combined(self, members: Sequence[Predicting], features: object, rows: int) -> Array:
        outputs = [[found[0] for found, _ in predict(features, rows, self.batch_size)] for predict in members]
        return self.combine([np.concatenate(parts) for parts in outputs])


def batches(ref: ShardRef, batch_size: int) -> Iterator[tuple[object, ...]]:
    """Yield successive batches of a shard's rows as a model takes them: (x,), (x, y) or (x, y, sample_weight)."""
    data = ShardData(ref, FitConfig(batch_size=batch_size, shuffle=False))
    for step in range(rounds.steps(ref.rows, batch_size)):
        rows = np.arange(step * batch_size, min((step + 1) * batch_size, ref.rows))
        batch = unflatten(data.structure, data.take(rows))
        assert isinstance(batch, tuple)
        yield batch


def _features(refs: Iterable[ShardRef], batch_size: int) -> Iterator[tuple[object, int]]:
    """Yield (features of some batches, their rows), which together are those of the shards."""
    for ref in refs:
        data = ShardData(ref, FitConfig(batch_size=batch_size, shuffle=False))
        for columns, _ in data.chunks(np.arange(ref.rows), 0, rounds.steps(ref.rows, batch_size)):
            batch = unflatten(data.structure, columns)
            assert isinstance(batch, tuple)
            yield batch[0], len(columns[0])


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


def _hand_over_as_predict(model: keras.Model) -> None:
    """Have `predict_on_batch` hand x to the user's step as Keras' predict does: itself where it is no tuple, and not as (x,)."""
    own = model.predict_step

    def step(*given: object) -> object:
        *state, data = given  # JAX hands over a state, too
        return own(*state, keras.utils.pack_x_y_sample_weight(*data))  # type: ignore[misc]  # a tuple of x

    model.predict_step, model.predict_function = step, None


def _predicted(model: keras.Model, features: object) -> Chunk:
    if not prepares_rows(model):
        check_rows_fit(model, (features,))
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
