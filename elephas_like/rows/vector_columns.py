"""Columns of Spark's vectors, of pyspark.ml and of the older pyspark.mllib: told from others, read as arrays, made of arrays.

pyspark.ml is imported where it is needed, on the driver: workers take half a second of CPU time for it where Python compiles it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import Column
    from pyspark.sql.types import DataType


def is_vector(kind: DataType) -> bool:
    """Whether columns of a type hold vectors."""
    from pyspark.ml.linalg import VectorUDT
    from pyspark.mllib.linalg import VectorUDT as OldVectorUDT

    return isinstance(kind, VectorUDT | OldVectorUDT)


def as_array(column: Column, dtype: str = "float64") -> Column:
    """Return a column of vectors, none of them null, as one of arrays."""
    from pyspark.ml.functions import vector_to_array

    return vector_to_array(column, dtype)


def as_vector(column: Column) -> Column:
    """Return a column of arrays as one of vectors."""
    from pyspark.ml.functions import array_to_vector

    return array_to_vector(column)
