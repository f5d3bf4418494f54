"""Parquet files as rows of a fit, without Spark: what columns they hold, and who reads which row groups.

This is the driver's part: it reads the footers of the files that parquet_listing.py finds. parquet_read.py reads the rows, in the
workers.
"""

from __future__ import annotations

import heapq
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.dataset as ds
from pyarrow import fs
from pyspark.sql import types as sql

from elephas_like.rows.parquet_listing import Listed, ParquetFiles, listed, located
from elephas_like.spark.parallel import Runs

Item = TypeVar("Item")
Result = TypeVar("Result")

_SPARK_SCHEMA = b"org.apache.spark.sql.parquet.row.metadata"
_FOOTERS_AT_ONCE = 32
SMALL_TABLE = 64 * 2**20
"""Bytes of a table, uncompressed, that is dealt to workers row by row: reading all of it costs each of them less than a second."""


@dataclass(frozen=True)
class RowGroup:
    """A row group of a file: its number there, its rows, and its bytes uncompressed."""

    file: ParquetFile
    number: int
    rows: int
    nbytes: int


@dataclass(frozen=True)
class ParquetFile:
    """A file, and the columns that its directories' names give its rows."""

    path: str
    constants: tuple[tuple[str, object], ...] = ()


@dataclass(frozen=True)
class Piece:
    """The rows of a row group that one worker reads.

    shares: rows of each worker that reads some of the group, in order. mine: which of them this is.
    mixed: whether the shares are spread evenly over the group; otherwise each is a run of rows.
    first: the worker who takes the group's first row, where each worker in turn takes one and `shares` are of all workers.
    """

    group: RowGroup
    shares: tuple[int, ...]
    mine: int
    mixed: bool
    first: int | None = None

    @property
    def rows(self) -> int:
        """Its rows."""
        return self.shares[self.mine]


@dataclass(frozen=True)
class Part:
    """What one worker reads. Plain data, and a filesystem."""

    filesystem: fs.FileSystem
    pieces: tuple[Piece, ...]

    @property
    def rows(self) -> int:
        """Its rows."""
        return sum(piece.rows for piece in self.pieces)


@dataclass(frozen=True)
class ParquetTable:
    """Files that were found, and their row groups in order."""

    filesystem: fs.FileSystem
    groups: tuple[RowGroup, ...]
    schema: sql.StructType

    @cached_property
    def rows(self) -> int:
        """All rows."""
        return sum(group.rows for group in self.groups)

    def dealt(self, workers: int) -> list[Part]:
        """Return a part for each worker, of equally many rows (one more for some), each row in exactly one of them.

        Each row group goes to the worker who has most room left, so every worker gets some of each region of a sorted table. Rows
        of a group that is shared are dealt like cards. In a small table (`SMALL_TABLE`) this is so for all groups.
        """
        if sum(group.nbytes for group in self.groups) <= SMALL_TABLE:
            return self._shared_by_all(workers)
        room = [(-_even(self.rows, workers, worker), worker) for worker in range(workers)]
        heapq.heapify(room)
        pieces: list[list[Piece]] = [[] for _ in range(workers)]
        for group in self.groups:
            owners, left = [], group.rows
            while left:
                most, worker = heapq.heappop(room)
                took = min(left, -most)
                owners.append((worker, took))
                left -= took
                if took < -most:
                    heapq.heappush(room, (most + took, worker))
            shares = tuple(took for _, took in owners)
            for mine, (worker, _) in enumerate(owners):
                pieces[worker].append(Piece(group, shares, mine, mixed=True))
        return self._parts(pieces)

    def in_order(self, parts: int) -> list[Part]:
        """Return parts that hold the rows in their order, of equally many rows (one more for some)."""
        pieces: list[list[Piece]] = [[] for _ in range(parts)]
        part, room = 0, _even(self.rows, parts, 0)
        for group in self.groups:
            owners, left = [], group.rows
            while left:
                while not room:
                    part += 1
                    room = _even(self.rows, parts, part)
                took = min(left, room)
                owners.append((part, took))
                left, room = left - took, room - took
            shares = tuple(took for _, took in owners)
            for mine, (owner, _) in enumerate(owners):
                pieces[owner].append(Piece(group, shares, mine, mixed=False))
        return self._parts(pieces)

    def _shared_by_all(self, workers: int) -> list[Part]:
        pieces: list[list[Piece]] = [[] for _ in range(workers)]
        # Each group goes on where the one before ended, so that row i of the table is worker i % workers', as of arrays.
        first = 0
        for group in self.groups:
            shares = tuple(_even(group.rows, workers, (worker - first) % workers) for worker in range(workers))
            for worker in range(workers):
                if shares[worker]:
                    pieces[worker].append(Piece(group, shares, worker, mixed=True, first=first))
            first = (first + group.rows) % workers
        return self._parts(pieces)

    def _parts(self, pieces: Sequence[Sequence[Piece]]) -> list[Part]:
        return [Part(self.filesystem, tuple(each)) for each in pieces]


def _even(rows: int, parts: int, part: int) -> int:
    return rows // parts + (part < rows % parts)


_BY_LINES = "fit(spark.read.csv(path, header=True, inferSchema=True), features_col=[...], label_col=...)"
_PICTURES = "fit(spark.read.format('binaryFile').load(path), ..., column_dtypes={'content': 'image'})"
_RECORDS = "fit(elephas_like.read_tfrecords(spark, path), ...)"
_READERS = {
    "csv": _BY_LINES,
    "json": "fit(spark.read.json(path), ...)",
    "orc": "fit(spark.read.orc(path), ...)",
    **dict.fromkeys(("tfrecord", "tfrecords"), _RECORDS),
    **dict.fromkeys(("png", "jpg", "jpeg", "gif", "bmp"), _PICTURES),
}
"""What reads files that are no Parquet, by the ends of their names."""


def _suffix(found: Sequence[Listed]) -> str:
    """Return the end of the first file's name, that of a compressed file without its `.gz`."""
    name = next((file for each in found for file in each.files), "")
    return name.lower().removesuffix(".gz").rpartition(".")[2]


def parquet_table(files: ParquetFiles) -> ParquetTable:
    """Find files, and read their footers.

    Raises:
        FileNotFoundError: nothing is there. ValueError: what is there are no Parquet files, or a table of a format that has its
            own list of files.
        NoArrowFilesystem: nothing here can read the URL.
    """
    filesystem, paths = located(files)
    found = [listed(filesystem, path) for path in paths]
    try:
        datasets = _at_once(partial(_dataset, filesystem), found)
        constants = [_constants(fragment) for each in datasets for fragment in each.get_fragments()]
        numbers = _numbers(constants)
        given = [_given_by_directories(each) for each in datasets]
        first = _with_types(datasets[0].schema, {name: numbers[name] for name in given[0].names if name in numbers})
        schema = pa.unify_schemas([first, *[_with_types(each, numbers) for each in given]])
        fragments = [fragment for each in datasets for fragment in each.get_fragments()]
        _at_once(lambda fragment: fragment.ensure_complete_metadata(), fragments)
    except pa.ArrowInvalid as error:
        raise ValueError(
            f"expected Parquet files: {str(error).splitlines()[0]} Other formats are read by Spark: "
            f"{_READERS.get(_suffix(found), 'fit(spark.read.format(...).load(path))')}."
        ) from error
    except pa.ArrowTypeError as error:
        raise ValueError(
            f"expected one type for each column in the files and directories of {paths}. {str(error).splitlines()[0]}. A directory "
            "called name=value gives a column too: rename it or the column, or give the path below it."
        ) from error
    groups = []
    for fragment, named in zip(fragments, constants, strict=True):
        values = {name: _as_number(value, numbers.get(name)) for name, value in named.items()}
        file = ParquetFile(fragment.path, tuple(sorted(values.items())))
        groups += [RowGroup(file, group.id, group.num_rows, group.total_byte_size) for group in fragment.row_groups]
    return ParquetTable(filesystem, tuple(group for group in groups if group.rows), spark_schema(schema))


def _at_once(read: Callable[[Item], Result], items: Sequence[Item]) -> list[Result]:
    """Return what is read of each item, in order. The threads are none of an executor, which takes no work when the main thread has ended."""
    found: dict[int, Result] = {}

    def share(begin: int) -> None:
        for index in range(begin, len(items), _FOOTERS_AT_ONCE):
            if runs.cancelled:
                return
            found[index] = read(items[index])

    with Runs[None](None, at_once=_FOOTERS_AT_ONCE, name="elephas_like-footers") as runs:
        for _, error in runs.outcomes([partial(share, begin) for begin in range(min(_FOOTERS_AT_ONCE, len(items)))]):
            if error is not None:
                raise error
    return [found[index] for index in range(len(items))]


def _dataset(filesystem: fs.FileSystem, found: Listed) -> ds.FileSystemDataset:
    """Return the files of one path as a dataset whose schema is that of the first, and of the directories' names."""
    return ds.dataset(
        found.files, format="parquet", filesystem=filesystem, partitioning="hive", partition_base_dir=found.base
    )


def _given_by_directories(dataset: ds.FileSystemDataset) -> pa.Schema:
    """Return the columns that names of directories give. What PyArrow calls the schema of a partitioning has the files' own, too."""
    given = {name for fragment in dataset.get_fragments() for name in _constants(fragment)}
    return pa.schema([field for field in dataset.partitioning.schema if field.name in given])


def _constants(fragment: ds.ParquetFileFragment) -> dict[str, object]:
    """Return what the directories of a file are called, as PyArrow reads it: whole numbers of 32 bits, text, or None."""
    return dict(ds.get_partition_keys(fragment.partition_expression))


_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")


def _numbers(constants: Sequence[dict[str, object]]) -> dict[str, pa.DataType]:
    """Return the types of directories' columns that PyArrow reads as text and Spark as numbers: int64, or float64 for `y=0.5`.

    constants: of each file. All values of a column are numbers, or missing.
    """
    found = {}
    for name in {name for each in constants for name in each}:
        values = [each[name] for each in constants if each.get(name) is not None]
        if any(isinstance(value, str) for value in values) and all(_NUMBER.fullmatch(str(value)) for value in values):
            whole = all(re.fullmatch(r"[+-]?\d{1,18}", str(value)) for value in values)
            found[name] = pa.int64() if whole else pa.float64()
    return found


def _as_number(value: object, kind: pa.DataType | None) -> object:
    if kind is None or value is None:
        return value
    return int(str(value)) if pa.types.is_integer(kind) else float(str(value))


def _with_types(schema: pa.Schema, kinds: dict[str, pa.DataType]) -> pa.Schema:
    """Return a schema in which the columns of these names have these types."""
    for number, field in enumerate(schema):
        if field.name in kinds:
            schema = schema.set(number, pa.field(field.name, kinds[field.name]))
    return schema


def spark_schema(schema: pa.Schema) -> sql.StructType:
    """Return the columns of an Arrow schema as Spark calls them: from the file's own note if Spark wrote it, which knows vectors."""
    noted = json.loads((schema.metadata or {}).get(_SPARK_SCHEMA, b"null")) or {"fields": []}
    known = {field["name"]: field for field in noted["fields"]}
    return sql.StructType([_noted(known.get(field.name)) or _plain_field(field) for field in schema])


def _plain_field(field: pa.Field) -> sql.StructField:
    return sql.StructField(field.name, _spark_type(field.type))


def _noted(field: dict[str, Any] | None) -> sql.StructField | None:
    """A field as Spark has noted it; None if it did not, or if it is of a type that is not known here: another package's, or a newer Spark's."""
    try:
        return None if field is None else sql.StructField.fromJson(field)
    except Exception:
        return None


def _spark_type(kind: pa.DataType) -> sql.DataType:
    """The type by which a column is planned: what matters is numbers, text, bytes, lists and structs of them."""
    types = pa.types
    if isinstance(kind, pa.BaseExtensionType):
        return _spark_type(kind.storage_type)
    if types.is_dictionary(kind):
        return _spark_type(kind.value_type)
    if types.is_boolean(kind):
        return sql.BooleanType()
    if types.is_integer(kind):
        return sql.LongType()
    if types.is_floating(kind):
        return sql.DoubleType()
    if types.is_decimal(kind):
        return sql.DecimalType(min(kind.precision, 38), kind.scale)
    if types.is_string(kind) or types.is_large_string(kind) or _is_view(kind, "string"):
        return sql.StringType()
    if (
        types.is_binary(kind)
        or types.is_large_binary(kind)
        or types.is_fixed_size_binary(kind)
        or _is_view(kind, "binary")
    ):
        return sql.BinaryType()
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        return sql.ArrayType(_spark_type(kind.value_type))
    if types.is_struct(kind):
        return sql.StructType([sql.StructField(field.name, _spark_type(field.type)) for field in kind])
    if types.is_map(kind):
        return sql.MapType(_spark_type(kind.key_type), _spark_type(kind.item_type))
    if types.is_date(kind):
        return sql.DateType()
    if types.is_duration(kind):
        return sql.DayTimeIntervalType()
    if types.is_time(kind):
        return getattr(sql, "TimeType", sql.NullType)()  # since Spark 4.1
    return sql.TimestampType() if types.is_timestamp(kind) else sql.NullType()


def _is_view(kind: pa.DataType, of: str) -> bool:
    return str(kind) == f"{of}_view"
