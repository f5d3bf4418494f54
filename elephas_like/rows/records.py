"""TFRecord files as DataFrames and back: Spark's types, Arrow's columns, one task for some of the files.

How a file is read and written is handed in: that is TensorFlow's.
"""

from __future__ import annotations

import glob
import os
import re
import shutil
import tempfile
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Literal, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark import SparkContext, TaskContext
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T
from pyspark.sql.types import StructType

from elephas_like.core.errors import DataError
from elephas_like.core.types import Array, Integers
from elephas_like.rows.parquet_listing import alternatives
from elephas_like.rows.vector_columns import as_array, is_vector
from elephas_like.spark import files
from elephas_like.spark.session import context_of

MOST_TASKS = 256
CHUNK_BYTES = 4 * 2**20
_WILD = set("*?[{\\")
SUFFIXES = {"": "", "GZIP": ".gz", "ZLIB": ".zz"}

Kind = Literal["bytes", "float", "int64"]
_TYPES: dict[type[T.DataType], tuple[Kind, pa.DataType]] = {
    T.BooleanType: ("int64", pa.bool_()),
    T.ByteType: ("int64", pa.int8()),
    T.ShortType: ("int64", pa.int16()),
    T.IntegerType: ("int64", pa.int32()),
    T.LongType: ("int64", pa.int64()),
    T.FloatType: ("float", pa.float32()),
    T.DoubleType: ("float", pa.float64()),
    T.StringType: ("bytes", pa.string()),
    T.BinaryType: ("bytes", pa.binary()),
}
_INFERRED: dict[Kind, T.DataType] = {"bytes": T.BinaryType(), "float": T.FloatType(), "int64": T.LongType()}
_FLAT = {"bytes": pa.binary(), "float": pa.float32(), "int64": pa.int64()}


@dataclass(frozen=True)
class Feature:
    """A feature by its name.

    single: one value a row, or none at all (null); otherwise an array of any length.
    """

    name: str
    kind: Kind
    single: bool


@dataclass(frozen=True)
class Values:
    """One feature of many rows: the values of row i are `flat[ends[i]:ends[i + 1]]`.

    flat: float32, int64, or objects that are bytes. ends: rows + 1 numbers from 0.
    """

    flat: Array
    ends: Integers


class Reader(Protocol):
    """A picklable that reads one local file."""

    def __call__(self, path: str, features: Sequence[Feature], *, place: str) -> Iterator[Mapping[str, Values]]:
        """The values of batches of records; `place` is what messages call the file."""
        ...


class Writer(Protocol):
    """A picklable that writes one local file."""

    def __call__(self, batches: Iterable[Mapping[str, Values]], features: Sequence[Feature], path: str) -> int:
        """Rows written."""
        ...


def features_of(schema: StructType) -> list[Feature]:
    """The features that hold the columns of a schema.

    Raises:
        TypeError: a column that an Example cannot hold, with what to do.
    """
    return [_feature(field) for field in schema.fields]


def schema_of(features: Sequence[Feature]) -> StructType:
    """The schema of features as they were found: long, float, binary, or arrays of them."""
    kinds = [(one.name, _INFERRED[one.kind] if one.single else T.ArrayType(_INFERRED[one.kind])) for one in features]
    return StructType([T.StructField(name, kind) for name, kind in kinds])


def is_local(path: str) -> bool:
    """Whether executors read and write a path by themselves: no URL, or one of `file:`."""
    return not files.is_url(path) or path.startswith("file:")


def listed(spark: SparkSession, path: str) -> list[str]:
    """The files of directories, with all that is below them, of a pattern, or the one file, sorted.

    Hidden ones and Spark's own marks are left out.

    Raises:
        FileNotFoundError: there is none.
    """
    if is_local(path):
        found = _local_files(files.local_path(path))
    else:
        try:
            there = _contents(spark, path).select("path").orderBy("path").collect()
        except AnalysisException as error:
            condition = (
                error.getCondition() if hasattr(error, "getCondition") else error.getErrorClass()
            )  # Spark 4, 3.5
            if "PATH_NOT_FOUND" not in str(condition):
                raise
            there = []
        found = [row.path for row in there]
    kept = _shown(path, found)
    if not kept:
        raise FileNotFoundError(f"there is no file at {path}.")
    # Executors have working directories of their own.
    return [os.path.abspath(name) for name in kept] if is_local(path) else kept


def _local_files(path: str) -> list[str]:
    """The files of a local directory or pattern, or the one file, sorted, as Spark lists those of a URL."""
    # Hadoop and shells know both, Python neither.
    patterns = [each.replace("[^", "[!") for each in alternatives(path)]
    places = [path] if os.path.exists(path) else list({place for each in patterns for place in glob.glob(each)})
    found = [place for place in places if os.path.isfile(place)]
    for folder in filter(os.path.isdir, places):
        found += _below(folder)
    return sorted(filter(os.path.isfile, found))


def _below(folder: str, above: frozenset[str] = frozenset()) -> Iterator[str]:
    """Yield the files below a directory. A link back to a directory that it lies in is not followed, and what may not be read is left out.

    above: the real paths of the directories that this one lies in.
    """
    real = os.path.realpath(folder)
    if real in above or not os.access(folder, os.R_OK | os.X_OK):
        return
    for name in os.listdir(folder):
        place = os.path.join(folder, name)
        if not os.path.isdir(place):
            yield place
        elif not _hidden(name):
            yield from _below(place, above | {real})


def _shown(path: str, found: Sequence[str]) -> list[str]:
    """The files with no hidden name below a directory, or from a pattern's first wildcard on: there Spark takes hidden ones too."""
    fixed = len(list(takewhile(lambda part: not _WILD & set(part), _parts(path))))
    below = {name: parts[min(fixed, len(parts) - 1) :] for name in found for parts in [_parts(name)]}
    return [name for name, parts in below.items() if not any(map(_hidden, parts))]


def _parts(path: str) -> list[str]:
    return [part for part in re.sub(r"^[A-Za-z][^:/]*:(//[^/]*)?", "", path).split("/") if part]


def _hidden(part: str) -> bool:
    """Whether it is called as what Spark leaves out: `_SUCCESS`, `.part-0.crc`. A directory may be called `_year=2024`."""
    return part.startswith(".") or (part.startswith("_") and "=" not in part)


def _contents(spark: SparkSession, path: str | Sequence[str]) -> DataFrame:
    """Paths and contents of files, and of those in directories, whose names give no columns."""
    return spark.read.format("binaryFile").option("recursiveFileLookup", "true").load(path)


def read(spark: SparkSession, path: str, paths: Sequence[str], schema: StructType, reader: Reader) -> DataFrame:
    """The records of `paths`, which `listed` found at `path`, as a DataFrame, in the order of the files."""
    features = features_of(schema)
    arrow = _arrow_schema(schema)

    def batches(file: str, place: str) -> Iterator[pa.RecordBatch]:
        for values in reader(file, features, place=place):
            yield _record_batch(values, features, arrow, place)

    if is_local(path):
        names = list(paths)

        def of_numbers(numbers: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for batch in numbers:
                for number in batch.column(0).to_pylist():
                    yield from batches(names[number], names[number])

        tasks = min(len(names), MOST_TASKS)
        return spark.range(0, len(names), 1, tasks).mapInArrow(of_numbers, schema)

    def of_contents(contents: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        # Executors' Pythons reach no Hadoop filesystem: Spark hands the bytes over, a file at a time.
        for batch in contents:
            for place, content in zip(*(batch.column(name) for name in ("path", "content")), strict=True):
                with tempfile.NamedTemporaryFile(prefix="elephas_like-") as file:
                    file.write(content.as_buffer())
                    file.flush()
                    yield from batches(file.name, place.as_py())

    whole = _contents(spark, list(paths)).select("path", "content").orderBy("path")  # Spark takes large files first
    return whole.mapInArrow(of_contents, schema)


def write(df: DataFrame, path: str, writer: Writer, *, suffix: str, overwrite: bool) -> int:
    """Writes a DataFrame as one file per partition that has rows, and returns the rows; all files appear at once.

    Args:
        suffix: how file names end.

    Raises:
        FileExistsError: something is at `path`, and `overwrite` is False.
    """
    context = _context(df.sparkSession, path)
    files.refuse_existing(path, context, overwrite=overwrite)
    plain = _without_vectors(df)
    features = features_of(plain.schema)
    if not features:
        raise ValueError("there are no columns to write.")
    if is_local(path) and context is not None:
        place = Path(files.local_path(path)).absolute()
        draft = str(place.with_name(f".{place.name}.{uuid.uuid4().hex}.writing"))
        os.makedirs(draft)
        try:
            rows = _written_there(plain, draft, features, writer, suffix)
            Path(draft, "_SUCCESS").touch()
            files.put(draft, str(place), None, overwrite=overwrite, move=True)
        finally:
            shutil.rmtree(draft, ignore_errors=True)
        return rows
    with tempfile.TemporaryDirectory(prefix="elephas_like-") as folder:
        rows = _written_here(plain, folder, features, writer, suffix)
        Path(folder, "_SUCCESS").touch()
        files.put(folder, path, context, overwrite=overwrite)
    return rows


def _context(spark: SparkSession, path: str) -> SparkContext | None:
    """Return what reaches a path; None for the client's own disk over Spark Connect.

    Raises:
        ValueError: it is another one, over Spark Connect.
    """
    context = context_of(spark)
    if context is None and not is_local(path):
        raise ValueError(
            f"expected a path of this machine's disk; got {path!r}, which is reached through a classic session. Over Spark Connect, "
            "write here and copy, or use Parquet."
        )
    return context


def _written_there(df: DataFrame, folder: str, features: Sequence[Feature], writer: Writer, suffix: str) -> int:
    """Tasks write into a directory that they and the driver share."""

    def write_part(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        name = os.path.join(folder, f"part-{_partition():05d}{suffix}")
        draft = f"{name}.{uuid.uuid4().hex}"  # of this attempt alone
        try:
            rows = writer(_values(batches, features), features, draft)
            if rows:
                os.replace(draft, name)
        finally:
            Path(draft).unlink(missing_ok=True)
        yield pa.RecordBatch.from_pydict({"rows": pa.array([rows], pa.int64())})

    return sum(row.rows for row in df.mapInArrow(write_part, "rows long").collect())


def _written_here(df: DataFrame, folder: str, features: Sequence[Feature], writer: Writer, suffix: str) -> int:
    """Tasks send what they wrote, piece by piece, to a directory of the driver's."""

    def write_part(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with tempfile.NamedTemporaryFile(prefix="elephas_like-") as file:
            rows = writer(_values(batches, features), features, file.name)
            with open(file.name, "rb") as written:
                while rows and (piece := written.read(CHUNK_BYTES)):
                    yield pa.RecordBatch.from_pydict(
                        {
                            "part": pa.array([_partition()], pa.int32()),
                            "rows": pa.array([rows], pa.int64()),
                            "piece": pa.array([piece], pa.binary()),
                        }
                    )

    total, counted = 0, set[int]()
    for row in df.mapInArrow(write_part, "part int, rows long, piece binary").toLocalIterator():
        with open(os.path.join(folder, f"part-{row.part:05d}{suffix}"), "ab") as file:
            file.write(row.piece)
        if row.part not in counted:
            counted.add(row.part)
            total += row.rows
    return total


def _partition() -> int:
    context = TaskContext.get()
    return 0 if context is None else int(context.partitionId())


def _feature(field: T.StructField) -> Feature:
    single = not isinstance(field.dataType, T.ArrayType)
    kind = field.dataType if single else field.dataType.elementType
    if type(kind) not in _TYPES:
        raise TypeError(
            f"column {field.name!r} is {field.dataType.simpleString()}, which a tf.train.Example cannot hold: it has numbers, "
            "strings, bytes, and arrays of one of them. Cast it, or take it apart, first."
        )
    return Feature(field.name, _TYPES[type(kind)][0], single)


def _arrow_schema(schema: StructType) -> pa.Schema:
    fields = []
    for field in schema.fields:
        if isinstance(field.dataType, T.ArrayType):
            fields.append(pa.field(field.name, pa.list_(_TYPES[type(field.dataType.elementType)][1])))
        else:
            fields.append(pa.field(field.name, _TYPES[type(field.dataType)][1]))
    return pa.schema(fields)


def _record_batch(
    batch: Mapping[str, Values], features: Sequence[Feature], schema: pa.Schema, place: str
) -> pa.RecordBatch:
    columns = []
    for feature in features:
        values, kind = batch[feature.name], schema.field(feature.name).type
        try:
            flat = pa.array(values.flat, _FLAT[feature.kind]).cast(kind if feature.single else kind.value_type)
        except pa.ArrowInvalid as error:
            raise DataError(f"{place}: feature {feature.name!r} does not fit {kind}: {error}") from None
        if feature.single:
            columns.append(_single(flat, values.ends, f"{place}: feature {feature.name!r}"))
        else:
            columns.append(pa.ListArray.from_arrays(pa.array(values.ends, pa.int32()), flat))
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _single(flat: pa.Array, ends: np.ndarray, place: str) -> pa.Array:
    lengths = np.diff(ends)
    if lengths.size and lengths.max() > 1:
        raise DataError(f"{place} has {lengths.max()} values in a record, expected one: give schema= with an array.")
    if len(flat) == len(lengths):
        return flat
    return flat.take(pa.array(ends[:-1], mask=lengths == 0))


def _values(batches: Iterable[pa.RecordBatch], features: Sequence[Feature]) -> Iterator[dict[str, Values]]:
    """Arrow's columns as flat arrays with ends."""
    for batch in batches:
        yield {feature.name: _flat(batch.column(feature.name), feature) for feature in features}


def _flat(column: pa.Array, feature: Feature) -> Values:
    if feature.single:
        present = column.is_valid().to_numpy(zero_copy_only=False)
        ends = np.concatenate([[0], np.cumsum(present)])
        flat = column.drop_null()
    else:
        lengths = pc.fill_null(pc.list_value_length(column), 0).to_numpy(zero_copy_only=False)
        ends, flat = np.concatenate([[0], np.cumsum(lengths)]), column.flatten()
        if flat.null_count:
            raise DataError(f"column {feature.name!r} holds an array with a null in it; a tf.train.Example has none.")
    if feature.kind == "bytes":
        return Values(np.array(flat.cast(pa.binary()).to_pylist(), dtype=object), ends)
    return Values(flat.cast(_FLAT[feature.kind], safe=False).to_numpy(zero_copy_only=False), ends)


def _without_vectors(df: DataFrame) -> DataFrame:
    """Vector columns as arrays of floats."""
    vectors = [f.name for f in df.schema.fields if is_vector(f.dataType)]
    return df.withColumns({name: as_array(F.col(f"`{name}`"), "float32") for name in vectors}) if vectors else df


def as_schema(spark: SparkSession, schema: StructType | str) -> StructType:
    """A schema, also from Spark's words for one, "x array<float>, label long"."""
    return schema if isinstance(schema, StructType) else spark.createDataFrame([], schema).schema


def first_local(spark: SparkSession, place: str, folder: str) -> str:
    """A local path of a file's content: the file itself, or a copy in `folder`."""
    if is_local(place):
        return files.local_path(place)
    copy = os.path.join(folder, os.path.basename(place))
    files.get(place, copy, _context(spark, place))
    return copy
