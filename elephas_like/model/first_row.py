"""Whether a model takes the first row of the data, and can be sent to workers: tried on a copy, which is thrown away."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import keras
import numpy as np

from elephas_like.core.errors import DataError, ElephasError
from elephas_like.core.findings import Finding, Level, one_line, size_text
from elephas_like.core.layout import Layout
from elephas_like.core.structure import flatten
from elephas_like.core.types import Array, Slot
from elephas_like.exchange.protocol import Sizes
from elephas_like.model.source import Source
from elephas_like.rows.samples import PartitionSample
from elephas_like.trainer.building import build, build_optimizer
from elephas_like.trainer.compile_arguments import check_rows_are_kept
from elephas_like.trainer.spec import ModelSpec
from elephas_like.trainer.state import Variables
from elephas_like.trainer.task import inputs


@dataclass(frozen=True)
class FirstRow:
    """The first row of the data as a batch of one, in the dtypes that workers see; None without a row, or with a bad one.

    error: what is wrong with the row by itself; "" if nothing is.
    """

    batch: tuple[object, ...] | None = None
    error: str = ""

    @classmethod
    def of(cls, source: Source, samples: Sequence[PartitionSample]) -> FirstRow:
        """Return the first row of a source of which `samples` were read."""
        read = [sample for sample in samples if sample.rows]
        if not read:
            return cls()
        floatx = keras.config.floatx()
        try:
            if source.context is None:
                return cls(source.sample(floatx))
            return cls(source.batch_of([read[0].first], floatx))
        except (DataError, ValueError) as error:
            return cls(error=str(error))

    @property
    def nbytes(self) -> int:
        """Bytes of the row in a shard, about; 0 without a row."""
        return sum(map(_nbytes, _leaves(self.batch)))

    def __str__(self) -> str:
        """Return the dtypes and shapes of the row's parts."""
        return ", ".join(f"{_kind(leaf)} {leaf.shape[1:]}" for leaf in _leaves(self.batch))


def model_findings(model: keras.Model, first: FirstRow) -> tuple[Layout | None, list[Finding]]:
    """Return the layout of the model's state, None if unknown, and what is found of model and row."""
    try:
        check_rows_are_kept(model, prepared=True)
        copy = ModelSpec.from_model(model).build()
    except ElephasError as error:
        return None, [Finding("model", Level.PROBLEM, one_line(error))]
    lines = list(_row_findings(copy, first))
    try:
        built = build_optimizer(copy)
    except Exception as error:  # an optimizer of the user's own
        return None, [*lines, Finding("model", Level.PROBLEM, _raised("its optimizer cannot be built", error))]
    if not built:
        text = f"{model.name!r} can be sent to workers; it is built from the first row, and how large it is then is not known"
        return None, [*lines, Finding("model", Level.NOTE, text)]
    layout = Variables(copy).layout
    state = size_text(Sizes.of(layout).state())
    text = f"{model.name!r} can be sent to workers: {len(layout.entries)} variables, {state} of state"
    return layout, [*lines, Finding("model", Level.OK, text)]


def _row_findings(model: keras.Model, first: FirstRow) -> Iterator[Finding]:
    """Yield whether a model takes a row. The model is built from it if it is not built."""
    name = "first row"
    if first.error:
        yield Finding(name, Level.PROBLEM, one_line(first.error))
    if first.batch is None:
        return
    misfit = next(misfits(model.name, inputs(model), first.batch[0]), None)
    if misfit is not None:
        yield Finding(name, Level.PROBLEM, misfit)
        return
    try:
        build(model, first.batch)
    except Exception as error:  # of Keras, TensorFlow or the user's own step
        said = _raised(f"{first}: the model {model.name!r} raises on it", error)
        yield Finding(
            name, Level.PROBLEM, f"{said} Compare the shapes with model.summary(), and the labels with the loss."
        )
    else:
        yield Finding(name, Level.OK, f"{first}: the model takes it")


def misfits(model: str, slots: object, features: object) -> Iterator[str]:
    """Yield how features differ from a model's inputs, where both are put together alike.

    Args:
        slots: the inputs, a Slot or a tree of Slots.
        features: a batch, an array or a tree of arrays.
    """
    expected, structure = flatten(slots)
    found, found_structure = flatten(features)
    if structure != found_structure:
        return  # Keras has rules of its own for these
    for slot, leaf in zip(expected, found, strict=True):
        assert isinstance(slot, Slot)
        array = np.asarray(leaf)
        shape = array.shape[1:]
        if slot.shape is None:
            continue
        wrong_size = any(wanted not in (None, size) for wanted, size in zip(slot.shape, shape, strict=False))
        if len(slot.shape) == len(shape) and wrong_size:
            yield (
                f"the model {model!r} expects features of shape {slot.shape} for its input {slot.name!r}, and the row's are "
                f"{shape}. Reshape the rows, or build the model with keras.Input({shape})."
            )
        elif slot.text != (array.dtype.kind in "OU"):
            kinds = ("text", "numbers") if slot.text else ("numbers", "text")
            yield f"the model {model!r} expects {kinds[0]} for its input {slot.name!r}, and the row has {kinds[1]}. Convert it."


def _raised(what: str, error: Exception) -> str:
    return one_line(f"{what} ({type(error).__name__}: {error}).")


def _leaves(batch: tuple[object, ...] | None) -> list[Array]:
    return [] if batch is None else [np.asarray(leaf) for leaf in flatten(batch)[0]]


def _nbytes(array: Array) -> int:
    if array.dtype.kind in "OU":
        return sum(len(str(text).encode()) + 8 for text in array.flat)
    return array.nbytes


def _kind(array: Array) -> str:
    return "text" if array.dtype.kind in "OU" else str(array.dtype)
