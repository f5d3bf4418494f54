"""Parquet files as rows of a fit, without Spark: which files, what columns they hold, and who reads which row groups.

This is the driver's part: it lists files and reads their footers. parquet_read.py reads the rows, in the workers.
"""

from __future__ import annotations

import heapq
import json
import os
import re
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cached_property, partial
from itertools import takewhile

import pyarrow as pa
import pyarrow.dataset as ds
from pyarrow import fs
from pyspark.sql import types as sql

_SPARK_SCHEMA = b"org.apache.spark.sql.parquet.row.metadata"
_TABLES = {"_delta_log": "Delta", ".hoodie": "Hudi"}
"""What lies in the directory of a table whose files are not all part of it."""
_FOOTERS_AT_ONCE = 32
SMALL_TABLE = 64 * 2**20
"""Bytes of a table, uncompressed, that is dealt to workers row by row: reading all of it costs each of them less than a second."""


@dataclass(frozen=True)
class ParquetFiles:
    """Parquet files to be read by workers themselves: where they are, and by which filesystem.

    A plain path or URL does for most: `fit("s3://bucket/rows")`. This class is for several paths, or a filesystem of your own.

    paths: a file, a directory (read recursively; names that begin with "_" or ".", or end with "._COPYING_", are
        left out), a glob (`*`, `?`, `[ab]`, `[^ab]`, `{a,b}`), a URL, or several of them.
        Several are read in their order, and one that is given twice is read twice; the files of each are sorted by name.
        Directories called `name=value` that lie in a path, or match its glob, give their rows a column.
    filesystem: a `pyarrow.fs.FileSystem`, or an fsspec one; None takes what the URL says. It is pickled and sent to the workers.
    """

    paths: str | os.PathLike[str] | Sequence[str | os.PathLike[str]]
    filesystem: object = None

    @property
    def texts(self) -> list[str]:
        """The paths, each as text."""
        paths = [self.paths] if isinstance(self.paths, str | os.PathLike) else self.paths
        return [os.fspath(path) for path in paths]


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
    """

    group: RowGroup
    shares: tuple[int, ...]
    mine: int
    mixed: bool

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


class NoArrowFilesystem(Exception):
    """PyArrow has no filesystem for a URL, or cannot load it here; Spark may have one."""


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
        first = 0  # who gets one row more: in turn, so that parts are even over all groups
        for group in self.groups:
            shares = tuple(_even(group.rows, workers, (worker - first) % workers) for worker in range(workers))
            for worker in range(workers):
                if shares[worker]:
                    pieces[worker].append(Piece(group, shares, worker, mixed=True))
            first = (first + group.rows) % workers
        return self._parts(pieces)

    def _parts(self, pieces: Sequence[Sequence[Piece]]) -> list[Part]:
        return [Part(self.filesystem, tuple(each)) for each in pieces]


def _even(rows: int, parts: int, part: int) -> int:
    return rows // parts + (part < rows % parts)


def parquet_table(files: ParquetFiles) -> ParquetTable:
    """Find files, and read their footers.

    Raises:
        FileNotFoundError: nothing is there. ValueError: what is there are no Parquet files, or a table of a format that has its
            own list of files.
        NoArrowFilesystem: nothing here can read the URL.
    """
    filesystem, paths = _located(files)
    found = [_listed(filesystem, path) for path in paths]
    with ThreadPoolExecutor(_FOOTERS_AT_ONCE) as pool:
        try:
            datasets = list(pool.map(partial(_dataset, filesystem), found))
            constants = [_constants(fragment) for each in datasets for fragment in each.get_fragments()]
            numbers = _numbers(constants)
            given = [_given_by_directories(each) for each in datasets]
            first = _with_types(datasets[0].schema, {name: numbers[name] for name in given[0].names if name in numbers})
            schema = pa.unify_schemas([first, *[_with_types(each, numbers) for each in given]])
            fragments = [fragment for each in datasets for fragment in each.get_fragments()]
            list(pool.map(lambda fragment: fragment.ensure_complete_metadata(), fragments))
        except pa.ArrowInvalid as error:
            raise ValueError(
                f"expected Parquet files: {str(error).splitlines()[0]} Other formats are read by Spark: "
                "fit(spark.read.format(...).load(path))."
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


@dataclass(frozen=True)
class _Listed:
    """The files of one path, sorted.

    base: the directory below which names as `day=1` give columns. It never lies above what the user gave.
    """

    base: str
    files: Sequence[str]


def _dataset(filesystem: fs.FileSystem, found: _Listed) -> ds.FileSystemDataset:
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


def _located(files: ParquetFiles) -> tuple[fs.FileSystem, list[str]]:
    """The filesystem, and paths as it takes them."""
    texts = files.texts
    if not texts:
        raise ValueError("expected at least one path; got none.")
    if files.filesystem is not None:
        filesystem = files.filesystem
        if not isinstance(filesystem, fs.FileSystem):
            filesystem = fs.PyFileSystem(fs.FSSpecHandler(filesystem))
        return filesystem, [text.rstrip("/") or "/" for text in texts]
    found = [_from_url(text) for text in texts]
    if any(not each.equals(found[0][0]) for each, _ in found):
        raise ValueError(f"expected paths of one filesystem; got {texts}.")
    return found[0][0], [path.rstrip("/") or "/" for _, path in found]


def _from_url(text: str) -> tuple[fs.FileSystem, str]:
    scheme = re.match(r"([A-Za-z][A-Za-z0-9+.-]+):", text)
    if scheme is None or scheme[1].lower() == "file":
        path = re.sub(r"^[Ff][Ii][Ll][Ee]:(//[^/]*)?(?=/)", "", text)
        return fs.LocalFileSystem(), os.path.abspath(os.path.expanduser(path)).replace(os.sep, "/")
    try:
        # What Hadoop calls s3a is s3 to everybody else.
        return fs.FileSystem.from_uri(re.sub(r"^s3[an]:", "s3:", text))
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, OSError) as error:
        raise NoArrowFilesystem(str(error).splitlines()[0]) from error


_ALTERNATIVES = re.compile(r"\{([^{}]*,[^{}]*)\}")


def _is_glob(path: str) -> bool:
    return any(sign in path for sign in "*?[") or _ALTERNATIVES.search(path) is not None


def _alternatives(pattern: str) -> list[str]:
    """Return a glob's patterns without braces: `{a,b}/c` is `a/c` and `b/c`, as for Hadoop and shells."""
    inner = _ALTERNATIVES.search(pattern)
    if inner is None:
        return [pattern]
    before, after = pattern[: inner.start()], pattern[inner.end() :]
    return [each for text in inner[1].split(",") for each in _alternatives(before + text + after)]


def _listed(filesystem: fs.FileSystem, path: str) -> _Listed:
    """The files of a path, of a directory and those in it, or of a glob."""
    info = filesystem.get_file_info(path)
    if info.type is fs.FileType.File:
        return _Listed(os.path.dirname(info.path), [info.path])
    if info.type is fs.FileType.Directory:
        return _Listed(info.path, sorted(_files_in(filesystem, info.path)))
    if _is_glob(path):
        patterns = _alternatives(path)
        matches = {match for pattern in patterns for match in _matches(filesystem, pattern)}
        found = sorted(file for match in matches for file in _listed(filesystem, match).files)
        if found:
            segments = zip(*[pattern.split("/") for pattern in patterns], strict=False)
            plain = takewhile(lambda names: len(set(names)) == 1 and not _is_glob(names[0]), segments)
            return _Listed("/".join(names[0] for names in plain), found)
    raise FileNotFoundError(
        f"there is no Parquet file {path!r}. A path is read by this process and by all workers, so it must lead to the same files "
        "for all of them; what only Spark can read is fit(spark.read.parquet(path))."
    )


def _files_in(filesystem: fs.FileSystem, folder: str) -> list[str]:
    found = _walked(filesystem, folder)
    names = {info.path[len(folder) :].strip("/"): info for info in found}
    for name, info in names.items():
        first, _, rest = name.partition("/")
        if first in _TABLES and not rest and info.type is fs.FileType.Directory:
            raise ValueError(_not_plain(folder, _TABLES[first]))
        if re.fullmatch(r"metadata/[^/]+\.metadata\.json", name):
            raise ValueError(_not_plain(folder, "Iceberg"))
    files = [info.path for name, info in names.items() if info.type is fs.FileType.File and not _hidden(name)]
    if not files:
        raise FileNotFoundError(f"there is no Parquet file in {folder!r}.")
    return files


def _walked(filesystem: fs.FileSystem, folder: str, above: frozenset[str] = frozenset()) -> list[fs.FileInfo]:
    """Return all that is below a directory.

    A link to a directory is followed, as by Spark, unless it leads back to one that it lies in: each of its files would be found
    again in every round, some forty times. So a file that two links lead to from elsewhere still counts twice.

    above: the real paths of the directories that this one lies in.
    """
    if not isinstance(filesystem, fs.LocalFileSystem):  # no other one has links
        return filesystem.get_file_info(fs.FileSelector(folder, recursive=True))
    real = os.path.realpath(folder)
    if real in above:
        return []
    found = filesystem.get_file_info(fs.FileSelector(folder))
    folders = [info.path for info in found if info.type is fs.FileType.Directory]
    return [*found, *(info for each in folders for info in _walked(filesystem, each, above | {real}))]


def _not_plain(folder: str, kind: str) -> str:
    name = kind.lower()
    return (
        f"{folder!r} is a {kind} table, whose directory also holds files that are no longer part of it. Read it by Spark: "
        f"fit(spark.read.format({name!r}).load(path))."
    )


def _hidden(name: str) -> bool:
    """Whether Spark, too, takes no rows from a file: `_SUCCESS`, `.part-0.crc`, `part-0._COPYING_`. `_year=2024` is a directory."""
    return any(
        part.startswith(".") or (part.startswith("_") and "=" not in part) or part.endswith("._COPYING_")
        for part in name.split("/")
    )


def _matches(filesystem: fs.FileSystem, pattern: str) -> list[str]:
    """The paths that match a glob, segment by segment."""
    head, *segments = pattern.replace("[^", "[!").split("/")  # Hadoop knows both for "none of these", Python the second
    found = [head]
    for segment in segments:
        if not _is_glob(segment):
            found = [f"{path}/{segment}" for path in found]
            continue
        listed = [
            info.path
            for path in found
            for info in filesystem.get_file_info(fs.FileSelector(path or "/", allow_not_found=True))
        ]
        found = [
            path
            for path in listed
            if fnmatchcase(path.rsplit("/", 1)[-1], segment) and not _hidden(path.rsplit("/", 1)[-1])
        ]
    return [path for path in found if filesystem.get_file_info(path).type is not fs.FileType.NotFound]


def spark_schema(schema: pa.Schema) -> sql.StructType:
    """Return the columns of an Arrow schema as Spark calls them: from the file's own note if Spark wrote it, which knows vectors."""
    noted = json.loads((schema.metadata or {}).get(_SPARK_SCHEMA, b"null"))
    known = {} if noted is None else {field.name: field for field in sql.StructType.fromJson(noted).fields}
    return sql.StructType(
        [known.get(field.name) or sql.StructField(field.name, _spark_type(field.type)) for field in schema]
    )


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
        return sql.DecimalType(38, 18)
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
    if types.is_date(kind):
        return sql.DateType()
    return sql.TimestampType() if types.is_timestamp(kind) else sql.NullType()


def _is_view(kind: pa.DataType, of: str) -> bool:
    return str(kind) == f"{of}_view"
