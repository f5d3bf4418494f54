"""Rows that a model of keras-hub prepares before any step: text becomes tokens, images get their size.

Such a model applies its preprocessor in `fit`, `evaluate` and `predict` of its own, by a data pipeline, and then calls Keras'. `Preparer` has
that very pipeline make the rows, and `Preparation` is what the driver sends to executors, which write the rows of a fit as the steps take
them.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Iterable, Iterator
from copy import copy
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import keras
import numpy as np

from elephas_like.core.errors import DataError, ElephasError
from elephas_like.core.structure import flatten, unflatten
from elephas_like.core.types import Array, FitConfig, Integers, ShardRef
from elephas_like.trainer.backends.chosen import BACKEND
from elephas_like.trainer.backends.protocol import MappedRows
from elephas_like.trainer.batches import ShardData
from elephas_like.trainer.model_facts import is_of_hub, prepares_as_hub, prepares_rows, wants_target
from elephas_like.trainer.seeds import seeded
from elephas_like.trainer.spec import Carry, ModelSpec
from elephas_like.trainer.tensors import limit_threads

_AT_ONCE = 64 * 2**20
"""Bytes of the given rows that go through one pipeline: it holds them, and to make it takes a second."""
_BATCH_BYTES, _BATCH_ROWS = 4 * 2**20, 256
"""What is prepared together at most. Images grow: from bytes to floats, and to the size that the model takes."""
_BATCHES_WITHOUT_PIPELINE = 64
"""That are prepared one after the other; more of them are prepared in parallel."""
_SEED = 0x9E9A


class _Caught(keras.Model):
    """Stands where keras-hub's `evaluate` calls Keras', and returns the data that it is called with."""

    def evaluate(self, x: Any = None, *_: Any, **others: Any) -> Any:
        return x


class Preparer:
    """Makes of rows what Keras' steps are given in a fit of a model of keras-hub.

    Its preprocessor alone is kept of the model.
    """

    def __init__(self, model: keras.Model) -> None:
        kinds = type(model).__mro__
        self.name = model.name
        self.wants_target = wants_target(model) is True
        self.preprocessor = model.preprocessor
        self._pipeline = next(kind for kind in kinds if "evaluate" in vars(kind) and is_of_hub(kind))
        self._samples = next(kind for kind in kinds if "preprocess_samples" in vars(kind))
        self._mapped: MappedRows | None = None

    def named(self, name: str) -> Preparer:
        """Return one that does the same, and calls the model so."""
        other = copy(self)
        other.name = name
        return other

    def to_send(self) -> Preparer:
        """Return one without a name, and without what was compiled of it."""
        other = self.named("")
        other._mapped = None
        return other

    def batches(
        self, columns: tuple[object, ...], batch_size: int, *, labelled: bool = True
    ) -> Iterator[tuple[object, ...]]:
        """Yield prepared (x,), (x, y) or (x, y, sample_weight), batch after batch, in the order of the rows.

        Args:
            columns: given ones, of the same kinds.
            labelled: whether the rows are to train or to evaluate with.

        Raises:
            DataError: the preprocessor makes rows of different lengths; or there are no labels, and the model has a loss.
        """
        for batch in self._prepared(columns, batch_size):
            parts = keras.utils.unpack_x_y_sample_weight(batch)
            given = [part for part in parts if part is not None]
            if labelled and self.wants_target and len(given) < 2:
                raise DataError(
                    f"the labels are missing: the model {self.name!r} was compiled with a loss, and its preprocessor makes none of "
                    "features alone. Give rows (x, y)."
                )
            yield tuple(keras.tree.map_structure(_array, part) for part in given)

    def _prepared(self, columns: tuple[object, ...], batch_size: int) -> Iterable[object]:
        """Return batches as KerasHub's pipeline makes them; a few are made without one, which takes a second to set up, where it has had such rows."""
        given = x, y, sample_weight = (*columns, None, None)[:3]
        mapped = self.mapped()
        found, structure = flatten(given)
        leaves: list[Any] = found
        step = None if mapped is None else mapped.step(given)
        if step is None or len(leaves[0]) > _BATCHES_WITHOUT_PIPELINE * batch_size:
            return self._catching().evaluate(x, y, sample_weight=sample_weight, batch_size=batch_size)
        parts = ([leaf[rows[0] : rows[-1] + 1] for leaf in leaves] for rows in _slices(len(leaves[0]), batch_size))
        return (step(*unflatten(structure, part)) for part in parts)  # type: ignore[misc]  # a tuple

    def mapped(self) -> MappedRows | None:
        """Return what KerasHub's pipelines map over batches, compiled once for all of them; None where the backend has none of its own."""
        if self._mapped is None:
            self._mapped = BACKEND.mapped_rows(self._catching().preprocess_samples)
        return self._mapped

    def _catching(self) -> Any:
        """Return what has KerasHub's `evaluate` over one that catches.

        Its constructor is not called: it changes a base of all models of KerasHub. So it has no attribute of Keras', as its name.
        """
        own = {"preprocess_samples": vars(self._samples)["preprocess_samples"], "__repr__": object.__repr__}
        catching: Any = object.__new__(type("Catching", (self._pipeline, _Caught), own))
        vars(catching)["preprocessor"] = self.preprocessor
        if self._mapped is not None:
            vars(catching)["preprocess_samples"] = self._mapped
        return catching


def _array(leaf: Any) -> Array:
    if hasattr(leaf, "row_splits"):
        raise DataError(
            "the model's preprocessor makes rows of different lengths, which cannot be kept side by side: give it a sequence_length."
        )
    return np.asarray(leaf)


def preparer_of(model: keras.Model) -> Preparer | None:
    """Return what prepares the rows of a model of keras-hub; None for models that take rows as they are, or prepare them in another way."""
    return Preparer(model) if prepares_as_hub(model) and prepares_rows(model) else None


class _Holder(keras.Model):
    """Carries a preparer to executors as models go there: by value."""

    def __init__(self, preparer: Preparer) -> None:
        super().__init__(name="preparer")
        self.preparer = preparer


@dataclass(frozen=True, eq=False)
class Preparation:
    """Prepares the rows of a shard on an executor, where the driver sends it.

    name: the model's, for errors.
    seed: of what the preprocessor draws from Keras, NumPy or Python, so that the rows of a shard are prepared alike whenever they are written. What
        TensorFlow draws in a pipeline does not repeat.
    cores: threads of Keras' backend on executors, where it may start with this; None leaves them as they are.
    driver: the process that sends it, which keeps its threads.
    """

    spec: ModelSpec
    name: str
    seed: int
    cores: int | None
    driver: tuple[str, int]

    @classmethod
    def of(cls, preparer: Preparer, seed: int, cores: int | None = None) -> Preparation:
        """Return the preparation that does what a preparer of this process does.

        Raises:
            ElephasError: the preprocessor cannot be pickled.
        """
        try:
            spec = ModelSpec.from_model(_Holder(preparer.to_send()), Carry.ALL)
        except ElephasError as error:
            raise ElephasError(
                f"the preprocessor of the model {preparer.name!r} cannot be used on executors: {error}"
            ) from error
        return cls(spec, preparer.name, seed, cores, _this_process())

    def content_key(self) -> str:
        """Return a digest that is equal for preparations that make the same rows of the same rows, whatever the model's name is."""
        return f"{self.spec.content_key()}-{self.seed}"

    @property
    def preparer(self) -> Preparer:
        """What does it in this process, which keeps the last two that did the same as others."""
        return _built(self.spec).named(self.name)

    def __call__(self, ref: ShardRef) -> Iterator[tuple[object, ...]]:
        """Yield the prepared columns of a shard's rows, in their order, batch after batch."""
        if self.cores is not None and self.driver != _this_process():
            limit_threads(self.cores)
        data = ShardData(ref, FitConfig(batch_size=1, shuffle=False))
        batch_size = max(1, min(_BATCH_ROWS, _BATCH_BYTES // data.row_nbytes))
        with seeded(self.seed, ref.worker, _SEED):
            preparer = self.preparer
            for rows in _slices(ref.rows, max(batch_size, rows_at_once(ref))):
                columns = unflatten(data.structure, data.take(rows))
                assert isinstance(columns, tuple)
                yield from preparer.batches(columns, batch_size)


def rows_at_once(ref: ShardRef) -> int:
    """Return how many rows of a shard may go through one pipeline."""
    return max(1, _AT_ONCE // ShardData(ref, FitConfig(batch_size=1)).row_nbytes)


def _this_process() -> tuple[str, int]:
    return platform.node(), os.getpid()


class _Same:
    """A spec that is found again by its key."""

    def __init__(self, spec: ModelSpec) -> None:
        self.spec, self.key = spec, spec.content_key()

    def __hash__(self) -> int:
        return hash(self.key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and other.key == self.key


def _built(spec: ModelSpec) -> Preparer:
    return _kept(_Same(spec))


@lru_cache(maxsize=2)
def _kept(same: _Same) -> Preparer:
    preparer: Preparer = same.spec.build().preparer
    preparer.mapped()  # which all that have its name changed share
    return preparer


def _slices(rows: int, most: int) -> Iterator[Integers]:
    for begin in range(0, rows, most):
        yield np.arange(begin, min(begin + most, rows))
