"""Columns as pandas UDFs get them, as Arrow arrays. Spark has UDFs that take Arrow arrays from 4.1 on; those before take pandas'."""

from __future__ import annotations

import pandas as pd
import pyarrow as pa

VECTOR_FIELDS = {
    "type": pa.int8(),
    "size": pa.int32(),
    "indices": pa.list_(pa.int32()),
    "values": pa.list_(pa.float64()),
}
"""The struct that a Spark vector is, outside Spark."""


def from_pandas(column: pd.Series | pd.DataFrame) -> pa.Array:
    """Return a column of a batch as an Arrow array: a table, which is how a struct comes, as a struct.

    NaN becomes null, because pandas writes nulls among numbers as NaN. A struct is null where all its fields are.
    """
    if isinstance(column, pd.DataFrame):
        known = VECTOR_FIELDS if set(column.columns) == set(VECTOR_FIELDS) else {}
        fields = [_array(column[name], known.get(name)) for name in column.columns]
        null = column.isna().all(axis=1).to_numpy()
        return pa.StructArray.from_arrays(fields, list(column.columns), mask=pa.array(null))
    return _array(column, None)


def _array(column: pd.Series, kind: pa.DataType | None) -> pa.Array:
    first = next((value for value in column if value is not None), None) if column.dtype == object else None
    if isinstance(first, dict) and set(first) == set(VECTOR_FIELDS):  # a vector in a struct
        kind = pa.struct(VECTOR_FIELDS)
    array = pa.array(column, kind, from_pandas=True)
    return array.cast(pa.float64()) if pa.types.is_null(array.type) else array  # nulls of a type that nobody knows
