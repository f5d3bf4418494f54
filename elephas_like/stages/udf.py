"""A model as a SQL function.

Its arguments' types are known only when the first batch comes; then the reading of columns is planned.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.ml.linalg import VectorUDT
from pyspark.sql import functions
from pyspark.sql import types as sql

from elephas_like.rows.frame_plan import ColumnChoice
from elephas_like.rows.frame_schema import is_image, plan
from elephas_like.rows.prediction_columns import Field, Score, predicted
from elephas_like.rows.series import VECTOR_FIELDS, from_pandas
from elephas_like.rows.vectors import without_decimals

Columns = tuple[pa.Array, ...]


def sql_function(inputs: object, score: Score, field: Field, *, floatx: str, dtype: str | None) -> Any:
    """Return a Spark function of any number of columns that gives one field of a model's predictions.

    Args:
        inputs: the model's inputs, a Slot or a tree of Slots.
        score: predicts.
        field: the prediction column to return.
        floatx: the float type of the model.
        dtype: of the bytes in binary arguments.
    """

    def scores(batches: Iterator[Columns]) -> Iterator[pa.Array]:
        made = None
        for batch in batches:
            columns = list(map(without_decimals, batch))
            if not columns:
                raise TypeError(
                    "the SQL function takes the model's features as its arguments; it was called without any."
                )
            names = [f"argument {number}" for number in range(1, len(columns) + 1)]
            if made is None:
                schema = sql.StructType(
                    [
                        sql.StructField(name, _spark_type(column.type))
                        for name, column in zip(names, columns, strict=True)
                    ]
                )
                binary = [name for one in schema for name in _binary(one.name, one.dataType)]
                # One may be a struct, or a vector to be cut, for several inputs.
                features = names if len(names) > 1 else names[0]
                choice = ColumnChoice(features, None, dtypes={} if dtype is None else dict.fromkeys(binary, dtype))
                made = plan(schema, choice, inputs, None, floatx=floatx, classes=None)
            given = dict(zip(names, columns, strict=True))
            # Inputs may take them in another order, and fields of a struct.
            read = [_field(given[cell.path[0]], cell.path[1:]) for cell in made.cells]
            structs = pa.StructArray.from_arrays(read, [cell.name for cell in made.cells])
            for found in predicted([structs], made, score, [field]):
                yield found.field(0)

    return (
        _arrow_function(scores, field.type) if hasattr(functions, "arrow_udf") else _pandas_function(scores, field.type)
    )


def _arrow_function(scores: Callable[[Iterator[Columns]], Iterator[pa.Array]], kind: sql.DataType) -> Any:
    def on_arrow(batches: Iterator[Columns]) -> Iterator[pa.Array]:
        return scores(_columns(batch) for batch in batches)

    # Spark reads the function's types from its hints, which must be classes and not text.
    on_arrow.__annotations__ = {"batches": Iterator[tuple[pa.Array, ...]], "return": Iterator[pa.Array]}
    return functions.arrow_udf(on_arrow, kind)


def _pandas_function(scores: Callable[[Iterator[Columns]], Iterator[pa.Array]], kind: sql.DataType) -> Any:
    """Before Spark 4.1."""

    def on_pandas(batches: Iterator[Any]) -> Iterator[pd.Series]:
        for scored in scores(tuple(map(from_pandas, _columns(batch))) for batch in batches):
            yield scored.to_pandas()

    on_pandas.__annotations__ = {"batches": Iterator[tuple[pd.Series, ...]], "return": Iterator[pd.Series]}
    return functions.pandas_udf(on_pandas, kind)


def _field(column: pa.Array, path: tuple[str, ...]) -> pa.Array:
    """Return a field of a column of structs, null where the struct is; the column itself by an empty path."""
    return pc.struct_field(column, list(path)) if path else column


def _binary(name: str, kind: sql.DataType) -> list[str]:
    """Return the names of binary columns, and of binary fields of structs."""
    if isinstance(kind, sql.StructType) and not is_image(kind):
        return [each for one in kind for each in _binary(f"{name}.{one.name}", one.dataType)]
    return [name] if isinstance(kind, sql.BinaryType) else []


def _columns(batch: Any) -> tuple[Any, ...]:
    """Return the columns of a batch; Spark hands over a single one without a tuple."""
    return batch if isinstance(batch, tuple) else (batch,)


def _spark_type(kind: pa.DataType) -> sql.DataType:
    """Return the Spark type of an argument. The widths of numbers do not matter."""
    if pa.types.is_struct(kind):
        names = [kind.field(index).name for index in range(kind.num_fields)]
        if set(names) == set(VECTOR_FIELDS):
            return VectorUDT()
        return sql.StructType([sql.StructField(one.name, _spark_type(one.type)) for one in _fields(kind)])
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return sql.ArrayType(_spark_type(kind.value_type))
    for check, spark_type in (
        (pa.types.is_boolean, sql.BooleanType()),
        (pa.types.is_integer, sql.LongType()),
        (pa.types.is_floating, sql.DoubleType()),
        (pa.types.is_binary, sql.BinaryType()),
        (pa.types.is_large_binary, sql.BinaryType()),
        (pa.types.is_string, sql.StringType()),
        (pa.types.is_large_string, sql.StringType()),
    ):
        if check(kind):
            return spark_type
    raise TypeError(f"a model's SQL function takes numbers, text, vectors, arrays or bytes; got an argument of {kind}.")


def _fields(kind: pa.DataType) -> Iterable[pa.Field]:
    return [kind.field(index) for index in range(kind.num_fields)]
