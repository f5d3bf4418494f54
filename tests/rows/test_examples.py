"""Examples that TensorFlow writes are read, and TensorFlow reads what is written."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

import pytest
import tensorflow as tf
from hypothesis import Phase, example, given, settings
from hypothesis import strategies as st
from sklearn.datasets import load_digits
from tensorflow_records import ROWS, write_by_tensorflow

from elephas_like import DataError, read_tfrecords, write_tfrecords
from elephas_like.rows.examples import features_of_first, read_examples
from elephas_like.rows.records import Feature


@pytest.mark.parametrize(("compression", "suffix"), [("GZIP", ".gz"), ("ZLIB", ".zz"), ("GZIP", "")])
def test_compressed_files_are_read(spark, tmp_path, compression, suffix) -> None:
    write_by_tensorflow(tmp_path / f"a.tfrecord{suffix}", ROWS, compression)
    df = read_tfrecords(spark, str(tmp_path), compression=None if suffix else compression)
    assert [row.label for row in df.collect()] == [7, -1]


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


@settings(max_examples=12, phases=[Phase.explicit, Phase.generate])
@given(st.integers(0, 120), st.integers(0, 4), st.binary(max_size=4), st.binary(max_size=20))
@example(0, 0, b"", b"no example")
@example(0, 1, b"\xff", b"")  # another length
@example(20, 1, b"\xff", b"")  # other bytes than its checksum's
@example(100, 4, b"", b"")  # less than its length
def test_changed_files_and_records_are_data_errors(tmp_path, place, gone, data, record) -> None:
    path = tmp_path / "one"
    write_by_tensorflow(path, ROWS)
    whole = path.read_bytes()
    path.write_bytes(whole[:place] + data + whole[place + gone :])
    with tf.io.TFRecordWriter(str(tmp_path / "two")) as writer:
        writer.write(record)
    label = Feature("label", "int64", single=True)
    if path.read_bytes() == whole:
        assert len(list(read_examples(str(path), [label]))) == 1
    for file in (str(path), str(tmp_path / "two")):
        with suppress(DataError):
            features_of_first(file)
        with suppress(DataError):
            assert all(set(batch) == {"label"} for batch in read_examples(file, [label]))
