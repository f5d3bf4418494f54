"""Rows as a user gives them in memory: `x, y` or `(x, y)`, a list of pairs, or a pandas DataFrame with the names of its columns."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
import pandas as pd
import pyarrow as pa
from pyspark import RDD

from elephas_like.core.checks import did_you_mean, shortly
from elephas_like.core.structure import flatten, unflatten
from elephas_like.core.types import Array, Slot
from elephas_like.model.data_arguments import (
    column_choice,
    column_values,
    has_one_input,
    refuse_foreign,
    refuse_nulls,
    unmixed,
)
from elephas_like.rows.frame_plan import ColumnChoice
from elephas_like.rows.shards import ShardedDataset
from elephas_like.rows.spool import Block
from elephas_like.rows.vectors import without_decimals
from elephas_like.spark.session import is_remote
from elephas_like.trainer.model_facts import input_count, overrides, target_count, wants_target
from elephas_like.trainer.task import inputs, one_hot_classes, targets
from elephas_like.trainer.tensors import is_text

_FOR_SPARK = ("column_dtypes", "handle_invalid")


@dataclass(frozen=True)
class Given:
    """Data taken apart.

    columns: of a Spark DataFrame, which then is `x`. frame, named: a pandas DataFrame, and its columns by argument.
    """

    x: Any
    y: Any = None
    sample_weight: Any = None
    columns: ColumnChoice | None = None
    frame: pd.DataFrame | None = None
    named: Mapping[str, Any] | None = None

    @classmethod
    def of(
        cls,
        data: Any,
        y: Any = None,
        sample_weight: Any = None,
        model: keras.Model | None = None,
        *,
        target: bool = True,
        **columns: Any,
    ) -> Given:
        """Return the data taken apart.

        Args:
            model: that reads it; None where none is at hand, and a tuple is `(x, y)`.
            target: whether y is wanted. Without, that of a pair is left out.
            columns: `features_col` and so on, as `SparkModel.fit` has them.

        Raises:
            ValueError: what cannot be meant: columns of what has none, labels that are given twice or not at all.
            TypeError: data of a kind that is not taken, with what to use instead.
        """
        columns = {name: list(value) if isinstance(value, Iterator) else value for name, value in columns.items()}
        named = {name: value for name, value in columns.items() if value is not None}
        data = _as_table(data, named, model, target=target)
        if isinstance(data, pd.DataFrame) and named:
            if y is not None or sample_weight is not None:
                raise ValueError(
                    "a DataFrame with features_col= holds y and sample_weight too: name their columns, label_col= and "
                    "sample_weight_col=."
                )
            named = named if model is None else _in_order(named, model)
            return cls(*_of_pandas(data, named, model, target=target), frame=data, named=named)
        choice = column_choice(data, **columns)
        if choice is not None or isinstance(data, RDD | ShardedDataset) or is_remote(data) or _are_blocks(data):
            return cls(data, y, sample_weight, choice)
        refuse_foreign(data)
        if y is None:
            data, y, own = _apart(data, model, target=target)
            if own is not None and sample_weight is not None:
                raise ValueError(
                    "sample weights came twice: as sample_weight=, and as the third part of (x, y, sample_weight)."
                )
            sample_weight = sample_weight if own is None else own
        if target and y is None and model is not None and _needs_labels(model):
            raise ValueError(
                f"the labels are missing: the model {model.name!r} was compiled with a loss, and the data is features alone. Give "
                "x and y, or (x, y)."
            )
        return cls(data, y, sample_weight) if target else cls(data)

    @property
    def pair(self) -> Any:
        """The data as one argument: (x, y) or (x, y, sample_weight), or what came as one."""
        parts = (self.x, self.y, self.sample_weight)
        if self.columns is not None or self.y is None:
            return self.x
        return parts[:2] if self.sample_weight is None else parts

    def for_model(self, model: keras.Model) -> Given:
        """Return the data as `of` would, of columns of a pandas DataFrame that are several inputs or outputs of the model."""
        if self.frame is None or self.named is None:
            return self
        return Given.of(self.frame, model=model, **self.named)

    def validation(self, data: Any, model: keras.Model | None) -> Any:
        """Return validation data as its kind is read elsewhere; of a pandas DataFrame the columns are those of the data.

        Raises:
            ValueError: arrays without labels, where those to train on have some.
        """
        parts = data if isinstance(data, tuple) or (isinstance(data, list) and not _are_pairs(data)) else ()
        if self.y is not None and len(parts) in (1, 2) and (*parts, None)[1] is None:
            raise ValueError(
                "validation_data has no labels, and the rows to train on have: give (x, y) or (x, y, sample_weight)."
            )
        data = _as_table(data, self.named, model, target=True)
        if isinstance(data, pd.DataFrame) and self.named is not None:
            return tuple(part for part in _of_pandas(data, self.named, model, target=True) if part is not None)
        if isinstance(data, list) and _are_pairs(data):
            return tuple(data) if model is not None and _are_parts(data, model) else _stacked(data)
        return data


def _as_table(data: Any, named: Mapping[str, Any] | None, model: keras.Model | None, *, target: bool) -> Any:
    """Return a table of pandas-on-Spark as Spark's DataFrame; one of Polars or PyArrow whose columns are named as pandas'; other data as it is.

    Raises:
        ValueError: a column of Polars or PyArrow that is read has missing values.
    """
    library = type(data).__module__
    if library.startswith("pyspark.pandas") and hasattr(data, "to_spark"):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of the index, which no column names
            return data.to_spark()
    if not named or library.partition(".")[0] not in ("polars", "pyarrow") or not hasattr(data, "to_pandas"):
        return data
    table = data.to_arrow() if hasattr(data, "to_arrow") else data
    if isinstance(table, pa.RecordBatch):
        table = pa.Table.from_batches([table])
    return _of_arrow(table, named, model, target=target) if isinstance(table, pa.Table) else data.to_pandas()


def _of_arrow(table: pa.Table, named: Mapping[str, Any], model: keras.Model | None, *, target: bool) -> pd.DataFrame:
    """Return a table of PyArrow's as pandas', where nulls would make floats of whole numbers. Decimals are read as Parquet's."""
    _refuse_spark_s(named)
    read = {str(name) for name in _read(table.slice(0, 0).to_pandas(), named, model, target=target)}
    for number, field in enumerate(table.schema):
        column = table.column(number)
        if field.name not in read:
            continue
        refuse_nulls(column, f"column {field.name!r}")
        if (plain := without_decimals(column)).type != field.type:
            table = table.set_column(number, field.with_type(plain.type), plain)
    return table.to_pandas()


def _are_blocks(data: object) -> bool:
    return isinstance(data, Sequence) and len(data) > 0 and isinstance(data[0], Block)


def _are_pairs(data: Sequence[object]) -> bool:
    return len(data) > 0 and all(isinstance(row, tuple) and len(row) in (2, 3) for row in data)


def _are_parts(data: Sequence[Any], model: keras.Model) -> bool:
    """Whether what looks like two or three rows is [(x1, x2), (y1, y2)], the arrays of several inputs and outputs, as in Keras."""
    inputs: Sequence[Any] = getattr(model, "inputs", None) or ()
    return len(inputs) > 1 and len(data) in (2, 3) and getattr(data[0][0], "ndim", 0) == len(inputs[0].shape)


def _are_features(rows: Sequence[Any], model: keras.Model) -> bool:
    """Whether what looks like pairs is rows of features: tuples of as many numbers as the one input of a model takes."""
    if not has_one_input(model) or not _are_pairs(rows):
        return False
    wanted = tuple(model.inputs[0].shape)[1:]
    return all(wanted == (len(row),) and not any(map(np.ndim, row)) for row in rows)


def _needs_labels(model: keras.Model) -> bool:
    own = any(overrides(model, step) for step in ("train_step", "test_step", "compute_loss"))
    return getattr(model, "loss", None) is not None and not own


def _apart(data: Any, model: keras.Model | None, *, target: bool) -> tuple[Any, Any, Any]:
    """Return (x, y, sample_weight) of what came as one argument, None for what it does not have.

    Where a tuple may be the arrays of several inputs, it is.
    """
    if isinstance(data, list) and not target and model is not None and _are_features(data, model):
        return unmixed(np.array(data), data), None, None
    listed = isinstance(data, list) and _are_pairs(data)
    if listed:
        data = _stacked(data)
    if not isinstance(data, tuple) or len(data) not in (2, 3):
        return data, None, None
    if model is None or has_one_input(model):
        return (*data, None)[:3]
    first, inputs = data[0], input_count(model)
    nested = isinstance(first, tuple | list | dict) and len(first) == inputs and inputs > 1
    labels = _needs_labels(model) or (
        listed and wants_target(model) is None
    )  # rows of a list are read as those of an RDD
    unknown = not getattr(model, "inputs", None) and target and labels  # features alone have none
    return (*data, None)[:3] if nested or unknown else (data, None, None)


def _stacked(rows: Sequence[Any]) -> tuple[Any, ...]:
    """Return a list of rows as arrays.

    Raises:
        ValueError: the rows differ in what they hold, or in shape.
    """
    leaves, structure = flatten(rows[0])
    columns: list[list[object]] = [[] for _ in leaves]
    for number, row in enumerate(rows):
        parts, found = flatten(row)
        if found != structure:
            raise ValueError(f"the rows of a list must be put together alike; row {number} differs from row 0.")
        for column, part in zip(columns, parts, strict=True):
            column.append(part)
    try:
        arrays = [unmixed(np.stack([np.asarray(part) for part in column]), column) for column in columns]
    except ValueError as error:
        raise ValueError(f"the rows of a list must have one shape: {error}.") from None
    tree = unflatten(structure, arrays)
    assert isinstance(tree, tuple)
    return tree


def _in_order(named: Mapping[str, Any], model: keras.Model) -> dict[str, Any]:
    """Return the columns by argument, in the order of the model's inputs and outputs where they have their names, as Spark's."""
    slots = {"features_col": inputs(model), "label_col": targets(model)}
    return {argument: _by_slot(chosen, slots.get(argument)) for argument, chosen in named.items()}


def _by_slot(chosen: Any, slots: object) -> Any:
    names = [slot.name for slot in flatten(slots)[0] if isinstance(slot, Slot)]
    if not isinstance(chosen, list | tuple) or not all(isinstance(name, str) for name in chosen):
        return chosen
    matching = sorted(chosen) == sorted(names)
    if isinstance(slots, dict) and len(chosen) == len(slots) == len(names) > 1:  # Keras takes lists by the sorted keys
        return dict(zip(slots, slots if matching else chosen, strict=True))
    return names if matching else chosen


def _of_pandas(
    frame: pd.DataFrame, named: Mapping[str, Any], model: keras.Model | None, *, target: bool
) -> tuple[Any, Any, Any]:
    """Return (x, y, sample_weight) of a pandas DataFrame's columns."""
    _refuse_spark_s(named)
    shapes = named.get("column_shapes") or {}
    read = _read(frame, named, model, target=target)
    # Predictions may be given the arguments of a fit.
    unread = () if target else (named.get("label_col", "label"), named.get("sample_weight_col"))
    for name in shapes:
        if name not in read and name not in unread:
            raise ValueError(f"column_shapes names {name!r}, which is not read; read are {', '.join(map(repr, read))}.")
    x = _columns(frame, named.get("features_col", "features"), shapes, 1 if model is None else input_count(model))
    y = weight = None
    if target and _reads_labels(named, model):
        y = _columns(
            frame, named.get("label_col", "label"), shapes, 1 if model is None else target_count(model), flat=True
        )
        classes = None if model is None else one_hot_classes(model)
        if (
            classes is not None
            and y.ndim == 1
            and y.dtype.kind in "iu"
            and len(y)
            and y.min() >= 0
            and y.max() < classes
        ):
            y = keras.utils.to_categorical(y, classes)  # as of Spark's DataFrames
    if target and "sample_weight_col" in named:
        weight = _columns(frame, named["sample_weight_col"], shapes, 1, flat=True)
        _check_weights(frame, named["sample_weight_col"], weight)
    return x, y, weight


def _refuse_spark_s(named: Mapping[str, Any]) -> None:
    for name in _FOR_SPARK:
        if name in named:
            raise ValueError(f"{name}= is for DataFrames of Spark; convert the columns of pandas' first.")


def _check_weights(frame: pd.DataFrame, name: Any, weights: Any) -> None:
    """Raise TypeError if weights are several columns, or text. Arrays in cells may be the weights of a row's steps."""
    if isinstance(name, list | tuple) and len(name) > 1 and not _is_one_name(frame, name):
        raise TypeError(f"sample_weight_col={name!r} must be one column, whose weights are those of all outputs.")
    if any(map(is_text, keras.tree.flatten(weights))):
        raise TypeError(f"sample_weight_col={name!r} must hold numbers; it holds text.")


def _reads_labels(named: Mapping[str, Any], model: keras.Model | None) -> bool:
    return model is None or _needs_labels(model) or "label_col" in named


def _read(frame: pd.DataFrame, named: Mapping[str, Any], model: keras.Model | None, *, target: bool) -> list[Any]:
    """Return the names of the columns that are read."""
    chosen = [named.get("features_col", "features")]
    if target and _reads_labels(named, model):
        chosen.append(named.get("label_col", "label"))
    if target and "sample_weight_col" in named:
        chosen.append(named["sample_weight_col"])
    return [name for each in chosen for name in _names(frame, each)]


def _names(frame: pd.DataFrame, chosen: Any) -> list[Any]:
    if not isinstance(chosen, Mapping) and _is_one_name(frame, chosen):
        return [chosen]
    parts = chosen.values() if isinstance(chosen, Mapping) else chosen
    return [name for each in parts for name in _names(frame, each)]


def _columns(frame: pd.DataFrame, names: Any, shapes: Mapping[str, Any], slots: int, *, flat: bool = False) -> Any:
    """Return columns as one array, or as a tuple or dict of arrays for several inputs or outputs.

    Args:
        slots: how many inputs or outputs there are.
        flat: whether one number a row stays without an axis of its own. Columns of one shape are then one array, which is cut later.
    """
    if isinstance(names, Mapping):
        return {name: _columns(frame, column, shapes, 1) for name, column in names.items()}
    if _is_one_name(frame, names):
        values = _column(frame, names, shapes)
        return values if flat or values.ndim > 1 else values[:, None]
    parts = [_columns(frame, name, shapes, 1) for name in names]
    if not parts:
        raise ValueError(f"expected the name of a column, or a list of names; got {names!r}, which names none.")
    alike = len({part.shape for part in parts}) == 1
    if len(parts) == slots > 1 and not (flat and alike):
        return tuple(parts)
    # Text of lists in cells, which NumPy would make of numbers beside it, too.
    text = [part.dtype.kind in "SUT" for part in parts]
    if any(text) and not all(text):
        parts = [part.astype(object) for part in parts]
    return np.concatenate(parts, axis=-1)


def _is_one_name(frame: pd.DataFrame, names: Any) -> bool:
    """Return whether columns are named by one name: a text, a number, or a tuple where names have several levels."""
    if isinstance(names, str) or not isinstance(names, Iterable):
        return True
    try:
        return not isinstance(names, list) and names in frame.columns
    except TypeError:  # a list inside, or an Index: no name can be one
        return False


def _column(frame: pd.DataFrame, name: Any, shapes: Mapping[str, Any]) -> Any:
    if name not in frame.columns:
        advice = (
            did_you_mean(name, [each for each in frame.columns if isinstance(each, str)])
            if isinstance(name, str)
            else ""
        )
        raise ValueError(f"the DataFrame has no column {name!r}; it has {', '.join(map(repr, frame.columns))}.{advice}")
    if (many := list(frame.columns).count(name)) > 1:
        raise ValueError(
            f"expected one column {name!r}; the DataFrame has {many} of this name. Rename them, or leave all but one out."
        )
    found = frame[name]
    if isinstance(found, pd.DataFrame):  # of several levels of names, the first ones alone
        whole = (*(name if isinstance(name, tuple) else (name,)), *np.atleast_1d(found.columns[0]).tolist())
        raise ValueError(
            f"expected one column {name!r}; the DataFrame has {len(found.columns)} below that name, such as {whole!r}."
        )
    values = column_values(found)
    if values.dtype == object and len(values) and not isinstance(values[0], str | bytes):
        values = _of_cells(name, list(values))
    return values.reshape(len(values), *shapes[name]) if name in shapes else values


def _of_cells(name: Any, cells: list[Any]) -> Array:
    """Return the lists or arrays in the cells of a column as one array.

    Raises:
        ValueError: they differ in shape, or one is missing.
    """
    arrays: list[Array] = []
    for row, cell in enumerate(cells):
        try:
            arrays.append(np.asarray(cell))
        except ValueError as error:  # NumPy's words for nested lists
            raise ValueError(
                f"column {name!r}, row {row}: expected lists of one length, got {shortly(cell)}."
            ) from error
    shape = next((array.shape for array in arrays if array.shape), ())
    for row, array in enumerate(arrays):
        if array.shape != shape:
            got = f"values of shape {array.shape}" if array.shape else shortly(cells[row])
            raise ValueError(
                f"column {name!r}, row {row}: expected values of shape {shape}, as in other rows, got {got}. All rows must have one "
                "shape: pad lists (keras.utils.pad_sequences), or leave such rows out."
            )
    return unmixed(np.stack(arrays), cells)
