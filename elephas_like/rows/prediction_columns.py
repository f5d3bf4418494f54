"""Predictions as columns of a DataFrame: columns are read by a plan, scored, and added batch by batch."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from pyspark.sql import Column, DataFrame, functions
from pyspark.sql import types as sql

from elephas_like.core.types import Array
from elephas_like.rows.frame_plan import FramePlan, Invalid
from elephas_like.rows.frame_read import BatchReader
from elephas_like.rows.valid_rows import readable, selected
from elephas_like.rows.vector_columns import as_vector
from elephas_like.rows.vectors import as_arrow
from elephas_like.spark.gpus import take_gpu
from elephas_like.spark.plans import quoted
from elephas_like.spark.session import ignores_capitals
from elephas_like.spark.task_input import at_once

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Field:
    """A column that predictions add.

    source: its number among the arrays that a score returns. rank: axes of one value; 0 is a plain number.
    vector: whether it becomes an ml Vector.
    """

    name: str
    source: int
    rank: int = 0
    vector: bool = False
    dtype: str = "double"

    @property
    def type(self) -> sql.DataType:
        """Its type as it comes from Python."""
        kind: sql.DataType = {"double": sql.DoubleType(), "float": sql.FloatType(), "long": sql.LongType()}[self.dtype]
        for _ in range(self.rank):
            kind = sql.ArrayType(kind)
        return kind


_COLUMNAR = "spark.sql.execution.arrow.pythonUDF.columnarInput.enabled"
"""Spark 4.3 hands the batches of a Parquet file over as they are, and fails at columns of vectors among them."""

Score = Callable[[object, int], Sequence[Array]]
"""Features of some rows, and how many; arrays with the rows first."""


def predicted(
    batches: Iterable[pa.StructArray], plan: FramePlan, score: Score, fields: Sequence[Field]
) -> Iterator[pa.Array]:
    """Yield a struct of the fields, one value a row, for each batch of the columns that a plan selects."""
    take_gpu()
    kinds = [_arrow_type(one.type) for one in fields]
    schema = pa.struct([pa.field(one.name, kind) for one, kind in zip(fields, kinds, strict=True)])
    reader = BatchReader(plan)
    for whole in at_once(batches):
        batch = whole.drop_null() if whole.null_count else whole  # rows to keep that cannot be read
        columns = [batch.field(index) for index in range(batch.type.num_fields)]
        parts = []
        for leaves, rows in reader.blocks(columns, len(batch)):
            scores = score(plan.tree(leaves)[0], rows)
            arrays = [as_arrow(scores[one.source], kind) for one, kind in zip(fields, kinds, strict=True)]
            unknown = _unknown([scores[one.source] for one in fields]) if plan.invalid is Invalid.KEEP else None
            parts.append(pa.StructArray.from_arrays(arrays, fields=list(schema), mask=unknown))
        found = pa.concat_arrays(parts) if parts else pa.array([], schema)
        yield _among_nulls(found, whole) if whole.null_count else found


def _unknown(scores: Sequence[Array]) -> pa.Array:
    """Whether a row has NaN in what is said of it."""
    found = [np.isnan(one).reshape(len(one), -1).any(axis=1) for one in scores if one.dtype.kind == "f"]
    return pa.array(np.any(found, axis=0) if found else np.zeros(len(scores[0]), bool))


def _among_nulls(found: pa.Array, whole: pa.Array) -> pa.Array:
    """What was found of the rows that are not null, with null for the others."""
    valid = whole.is_valid().to_numpy(zero_copy_only=False)
    return found.take(pa.array(np.cumsum(valid) - 1, pa.int64(), mask=~valid))


def _arrow_type(kind: sql.DataType) -> pa.DataType:
    if isinstance(kind, sql.ArrayType):
        return pa.list_(_arrow_type(kind.elementType))
    return {"double": pa.float64(), "float": pa.float32(), "bigint": pa.int64()}[kind.simpleString()]


def column_called(df: DataFrame, name: str) -> str | None:
    """Return the column that Spark takes a name for, which may differ from it by case; None if there is none."""
    as_spark = str.lower if ignores_capitals(df.sparkSession) else str
    return next((column for column in df.columns if as_spark(column) == as_spark(name)), None)


def with_predictions(df: DataFrame, plan: FramePlan, score: Score, fields: Sequence[Field]) -> DataFrame:
    """Add the fields to a DataFrame as its last columns, computed batch by batch when it is read.

    With Arrow UDFs (Spark 4.1) only the columns of the plan cross to Python, and Spark may filter and prune before. Without
    them all columns go through `mapInArrow`.

    Raises:
        ValueError: a column of the name of a field is there already.
    """
    if not fields:
        log.warning("no column was added: all names of columns to add are ''.")
        return df
    for one in fields:
        if (there := column_called(df, one.name)) is not None:
            raise ValueError(f"the DataFrame has a column {there!r} already; drop it, or give the output another name.")
    df = readable(df, plan)
    if hasattr(functions, "arrow_udf"):
        return _by_udf(df, plan, score, fields)
    return _by_map(df, plan, score, fields)


def _by_udf(df: DataFrame, plan: FramePlan, score: Score, fields: Sequence[Field]) -> DataFrame:
    def scores(batches: Iterator[pa.Array]) -> Iterator[pa.Array]:
        return predicted(batches, plan, score, fields)

    # Spark reads what the function takes from its hints, which must be classes and not text.
    scores.__annotations__ = {"batches": Iterator[pa.Array], "return": Iterator[pa.Array]}
    kind = sql.StructType([sql.StructField(one.name, one.type) for one in fields])
    df = _as_rows(df)
    name = _unused("scores", [*df.columns, *(one.name for one in fields)])
    both = df.withColumn(name, functions.arrow_udf(scores, kind)(selected(df, plan)))
    # No column of the user's is selected by its name, which several may have.
    return both.withColumns({one.name: _field(one, f"{quoted(name)}.{quoted(one.name)}", plan) for one in fields}).drop(
        name
    )


def _as_rows(df: DataFrame) -> DataFrame:
    """Return the DataFrame behind a filter that keeps every row, where Spark would hand over batches with vectors: filters take rows.

    Spark cannot tell that the filter keeps all, and may still move others before it. It asks a column whose name no other has.
    """
    times = Counter(one.name.lower() for one in df.schema)
    unique = [one.name for one in df.schema if times[one.name.lower()] == 1]
    if not unique or not any("UDT" in str(one.dataType) for one in df.schema) or not _takes_batches(df):
        return df
    return df.where(functions.hash(functions.col(quoted(unique[0])).isNull()) >= -(2**31))


def _takes_batches(df: DataFrame) -> bool:
    try:
        return df.sparkSession.conf.get(_COLUMNAR) == "true"  # with a default of ours Spark's own would not be said
    except Exception:  # a Spark that does not know it says so by several kinds
        return False


def _by_map(df: DataFrame, plan: FramePlan, score: Score, fields: Sequence[Field]) -> DataFrame:
    there = [*df.schema.fields, *[sql.StructField(one.name, one.type) for one in fields]]
    # Columns are numbered on their way, as several may have one name.
    schema = sql.StructType(
        [sql.StructField(str(i), one.dataType, one.nullable, one.metadata) for i, one in enumerate(there)]
    )

    def append(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            *kept, columns = batch.columns
            (scores,) = predicted([columns], plan, score, fields)
            yield pa.record_batch([*kept, *scores.flatten()], schema.fieldNames())

    both = df.withColumn(_unused("columns", df.columns), selected(df, plan))
    numbered = both.toDF(*map(str, range(len(both.columns))))
    found = numbered.mapInArrow(append, schema).toDF(*[one.name for one in there])
    return found.withColumns({one.name: _field(one, quoted(one.name), plan) for one in fields})


def _field(one: Field, path: str, plan: FramePlan) -> Column:
    column = functions.col(path)
    if one.vector:
        vector = as_vector(column)
        # The function fails on null, so null must not come to it.
        column = functions.when(column.isNotNull(), vector) if plan.invalid is Invalid.KEEP else vector
    return column.alias(one.name)


def _unused(name: str, names: Sequence[str]) -> str:
    """Return a name that no column has, in whatever letters: `withColumn` would replace that column."""
    taken = {each.casefold() for each in names}
    while name in taken:
        name = f"_{name}"
    return name
