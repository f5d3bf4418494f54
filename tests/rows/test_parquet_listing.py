"""Which files a path means. No footer is read, so the files are empty."""

from __future__ import annotations

from pathlib import Path

import fsspec
import pytest
from pyarrow import fs

from elephas_like.rows.parquet_listing import NoArrowFilesystem, ParquetFiles, listed, located


def files(paths: object, filesystem: object = None) -> list[str]:
    """What is found, in order."""
    found, texts = located(ParquetFiles(paths, filesystem))
    return [file for text in texts for file in listed(found, text).files]


def put(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Files of two levels, and beside them what Spark leaves there, and `hdfs dfs -put` while it writes."""
    put(tmp_path, "b.parquet", "a.parquet", "later/c.parquet")
    put(tmp_path, "_temporary/0.parquet", "half.parquet._COPYING_", "_SUCCESS", ".a.parquet.crc")
    return tmp_path


ALL = ["a.parquet", "b.parquet", "later/c.parquet"]


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("", ALL),
        ("/", ALL),
        ("/a.parquet", ALL[:1]),
        ("/*.parquet", ALL[:2]),
        ("/*.parquet*", ALL[:2]),
        ("/*/c.parquet", ALL[2:]),
        ("/l*", ALL[2:]),
        ("/[ab].parquet", ALL[:2]),
        ("/[^a].parquet", ALL[1:2]),
        ("/[!a].parquet", ALL[1:2]),
        ("/{b,a}.parquet", ALL[:2]),
        ("/{[^a],none,later/{c,d}}.parquet", ALL[1:]),
    ],
)
def test_files_directories_and_globs(folder: Path, path: str, expected: list[str]) -> None:
    absolute = [f"{folder}/{name}" for name in expected]
    assert files(f"{folder}{path}") == absolute
    assert files(f"file://{folder}{path}") == absolute


def test_paths_may_be_several_or_relative(folder: Path, monkeypatch) -> None:
    monkeypatch.chdir(folder)
    assert files("later") == [f"{folder}/later/c.parquet"]
    assert files(Path("a.parquet")) == [f"{folder}/a.parquet"]
    assert files([folder / "b.parquet", "later"]) == [f"{folder}/b.parquet", f"{folder}/later/c.parquet"]


def test_a_glob_passes_over_what_has_no_files(folder: Path) -> None:
    (folder / "empty").mkdir()
    put(folder, "marked/_SUCCESS")
    assert files(f"{folder}/*/*.parquet") == [f"{folder}/later/c.parquet"]  # plain files lie beside the directories
    assert files(f"{folder}/*") == [f"{folder}/{name}" for name in ALL]
    assert files(f"{folder}/{{empty,marked,later}}") == [f"{folder}/later/c.parquet"]
    for path in ("e*", "{empty,marked}", "*/d.parquet"):
        with pytest.raises(FileNotFoundError, match="there is no Parquet file"):
            files(f"{folder}/{path}")


def test_a_filesystem_may_be_one_of_ones_own_of_arrow_or_of_fsspec(folder: Path) -> None:
    assert files("later/", fs.SubTreeFileSystem(str(folder), fs.LocalFileSystem())) == ["later/c.parquet"]
    assert files(str(folder / "later"), fsspec.filesystem("file")) == [f"{folder}/later/c.parquet"]


@pytest.mark.parametrize(("link", "to"), [("itself", "."), ("later/above", ".."), ("later/nothing", "nowhere")])
def test_a_link_to_a_directory_that_it_lies_in_is_not_followed(folder: Path, link: str, to: str) -> None:
    (folder / link).symlink_to(to)
    assert files(folder) == [f"{folder}/{name}" for name in ALL]


def test_a_link_to_a_directory_elsewhere_is_a_directory(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    put(elsewhere, "d.parquet")
    for name in ("one", "two"):
        (folder / name).symlink_to(elsewhere)
    assert files(folder) == [f"{folder}/{name}" for name in [*ALL, "one/d.parquet", "two/d.parquet"]]


def test_braces_without_a_comma_are_a_name(tmp_path: Path) -> None:
    put(tmp_path, "{run}/a.parquet")
    assert files(tmp_path / "{run}" / "*.parquet") == [f"{tmp_path}/{{run}}/a.parquet"]


@pytest.mark.parametrize(
    ("entry", "kind"), [("_delta_log", "delta"), (".hoodie", "hudi"), ("metadata/v1.metadata.json", "iceberg")]
)
def test_tables_with_a_list_of_files_of_their_own_are_refused(tmp_path: Path, entry: str, kind: str) -> None:
    """Their directories keep files that are deleted from the table."""
    put(tmp_path, "0.parquet", entry if entry.endswith("json") else f"{entry}/0.json")
    with pytest.raises(ValueError, match=rf"spark.read.format\('{kind}'\).load\(path\)"):
        files(tmp_path)


def test_what_a_streaming_query_writes_is_read_by_spark(tmp_path: Path) -> None:
    """Files of a batch that failed lie there, too."""
    put(tmp_path, "part-0.parquet", "_spark_metadata/0")
    with pytest.raises(ValueError, match=r"the output of a streaming query.*fit\(spark.read.parquet\(path\)\)"):
        files(tmp_path)


def test_what_is_not_there_is_said(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for path in ("none", "no*", "empty"):
        with pytest.raises(FileNotFoundError, match="there is no Parquet file"):
            files(tmp_path / path)
    with pytest.raises(ValueError, match="at least one path"):
        files([])
    with pytest.raises(NoArrowFilesystem, match="dbfs"):
        files("dbfs:/rows")
