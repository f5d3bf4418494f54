"""Which rows of a DataFrame can be read by a plan, as a SQL condition: Spark finds them before any row comes to Python.

A row cannot be read if a value is null, NaN, or of another length than the model takes. Lengths that the model leaves open are
not looked at, nor how a length is divided among several columns. Whether a file is an image is seen in Python, which decodes it
once more.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from operator import add, and_

import numpy as np
from pyspark.sql import Column, DataFrame, functions
from pyspark.sql import types as sql

from elephas_like.rows.frame_plan import Cell, FramePlan, Invalid, Kind, Leaf
from elephas_like.rows.vector_columns import as_array


def readable(df: DataFrame, plan: FramePlan) -> DataFrame:
    """Return the rows that the plan is to read: those that it can read, if the others are to be skipped; else all."""
    return df.filter(valid(plan, df.schema)) if plan.invalid is Invalid.SKIP else df


def selected(df: DataFrame, plan: FramePlan) -> Column:
    """Return a struct of the plan's columns. It is null for a row to keep that cannot be read; NaN is read."""
    columns = functions.struct(*plan.selected())
    return functions.when(valid(plan, df.schema, nan=True), columns) if plan.invalid is Invalid.KEEP else columns


def valid(plan: FramePlan, schema: sql.StructType, *, nan: bool = False) -> Column:
    """Return the condition of the rows that the plan can read; it is never null.

    Args:
        nan: whether NaN is a value like others.
    """
    conditions = [condition for leaf in plan.leaves for condition in _conditions(leaf, schema, nan=nan)]
    return functions.coalesce(_joined(and_, conditions), functions.lit(False))


def _joined(join: Callable[[Column, Column], Column], parts: Sequence[Column]) -> Column:
    """Return what `functools.reduce` does as a tree of little depth: Spark's stack ends at some hundred columns."""
    while len(parts) > 1:
        pairs = zip(parts[::2], parts[1::2], strict=False)
        parts = [*(join(*pair) for pair in pairs), *(parts[-1:] if len(parts) % 2 else ())]
    return parts[0]


def _conditions(leaf: Leaf, schema: sql.StructType, *, nan: bool) -> list[Column]:
    """Return what must hold of a leaf's columns; null says that it does not."""
    conditions, known, lengths = [], 0, []
    for cell in leaf.cells:
        own, length = _cell(cell, _type(cell, schema), nan=nan)
        conditions += own
        if isinstance(length, int):
            known += length
        else:
            lengths.append(length)
        if cell.shape is not None:
            conditions.append(_as_column(length) == math.prod(cell.shape))
    if leaf.shape is not None and None not in leaf.shape:
        parts = 1 if leaf.part is None else leaf.part[1]
        found = _joined(add, [functions.lit(known), *lengths])
        conditions.append(found == parts * math.prod(axis for axis in leaf.shape if axis is not None))
    if leaf.classes is not None:  # becomes one-hot
        label = leaf.cells[0].selected().cast("double")  # it may be boolean
        conditions.append((label >= 0) & (label < leaf.classes) & (label == functions.floor(label)))
    return conditions


def _as_column(length: Column | int) -> Column:
    return functions.lit(length) if isinstance(length, int) else length


def _cell(cell: Cell, kind: sql.DataType, *, nan: bool) -> tuple[list[Column], Column | int]:
    """Return (what must hold of a column, how many values it has in a row)."""
    column = cell.selected()
    if cell.resized:
        from elephas_like.rows import images  # needs TensorFlow, which other columns do not

        assert cell.shape is not None
        readable = images.decodable if cell.kind is Kind.IMAGE_FILE else images.was_decoded
        return [readable(column)], math.prod(cell.shape)
    match cell.kind:
        case Kind.NUMBER | Kind.TEXT:
            number = cell.kind is Kind.NUMBER and not nan
            filled = column.isNotNull() & ~functions.isnan(column) if number and _floats(kind) else column.isNotNull()
            return [filled], 1
        case Kind.BINARY:
            return [column.isNotNull()], functions.octet_length(column) / np.dtype(str(cell.dtype)).itemsize
        case Kind.IMAGE:
            sides = [column.getField(name) for name in ("height", "width", "nChannels")]
            return [column.isNotNull(), _joined(and_, [side > 0 for side in sides])], sides[0] * sides[1] * sides[2]
        case Kind.VECTOR:
            # as_array fails on null.
            values = functions.when(column.isNotNull(), as_array(column))
            kind = sql.ArrayType(sql.DoubleType())
        case Kind.ARRAY:
            values = column
    conditions = [values.isNotNull()]
    while isinstance(kind.elementType, sql.ArrayType):
        # Inner arrays have one length each.
        conditions.append(functions.size(functions.array_distinct(functions.transform(values, functions.size))) <= 1)
        values, kind = functions.flatten(values), kind.elementType
    conditions.append(~functions.exists(values, lambda value: value.isNull()))
    if not nan and _floats(kind.elementType):
        conditions.append(~functions.exists(values, lambda value: functions.isnan(value)))
    return conditions, functions.size(values)


def _floats(kind: sql.DataType) -> bool:
    return isinstance(kind, sql.DoubleType | sql.FloatType)


def _type(cell: Cell, schema: sql.StructType) -> sql.DataType:
    kind: sql.DataType = schema
    for name in cell.path:
        kind = kind[name].dataType
    return kind
