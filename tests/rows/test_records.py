"""TFRecord files and Spark: types of a schema, nulls and vectors, Hadoop filesystems, and what is there already."""

from __future__ import annotations

import os

import pytest
from pyspark.ml.linalg import Vectors
from tensorflow_records import write_by_tensorflow

from elephas_like import read_tfrecords, write_tfrecords
from elephas_like.rows.records import listed


def test_a_schema_says_what_types_there_are(spark, tmp_path) -> None:
    rows = [
        {"x": 1.5, "n": 3, "flag": 1, "word": b"caf\xc3\xa9"},
        {"n": 4, "x": 2.5, "word": b"b", "flag": 0},
        {"n": 5},
    ]
    write_by_tensorflow(tmp_path / "a", rows)
    schema = "word string, x double, n int, flag boolean, missing array<long>"
    found = [tuple(row) for row in read_tfrecords(spark, f"file://{tmp_path}", schema).collect()]
    assert found == [("café", 1.5, 3, True, []), ("b", 2.5, 4, False, []), (None, None, 5, None, [])]


def test_a_directory_whose_name_looks_like_a_pattern(spark, tmp_path) -> None:
    (tmp_path / "run[1]").mkdir()
    write_by_tensorflow(tmp_path / "run[1]" / "a", [{"n": 5}])
    assert [row.n for row in read_tfrecords(spark, str(tmp_path / "run[1]"), "n int").collect()] == [5]


@pytest.mark.parametrize("url", [False, True], ids=["local", "url"])
def test_directories_are_read_with_all_that_is_below_them(spark, sc, tmp_path, url: bool) -> None:
    kept = ["a", "b", "day=1/c", "later/d", "later/still/e"]
    for number, name in enumerate([*kept, "_SUCCESS", "_temporary/x", "later/_temporary/x", ".hidden/x", "later/.x"]):
        write_by_tensorflow(tmp_path / "all" / name, [{"n": number}])
    sc._jsc.hadoopConfiguration().set("fs.viewfs.mounttable.below.link./data", f"file://{tmp_path}/all")
    place = "viewfs://below/data" if url else str(tmp_path / "all")
    for path, expected in ((place, kept), (f"{place}/*", kept), (f"{place}/l*", kept[3:]), (f"{place}/b", ["b"])):
        assert [name.removeprefix(f"{place}/") for name in listed(spark, path)] == expected
    assert sorted(row.n for row in read_tfrecords(spark, place, "n int").collect()) == [0, 1, 2, 3, 4]
    with pytest.raises(FileNotFoundError, match="no file at"):
        listed(spark, f"{place}/x*")


@pytest.mark.parametrize("link", ["itself", "below/above"])
def test_a_link_to_a_directory_that_it_lies_in_is_not_followed(spark, tmp_path, link: str) -> None:
    (tmp_path / "rows/below").mkdir(parents=True)
    (tmp_path / "elsewhere").mkdir()
    for name in ("rows/a.tfrecord", "rows/.a.tfrecord.crc", "rows/below/b.tfrecord", "elsewhere/c.tfrecord"):
        (tmp_path / name).touch()
    (tmp_path / "rows" / link).symlink_to(tmp_path / "rows")
    (tmp_path / "rows/other").symlink_to(tmp_path / "elsewhere")
    expected = [f"{tmp_path}/rows/{name}" for name in ("a.tfrecord", "below/b.tfrecord", "other/c.tfrecord")]
    assert listed(spark, str(tmp_path / "rows")) == expected
    assert listed(spark, f"{tmp_path}/row*") == expected


def test_records_of_a_url_come_in_the_order_of_the_files_whatever_their_sizes(spark, sc, tmp_path) -> None:
    for name, rows in (("a", [0]), ("b", range(1, 500)), ("c", [500, 501])):
        write_by_tensorflow(tmp_path / "there" / name, [{"n": n} for n in rows])
    sc._jsc.hadoopConfiguration().set("fs.viewfs.mounttable.ordered.link./data", f"file://{tmp_path}/there")
    found = read_tfrecords(spark, "viewfs://ordered/data", "n int")
    assert [row.n for row in found.collect()] == list(range(502))


def test_relative_paths_and_what_hadoop_calls_none_of_these(spark, tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Executors have working directories of their own."""
    folder = tmp_path / "run[1]"
    folder.mkdir()
    for name in ("a", "b", "c"):
        (folder / f"{name}.tfrecord").touch()
    monkeypatch.chdir(folder)
    both = [str(folder / "b.tfrecord"), str(folder / "c.tfrecord")]
    assert listed(spark, "[^a].tfrecord") == listed(spark, "{b,c}.tfrecord") == both


def test_nulls_vectors_and_empty_partitions(spark, tmp_path) -> None:
    rows = [(None, Vectors.sparse(3, [1], [2.0]), [1]), (2.5, Vectors.dense([1, 2, 3]), [])]
    df = spark.createDataFrame(rows, ["x", "v", "n"])
    path = str(tmp_path / "out")
    assert write_tfrecords(df.repartition(8), path) == 2
    found = sorted(
        read_tfrecords(spark, path, "x double, v array<float>, n array<long>").collect(), key=lambda r: len(r.n)
    )
    assert [tuple(row) for row in found] == [(2.5, [1.0, 2.0, 3.0], []), (None, [0.0, 2.0, 0.0], [1])]
    assert len([name for name in os.listdir(path) if name.startswith("part-")]) <= 2


def test_hadoop_filesystems_hold_records(spark, sc, tmp_path) -> None:
    (tmp_path / "there").mkdir()
    sc._jsc.hadoopConfiguration().set("fs.viewfs.mounttable.records.link./data", f"file://{tmp_path}/there")
    df = spark.createDataFrame([(i, f"row {i}") for i in range(20)], "n long, word string").repartition(2)
    url = "viewfs://records/data/out"
    assert write_tfrecords(df, url, compression="GZIP") == 20
    back = read_tfrecords(spark, url)
    assert back.dtypes == [("n", "bigint"), ("word", "binary")]
    assert sorted((row.n, bytes(row.word).decode()) for row in back.collect()) == [(i, f"row {i}") for i in range(20)]
    with pytest.raises(FileExistsError):
        write_tfrecords(df, url)


def test_what_is_there_stays_unless_it_is_to_be_replaced(spark, tmp_path) -> None:
    path = str(tmp_path / "out")
    one, two = spark.range(3), spark.range(5)
    write_tfrecords(one, path)
    with pytest.raises(FileExistsError, match="overwrite=True"):
        write_tfrecords(two, path)
    assert read_tfrecords(spark, path).count() == 3
    write_tfrecords(two, path, overwrite=True)
    assert read_tfrecords(spark, path).count() == 5
    assert os.listdir(tmp_path) == ["out"]
