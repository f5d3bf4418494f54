"""Real images as files: the digits of scikit-learn, in PNG and JPEG, and Spark's structs of them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import tensorflow as tf
from sklearn.datasets import load_digits


def digits(count: int) -> tuple[np.ndarray, np.ndarray]:
    """(count, 8, 8, 1) images of bytes, and what they show."""
    x, y = load_digits(return_X_y=True)
    return (x[:count] * 15.9).astype(np.uint8).reshape(-1, 8, 8, 1), y[:count]


def png(pixels: np.ndarray) -> bytes:
    return tf.io.encode_png(pixels).numpy()


def jpeg(pixels: np.ndarray) -> bytes:
    return tf.io.encode_jpeg(pixels, quality=95).numpy()


def write_digits(folder: Path, count: int) -> None:
    """One file for each digit: <what it shows>/<its number>.png."""
    for number, (pixels, label) in enumerate(zip(*digits(count), strict=True)):
        file = folder / str(label) / f"{number}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(png(pixels))
