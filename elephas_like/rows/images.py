"""Images as a model takes them, decoded and resized by TensorFlow: files (JPEG, PNG, GIF, BMP), and Spark's image structs.

Files are what `spark.read.format("binaryFile")` reads; `spark.read.format("image")` gives structs. Both become RGB, or gray.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
import pandas as pd
import pyarrow as pa
from pyspark.sql import Column, functions

from elephas_like.core.extras import require
from elephas_like.core.types import Array
from elephas_like.rows.vectors import Unfit, filled, numbers
from elephas_like.spark.gpus import take_gpu

require("tensorflow")

import tensorflow as tf  # noqa: E402

BYTE_MODES = {0: 1, 16: 3, 24: 4}
"""OpenCV's codes of 8-bit pixels, which Spark's image source uses, and their channels."""


def from_files(array: pa.Array, shape: Sequence[int]) -> Array:
    """(rows, height, width, channels) of the bytes of image files, as uint8.

    Args:
        shape: (height, width, channels) of every row. One channel is gray, three are RGB.

    Raises:
        Unfit: a row is null or cannot be decoded.
    """
    take_gpu()
    filled(array)
    images = np.empty((len(array), *shape), np.uint8)
    with tf.device("CPU"):
        for row, content in enumerate(array.to_pylist()):
            try:
                images[row] = _fitted(_decoded(content), shape)
            except tf.errors.OpError as error:
                raise Unfit(
                    row, f"expected an image (JPEG, PNG, GIF or BMP), got {len(content)} bytes: {_reason(error)}"
                ) from None
    return images


def from_structs(array: pa.Array, shape: Sequence[int]) -> Array:
    """(rows, height, width, channels) of Spark's image structs, as uint8. Their own order of channels is BGR.

    Args:
        shape: (height, width, channels) of every row. One channel is gray, three are RGB.

    Raises:
        Unfit: a row is null, was not decoded, or does not hold 8-bit pixels.
    """
    take_gpu()
    filled(array)
    images = np.empty((len(array), *shape), np.uint8)
    sides = np.stack([numbers(array.field(name)) for name in ("height", "width", "mode")], axis=1).tolist()
    with tf.device("CPU"):
        for row, ((height, width, mode), data) in enumerate(zip(sides, array.field("data").to_pylist(), strict=True)):
            if height < 1 or width < 1:
                raise Unfit(row, "expected an image, got one that was not decoded.")
            if mode not in BYTE_MODES:
                raise Unfit(row, f"expected an image of 8-bit pixels (OpenCV modes {[*BYTE_MODES]}), got mode {mode}.")
            if len(data or b"") != height * width * BYTE_MODES[mode]:
                raise Unfit(
                    row, f"expected {height * width * BYTE_MODES[mode]} bytes of pixels, got {len(data or b'')}."
                )
            pixels = np.frombuffer(data, np.uint8).reshape(height, width, BYTE_MODES[mode])
            images[row] = _fitted(tf.constant(pixels[..., 2::-1] if mode else pixels.repeat(3, axis=2)), shape)
    return images


def decodable(column: Column) -> Column:
    """Return whether the files in a binary column can be decoded, as a condition that runs in Python; null for null."""
    return functions.pandas_udf(_are_decodable, "boolean")(column)


def was_decoded(column: Column) -> Column:
    """Return whether Spark's image structs hold an image of 8-bit pixels, as a condition; null for null."""
    height, width, mode = (column.getField(name) for name in ("height", "width", "mode"))
    known = functions.create_map(*(functions.lit(number) for pair in BYTE_MODES.items() for number in pair))
    whole = functions.length(column.getField("data")) == height * width * known[mode]
    return (height > 0) & (width > 0) & mode.isin(*BYTE_MODES) & whole


def _are_decodable(files: pd.Series) -> pd.Series:
    take_gpu()  # TensorFlow takes hold of all that it sees, also to compute on the CPU
    with tf.device("CPU"):
        return pd.Series([None if content is None else _is_decodable(content) for content in files], dtype=object)


def _is_decodable(content: bytes) -> bool:
    try:
        _decoded(content)
    except tf.errors.OpError:
        return False
    return True


def _decoded(content: bytes) -> tf.Tensor:
    return tf.io.decode_image(content, 3, expand_animations=False)


def _fitted(image: tf.Tensor, shape: Sequence[int]) -> Array:
    """Return an RGB image in another size, gray if it is to have one channel.

    What makes an image smaller is averaged, as Pillow does, so that the details of large photographs do not become noise.
    """
    if shape[-1] == 1:
        image = tf.image.rgb_to_grayscale(image)
    if tuple(image.shape) != tuple(shape):
        image = tf.cast(tf.round(tf.image.resize(image, shape[:2], method="bilinear", antialias=True)), tf.uint8)
    return np.asarray(image)


def _reason(error: tf.errors.OpError) -> str:
    return re.sub(r"^\{\{.*?\}\} | \[Op:\w+\].*", "", str(error.message).splitlines()[0])
