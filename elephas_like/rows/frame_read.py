"""Batches of a DataFrame's columns as blocks of rows, by a plan (frame_plan.py).

Columns cross from Spark to Python as Arrow batches and become `Block`s of at most a few MiB, which the spool takes as it takes
rows. What is wrong with a value is said with its column and row.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property

import numpy as np
import pyarrow as pa
from pyspark import RDD, TaskContext
from pyspark.sql import DataFrame
from pyspark.sql import types as sql

from elephas_like.core.errors import DataError, WaitError
from elephas_like.core.types import Array
from elephas_like.rows.column_files import BATCH_BYTES
from elephas_like.rows.frame_plan import Cell, FramePlan, Invalid, Kind, Leaf
from elephas_like.rows.spool import Block
from elephas_like.rows.vectors import Unfit, binaries, images, nested, numbers, texts, vectors
from elephas_like.spark.plans import runs_when_planned
from elephas_like.spark.remote import new_tag, run_job
from elephas_like.spark.task_input import at_once
from elephas_like.spark.waits import Overdue, partition_count

_PACKED = "block binary, error string"
_HANDLE_INVALID = " Or set handle_invalid: 'skip' leaves such rows out, 'keep' keeps them without a prediction."


class Frame:
    """A DataFrame read by a plan, as an RDD of Blocks."""

    def __init__(self, df: DataFrame, plan: FramePlan) -> None:
        self.df, self.plan = df, plan

    @cached_property
    def runs_when_planned(self) -> bool:
        """Whether Spark computes a part of it to know its partitions (spark/plans.py)."""
        return runs_when_planned(self.df)

    @cached_property
    def columns(self) -> DataFrame:
        """What is read of it."""
        return self.plan.select(self.df)

    @cached_property
    def partitions(self) -> int:
        """Its partitions, which Spark plans sooner for the columns alone; a plan that computes something is made once."""
        return partition_count(self.blocks if self.runs_when_planned else self.columns.rdd)

    @cached_property
    def blocks(self) -> RDD:
        """Blocks of rows, in order, in the DataFrame's partitions."""
        return self.dealt(1)

    def dealt(self, pieces: int) -> RDD:
        """Blocks: row i of a partition lies in one whose number is i modulo `pieces`. What a partition holds can then be split evenly."""
        return self._packed(self.columns, pieces).rdd.mapPartitions(_unpacked)

    def first(self, timeout: float) -> list[object]:
        """A Block of the first row, read by a job of its own; none if there is no row. Works over Spark Connect.

        Raises:
            WaitError: it took longer than `timeout` seconds.
        """
        job = self._packed(self.columns.limit(1), 1).collect
        try:
            return list(_unpacked(run_job(self.df.sparkSession, new_tag("first-row"), "first row", timeout, job)))
        except Overdue as error:
            raise WaitError(f"expected the DataFrame's first row within {timeout:g} s: {error}.") from None

    def _packed(self, columns: DataFrame, pieces: int) -> DataFrame:
        plan = self.plan

        def pack(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            return _packed(plan, pieces, batches)

        return columns.mapInArrow(pack, _PACKED)


def _packed(plan: FramePlan, pieces: int, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    reader, error, seen = BatchReader(plan), None, 0
    for batch in at_once(batches):
        if error is not None:
            continue  # read to the end: Spark does not reuse a process that leaves input behind
        try:
            for leaves, rows in reader.blocks(batch.columns, batch.num_rows):
                for piece in range(pieces):
                    first = (piece - seen) % pieces  # dealt on from the block before, which may be one large row
                    part = leaves if pieces == 1 else [leaf[first::pieces] for leaf in leaves]
                    yield _record(pickle.dumps(Block(plan.tree(part), len(range(first, rows, pieces))), 5), None)
                seen += rows
        except DataError as cause:  # as a value: raising it here would cost the process, and Spark would try again
            error = str(cause)
            yield _record(None, error)


def _record(block: bytes | None, error: str | None) -> pa.RecordBatch:
    return pa.record_batch([pa.array([block], pa.binary()), pa.array([error], pa.string())], ["block", "error"])


def _unpacked(rows: Iterable[sql.Row]) -> Iterator[Block]:
    error = None
    for row in rows:
        if row.error is not None:
            error = row.error
        elif error is None:
            yield pickle.loads(row.block)  # noqa: S301  Spark handed over what this module wrote
    if error is not None:
        raise DataError(error)


def read(plan: FramePlan, batches: Iterable[pa.RecordBatch]) -> Iterator[Block]:
    """The rows of one partition's batches of a plan's columns, as Blocks.

    Raises:
        DataError: a value does not fit; it names the column and the row.
    """
    reader = BatchReader(plan)
    for batch in batches:
        for leaves, rows in reader.blocks(batch.columns, batch.num_rows):
            yield Block(plan.tree(leaves), rows)


class BatchReader:
    """Reads the batches of one partition in blocks of at most about 4 MiB, and sees that all rows look alike."""

    def __init__(self, plan: FramePlan) -> None:
        context = TaskContext.get()
        self._plan = plan
        self._place = "" if context is None else f"partition {context.partitionId()}, "
        self._rows = 0
        self._rows_at_once = 0
        self._shapes: list[tuple[int, ...]] = []

    def blocks(
        self, arrays: Sequence[pa.Array], rows: int, place: Callable[[int], str] | None = None
    ) -> Iterator[tuple[list[Array], int]]:
        """Yield (leaves, rows) of parts of a batch, in order.

        Args:
            place: says where a row of this batch is, by its number in it; None counts rows of the partition.

        Raises:
            DataError: a value does not fit; it names the column and the row.
        """
        begin = 0
        while begin < rows:
            probing = not self._rows_at_once  # the first row says how large rows are, and is then read again
            count = min(self._rows_at_once or 1, rows - begin)
            try:
                leaves = _leaves(self._plan, [array.slice(begin, count) for array in arrays])
                self._check_shapes(leaves)
                if self._plan.invalid is Invalid.ERROR:
                    _check_numbers(self._plan, leaves)
            except _BadValue as error:
                where = f"{self._place}row {self._rows + error.row}" if place is None else place(begin + error.row)
                hint = _HANDLE_INVALID if self._plan.invalid is Invalid.ERROR else ""
                raise DataError(f"column {error.column!r}, {where}: {error}{hint}") from error.__cause__
            if probing:
                continue
            yield leaves, count
            self._rows += count
            begin += count

    def _check_shapes(self, leaves: Sequence[Array]) -> None:
        """Compare the shapes of rows with those of the first row."""
        shapes = [leaf.shape[1:] for leaf in leaves]
        if not self._shapes:
            self._shapes = shapes
            row_nbytes = sum(leaf.nbytes for leaf in leaves)
            self._rows_at_once = max(1, BATCH_BYTES // max(1, row_nbytes))
        for leaf, expected, got in zip(self._plan.leaves, self._shapes, shapes, strict=True):
            if expected != got:
                message = f"expected shape {expected}, as in the rows before, got {got}. All rows must have one shape."
                raise _BadValue(leaf.name, Unfit(0, message))


class _BadValue(Exception):
    """What is wrong with a row, with the column and the row's number in the batch."""

    def __init__(self, column: str, error: Unfit) -> None:
        super().__init__(str(error))
        self.column, self.row = column, error.row


def _leaves(plan: FramePlan, arrays: Sequence[pa.Array]) -> list[Array]:
    """Return the leaves of a batch.

    Raises:
        _BadValue: a value does not fit.
    """
    found, columns = [], iter(arrays)
    for leaf in plan.leaves:
        values = []
        for cell in leaf.cells:
            try:
                values.append(_values(cell, next(columns), plan.floatx))
            except Unfit as error:
                raise _BadValue(cell.name, error) from error
        try:
            found.append(_together(values, leaf, plan.floatx))
        except Unfit as error:
            raise _BadValue(leaf.name, error) from error
    return found


def _check_numbers(plan: FramePlan, leaves: Sequence[Array]) -> None:
    """Do nothing if no leaf holds NaN.

    Raises:
        _BadValue: one does.
    """
    for leaf, values in zip(plan.leaves, leaves, strict=True):
        if values.dtype.kind == "f" and np.isnan(values).any():
            row = int(np.flatnonzero(np.isnan(values).reshape(len(values), -1).any(axis=1))[0])
            raise _BadValue(
                leaf.name, Unfit(row, "expected numbers, got NaN. Fill it first (pyspark.ml.feature.Imputer).")
            )


def _values(cell: Cell, array: pa.Array, floatx: str) -> Array:
    """Return a column's values of a batch, rows first."""
    if cell.resized:
        from elephas_like.rows import images as resized  # needs TensorFlow, which other columns do not

        assert cell.shape is not None
        read = resized.from_files if cell.kind is Kind.IMAGE_FILE else resized.from_structs
        return read(array, cell.shape)
    match cell.kind:
        case Kind.NUMBER:
            values = numbers(array)
        case Kind.TEXT:
            values = texts(array)
        case Kind.VECTOR:
            values = vectors(array, floatx)
        case Kind.ARRAY:
            values = nested(array)
        case Kind.BINARY:
            values = binaries(array, str(cell.dtype))
        case Kind.IMAGE:
            values = images(array)
    if cell.shape is not None:
        values = _reshaped(values, cell.shape, "column_shapes says")
    return values.astype(floatx, copy=False) if values.dtype.kind == "f" else values


def _together(values: list[Array], leaf: Leaf, floatx: str) -> Array:
    """The array of a leaf from those of its cells."""
    if len(values) > 1:
        flat = [value.reshape(len(value), -1) for value in values]
        array: Array = np.concatenate(flat, axis=1)
        if array.dtype.kind == "f":  # integers beside floats: NumPy would make float64 of them
            array = array.astype(floatx, copy=False)
    else:
        array = values[0]
    if leaf.part is not None:
        array = _cut(array, *leaf.part)
    if leaf.classes is not None:
        return _one_hot(array, leaf.classes, floatx)
    return array if leaf.shape is None else _reshaped(array, leaf.shape, "the model takes")


def _cut(array: Array, which: int, of: int) -> Array:
    """One of equal parts along the second axis, as `np.hsplit` cuts."""
    width = array.shape[1] // of
    if width * of != array.shape[1]:
        raise Unfit(0, f"expected a row of {of} equal parts, one for each of the model's, got {array.shape[1]} values.")
    return array[:, which * width : (which + 1) * width]


def _reshaped(array: Array, shape: tuple[int | None, ...], who: str) -> Array:
    """The rows in the shape that is wanted, where they hold as many values."""
    got = array.shape[1:]
    if len(got) == len(shape) and all(want in (None, have) for want, have in zip(shape, got, strict=True)):
        return array
    if len(array) and (None in shape or int(np.prod(shape)) != int(np.prod(got))):  # type: ignore[arg-type]  # no None
        raise Unfit(0, f"{who} shape {shape}, got {got}.")
    return array.reshape(len(array), *shape)


def _one_hot(labels: Array, classes: int, floatx: str) -> Array:
    wrong = np.flatnonzero((labels < 0) | (labels >= classes) | (labels != np.floor(labels)))  # type: ignore[operator]
    if len(wrong):
        raise Unfit(
            int(wrong[0]),
            f"expected a class from 0 to {classes - 1}, got {labels[wrong[0]]}. The model has {classes} outputs.",
        )
    return np.eye(classes, dtype=floatx)[labels.astype(np.int64)]
