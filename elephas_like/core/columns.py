"""Read the columns of a shard: headerless files that are memory-mapped and read by row number.

Numbers lie in one headerless file, row after row in C order. Text lies in two: `path` holds the UTF-8 bytes of all
values and `path + ".ends"` the int64 offset at which each value ends, row-major over the shape. rows/spool.py writes
them.
"""

from __future__ import annotations

import json
import math
import os
from typing import Protocol

import numpy as np

from elephas_like.core.errors import ShardMissing
from elephas_like.core.structure import unflatten
from elephas_like.core.types import Array, Column, Integers, ShardRef

TEXT = "string"
ENDS = ".ends"


class ColumnReader(Protocol):
    """One column, open for reading. It is closed when its last reference is dropped."""

    @property
    def nbytes(self) -> int:
        """Bytes of all rows on disk."""
        ...

    @property
    def row_nbytes(self) -> int:
        """Bytes of one row on disk; for text the mean, rounded up."""
        ...

    def take(self, indices: Integers) -> Array:
        """Return a C-contiguous copy of the rows with these numbers, in this order."""
        ...

    def whole(self) -> Array:
        """Return all rows in file order. Numbers are not copied and are read-only."""
        ...


def open_column(column: Column, rows: int) -> ColumnReader:
    """Open the `rows` rows of `column`, memory-mapped. Text comes back as an object array of `str`."""
    if column.dtype == TEXT:
        return _TextReader(column, rows)
    return _NumberReader(column, rows)


def verify(ref: ShardRef) -> None:
    """Check that every file of a shard exists and has the size of its rows.

    Raises:
        ShardMissing: naming the file, and the host on which it was written.
    """
    for column in ref.columns:
        if column.dtype == TEXT:
            count = ref.rows * math.prod(column.shape)
            _expect_size(column.path + ENDS, count * 8, ref)
            ends = _mapped(column.path + ENDS, "int64", (count,))
            _expect_size(column.path, int(ends[-1]) if count else 0, ref)
        else:
            _expect_size(column.path, ref.rows * row_nbytes(column), ref)


def nbytes(ref: ShardRef) -> int:
    """Return the bytes of a shard's files. Missing files count as 0."""
    paths = [column.path for column in ref.columns]
    paths += [column.path + ENDS for column in ref.columns if column.dtype == TEXT]
    return sum(os.stat(path).st_size for path in paths if os.path.exists(path))


def row_nbytes(column: Column) -> int:
    """Return the bytes of one row of a numeric column."""
    return np.dtype(column.dtype).itemsize * math.prod(column.shape)


def signature(ref: ShardRef) -> str:
    """Return a text of the structure, dtypes and shapes of a shard's rows; "" for a shard without rows."""
    if ref.rows == 0:
        return ""
    return json.dumps([ref.structure, [[column.dtype, column.shape] for column in ref.columns]])


SAMPLE_ROWS, SAMPLE_BYTES = 1024, 2**26
"""What a made-up batch has at most, whichever is more: a `batch_size` may be far above the number of rows."""


def sample_rows(rows: int, row_nbytes: int) -> int:
    """Return how many rows a made-up batch has, of a batch of `rows`."""
    return min(rows, max(SAMPLE_ROWS, SAMPLE_BYTES // max(1, row_nbytes)))


def example_batch(text: str, rows: int = 1) -> tuple[object, ...]:
    """Return a made-up batch whose rows have a given signature: (x,), (x, y) or (x, y, sample_weight).

    It has as many rows as `sample_rows` says.

    Texts are empty, integers are zero, which every model accepts, and floats are numbers other than zero.
    """
    structure, columns = json.loads(text)
    rows = sample_rows(rows, sum(_blank(dtype, tuple(shape)).nbytes for dtype, shape in columns))
    leaves = [_blank(dtype, (rows, *shape)) for dtype, shape in columns]
    batch = unflatten(structure, leaves)
    assert isinstance(batch, tuple)
    return batch


def _blank(dtype: str, shape: tuple[int, ...]) -> Array:
    if dtype == TEXT:
        return np.full(shape, "", dtype=object)
    zeros = np.zeros(shape, dtype)
    return zeros + np.linspace(0.25, 1, zeros.size, dtype=dtype).reshape(shape) if zeros.dtype.kind == "f" else zeros


def difference(one: str, other: str) -> str | None:
    """Return how two signatures differ in a way that one model cannot take, or None.

    Only structure and shapes matter, and whether a column is text: numbers of any dtype are alike.
    """
    (structure, columns), (other_structure, other_columns) = json.loads(one), json.loads(other)
    if structure != other_structure:
        return f"structure {structure} and {other_structure}"
    for index, ((dtype, shape), (other_dtype, other_shape)) in enumerate(zip(columns, other_columns, strict=True)):
        if shape != other_shape or (dtype == TEXT) != (other_dtype == TEXT):
            return f"column {index}: {dtype} of shape {tuple(shape)} and {other_dtype} of shape {tuple(other_shape)}"
    return None


class _NumberReader:
    """Rows of a numeric column, mapped from one file."""

    def __init__(self, column: Column, rows: int) -> None:
        self._rows = _mapped(column.path, column.dtype, (rows, *column.shape))
        self.nbytes = self._rows.nbytes
        self.row_nbytes = row_nbytes(column)

    def take(self, indices: Integers) -> Array:
        return np.take(self._rows, indices, axis=0)

    def whole(self) -> Array:
        return self._rows


class _TextReader:
    """Rows of a text column, decoded from the bytes between the offsets in its `.ends` file."""

    def __init__(self, column: Column, rows: int) -> None:
        self._shape = column.shape
        ends = _mapped(column.path + ENDS, "int64", (rows, math.prod(column.shape)))
        self._ends = ends.reshape(-1)
        size = int(self._ends[-1]) if self._ends.size else 0
        self._bytes = _mapped(column.path, "uint8", (size,)).data
        self._rows = ends
        self.nbytes = size + ends.nbytes
        self.row_nbytes = -(-self.nbytes // rows) if rows else 0

    def take(self, indices: Integers) -> Array:
        width = self._rows.shape[1]
        ends = np.take(self._rows, indices, axis=0).reshape(-1)
        rows = np.arange(len(self._rows))[indices]  # -1 means the last row, as in `np.take`
        before = (rows[:, None] * width + np.arange(width)).reshape(-1) - 1
        begins = np.where(before >= 0, self._ends[before], 0)
        texts = np.empty(ends.size, dtype=object)
        for place, (begin, end) in enumerate(zip(begins.tolist(), ends.tolist(), strict=True)):
            texts[place] = str(self._bytes[begin:end], "utf-8")
        return texts.reshape(len(indices), *self._shape)

    def whole(self) -> Array:
        return self.take(np.arange(len(self._rows)))


def _mapped(path: str, dtype: str, shape: tuple[int, ...]) -> Array:
    if math.prod(shape) == 0:  # a file of no bytes cannot be mapped
        return np.empty(shape, dtype)
    return np.asarray(np.memmap(path, dtype=dtype, mode="r", shape=shape))


def _expect_size(path: str, size: int, ref: ShardRef) -> None:
    try:
        found = os.stat(path).st_size
    except FileNotFoundError as error:
        raise ShardMissing(
            f"worker {ref.worker}: {path} is not here. The shard was written on host {ref.host!r}: either this task runs "
            "elsewhere or the file was deleted."
        ) from error
    if found != size:
        raise ShardMissing(
            f"worker {ref.worker}: {path} (written on host {ref.host!r}) expected {size} bytes for {ref.rows} rows, "
            f"got {found}. Was the disk full, or the file changed?"
        )
