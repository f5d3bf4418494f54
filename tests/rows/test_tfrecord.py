"""TFRecord files: those that TensorFlow writes, those that it reads, and everything in between on real Spark."""

from __future__ import annotations

import pytest
from tensorflow_records import ROWS, write_by_tensorflow

from elephas_like import DataError, read_tfrecords, write_tfrecords


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


@pytest.mark.classic
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
