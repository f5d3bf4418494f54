"""Archives on the path of a Python process: read once, and left for directories that have the same files."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from zipfile import ZipFile
from zipimport import zipimporter

import pytest

from elephas_like.core import archives
from elephas_like.core.archives import KnownArchive, prefer_directories, read_archives_once


@pytest.fixture(autouse=True)
def own_path(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What a test puts on the path, and imports, is gone after it."""
    modules = set(sys.modules)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "path_hooks", list(sys.path_hooks))
    monkeypatch.setattr(sys, "path_importer_cache", {})
    yield
    for name in set(sys.modules) - modules:
        del sys.modules[name]


def archive(path: Path, **modules: str) -> Path:
    """A package `cargo` in an archive; `_x_` stands for a slash."""
    with ZipFile(path, "w") as opened:
        for name, text in modules.items():
            opened.writestr(f"cargo/{name.replace('_x_', '/')}.py", text)
    return path


def test_an_archive_is_read_again_only_where_it_has_changed(tmp_path: Path) -> None:
    place = archive(tmp_path / "a.zip", __init__="", one="n = 1")
    sys.path.insert(0, str(place))
    read_archives_once()
    assert importlib.import_module("cargo.one").n == 1
    importlib.invalidate_caches()
    finder = sys.path_importer_cache[str(place)]
    assert isinstance(finder, KnownArchive)
    assert finder.find_spec("cargo") is not None  # from Python 3.13 on the list is read when it is next asked for
    before = place.stat()

    with place.open("r+b") as file:  # the list of files, at the end, is no longer one
        file.seek(-40, os.SEEK_END)
        file.write(bytes(40))
    os.utime(place, ns=(before.st_atime_ns, before.st_mtime_ns))
    importlib.invalidate_caches()
    assert finder.find_spec("cargo") is not None

    archive(place, __init__="", one="n = 1", two="n = 2")
    importlib.invalidate_caches()
    assert importlib.import_module("cargo.two").n == 2


def test_importers_that_are_there_already_are_replaced_also_those_of_packages(tmp_path: Path) -> None:
    place = archive(tmp_path / "a.zip", __init__="", inner_x___init__="", inner_x_one="n = 1")
    gone = archive(tmp_path / "gone.zip", __init__="")
    sys.path.insert(0, str(place))
    importlib.import_module("cargo.inner")
    sys.path_importer_cache[str(gone)] = zipimporter(str(gone))
    gone.unlink()  # which changes nothing for the others
    assert {type(sys.path_importer_cache[each]) for each in (str(place), f"{place}/cargo")} == {zipimporter}

    read_archives_once()
    assert {type(sys.path_importer_cache[each]) for each in (str(place), f"{place}/cargo")} == {KnownArchive}
    assert importlib.import_module("cargo.inner.one").n == 1
    read_archives_once()  # again changes nothing
    assert [hook for hook in sys.path_hooks if hook in (KnownArchive, zipimporter)] == [KnownArchive]
    assert type(sys.path_importer_cache[f"{place}/cargo/inner"]) is KnownArchive


def test_an_archive_that_was_replaced_before_its_importer_came_is_read_again(tmp_path: Path) -> None:
    """The list that importers share is then older than the file: of those that are there already, and of new ones."""
    place = archive(tmp_path / "a.zip", __init__="", inner_x___init__="")
    sys.path.insert(0, str(place))
    importlib.import_module("cargo")
    archive(place, __init__="", inner_x___init__="", one="n = 1")
    read_archives_once()
    importlib.invalidate_caches()
    assert importlib.import_module("cargo.one").n == 1

    archive(place, __init__="", inner_x___init__="", one="n = 1", inner_x_two="n = 2")
    importlib.import_module("cargo.inner")  # its importer is made now
    importlib.invalidate_caches()
    assert importlib.import_module("cargo.inner.two").n == 2


def test_a_loader_reads_what_its_archive_has_now(tmp_path: Path) -> None:
    place = archive(tmp_path / "a.zip", __init__="", one="n = 1")
    sys.path.insert(0, str(place))
    one = importlib.import_module("cargo.one")
    read_archives_once()
    archive(place, __init__="", aaa="# what moves the others\n" * 50, one="n = 11")
    importlib.invalidate_caches()
    assert one.__loader__.get_source("cargo.one") == "n = 11"


@pytest.fixture
def both(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """An archive of Spark's, and a directory further on that has the same package without its tests and data."""
    monkeypatch.setattr(archives, "_SPARKS", {"cargo"})
    files = {
        "__init__": "",
        "one": "n = 1",
        "inner_x___init__": "",
        "tests_x___init__": "",
        "tests_x_test_one": "1 / 0",
    }
    place = archive(tmp_path / "a.zip", **files)
    with ZipFile(place, "a") as opened:
        opened.writestr("cargo/notes.csv", "1,2")
    home = tmp_path / "installed"
    with ZipFile(place) as opened:
        opened.extractall(home, [f"cargo/{each}.py" for each in ("__init__", "one", "inner/__init__")])
    sys.path[:0] = [str(place), str(home)]
    return place, home


def test_a_directory_with_the_same_files_is_taken(both: tuple[Path, Path]) -> None:
    place, home = both
    prefer_directories()
    assert str(place) not in sys.path
    assert importlib.import_module("cargo.one").__file__ == str(home / "cargo" / "one.py")


@pytest.mark.parametrize(
    "what",
    [
        "another byte",
        "a module less",
        "none",
        "a module of that name",
        "no archive",
        "a package of the user's",
        "another package",
        "a file beside",
        "a module without source",
    ],
)
def test_an_archive_stays_where_something_is_different(
    both: tuple[Path, Path], what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    place, home = both
    beside = {
        "another package": "other/__init__.py",
        "a file beside": "one.json",
        "a module without source": "cargo/x.pyc",
    }
    if what == "another byte":
        (home / "cargo" / "one.py").write_text("n = 2")
    elif what == "a module less":
        (home / "cargo" / "one.py").unlink()
    elif what == "none":
        sys.path.remove(str(home))
    elif what == "a module of that name":
        sys.path.remove(str(home))
        (home / "other").mkdir()
        (home / "other" / "cargo.py").write_text("")
        sys.path.append(str(home / "other"))
    elif what == "no archive":
        place.write_bytes(b"PK, but not further")
    elif (
        what == "a package of the user's"
    ):  # sent along in a newer version, with a subpackage that the installed one lacks
        monkeypatch.setattr(archives, "_SPARKS", {"pyspark"})
    else:
        with ZipFile(place, "a") as opened:
            opened.writestr(beside[what], "")
    prefer_directories()
    assert str(place) in sys.path
