"""Parquet files as the DataFrame by which Spark reads them, with the rows and columns that workers find by themselves.

`spark.read.parquet` leaves out files of directories in a directory, unless these are called `name=value`; then it leaves out files beside them.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import reduce
from itertools import takewhile
from urllib.parse import unquote

from pyspark.sql import DataFrame, SparkSession

from elephas_like.rows.parquet_listing import ParquetFiles, is_glob, listed, located
from elephas_like.spark.files import is_url
from elephas_like.spark.session import is_remote

_SUFFIXES = (".parquet", ".parq", ".pq")


def parquet_frame(session: SparkSession, paths: Sequence[str]) -> DataFrame:
    """Return the rows of all files at paths, of directories with those in them.

    Directories called `name=value` give a column if all files lie in some; Spark has no column of them otherwise.

    Raises:
        Exception: Spark's, of many kinds: it cannot read the files.
    """
    texts = list(paths) if is_remote(session) else [_as_url(path) for path in paths]
    try:
        own = _read(session, texts, _base(texts))
        names = own.columns
    except Exception:
        # Nothing lies in the directory itself, or directories of several levels are called differently.
        return _everything(session, texts)
    try:
        every = _everything(session, texts)
        given = set(names) - set(every.columns)
    except Exception:  # of a directory that may not be read; what it holds is not part of the other, either
        return own
    files = own.inputFiles()
    if given:
        return own if all(_lies_in(file, given) for file in files) else every
    more = set(every.inputFiles()) - set(files)
    # Files of another kind would fail when they are read.
    return every if more and all(file.lower().endswith(_SUFFIXES) for file in more) else own


def _read(
    session: SparkSession, paths: Sequence[str], base: str | None = None, *, recursive: bool = False
) -> DataFrame:
    reader = session.read if base is None else session.read.option("basePath", base)
    return (reader.option("recursiveFileLookup", "true") if recursive else reader).parquet(*paths)


def _everything(session: SparkSession, paths: Sequence[str]) -> DataFrame:
    """Return the rows of all files at and below paths, without columns of directories."""
    if len(set(paths)) < len(paths):  # Spark would read each path once
        return reduce(DataFrame.unionByName, [_everything(session, [path]) for path in paths])
    found = _read(session, paths, recursive=True)
    names = found.inputFiles()
    if is_remote(session) or not all(name.startswith("file:") for name in names):
        return found
    files = ParquetFiles(list(paths))
    once = [file for path in located(files)[1] for file in listed(located(files)[0], path).files]
    # A link to a directory that it lies in is followed by Spark, some forty times.
    return found if len(names) <= len(once) else _read(session, once)


def _as_url(path: str) -> str:
    """Return a plain path as a URL, and a URL as it is.

    Workers take a path as one of this machine's, from Python's working directory; Spark, as one of its own filesystem, from Java's.
    """
    return path if is_url(path) else f"file://{os.path.abspath(os.path.expanduser(path))}"


def _base(paths: Sequence[str]) -> str | None:
    """Return the directory below which names of directories give columns, if it is that before one glob. None leaves it to Spark."""
    if len(paths) > 1 or not is_glob(paths[0]):
        return None
    plain = "/".join(takewhile(lambda name: not set("*?[{") & set(name), paths[0].split("/")))
    return plain + "/" if plain or paths[0].startswith("/") else None


def _lies_in(file: str, names: set[str]) -> bool:
    """Return whether a file lies in a directory called `name=value`, of one of these names, or is one of Spark's notes (`_metadata`)."""
    path = unquote(unquote(file)).lower()  # names are escaped as Hive does, and then as in a URL
    return path.rsplit("/", 1)[-1].startswith("_") or any(f"/{name.lower()}=" in path for name in names)
