"""TFRecord files of `tf.train.Example`s, read and written by TensorFlow itself: framing, checksums, gzip and parsing."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from elephas_like.core.errors import DataError
from elephas_like.core.extras import require
from elephas_like.rows.records import Feature, Values
from elephas_like.spark.gpus import take_gpu

require("tensorflow")

import tensorflow as tf  # noqa: E402
from google.protobuf.message import DecodeError  # noqa: E402

BATCH_ROWS = 2048
_DAMAGE = (tf.errors.DataLossError, tf.errors.InvalidArgumentError, DecodeError, UnicodeDecodeError)
"""What reading raises: UnicodeDecodeError where TensorFlow's message holds bytes of the record."""
_DTYPES = {"bytes": tf.string, "float": tf.float32, "int64": tf.int64}
_COMPRESSIONS = {".gz": "GZIP", ".gzip": "GZIP", ".zz": "ZLIB", ".deflate": "ZLIB"}


def compression_of(path: str) -> str:
    """What a file's name says of its compression: "GZIP", "ZLIB" or ""."""
    return next((kind for suffix, kind in _COMPRESSIONS.items() if path.endswith(suffix)), "")


def read_examples(
    path: str, features: Sequence[Feature], compression: str | None = None, place: str | None = None
) -> Iterator[Mapping[str, Values]]:
    """The values of the features by name, some thousand records at a time, in the order of the file.

    Args:
        compression: "GZIP", "ZLIB" or ""; None goes by the file's name.
        place: what messages call the file.

    Raises:
        DataError: a damaged file, records that are no Examples, or a feature of another kind; it names the file.
    """
    take_gpu()
    place = place or path
    records = tf.data.TFRecordDataset(path, compression_of(place) if compression is None else compression)
    wanted = {
        feature.name: tf.io.RaggedFeature(_DTYPES[feature.kind], row_splits_dtype=tf.int64) for feature in features
    }
    try:
        for serialized in records.batch(BATCH_ROWS):
            parsed = tf.io.parse_example(serialized, wanted)
            yield {name: Values(found.flat_values.numpy(), found.row_splits.numpy()) for name, found in parsed.items()}
    except _DAMAGE as error:
        raise DataError(_unreadable(place, error)) from None


def features_of_first(path: str, compression: str | None = None, place: str | None = None) -> list[Feature] | None:
    """The features of a file's first record, in the order of their names; None where there is no record.

    Raises:
        DataError: a damaged file, no Example, or a feature without a value, which could be anything.
    """
    place = place or path
    records = tf.data.TFRecordDataset(path, compression_of(place) if compression is None else compression)
    try:
        for record in records.take(1):
            example = tf.train.Example.FromString(record.numpy())
            found = sorted(example.features.feature.items())
            return [_feature(name, feature, place) for name, feature in found]
    except _DAMAGE as error:
        raise DataError(_unreadable(place, error)) from None
    return None


def write_examples(
    batches: Iterable[Mapping[str, Values]], features: Sequence[Feature], path: str, compression: str = ""
) -> int:
    """Writes rows as Examples and returns how many; a feature without a value in a row is left out of it.

    Args:
        compression: "GZIP", "ZLIB" or "".
    """
    rows = 0
    with tf.io.TFRecordWriter(path, compression) as writer:
        for batch in batches:
            for row in range(len(next(iter(batch.values())).ends) - 1):
                writer.write(_example(batch, features, row))
                rows += 1
    return rows


def _example(batch: Mapping[str, Values], features: Sequence[Feature], row: int) -> bytes:
    example = tf.train.Example()
    written = example.features.feature
    for feature in features:
        values = batch[feature.name]
        begin, end = int(values.ends[row]), int(values.ends[row + 1])
        if begin == end:
            continue
        part = values.flat[begin:end]
        if feature.kind == "float":
            written[feature.name].float_list.value.extend(part)
        elif feature.kind == "int64":
            written[feature.name].int64_list.value.extend(part)
        else:
            written[feature.name].bytes_list.value.extend(part)
    serialized: bytes = example.SerializeToString()
    return serialized


def _feature(name: str, feature: tf.train.Feature, place: str) -> Feature:
    kind = feature.WhichOneof("kind")
    values = () if kind is None else getattr(feature, kind).value
    if not len(values):
        raise DataError(
            f"{place}: feature {name!r} has no value in the first record, so its type is unknown; give schema=."
        )
    return Feature(name, kind.removesuffix("_list"), single=len(values) == 1)


def _unreadable(place: str, error: Exception) -> str:
    first = next(iter(str(getattr(error, "message", error)).splitlines()), type(error).__name__)
    return (
        f"{place} cannot be read: {first}. Is it a TFRecord file of tf.train.Examples, compressed as its name (or "
        "compression=) says, with features of the types of the schema?"
    )
