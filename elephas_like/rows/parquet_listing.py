"""Which Parquet files a path means: a file, a directory, a glob or a URL, listed as Spark lists them."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from fnmatch import fnmatchcase
from itertools import takewhile

import pyarrow as pa
from pyarrow import fs

_STREAM = "stream"
_TABLES = {"_delta_log": "Delta", ".hoodie": "Hudi", "_spark_metadata": _STREAM}
"""What lies in the directory of a table whose files are not all part of it."""


@dataclass(frozen=True)
class ParquetFiles:
    """Parquet files to be read by workers themselves: where they are, and by which filesystem.

    A plain path or URL does for most: `fit("s3://bucket/rows")`. This class is for several paths, or a filesystem of your own.

    paths: a file, a directory (read recursively; names that begin with "." or "_" (but for "_year=2024"), or end with "._COPYING_", are
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


class NoArrowFilesystem(Exception):
    """PyArrow has no filesystem for a URL, or cannot load it here; Spark may have one."""


@dataclass(frozen=True)
class Listed:
    """The files of one path, sorted.

    base: the directory below which names as `day=1` give columns. It never lies above what the user gave.
    """

    base: str
    files: Sequence[str]


def located(files: ParquetFiles) -> tuple[fs.FileSystem, list[str]]:
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


def is_glob(path: str) -> bool:
    """Return whether a path, or a name in it, is a pattern."""
    return any(sign in path for sign in "*?[") or _ALTERNATIVES.search(path) is not None


def alternatives(pattern: str) -> list[str]:
    """Return a glob's patterns without braces: `{a,b}/c` is `a/c` and `b/c`, as for Hadoop and shells."""
    inner = _ALTERNATIVES.search(pattern)
    if inner is None:
        return [pattern]
    before, after = pattern[: inner.start()], pattern[inner.end() :]
    return [each for text in inner[1].split(",") for each in alternatives(before + text + after)]


def listed(filesystem: fs.FileSystem, path: str) -> Listed:
    """The files of a path, of a directory and those in it, or of a glob."""
    info = filesystem.get_file_info(path)
    if info.type is fs.FileType.File:
        return Listed(os.path.dirname(info.path), [info.path])
    if info.type is fs.FileType.Directory:
        return Listed(info.path, sorted(_files_in(filesystem, info.path)))
    if is_glob(path):
        patterns = alternatives(path)
        matches = {match for pattern in patterns for match in _matches(filesystem, pattern)}
        found: list[str] = []
        for match in matches:
            with suppress(FileNotFoundError):  # an empty directory
                found += listed(filesystem, match).files
        if found:
            segments = zip(*[pattern.split("/") for pattern in patterns], strict=False)
            plain = takewhile(lambda names: len(set(names)) == 1 and not is_glob(names[0]), segments)
            return Listed("/".join(names[0] for names in plain), sorted(found))
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
    what, reader = f"a {kind} table", f"format({kind.lower()!r}).load(path)"
    if kind == _STREAM:
        what, reader = "the output of a streaming query", "parquet(path)"
    return (
        f"{folder!r} is {what}, whose directory also holds files that are not, or no longer, part of it. Read it by Spark: "
        f"fit(spark.read.{reader})."
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
    kinds: dict[str, fs.FileType] = {}
    for segment in segments:
        if not is_glob(segment):
            found = [f"{path}/{segment}" for path in found]
            continue
        infos: list[fs.FileInfo] = []
        for path in found:
            if kinds.get(path) is not fs.FileType.File:
                with suppress(NotADirectoryError):  # a plain file beside directories
                    infos += filesystem.get_file_info(fs.FileSelector(path or "/", allow_not_found=True))
        kinds = {info.path: info.type for info in infos}
        found = [
            path
            for path in kinds
            if fnmatchcase(path.rsplit("/", 1)[-1], segment) and not _hidden(path.rsplit("/", 1)[-1])
        ]
    return [path for path in found if filesystem.get_file_info(path).type is not fs.FileType.NotFound]
