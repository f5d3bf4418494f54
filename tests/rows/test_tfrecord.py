"""TFRecord files: those that TensorFlow writes, those that it reads, and everything in between on real Spark."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from pyspark.ml.linalg import Vectors
from sklearn.datasets import load_digits

from elephas_like import DataError, read_tfrecords, write_tfrecords


def feature(value: object) -> tf.train.Feature:
    values = list(value) if isinstance(value, list | np.ndarray) else [value]
    if isinstance(values[0], bytes):
        return tf.train.Feature(bytes_list=tf.train.BytesList(value=values))
    if isinstance(values[0], float | np.floating):
        return tf.train.Feature(float_list=tf.train.FloatList(value=values))
    return tf.train.Feature(int64_list=tf.train.Int64List(value=values))


def write_by_tensorflow(path: Path, rows: list[dict[str, object]], compression: str = "") -> None:
    path.parent.mkdir(exist_ok=True, parents=True)
    with tf.io.TFRecordWriter(str(path), compression) as writer:
        for row in rows:
            features = tf.train.Features(feature={name: feature(value) for name, value in row.items()})
            writer.write(tf.train.Example(features=features).SerializeToString())


ROWS = [
    {"image": np.arange(3) / 2, "label": 7, "score": 0.5, "name": b"one", "tags": [b"a", b"b"]},
    {"image": np.arange(2) / 4, "label": -1, "score": 1.5, "name": b"\xff", "tags": [b"c"]},
]


def test_a_directory_of_tensorflows_is_read_and_its_types_are_found(spark, tmp_path) -> None:
    write_by_tensorflow(tmp_path / "data" / "a.tfrecord", ROWS[:1])
    write_by_tensorflow(tmp_path / "data" / "b.tfrecord", ROWS[1:])
    (tmp_path / "data" / "_SUCCESS").touch()
    df = read_tfrecords(spark, str(tmp_path / "data"))
    assert df.schema.simpleString() == (
        "struct<image:array<float>,label:bigint,name:binary,score:float,tags:array<binary>>"
    )
    first, second = df.collect()
    assert (first.image, first.label, first.name, first.score) == ([0.0, 0.5, 1.0], 7, b"one", 0.5)
    assert (second.image, second.name, second.tags) == ([0.0, 0.25], b"\xff", [b"c"])


@pytest.mark.parametrize(("compression", "suffix"), [("GZIP", ".gz"), ("ZLIB", ".zz"), ("GZIP", "")])
def test_compressed_files_are_read(spark, tmp_path, compression, suffix) -> None:
    write_by_tensorflow(tmp_path / f"a.tfrecord{suffix}", ROWS, compression)
    df = read_tfrecords(spark, str(tmp_path), compression=None if suffix else compression)
    assert [row.label for row in df.collect()] == [7, -1]


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


@pytest.mark.parametrize("compression", ["", "GZIP"])
def test_what_is_written_is_read_also_by_tensorflow(spark, tmp_path, compression) -> None:
    x, y = load_digits(return_X_y=True)
    rows = [
        (row.tolist(), int(label), f"digit {label}", bytes([label]), bool(label % 2))
        for row, label in zip(x[:300], y, strict=False)
    ]
    schema = "pixels array<double>, label int, name string, raw binary, odd boolean"
    df = spark.createDataFrame(rows, schema).repartition(3)
    path = str(tmp_path / "out")
    assert write_tfrecords(df, path, compression=compression) == 300
    parts = [name for name in os.listdir(path) if name.startswith("part-")]
    assert len(parts) == 3
    assert (Path(path) / "_SUCCESS").exists()
    back = read_tfrecords(spark, path, schema)
    assert sorted(map(tuple, back.collect())) == sorted(map(tuple, df.collect()))
    dataset = tf.data.TFRecordDataset([os.path.join(path, name) for name in parts], compression)
    spec = {"pixels": tf.io.FixedLenFeature([64], tf.float32), "label": tf.io.FixedLenFeature([], tf.int64)}
    labels = [int(tf.io.parse_single_example(record, spec)["label"]) for record in dataset]
    assert sorted(labels) == sorted(y[:300].tolist())


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


def test_what_cannot_be_read_or_written_says_why(spark, tmp_path) -> None:
    with pytest.raises(FileNotFoundError, match="there is no file at"):
        read_tfrecords(spark, str(tmp_path))
    spark.sparkContext._jsc.hadoopConfiguration().set("fs.viewfs.mounttable.none.link./data", f"file://{tmp_path}")
    with pytest.raises(FileNotFoundError, match="there is no file at viewfs://none/data/x"):
        read_tfrecords(spark, "viewfs://none/data/x")
    (tmp_path / "bad").write_bytes(b"no record at all, whatever its name is")
    with pytest.raises(DataError, match=r"bad cannot be read: .*Is it a TFRecord file"):
        read_tfrecords(spark, str(tmp_path / "bad"))
    write_by_tensorflow(tmp_path / "two", [{"x": 1}, {"x": [1, 2]}])
    with pytest.raises(Exception, match=r"feature 'x' has 2 values in a record, expected one"):
        read_tfrecords(spark, str(tmp_path / "two")).collect()
    with pytest.raises(TypeError, match=r"column 'd' is date, which a tf.train.Example cannot hold"):
        write_tfrecords(spark.sql("select current_date() as d"), str(tmp_path / "out"))
    with pytest.raises(ValueError, match="compression must be one of"):
        write_tfrecords(spark.range(1), str(tmp_path / "out"), compression="gzip")
    write_by_tensorflow(tmp_path / "none" / "empty", [])
    with pytest.raises(ValueError, match="give schema="):
        read_tfrecords(spark, str(tmp_path / "none"))
