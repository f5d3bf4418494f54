"""Zip archives on Python's path: each is read once, and left for a directory that has the same files.

Spark puts pyspark.zip, py4j's archive and a jar of 17,000 entries on the path of its Python processes.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from importlib.machinery import PathFinder
from pathlib import Path
from zipfile import BadZipFile, ZipFile, ZipInfo
from zipimport import ZipImportError, zipimporter
from zlib import crc32


class KnownArchive(zipimporter):
    """Imports from an archive, whose list of files is read again only where the archive has changed.

    `importlib.invalidate_caches` asks Python's own importers to read it each time: one for each package in an archive, from its beginning.
    """

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self._known = _state(self.archive)

    def invalidate_caches(self) -> None:
        """Read the list of files again, as `importlib.machinery.FileFinder` does: where it may be another one."""
        found = _state(self.archive)
        if found != self._known:
            super().invalidate_caches()
            self._known = found


def read_archives_once() -> None:
    """Have this process import from archives by `KnownArchive`.

    Spark's Python processes call `importlib.invalidate_caches` when they begin, and before Spark 4.2 at each task: that took 0.15 s of CPU
    time. The modules' loaders, which have no such lists to look after, stay.
    """
    sys.path_hooks[:] = [KnownArchive if hook is zipimporter else hook for hook in sys.path_hooks]
    for place, finder in sys.path_importer_cache.items():
        if type(finder) is zipimporter:
            with suppress(ZipImportError):  # it is gone
                sys.path_importer_cache[place] = KnownArchive(place)


def prefer_directories() -> None:
    """Take archives off this process' path whose packages a directory further on has, each module the same to the last byte.

    From there Python reads bytecode; what it imports from an archive without any, it compiles in every process: 0.7 s for pyspark.zip.
    """
    for place in [each for each in sys.path if each.endswith(".zip") and os.path.isfile(each)]:
        others = [each for each in sys.path if each != place]
        if _is_elsewhere(place, others):
            sys.path[:] = others


def _is_elsewhere(archive: str, path: list[str]) -> bool:
    """Whether a path of other places has all packages of an archive, less data and whole subpackages (`pyspark.tests`) that pip leaves out."""
    try:
        with ZipFile(archive) as opened:
            files = [file for file in opened.infolist() if not file.is_dir()]
    except (OSError, BadZipFile):
        return False
    homes = {top: _home(top, path) for top in {_top(file) for file in files}}
    return all((home := homes[_top(file)]) is not None and _is_same(home, file) for file in files)


def _top(file: ZipInfo) -> str:
    """The package, or the module, at an archive's root that a file belongs to."""
    return file.filename.partition("/")[0]


def _home(package: str, path: list[str]) -> Path | None:
    """The directory that has a package; None for another kind of module, or none at all."""
    spec = PathFinder.find_spec(package, path)
    if spec is None or spec.origin is None or not spec.submodule_search_locations:
        return None
    return Path(spec.origin).parent.parent


def _is_same(home: Path, archived: ZipInfo) -> bool:
    """Whether a directory has an archive's file, or lacks it as a whole subpackage, or no module."""
    file = home / archived.filename
    try:
        return crc32(file.read_bytes()) == archived.CRC
    except FileNotFoundError:
        return file.suffix != ".py" or not file.parent.exists()
    except OSError:
        return False


def _state(archive: str) -> tuple[int, int, int] | None:
    """What changes where a file is written or replaced; None where there is none."""
    try:
        found = os.stat(archive)
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino
