"""Rows of Parquet files read by the workers themselves, as Blocks: no row goes through Spark.

A worker reads its row groups batch by batch, so it holds one decoded batch, whatever the size of a file.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import groupby

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow import fs

from elephas_like.core.errors import DataError
from elephas_like.core.types import Integers
from elephas_like.rows.frame_plan import Cell, FramePlan
from elephas_like.rows.frame_read import BatchReader
from elephas_like.rows.parquet_files import ParquetFile, Part, Piece, RowGroup
from elephas_like.rows.spool import Block
from elephas_like.rows.vectors import without_decimals

READ_BYTES = 16 * 2**20
"""About the size of a decoded batch: with smaller ones, tables of hundreds of columns are decoded at half the speed."""
_MOST_ROWS = 65_536
_FIRST_ROWS, _GROWTH = 64, 8
"""Rows of a row group's first batch, and how much larger than the last one a batch may be. A footer does not say how large rows
are: of lists of few different values, two bytes of a file may be thousands in memory."""


def read_part(plan: FramePlan, part: Part) -> Iterator[Block]:
    """Yield the rows of a part.

    Raises:
        DataError: a value does not fit (it names the column, the file and the row), or a file is not what it was when the fit
            began. FileNotFoundError: a file is not there for this process.
    """
    reader = BatchReader(plan)
    for file, pieces in groupby(part.pieces, lambda piece: piece.group.file):
        constants = dict(file.constants)
        for piece, rows, begin, batch in _batches(part.filesystem, file, list(pieces), _paths(plan, file)):
            arrays = [_values(batch, cell, constants, rows - begin) for cell in plan.cells]
            for leaves, count in reader.blocks(arrays, len(rows), partial(_place, piece, rows)):
                yield Block(plan.tree(leaves), count)


def _place(piece: Piece, rows: Integers, row: int) -> str:
    return f"{piece.group.file.path}, row group {piece.group.number}, row {rows[row]}"


def _paths(plan: FramePlan, file: ParquetFile) -> list[tuple[str, ...]]:
    """The columns, and fields of structs, that are read from the file."""
    constants = {name for name, _ in file.constants}
    return [cell.path for cell in plan.cells if cell.path[0] not in constants]


def _missing(schema: pa.Schema, paths: list[tuple[str, ...]]) -> tuple[str, ...] | None:
    """Return the first path to a column, or to a field of structs, that a file lacks."""
    kinds = {field.name: field.type for field in schema}
    return next((path for path in paths if path[0] not in kinds or not _leads_on(kinds[path[0]], path[1:])), None)


def _leads_on(kind: pa.DataType, path: tuple[str, ...]) -> bool:
    """Whether a type is of structs that have a field, of structs that have a field, ..."""
    for name in path:
        if not pa.types.is_struct(kind) or kind.get_field_index(name) < 0:
            return False
        kind = kind.field(name).type
    return True


def _batches(
    filesystem: fs.FileSystem, file: ParquetFile, pieces: list[Piece], paths: list[tuple[str, ...]]
) -> Iterator[tuple[Piece, Integers, int, pa.RecordBatch]]:
    """Yield (piece, its rows' numbers in the row group, the first number of the batch, the batch) of a file's row groups.

    A batch has rows of other pieces, too.
    """
    try:
        opened = filesystem.open_input_file(file.path)
    except FileNotFoundError as error:
        raise FileNotFoundError(
            f"{file.path!r} is not there for this worker, and was for the process that called fit. Put the files where all of "
            "them can read them, or pass spark.read.parquet(path)."
        ) from error
    local = isinstance(filesystem, fs.LocalFileSystem)
    with opened, pq.ParquetFile(opened, pre_buffer=not local) as parquet:
        schema = parquet.schema_arrow  # which PyArrow converts at each access
        if (missing := _missing(schema, paths)) is not None:
            raise DataError(
                f"{file.path} has no column {'.'.join(missing)!r}, which other files have; it has {', '.join(map(repr, schema.names))}. Spark "
                f"can put nulls there: spark.read.option('mergeSchema', True).parquet(path), then {_filled(missing)}."
            )
        for piece in pieces:
            group = piece.group
            found = parquet.metadata.row_group(group.number) if group.number < parquet.num_row_groups else None
            if found is None or (found.num_rows, found.total_byte_size) != (group.rows, group.nbytes):
                raise DataError(
                    f"{file.path} has changed since the fit began: expected {group.rows} rows in row group {group.number}. "
                    "Write new data to a new path."
                )
            rows, begin = rows_of(piece), 0
            for batch in _decoded(parquet, group, [".".join(path) for path in paths]):
                end = begin + batch.num_rows
                yield piece, rows[slice(*np.searchsorted(rows, (begin, end)))], begin, batch
                begin = end


def _filled(path: tuple[str, ...]) -> str:
    """Say how nulls become numbers, which `df.na.fill` does with columns, not with fields of structs."""
    if len(path) == 1:
        return "df.na.fill"
    name, inner = ".".join(path), ".".join(path[1:])
    return f"df.withColumn({path[0]!r}, F.col({path[0]!r}).withField({inner!r}, F.coalesce({name!r}, F.lit(0.0))))"


def _decoded(parquet: pq.ParquetFile, group: RowGroup, columns: list[str]) -> Iterator[pa.RecordBatch]:
    """Yield a row group in batches of about `READ_BYTES`: of few rows at first, then by the size of those before."""
    rows = min(_FIRST_ROWS, _rows_in_batch(group.nbytes, group.rows))
    for batch in parquet.iter_batches(rows, [group.number], columns, use_threads=False):
        rows = min(_GROWTH * rows, _rows_in_batch(sum(map(_decoded_bytes, batch.columns)), batch.num_rows))
        parquet.reader.set_batch_size(rows)  # which PyArrow reads before each batch
        yield batch


def _rows_in_batch(nbytes: int, rows: int) -> int:
    """Return how many rows to decode at once if so many take so many bytes."""
    return max(1, min(_MOST_ROWS, READ_BYTES * rows // max(1, nbytes)))


def _decoded_bytes(array: pa.Array) -> int:
    """Return about how many bytes an array takes, of a dictionary's values once they are in their places."""
    if not pa.types.is_dictionary(array.type):
        return int(array.nbytes)
    each = array.dictionary.nbytes // max(1, len(array.dictionary))
    return int(array.indices.nbytes + len(array) * each)


def rows_of(piece: Piece) -> Integers:
    """Return the rows of a piece, by their numbers in its row group.

    Mixed shares are spread evenly: row i of a share of c rows lies at about (i + 1/2) / c of the group. Where a worker is the
    first, each takes one row in turn, as cards are dealt.
    """
    if piece.first is not None:
        workers = len(piece.shares)
        return np.arange((piece.mine - piece.first) % workers, piece.group.rows, workers)
    begin, count = sum(piece.shares[: piece.mine]), piece.rows
    if not piece.mixed or len(piece.shares) == 1:
        return np.arange(begin, begin + count)
    places = np.concatenate([(np.arange(share) + 0.5) / share for share in piece.shares])
    order = np.argsort(places, kind="stable")
    return np.flatnonzero((order >= begin) & (order < begin + count))


def _values(batch: pa.RecordBatch, cell: Cell, constants: dict[str, object], places: Integers) -> pa.Array:
    """Return a cell's values at these places of a batch, as Spark would hand them over."""
    if cell.path[0] in constants:
        return pa.repeat(pa.scalar(constants[cell.path[0]]), len(places))
    array = batch.column(cell.path[0])
    if len(cell.path) > 1:
        array = pc.struct_field(array, list(cell.path[1:]))
    if isinstance(array, pa.ExtensionArray):
        array = array.storage
    if (plain := _without_views(array.type)) != array.type:
        array = array.cast(plain)  # first: PyArrow takes no rows of views
    if len(places) < len(array):
        array = array.take(pa.array(places))
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    return without_decimals(array) if cell.cast else array


def _without_views(kind: pa.DataType) -> pa.DataType:
    """Return a type with plain text and bytes in place of views."""
    if str(kind) in ("string_view", "binary_view"):
        return pa.string() if str(kind) == "string_view" else pa.binary()
    if pa.types.is_fixed_size_list(kind):
        return pa.list_(_without_views(kind.value_type), kind.list_size)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return (pa.list_ if pa.types.is_list(kind) else pa.large_list)(_without_views(kind.value_type))
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_without_views(field.type)) for field in kind])
    return kind
