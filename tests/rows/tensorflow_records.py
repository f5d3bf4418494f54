"""TFRecord files for tests, written by TensorFlow itself."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import tensorflow as tf


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
