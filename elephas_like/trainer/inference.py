"""Predictions and metrics of a shard's rows: what is sent to executors, and compiled models kept per Python process."""

from __future__ import annotations

import hashlib
import logging
import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import cast

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
from elephas_like.trainer.kept import BYTES_KEPT, DROPPED, drop_beyond
from elephas_like.trainer.model_facts import overrides, prepares_as_hub, prepares_rows
from elephas_like.trainer.preparing import preparer_of
from elephas_like.trainer.programs import check_rows_fit
from elephas_like.trainer.spec import Carry, ModelSpec, content_digest
from elephas_like.trainer.state import BesideState, Variables, read_metrics, write_metrics
from elephas_like.trainer.tensors import AnyVariable, assign, backend_variable, text_tensors, value_of

log = logging.getLogger(__name__)
_MODELS_KEPT = 2
_KEYS_REMEMBERED = 64
"""Of models whose place others took."""
_OUTPUT_BYTES = 16 * 2**20
"""Outputs that are computed in one call; one batch's are, whatever their size."""
Chunk = tuple[list[Array], Structure]
"""Output arrays with a leading axis of rows, and their structure."""


class Predicting:
    """A model that predicts, batch after batch as Keras does, with many batches a call where the backend can.

    The preprocessor of a model of keras-hub is taken from it, and used here.

    variables: the model's.
    preparer: what its preprocessor does; None for models that take rows as they are.
    changing: those of them that predictions may change, but for the seeds: as in Keras' predict, a layer that draws goes on
        from its last draw.
    """

    def __init__(self, model: keras.Model) -> None:
        self.model = model
        self.variables = variables = Variables(model)
        self.changing = list(_changed_by_calls(model, variables))
        self._seeds = [
            each for entry, each in zip(variables.layout.entries, variables, strict=True) if entry.role == Role.SEED
        ]
        self.preparer = preparer_of(model)
        if self.preparer is not None:
            model.preprocessor = None
        own_batches = overrides(model, "predict_on_batch") and not prepares_as_hub(model)
        own = own_batches or overrides(model, "make_predict_function")
        self._loop = None if own else BACKEND.prediction_loop(model)
        if overrides(model, "predict_step") and not own_batches:
            _hand_over_as_predict(model)  # the loop does, and has the step as it was
        self._like: Chunk | None = None

    def __call__(self, features: object, rows: int, batch_size: int) -> Iterator[Chunk]:
        """Yield the outputs of features in memory, an array or a tree of arrays, in row order."""
        if self.preparer is None:
            yield from self._of_prepared(features, rows, batch_size)
            return
        for prepared, count in _together(self.preparer.batches((features,), batch_size, labelled=False)):
            yield from self._of_prepared(prepared, count, batch_size)

    def _of_prepared(self, features: object, rows: int, batch_size: int) -> Iterator[Chunk]:
        """Yield the outputs of features as the model's steps take them."""
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
    """The models of some predictors, with the values that predictions may change in them.

    nbytes: size of all variables, and of what is kept beside them.
    users: predictions that are under way with them.
    """

    def __init__(self, predictors: Sequence[Predictor]) -> None:
        self.users = 0
        self._kinds = [predictor.kind for predictor in predictors]
        models = [predictor.spec.build() for predictor in predictors]
        self._models = tuple(map(Predicting, models))
        self._beside = [] if any(map(BACKEND.is_eager, models)) else [BesideState(model) for model in models]
        self.write(predictors)
        self.nbytes = sum(each.variables.nbytes for each in self._models) + sum(
            value.nbytes for _, value in self._start
        )

    def write(self, predictors: Sequence[Predictor]) -> None:
        """Give the models the values of other predictors, for which `serves` is true."""
        for each, predictor in zip(self._models, predictors, strict=True):
            each.variables.write_values(predictor.values)
            write_metrics(each.model, predictor.metrics)
        self._start = [(variable, value_of(variable)) for each in self._models for variable in each.changing]

    def serves(self, predictors: Sequence[Predictor]) -> bool:
        """Return whether these models predict as those of other predictors do, once they have their values.

        Models that run eagerly do not: what their code leaves in Python's attributes is no value.
        """
        as_made = bool(self._beside) and all(beside.is_as_made for beside in self._beside)
        return as_made and self._kinds == [predictor.kind for predictor in predictors]

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

    A model that was trained on has the values of another key. It takes the place of the one before where nobody predicts with that: what is
    compiled of it stays. If the one before is then asked for again, both are needed, and both are kept.

    Args:
        count: maximum number of keys.
        nbytes: maximum size of all variables in bytes. The least recently used models are dropped first. The last ones that were
            asked for stay until others are.
    """

    def __init__(self, count: int = _MODELS_KEPT, nbytes: int = BYTES_KEPT) -> None:
        self._count, self._nbytes = count, nbytes
        self._kept: OrderedDict[str, _Kept] = OrderedDict()
        self._replaced: deque[str] = deque(maxlen=_KEYS_REMEMBERED)
        self._lock, self._building = threading.Lock(), threading.Lock()

    @contextmanager
    def used(self, predictors: Sequence[Predictor]) -> Iterator[tuple[Predicting, ...]]:
        """Give the models of predictors that belong together, in the state that was shipped; built when this process first uses them."""
        key = _key_of(predictors)
        kept = self._borrowed(key)
        if kept is None:
            with self._building:  # one after the other; others may predict with what is kept meanwhile
                kept = self._borrowed(key) or self._keep(key, predictors)
        try:
            for predictor in predictors:
                predictor.spec.settings.apply()  # a process has those of the model that it has used last
            yield kept.as_shipped()
        finally:
            with self._lock:
                kept.users -= 1

    def _borrowed(self, key: str) -> _Kept | None:
        with self._lock:
            kept = self._kept.get(key)
            if kept is not None:
                self._kept.move_to_end(key)
                kept.users += 1
            return kept

    def _keep(self, key: str, predictors: Sequence[Predictor]) -> _Kept:
        kept = self._rewritten(key, predictors)
        if kept is None:
            self._drop(0)
            DROPPED.free()
            kept = _Kept(predictors)
        with self._lock:
            kept.users += 1
            self._kept[key] = kept
        self._drop(1)
        return kept

    def _drop(self, spared: int) -> None:
        with self._lock:
            drop_beyond(self._kept, self._count, self._nbytes, spared)

    def _rewritten(self, key: str, predictors: Sequence[Predictor]) -> _Kept | None:
        """Return kept models that nobody uses, with the values of other predictors; None if there are none, or they are needed as they are."""
        with self._lock:
            idle = [(old, kept) for old, kept in self._kept.items() if not kept.users and kept.serves(predictors)]
            if not idle or (key in self._replaced and self._has_room_for(idle[0][1])):
                return None
            old, kept = idle[0]
            del self._kept[old]
            self._replaced.append(old)
        kept.write(predictors)
        return kept

    def _has_room_for(self, another: _Kept) -> bool:
        return len(self._kept) < self._count and self._size() + another.nbytes <= self._nbytes

    def _size(self) -> int:
        return sum(kept.nbytes for kept in self._kept.values())


MODELS = KeptModels()
"""Of this process, which Spark uses for one task after another."""


@dataclass(frozen=True)
class Predictor:
    """Predicts with one model on executors. The driver sends it as plain data.

    spec: the model without the values of its variables.
    values, metrics: theirs, and those of its metrics.
    kind: digest of the spec: predictors of one kind may use one compiled model.
    key: digest of the model with its values.
    """

    spec: ModelSpec
    values: tuple[Array | None, ...]
    metrics: Floats
    kind: str
    key: str
    batch_size: int

    @classmethod
    def of(cls, model: keras.Model, batch_size: int) -> Predictor:
        """Return the predictor of a model."""
        spec = ModelSpec.from_model(model, Carry.STRUCTURE)
        values, metrics = Variables(model).values(), read_metrics(model)
        kind = spec.content_key()
        return cls(spec, values, metrics, kind, content_digest(kind, [*values, metrics]), batch_size)

    def __call__(self, refs: Iterable[ShardRef]) -> Iterator[Chunk]:
        """Yield (output arrays with a leading axis of rows, their structure) of successive batches of shards, in row order.

        A stateful model goes on from one shard to the next.
        """
        with MODELS.used([self]) as (predict,):
            for features, rows in _features(refs, self.batch_size):
                yield from predict(features, rows, self.batch_size)

    def of_arrays(self, features: object, rows: int) -> Iterator[Chunk]:
        """Yield the same for features in memory: an array, or a tuple or dict of arrays, with `rows` rows."""
        with MODELS.used([self]) as (predict,):
            yield from predict(features, rows, self.batch_size)

    @contextmanager
    def model(self) -> Iterator[keras.Model]:
        """Give the model in the state that was shipped, built when this process first uses it."""
        with MODELS.used([self]) as (predict,):
            yield predict.model


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
        with MODELS.used(self.members) as members:
            for features, rows in _features(refs, self.batch_size):
                yield [self._combined(members, features, rows)], 0

    def of_arrays(self, features: object, rows: int) -> Iterator[Chunk]:
        """Yield the same for features in memory: an array, or a tuple or dict of arrays, with `rows` rows."""
        if rows:
            with MODELS.used(self.members) as members:
                yield [self._combined(members, features, rows)], 0

    @contextmanager
    def used(self) -> Iterator[tuple[Predicting, ...]]:
        """Give the members in the state that was shipped, built when this process first uses them."""
        with MODELS.used(self.members) as members:
            yield members

    def _combined(self, members: Sequence[Predicting], features: object, rows: int) -> Array:
        outputs = [[found[0] for found, _ in predict(features, rows, self.batch_size)] for predict in members]
        return self.combine([np.concatenate(parts) for parts in outputs])


def _key_of(predictors: Sequence[Predictor]) -> str:
    """Return the key under which the models of predictors that belong together are kept."""
    return hashlib.blake2b("".join(predictor.key for predictor in predictors).encode(), digest_size=16).hexdigest()


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


def _together(batches: Iterable[tuple[object, ...]]) -> Iterator[tuple[object, int]]:
    """Yield (features, their rows) of successive batches, as many as have rows of one shape and are of `_OUTPUT_BYTES`."""
    held: list[list[Array]] = []
    nbytes, structure = 0, None
    for x, *_ in batches:
        leaves, structure = flatten(x)
        arrays = cast("list[Array]", leaves)
        full = nbytes > _OUTPUT_BYTES
        if held and (full or [each.shape[1:] for each in arrays] != [each.shape[1:] for each in held[0]]):
            yield _joined(held, structure)
            held, nbytes = [], 0
        held.append(arrays)
        nbytes += sum(each.nbytes for each in arrays)
    if held:
        yield _joined(held, structure)


def _joined(batches: Sequence[Sequence[Array]], structure: Structure) -> tuple[object, int]:
    leaves = [np.concatenate(parts) for parts in zip(*batches, strict=True)]
    return unflatten(structure, leaves), len(leaves[0])


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
