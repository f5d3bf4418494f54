"""TFRecord files of `tf.train.Example`s as Spark DataFrames, without a jar."""

from __future__ import annotations

import tempfile
from functools import partial
from typing import Literal

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from elephas_like.rows import records

Compression = Literal["", "GZIP", "ZLIB"]


def read_tfrecords(
    spark: SparkSession, path: str, schema: StructType | str | None = None, *, compression: Compression | None = None
) -> DataFrame:
    """The records of TFRecord files as a DataFrame, file by file in the order of their names.

    Args:
        path: a directory with all that is below it, a file, or a pattern. A local path, which executors must see too, or a
            URL of any Hadoop filesystem, from which each file comes whole, and through a shuffle that puts files in order.
            Names that begin with "_" or "." are left out.
        schema: columns and their types, as a StructType or in words: "image array<float>, label int". None asks the first
            record: a feature with one value becomes a long, float or binary column, one with more an array of those.
        compression: "GZIP", "ZLIB" or ""; None goes by the names, .gz and .zz.

    Returns:
        A column that a record lacks is null, an array column empty.

    Raises:
        FileNotFoundError: there is no file. DataError: the first record cannot be understood.
        TypeError: a column type that an Example cannot hold.
    """
    from elephas_like.rows.examples import read_examples  # by TensorFlow, without which `import *` has to do

    paths = records.listed(spark, path)
    wanted = _inferred(spark, paths, compression) if schema is None else records.as_schema(spark, schema)
    return records.read(spark, path, paths, wanted, partial(read_examples, compression=compression))


def write_tfrecords(df: DataFrame, path: str, *, compression: Compression = "", overwrite: bool = False) -> int:
    """Writes a DataFrame as a directory of TFRecord files, one per partition that has rows, and returns the rows.

    Whole numbers and booleans become int64 lists, floats float lists (32 bits, also of doubles), strings and binaries bytes
    lists; arrays and vectors lists of more. Null is left out of its record.

    Args:
        path: of the directory: a local path, which executors must see too, or a URL of any Hadoop filesystem, to which
            all comes by way of the driver's disk.
        compression: "GZIP", "ZLIB" or "".
        overwrite: replaces what is there.

    Raises:
        FileExistsError: something is there, and `overwrite` is False.
        TypeError: a column type that an Example cannot hold.
    """
    from elephas_like.rows.examples import write_examples

    if compression not in records.SUFFIXES:
        raise ValueError(f"compression must be one of {', '.join(map(repr, records.SUFFIXES))}; got {compression!r}.")
    writer = partial(write_examples, compression=compression)
    return records.write(df, path, writer, suffix=f".tfrecord{records.SUFFIXES[compression]}", overwrite=overwrite)


def _inferred(spark: SparkSession, paths: list[str], compression: str | None) -> StructType:
    from elephas_like.rows.examples import features_of_first

    for place in paths:
        with tempfile.TemporaryDirectory(prefix="elephas_like-") as folder:
            features = features_of_first(records.first_local(spark, place, folder), compression, place)
        if features is not None:
            return records.schema_of(features)
    raise ValueError(f"there is no record in {paths[0]} and {len(paths) - 1} other files; give schema=.")
