"""The data that users pass: arrays converted, a DataFrame's columns chosen, rows cut for a model, foreign kinds refused."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, cast

import keras
import numpy as np
import pandas as pd
import pyarrow as pa
from pyspark import RDD
from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from elephas_like.core import checks
from elephas_like.core.parts import cut, cut_row
from elephas_like.core.structure import flatten
from elephas_like.core.types import Array, Slot
from elephas_like.rows.frame_plan import Choice, ColumnChoice, FramePlan, Invalid
from elephas_like.rows.frame_schema import plan
from elephas_like.rows.parquet_listing import ParquetFiles
from elephas_like.rows.row_values import plain_numbers
from elephas_like.rows.spool import Block
from elephas_like.rows.vectors import first_null
from elephas_like.spark.session import check_frame_runs, ignores_capitals, is_remote
from elephas_like.trainer.model_facts import input_count, overrides, target_count, wants_target
from elephas_like.trainer.task import inputs, one_hot_classes, outputs, targets
from elephas_like.trainer.tensors import array_of, dense, is_ragged, is_sparse


def frame_plan(df: DataFrame, columns: ColumnChoice, model: keras.Model | None, *, endless: bool = False) -> FramePlan:
    """How a DataFrame is read for a model, or for any if there is none; what does not fit is said here, before any job.

    Args:
        endless: whether a streaming DataFrame will do.

    Raises:
        ElephasError: its SparkContext was stopped. TypeError, ValueError: it streams, or columns do not fit.
    """
    check_frame_runs(df)
    if df.isStreaming and not endless:
        raise TypeError(
            "a streaming DataFrame has no end: train on, evaluate or predict what foreachBatch hands over. "
            "predict(df, collect=False), transform and SQL functions take it as it is."
        )
    found = schema_plan(df.schema, columns, model)
    _check_spelling(df, found)
    return found


def _check_spelling(df: DataFrame, found: FramePlan) -> None:
    """Do nothing if Spark can tell the columns that are read, and fields of structs, from all others.

    Raises:
        ValueError: two names differ in capitals alone, and the session takes them for one; or they do not differ.
    """
    as_spark = str.lower if ignores_capitals(df.sparkSession) else str
    schema = df.schema  # over Spark Connect each is a copy
    spellings: dict[tuple[str, ...], dict[str, list[str]]] = {}
    for cell in found.cells:
        kind: StructType = schema
        for depth, name in enumerate(cell.path):
            struct = cell.path[:depth]
            if struct:
                kind = cast("StructType", kind[struct[-1]].dataType)
            if struct not in spellings:
                spellings[struct] = {}
                for each in kind.fieldNames():
                    spellings[struct].setdefault(as_spark(each), []).append(each)
            alike = spellings[struct][as_spark(name)]
            if len(alike) > 1:
                same = len(set(alike)) == 1
                raise ValueError(
                    f"Spark cannot tell the {'fields' if struct else 'columns'} {' and '.join(map(repr, alike))} apart, of which {cell.name!r} is read"
                    + (". Rename them" if same else ": it ignores capitals. Rename them")
                    + ("" if struct else ", as df.toDF(...) does")
                    + ("." if same else ", or set spark.sql.caseSensitive=true.")
                )


def schema_plan(schema: StructType, columns: ColumnChoice, model: keras.Model | None) -> FramePlan:
    """How columns of this schema are read for a model, or for any if there is none."""
    return plan(
        schema,
        columns,
        Slot("input") if model is None else inputs(model),
        Slot("output") if model is None else targets(model),
        floatx=keras.config.floatx(),
        classes=None if model is None else one_hot_classes(model),
    )


def column_choice(
    data: object,
    features_col: Choice | None = None,
    label_col: Choice | None = None,
    sample_weight_col: str | None = None,
    column_shapes: Mapping[str, Sequence[int]] | None = None,
    column_dtypes: Mapping[str, str] | None = None,
    handle_invalid: str | None = None,
) -> ColumnChoice | None:
    """Which columns of a DataFrame or of Parquet files are what, or None for data of another kind.

    Args:
        handle_invalid: "error", "skip" or "keep"; None is "error", but NaN is read.

    Raises:
        ValueError: columns were named, and there are none.
    """
    given = {
        "features_col": ("features", features_col),
        "label_col": ("label", label_col),
        "sample_weight_col": ("sample_weight", sample_weight_col),
        "column_shapes": ("shapes", column_shapes),
        "column_dtypes": ("dtypes", column_dtypes),
        "handle_invalid": (
            "invalid",
            None if handle_invalid is None else checks.choice("handle_invalid", handle_invalid, Invalid),
        ),
    }
    named = {name: (part, value) for name, (part, value) in given.items() if value is not None}
    for name, (_, value) in named.items():
        if any(type(each).__name__ == "Column" for each in keras.tree.flatten(value)):
            raise TypeError(
                f"{name}= takes names of columns; got a Column. Name it first: df.withColumn('name', column)."
            )
    if isinstance(data, DataFrame | str | os.PathLike | ParquetFiles):
        chosen: dict[str, Any] = dict(named.values())
        return ColumnChoice(**chosen, label_named=label_col is not None)
    for name in named:
        what = "is for rows" if name == "handle_invalid" else "names columns"
        raise ValueError(
            f"{name}= {what} of a DataFrame or of Parquet files; the data is of type {type(data).__name__}."
        )
    return None


def labelled(columns: ColumnChoice, model: keras.Model | None, *, target: bool = True) -> ColumnChoice:
    """Return the columns without those of labels and weights if not `target`, or if the model takes none.

    A model that takes rows with labels or without gets them if `label_col` was named.
    """
    wanted = True if model is None else wants_target(model)
    if target and (columns.label_named if wanted is None else wanted):
        return columns
    return replace(columns, label=None, sample_weight=None)


def cut_inputs(x: Any, model: keras.Model) -> Any:
    """A single array with rows for a model with several inputs, cut into one for each along axis 1."""
    return cut(x, input_count(model), axis=1)


def cut_targets(y: Any, model: keras.Model) -> Any:
    """A single array of targets for a model with several outputs, cut into one for each with a loss along axis 1."""
    return cut(y, target_count(model), axis=1, what="outputs")


def check_targets(y: Any, model: keras.Model) -> None:
    """Do nothing if each target that is None is of an output without a loss, or if the model's own class decides what targets mean.

    Raises:
        ValueError: naming an output with a loss whose targets are None.
    """
    own = any(overrides(model, step) for step in ("train_step", "test_step", "compute_loss"))
    if own or not isinstance(y, dict | tuple):
        return
    names = [slot.name for slot in flatten(outputs(model))[0] if isinstance(slot, Slot)]
    for place, (key, part) in enumerate(y.items() if isinstance(y, dict) else zip(names, y, strict=False)):
        loss = getattr(model, "loss", None)
        if isinstance(loss, dict):
            loss = loss.get(key)
        elif isinstance(loss, list | tuple):
            at = names.index(key) if key in names else place
            loss = loss[at] if at < len(loss) else None
        if part is None and loss is not None:
            raise ValueError(
                f"y has None for the output {key!r}, which was compiled with a loss: give its targets, or compile the model with "
                "None in place of that loss."
            )


def check_weights(y: Any, weights: Any) -> None:
    """Do nothing if sample weights are one array, or for several outputs put together as their targets, None among them.

    Raises:
        ValueError: they are put together in another way; it says what was expected and what was found.
    """
    if not isinstance(y, dict | tuple) or not isinstance(weights, dict | tuple):
        return
    expected, found = (
        f"a dict with the keys {', '.join(map(repr, tree))}" if isinstance(tree, dict) else f"a list of {len(tree)}"
        for tree in (y, weights)
    )
    alike = isinstance(y, dict) == isinstance(weights, dict)
    if not alike or (set(y) != set(weights) if isinstance(y, dict) else len(y) != len(weights)):
        raise ValueError(
            f"sample_weight must be put together as y: expected {expected}; got {found}. An output without weights has None."
        )


def cut_features(rdd: RDD, model: keras.Model) -> RDD:
    """Rows of features whose single arrays are cut into one for each input of the model.

    For a model of one input the rows may be pairs, whose labels are left out.
    """
    parts = input_count(model)
    if has_one_input(model):
        return rdd.map(_one_input)
    return rdd if parts == 1 else rdd.map(partial(_cut_x, parts=parts))


def cut_pairs_or_features(rdd: RDD, model: keras.Model) -> RDD:
    """Rows that the model takes with a target or without, as tuples of their parts, cut for its inputs and outputs.

    A tuple of two or three is a pair, unless it has the arrays of as many inputs: its first part is then no tuple or dict.
    """
    inputs, targets = input_count(model), target_count(model)
    return rdd if inputs == targets == 1 else rdd.map(partial(_cut_any, inputs=inputs, targets=targets))


def cut_pairs(rdd: RDD, model: keras.Model) -> RDD:
    """Rows `(x, y)` or `(x, y, sample_weight)` whose single arrays are cut for the inputs and outputs of the model."""
    inputs, targets = input_count(model), target_count(model)
    return rdd if inputs == targets == 1 else rdd.map(partial(_cut_pair, inputs=inputs, targets=targets))


def has_one_input(model: keras.Model) -> bool:
    """Whether a model is known to take one array, so that a tuple of several is none of its inputs."""
    found = getattr(model, "inputs", None)
    return found is not None and len(found) == 1


def _one_input(row: Any) -> Any:
    """The features of a row for a model of one input: x of `(x, y)` and `(x, y, sample_weight)`."""
    return row[0] if type(row) is tuple and len(row) in (2, 3) else row


def _cut_x(row: Any, parts: int) -> Any:
    return row if isinstance(row, Block) else cut(row, parts, axis=0)  # whole blocks have their columns already


def _cut_pair(row: Any, inputs: int, targets: int) -> Any:
    return row if isinstance(row, Block) else cut_row(row, inputs, targets)


def _cut_any(row: Any, inputs: int, targets: int) -> Any:
    if isinstance(row, Block):
        return row
    if isinstance(row, tuple) and len(row) in (2, 3) and (len(row) != inputs or isinstance(row[0], tuple | dict)):
        return cut_row(row, inputs, targets)
    return row if isinstance(row, tuple) and len(row) == 1 else (cut(row, inputs, axis=0),)


def refuse_foreign(data: object) -> None:
    """Says in one sentence what to use instead of kinds of data that are none of ours."""
    module = type(data).__module__
    refuse_connect(data)
    if module.startswith("pyspark.sql"):
        raise TypeError(
            "DataFrames are taken by fit, evaluate, predict, search and train_ensemble; here pass "
            "df.rdd.map(lambda row: (features, label))."
        )
    if module.startswith("tensorflow") and not (hasattr(data, "numpy") or is_sparse(data)):
        raise TypeError(
            "tf.data datasets live on one machine; pass arrays, an RDD of (x, y) rows, or for TFRecord files "
            "elephas_like.read_tfrecords(spark, path)."
        )
    if isinstance(data, keras.utils.PyDataset) or (_comes_in_turn(data) and not is_sparse(data)):
        raise TypeError(
            f"generators, loaders and iterators live on one machine; got one of type {type(data).__name__}. Pass arrays, or "
            "sc.parallelize(rows) with (x, y) rows."
        )
    parts = data.values() if isinstance(data, dict) else data if isinstance(data, tuple) else [data]
    if any(is_ragged(part) for part in parts):
        raise TypeError(
            "ragged tensors have rows of unequal shape: pad them (tensor.to_tensor()), as each batch needs one shape."
        )


def _comes_in_turn(data: object) -> bool:
    """Return whether data can only be iterated, as a generator or PyTorch's DataLoader: it is no array, list or table."""
    if any(each.__module__.startswith("torch.utils.data") for each in type(data).__mro__):
        return True
    placed = hasattr(data, "__getitem__") or hasattr(data, "__array__")
    return isinstance(data, Iterator) or (isinstance(data, Iterable) and not placed)


def refuse_connect(data: object) -> None:
    """Says what to use where data is Spark Connect's."""
    if is_remote(data):
        raise TypeError(
            "this needs RDDs, which Spark Connect has not. Over Spark Connect, SparkModel's fit, evaluate and predict, "
            "search and train_ensemble take DataFrames and arrays; for the rest use a classic session (SparkSession.builder.master(...))."
        )


def arrays(tree: Any) -> Any:
    """Pandas, SciPy's sparse matrices and tensors as dense arrays; tuples, lists of arrays, and dicts stay what they are.

    Raises:
        ValueError: arrays with masked values, pandas' columns with missing ones, lists whose rows have unequal shapes, or something
            without rows.
    """
    if np.ma.is_masked(tree):
        raise ValueError("an array has masked values, which stand for nothing: fill them, as x.filled(0) does.")
    if tree is None:
        return tree
    if isinstance(tree, dict) and not is_sparse(tree):  # SciPy has a sparse matrix that is one
        return {name: arrays(value) for name, value in tree.items()}
    if isinstance(tree, tuple) or (isinstance(tree, list) and _is_branch(tree)):
        return tuple(arrays(item) for item in tree)
    array = _array(tree)
    if array.ndim == 0:
        raise ValueError(
            f"expected arrays with a row for each example, got a single {type(tree).__name__}: {checks.shortly(tree)}. Give lists or NumPy "
            "arrays; a tuple stands for several inputs or outputs."
        )
    return plain_numbers(array)


def _is_branch(given: list[Any]) -> bool:
    """Whether a list holds arrays, or None for each of several outputs, and no numbers."""
    return any(getattr(item, "shape", ()) for item in given) or (bool(given) and all(item is None for item in given))


def _array(tree: Any) -> Array:
    if isinstance(tree, np.ndarray):
        return tree
    if is_sparse(tree):
        return dense(tree)
    if keras.ops.is_tensor(tree):
        return array_of(tree)
    if isinstance(tree, pd.Series):
        return column_values(tree)[:, None]  # a column, as in Keras
    if isinstance(tree, pd.DataFrame):
        return _frame_values(tree)
    if isinstance(tree, pa.Table):
        for name, column in zip(tree.column_names, tree.columns, strict=True):
            refuse_nulls(column, f"column {name!r}")
    elif isinstance(tree, pa.ChunkedArray | pa.Array):
        refuse_nulls(pa.chunked_array([tree]) if isinstance(tree, pa.Array) else tree, "an array")
    try:
        found: Array = tree.to_numpy() if hasattr(tree, "to_numpy") else np.asarray(tree)
        return unmixed(found, tree) if isinstance(tree, list) else found
    except ValueError as error:  # NumPy's words for nested lists
        if not isinstance(tree, list):
            raise
        raise ValueError(
            "the rows of a list have unequal shapes: pad them (keras.utils.pad_sequences), as each batch needs one shape. "
            f"NumPy says: {error}"
        ) from error


def refuse_nulls(column: pa.ChunkedArray, place: str) -> None:
    """Raise ValueError if a column of PyArrow's has nulls, which make floats of whole numbers.

    Args:
        place: what the message calls it.
    """
    row, kind = first_null(column), column.type
    if row is None:
        return
    numbers = pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)
    filled = " (fill_null(0), or fill_null(float('nan')) of floats)" if numbers else ""
    raise ValueError(
        f"{place} of type {kind} has missing values, the first in row {row}: fill them{filled}, or leave out their rows."
    )


def unmixed(array: Array, given: Sequence[Any]) -> Array:
    """Return the array that NumPy made of lists, or objects where it made text of numbers beside text: 5 is no "5", and NaN no "nan".

    As objects they are refused by those who read the rows, which say where they are. Objects are also text with zeros at its end, which
    NumPy drops.
    """
    if array.dtype.kind not in "SUT":
        return array
    objects = np.array(given, dtype=object)
    items = objects.reshape(-1).tolist()
    if not all(issubclass(kind, str | bytes) for kind in set(map(type, items))):
        return objects
    return objects if any(item[-1:] in ("\0", b"\0") for item in items) else array


def column_values(column: pd.Series) -> Array:
    """Return a column of pandas' as NumPy's array: of numbers and booleans also where pandas' type of them has missing values.

    Raises:
        ValueError: such a type, or one of categories, and there are some.
    """
    kind = _numpy_dtype(column.dtype)
    categories = isinstance(column.dtype, pd.CategoricalDtype)
    if categories:
        kind = _numpy_dtype(column.dtype.categories.dtype)
    elif kind is None or kind == column.dtype or not hasattr(column.dtype, "numpy_dtype"):
        return column.to_numpy()
    if column.isna().any():
        filled = "add a category for them (.cat.add_categories)" if categories else "fill them, as fillna(0) does,"
        raise ValueError(
            f"column {column.name!r} of type {column.dtype} has missing values: {filled} or leave out their rows with dropna()."
            + ("" if kind is None else " They are NaN after astype('float64').")
        )
    return column.to_numpy(dtype=kind)


def _frame_values(frame: pd.DataFrame) -> Array:
    """Return a DataFrame as one array: of numbers if all columns are numbers or booleans, which pandas would make objects."""
    kinds = list(frame.dtypes)
    alike = len(set(kinds)) < 2 and all(isinstance(kind, np.dtype) for kind in kinds)
    if alike:
        return frame.to_numpy()
    columns = [column_values(frame.iloc[:, number]) for number in range(len(kinds))]
    return frame.to_numpy() if any(_numpy_dtype(kind) is None for kind in kinds) else np.stack(columns, axis=1)


def _numpy_dtype(kind: Any) -> np.dtype[Any] | None:
    """Return NumPy's type of the values of a pandas type of numbers or booleans; None of others."""
    sparse = kind.subtype if isinstance(kind, pd.SparseDtype) else None
    found = getattr(kind, "numpy_dtype", None) or sparse or kind
    return found if isinstance(found, np.dtype) and found.kind in "biuf" else None
