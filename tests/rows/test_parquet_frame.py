"""Parquet files that Spark reads in place of the workers: the same rows and columns."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from elephas_like.rows.parquet_files import parquet_table
from elephas_like.rows.parquet_frame import parquet_frame
from elephas_like.rows.parquet_listing import ParquetFiles


def put(folder: Path, *names: str) -> None:
    """Write files of two rows."""
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.table({"x": [1.0, 2.0]}), folder / name)


@pytest.mark.parametrize(
    ("names", "path", "columns"),
    [
        (["a.parquet", "below/b.parquet"], "", "x"),
        (["below/b.parquet", "beside/b.parquet"], "", "x"),
        (["day=1/a.parquet", "day=2/b.parquet"], "", "x day"),
        (["day=1/a.parquet", "day=2/below/b.parquet"], "", "x day"),
        (["a b=1/a.parquet", "_SUCCESS"], "", "x a b"),
        (["day=1/a.parquet", "day=2/b.parquet", "_SUCCESS"], "/day=*", "x day"),
        (["day=1/a.parquet", "day=2/b.parquet"], "/*/[ab].parquet", "x day"),
        (["day=1/a.parquet", "day=1/below/b.parquet"], "/day=1", "x"),
        (["a.parquet", "below/b.parquet"], "/*", "x"),
        # Names of directories that not all files have: Spark gives no column, and leaves no row out.
        (["day=1/a.parquet", "b.parquet"], "", "x"),
        (["below/day=1/a.parquet", "day=2/b.parquet"], "", "x"),
    ],
    ids=str,
)
def test_all_rows_are_read_with_the_columns_of_directories(
    spark, tmp_path: Path, names: list[str], path: str, columns: str
) -> None:
    put(tmp_path, *[name for name in names if name != "_SUCCESS"])
    (tmp_path / "_SUCCESS").touch()
    frame = parquet_frame(spark, [f"{tmp_path}{path}"])
    assert " ".join(frame.columns) == columns
    assert (
        len(frame.collect())
        == parquet_table(ParquetFiles(f"{tmp_path}{path}")).rows
        == 2 * len(names) - 2 * ("_SUCCESS" in names)
    )


def test_a_path_that_is_given_twice_is_read_twice(spark, tmp_path: Path) -> None:
    put(tmp_path, "flat/a.parquet", "deep/a.parquet", "deep/below/b.parquet")
    for name, rows in (("flat", 4), ("deep", 8)):
        assert parquet_frame(spark, [f"{tmp_path}/{name}"] * 2).count() == rows
    assert parquet_frame(spark, [f"{tmp_path}/flat", f"{tmp_path}/deep"]).count() == 6


@pytest.mark.classic
def test_a_link_to_a_directory_that_it_lies_in_is_not_followed(spark, tmp_path: Path) -> None:
    put(tmp_path, "a.parquet")
    (tmp_path / "itself").symlink_to(".")
    assert parquet_frame(spark, [str(tmp_path)]).count() == 2
    put(tmp_path, "below/b.parquet")
    assert parquet_frame(spark, [str(tmp_path)]).count() == 4


@pytest.mark.classic
def test_the_home_directory(spark, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(tmp_path, "rows/a.parquet")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert parquet_frame(spark, ["~/rows"]).count() == 2


def test_a_relative_path_is_pythons(spark, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Java stays in the directory in which it was started."""
    put(tmp_path, "rows of mine #1/0.parquet")
    monkeypatch.chdir(tmp_path)
    assert parquet_frame(spark, ["rows of mine #1"]).count() == 2


def test_what_is_not_there_is_sparks_error(spark, tmp_path: Path) -> None:
    for path in ("none", "none*"):
        with pytest.raises(Exception, match="Path does not exist"):
            parquet_frame(spark, [f"{tmp_path}/{path}"])


def test_files_of_another_kind_in_a_directory_below_are_not_read(spark, tmp_path: Path) -> None:
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "x.csv").write_text("1,2\n")
    pq.write_table(pa.table({"x": [1.0, 2.0]}), tmp_path / "a.parquet")
    assert parquet_frame(spark, [str(tmp_path)]).count() == 2
