"""Rows become a shard: an iterator of any length streams into one raw file per column, a batch in memory at a time.

A shard is written beside its place and renamed into it when it is complete. So whoever finds the directory finds all of it,
and two attempts of one Spark task cannot mix.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import zlib
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from operator import attrgetter
from types import TracebackType
from typing import Any

import numpy as np

from elephas_like.core.errors import DataError
from elephas_like.core.structure import flatten
from elephas_like.core.types import Array, ShardRef, Structure
from elephas_like.rows.column_files import BATCH_BYTES, NumberColumn, TextColumn
from elephas_like.rows.row_values import (
    FLOATS,
    BadRow,
    as_array,
    as_whole_array,
    block_parts,
    common_dtype,
    leaf_names,
    listed,
    point_parts,
    row_parts,
    spelled,
    stored_dtype,
    without_scalar_lists,
)
from elephas_like.rows.shard_files import (
    REFERENCE,
    dataset_directory,
    draft_directory,
    publish,
    remove,
    roomy_directory,
    to_json,
)
from elephas_like.spark.gpus import take_gpu

BATCH_ROWS = 4096
ROWS_AT_ONCE = 512
"""Rows that are looked at together; fewer where the batch holds fewer."""
Prepare = Callable[[ShardRef], Iterable[tuple[object, ...]]]
"""Reads a shard of rows as they were given, and yields the columns of those to write in their place, some rows after others."""


@dataclass(frozen=True, eq=False)
class Block:
    """Many rows at once: whole arrays with the rows along their first axis.

    columns: `(xs,)`, `(xs, ys)` or `(xs, ys, sample_weights)`, each an array or a tree of arrays.
    rows: how many; every array is as long.
    """

    columns: tuple[object, ...]
    rows: int


def spool(
    rows: Iterable[object],
    *,
    dataset: str,
    worker: int,
    base: str | None = None,
    floatx: str = "float32",
    expect_target: bool | None = True,
    place: str = "partition",
    begin: int = 0,
    ahead: bool = False,
    prepare: Prepare | None = None,
) -> ShardRef:
    """The reference of the shard that now holds `rows`; spooling the same rows again gives the shard that is there.

    Floats are stored as `floatx`, as Keras takes arrays; integers and booleans keep their dtype, and a column widens when a
    later row needs it. Memory is bounded by a batch of about 4 MiB, or one row where that is larger.

    Args:
        rows: `(x, y)` or `(x, y, sample_weight)`, or x alone without `expect_target`, or either where that is None; x and y are numbers, text, lists,
            arrays of any shape, or tuples and dicts of them. `Block`s may stand among the rows.
        dataset: the dataset's id, part of a directory's name.
        worker: whose shard it is.
        base: the directory in which the dataset's directory is made; one of Spark's local ones by default, in turn.
        place: what error messages call the source that `worker` numbers.
        begin: the number of the first row there.
        ahead: whether rows may be read before the ones before them are written, which is faster. Not where whoever makes them may use
            an array again for the next row.
        prepare: makes the rows that are written of those that are given, which lie beside them meanwhile.

    Raises:
        DataError: for rows that are no pairs, or differ from the rows before in structure, shape or kind; it says where.
    """
    if floatx not in FLOATS:
        raise ValueError(f"floatx must be one of {', '.join(map(repr, FLOATS))}; got {floatx!r}.")
    home = dataset_directory(base if base is not None else roomy_directory(dataset, worker), dataset)
    draft = draft_directory(home, worker)
    try:
        with ShardWriter(
            draft,
            floatx=np.dtype(FLOATS[floatx]),
            expect_target=expect_target if prepare is None else None,
            place=f"{place} {worker}",
            begin=begin,
        ) as writer:
            if prepare is None:
                writer.add_all(rows, ROWS_AT_ONCE if ahead else 1)
            else:
                given = spool(
                    rows,
                    dataset="given",
                    worker=worker,
                    base=draft,
                    floatx=floatx,
                    expect_target=expect_target,
                    place=place,
                    begin=begin,
                    ahead=ahead,
                )
                take_gpu()  # TensorFlow takes hold of all that it sees, also to prepare rows
                for columns in prepare(given):
                    writer.add_block(Block(columns, len(flatten(columns)[0][0])))  # type: ignore[arg-type]  # arrays
                remove(given)
        ref = ShardRef(
            dataset=dataset,
            worker=worker,
            directory=draft,
            host=platform.node(),
            rows=writer.rows,
            columns=tuple(column.described() for column in writer.columns),
            structure=writer.structure,
            checksum=writer.checksum(),
        )
        with open(os.path.join(draft, REFERENCE), "w", encoding="utf-8") as file:
            file.write(to_json(ref))
        return publish(ref, os.path.join(home, f"worker-{worker}"))
    finally:
        shutil.rmtree(draft, ignore_errors=True)  # gone already where it was renamed
        with suppress(OSError):  # not empty, unless this was the only attempt and it failed
            os.rmdir(home)


_DTYPE, _SHAPE = attrgetter("dtype"), attrgetter("shape")
_Look = tuple[Any, np.dtype[np.generic] | None, tuple[int, ...]]
"""Type, dtype and shape of a number or an array of numbers; the type of a scalar says all."""


def _look(part: object) -> _Look | None:
    """Return what a part of a row looks like if it is numbers that are stored as they are, else None."""
    if type(part) is np.ndarray and part.dtype.kind in "biuf":
        return np.ndarray, part.dtype, part.shape
    if type(part) in (bool, int, float) or (isinstance(part, np.generic) and part.dtype.kind in "biuf"):
        return type(part), None, ()
    return None


class ShardWriter:
    """A shard being written: its open columns, and the batch in memory."""

    def __init__(
        self, directory: str, *, floatx: np.dtype[np.generic], expect_target: bool | None, place: str, begin: int = 0
    ) -> None:
        self.rows = 0
        self._begin = begin
        self.columns: list[NumberColumn | TextColumn] = []
        self.structure: Structure = None
        self._names: list[str] = []
        self._directory, self._floatx, self._expect_target, self._place = directory, floatx, expect_target, place
        self._capacity = self._filled = 0
        self._look: tuple[_Look, ...] = ()

    def __enter__(self) -> ShardWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if error is None:
                self._flush()
        finally:
            for column in self.columns:
                column.close()

    def add_all(self, rows: Iterable[object], at_once: int) -> None:
        """Add rows, among which `Block`s may stand; look at no more than `at_once` together, and not more than the batch has room for."""
        coming = iter(rows)
        while some := list(islice(coming, min(at_once, self._capacity - self._filled) if self._look else 1)):
            if len(some) > 1 and self._add_all_alike(some):
                continue
            for row in some:
                if isinstance(row, Block):
                    self.add_block(row)
                else:
                    self.add(row)

    def _add_all_alike(self, rows: Sequence[Any]) -> bool:
        """Add rows whose parts have the types of the row before, column by column. Return False, and add none, if one has not."""
        look, count = self._look, len(rows)
        if set(map(type, rows)) == {tuple}:
            if set(map(len, rows)) != {len(look)}:
                return False
            columns = list(zip(*rows, strict=True))
        elif self._expect_target or len(look) > 1:
            return False
        else:
            columns = [tuple(rows)]  # x alone
        for parts, (kind, dtype, shape) in zip(columns, look, strict=True):
            if set(map(type, parts)) != {kind}:
                return False
            if dtype is not None and (set(map(_DTYPE, parts)) != {dtype} or set(map(_SHAPE, parts)) != {shape}):
                return False
        try:
            for column, parts in zip(self.columns, columns, strict=True):
                assert isinstance(column, NumberColumn)  # text has no look
                column.put_all(self._filled, parts)
        except OverflowError:  # an int of more than 64 bits
            return False
        self.rows += count
        self._filled += count
        if self._filled == self._capacity:
            self._flush()
        return True

    def add(self, row: object) -> None:
        """Add one row."""
        kind = type(row)
        if kind.__name__ == "LabeledPoint" and kind.__module__ == "pyspark.mllib.regression":
            row = point_parts(row, self._expect_target)
        if not self._expect_target and not isinstance(row, tuple):
            row = (row,)
        if not self._add_alike(row):
            self._add_checked(row)
        self.rows += 1
        self._filled += 1
        if self._filled == self._capacity:
            self._flush()

    def _add_alike(self, row: Any) -> bool:
        """Add a row whose parts have the types of the row before, without checking it again. Return False for other rows."""
        look = self._look
        if not look or type(row) is not tuple or len(row) != len(look):
            return False
        for part, (kind, dtype, shape) in zip(row, look, strict=True):
            if kind is not type(part) or (dtype is not None and (part.dtype != dtype or part.shape != shape)):
                return False
        try:
            for column, part in zip(self.columns, row, strict=True):
                column.put(self._filled, part)
        except OverflowError:  # an int of more than 64 bits
            return False
        return True

    def _add_checked(self, row: Any) -> None:
        try:
            leaves = self._leaves(row_parts(row, self._expect_target))
            arrays = [as_array(leaf, name) for leaf, name in zip(leaves, self._names, strict=True)]
            if not self.columns:
                self._open(arrays)
            for column, array in zip(self.columns, arrays, strict=True):
                if array.dtype not in column.fits or array.shape != column.shape:
                    self._fit(column, array.dtype, array.shape)
        except BadRow as error:
            raise DataError(f"{self._place}, row {self._begin + self.rows}: {error}") from error.__cause__
        for column, array in zip(self.columns, arrays, strict=True):
            column.put(self._filled, array)
        looks = [_look(part) for part in row] if type(row) is tuple and self.structure == list(range(len(row))) else []
        self._look = tuple(look for look in looks if look is not None) if None not in looks else ()

    def add_block(self, block: Block) -> None:
        """Add whole arrays of rows, in slices of a batch."""
        if block.rows == 0:
            return
        self._look = ()
        try:
            leaves = self._leaves(block_parts(block.columns, self._expect_target), absent=True)
            arrays = [as_whole_array(leaf, name, block.rows) for leaf, name in zip(leaves, self._names, strict=True)]
            if not self.columns:
                self._open([as_array(array[:1], name)[0, ...] for array, name in zip(arrays, self._names, strict=True)])
            self._flush()
            for column, array in zip(self.columns, arrays, strict=True):
                begin = 0
                while begin < block.rows:
                    rows = as_array(array[begin : begin + self._capacity], column.name)
                    self._fit(column, rows.dtype, rows.shape[1:])
                    column.append(rows)
                    begin += len(rows)
        except BadRow as error:
            raise DataError(f"{self._place}, rows from {self._begin + self.rows}: {error}") from error.__cause__
        self.rows += block.rows

    def checksum(self) -> int:
        """Return one number for all that was written, however it was batched; 0 if nothing was."""
        if not self.columns:
            return 0
        contents = [(column.dtype_name, column.shape, column.checksums()) for column in self.columns]
        return zlib.crc32(json.dumps([self.structure, contents], sort_keys=True).encode())

    def _leaves(self, parts: tuple[object, ...], *, absent: bool = False) -> list[object]:
        """Return the leaves of a row, which must have the structure of the rows before."""
        found, structure = flatten(tuple(map(without_scalar_lists, parts)))
        leaves = found.copy()
        found.clear()  # `flatten` is a closure that refers to itself: its list lives until the garbage collector comes
        if structure == self.structure:
            return leaves
        names = leaf_names(structure, absent=absent)
        if self.structure is not None:
            raise BadRow(
                f"expected {listed(self._names)}, as in the rows before, got {listed(names)}. "
                "All rows of an RDD must have one structure."
            )
        self.structure, self._names = structure, names
        return leaves

    def _open(self, row: list[Array]) -> None:
        """Make the columns for a first row."""
        for index, (name, array) in enumerate(zip(self._names, row, strict=True)):
            path = os.path.join(self._directory, f"column-{index}")
            if array.dtype != object:
                dtype = stored_dtype(array.dtype, self._floatx)
                self.columns.append(NumberColumn(path, name=name, dtype=dtype, shape=array.shape))
            elif name.startswith("sample_weight"):
                raise BadRow(f"{spelled(name)} expected numbers, got text.")
            else:
                self.columns.append(TextColumn(path, name=name, shape=array.shape))
        self._allocate()

    def _fit(self, column: NumberColumn | TextColumn, dtype: np.dtype[np.generic], shape: tuple[int, ...]) -> None:
        """Check that a value fits its column, and widen the column if it must be."""
        if shape != column.shape:
            raise BadRow(
                f"{spelled(column.name)} expected shape {column.shape}, got {shape}. "
                "All rows of an RDD must have one shape."
            )
        if dtype in column.fits:
            return
        if "O" in (column.dtype.kind, dtype.kind):
            expected, got = ("text" if each.kind == "O" else f"numbers ({each})" for each in (column.dtype, dtype))
            raise BadRow(f"{spelled(column.name)} expected {expected}, got {got}. A column is either text or numbers.")
        assert isinstance(column, NumberColumn)
        wider = common_dtype(column.dtype, dtype, self._floatx)
        if wider != column.dtype:
            self._flush()
            column.widen(wider)
            self._allocate()
        column.fits.add(dtype)

    def _allocate(self) -> None:
        row_nbytes = sum(column.row_nbytes for column in self.columns)
        self._capacity = min(BATCH_ROWS, max(1, BATCH_BYTES // max(1, row_nbytes)))
        for column in self.columns:
            column.allocate(self._capacity)

    def _flush(self) -> None:
        for column in self.columns:
            column.flush(self._filled)
        self._filled = 0
