"""Zip archives on Python's path: each is read once, and Spark's are left for directories that have the same files.

Spark puts pyspark.zip, py4j's archive and a jar of 17,000 entries on the path of its Python processes.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from importlib.machinery import PathFinder
from pathlib import Path
from typing import ClassVar
from zipfile import BadZipFile, ZipFile, ZipInfo
from zipimport import ZipImportError, zipimporter
from zlib import crc32

State = tuple[int, int, int] | None
_SPARKS = {"pyspark", "py4j"}


class KnownArchive(zipimporter):
    """Imports from an archive, whose list of files is read again only where the archive has changed.

    `importlib.invalidate_caches` has Python's own importers read it each time: up to Python 3.12 one for each package in an archive.
    """

    read: ClassVar[dict[str, State]] = {}
    """The state of each archive when its list, which importers share, was read; None where that is unknown."""
    _known: State = None

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self._known = self.read.setdefault(self.archive, None)

    def invalidate_caches(self) -> None:
        """Read the list of files again, as `importlib.machinery.FileFinder` does: where it may be another one."""
        found = _state(self.archive)
        if found is None or found != self._known:
            super().invalidate_caches()
            self._known = self.read[self.archive] = found


def read_archives_once() -> None:
    """Have this process import from archives by `KnownArchive`: also from those from which it has imported.

    Spark's Python processes call `importlib.invalidate_caches` when they begin, and before Spark 4.2 at each task: that took 0.15 s of CPU
    time.
    """
    sys.path_hooks[:] = [KnownArchive if hook is zipimporter else hook for hook in sys.path_hooks]
    for place, importer in list(sys.path_importer_cache.items()):
        if type(importer) is not zipimporter:
            continue
        if importer.archive not in KnownArchive.read:
            KnownArchive.read[importer.archive] = _state(importer.archive)
            importer.invalidate_caches()  # its list may be older than the file
        importer.__class__ = KnownArchive  # it is the loader of modules, too
        with suppress(ZipImportError):  # it is gone
            KnownArchive.__init__(importer, place)  # type: ignore[arg-type]  # mypy does not follow the line above


def prefer_directories() -> None:
    """Take Spark's archives off this process' path where a directory on it has their packages, each module the same to the last byte.

    From there Python reads bytecode; what it imports from an archive without any, it compiles in every process: 0.7 s for pyspark.zip.
    """
    for place in [each for each in sys.path if isinstance(each, str) and each.endswith(".zip")]:
        others = [each for each in sys.path if each != place]
        with suppress(OSError, ValueError, NotImplementedError, BadZipFile):  # what Python cannot read so, stays
            if _is_elsewhere(place, others):
                sys.path[:] = others


def _is_elsewhere(archive: str, path: list[str]) -> bool:
    """Whether a path of other places has all packages of an archive of Spark's, less data and whole subpackages (`pyspark.tests`) that pip leaves out."""
    with ZipFile(archive) as opened:
        files = [file for file in opened.infolist() if not file.is_dir()]
    packages = {file.filename.partition("/")[0] for file in files}
    homes = {package: _home(package, path) for package in packages & _SPARKS}
    if not packages or packages - _SPARKS or None in homes.values():
        return False
    return all(_is_same(homes[file.filename.partition("/")[0]] / file.filename, file) for file in files)  # type: ignore[operator]  # none is None


def _home(package: str, path: list[str]) -> Path | None:
    """The directory that has a package; None where there is none."""
    spec = PathFinder.find_spec(package, path)
    if spec is None or spec.origin is None or not spec.submodule_search_locations:
        return None
    return Path(spec.origin).parent.parent


def _is_same(file: Path, archived: ZipInfo) -> bool:
    """Whether a file is an archive's; or is not there, nor its whole subpackage, or is no module."""
    try:
        return crc32(file.read_bytes()) == archived.CRC
    except FileNotFoundError:
        return file.suffix not in (".py", ".pyc") or not file.parent.exists()


def _state(archive: str) -> State:
    """What changes where a file is written or replaced; None where there is none."""
    try:
        found = os.stat(archive)
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino
