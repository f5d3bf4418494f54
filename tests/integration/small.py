"""Small data and models of the integration tests. Only the driver imports this."""

from __future__ import annotations

from functools import cache

import keras
import numpy as np


@cache
def digits() -> tuple[np.ndarray, np.ndarray]:
    """(1797, 64) float32 pixels from 0 to 1, and int64 labels."""
    from sklearn.datasets import load_digits

    x, y = load_digits(return_X_y=True)
    return (x / 16).astype("float32"), y.astype("int64")


def rows(x: np.ndarray, y: np.ndarray) -> list[tuple[np.ndarray, int]]:
    """Rows of an RDD."""
    return list(zip(x, y.tolist(), strict=True))


def classifier(seed: int = 1, optimizer: object = "adam") -> keras.Model:
    """A compiled MLP for digits."""
    keras.utils.set_random_seed(seed)
    model = keras.Sequential(
        [keras.Input((64,)), keras.layers.Dense(32, "relu"), keras.layers.Dense(10, "softmax")], name="digits"
    )
    model.compile(optimizer, "sparse_categorical_crossentropy", metrics=["accuracy"])
    return model


def line(seed: int = 1, **compiled: object) -> keras.Model:
    """A compiled linear regression of two numbers."""
    keras.utils.set_random_seed(seed)
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)], name="line")
    model.compile(**({"optimizer": "sgd", "loss": "mse"} | compiled))
    return model


def points(count: int) -> list[tuple[list[float], float]]:
    """Rows for `line`."""
    random = np.random.default_rng(0)
    return [([a, b], a + b) for a, b in random.normal(size=(count, 2)).tolist()]


def trained(history: keras.callbacks.History) -> int:
    """Rows that were trained on in all rounds together."""
    return sum(record.samples for record in history.rounds)


def parts_of(sc, rows: list, sizes: list[int]):
    """An RDD of these rows in partitions of these sizes."""
    ends = np.cumsum([0, *sizes]).tolist()
    shipped = sc.broadcast(rows)

    def part(index: int, _: object):
        return iter(shipped.value[ends[index] : ends[index + 1]])

    return sc.parallelize(range(len(sizes)), len(sizes)).mapPartitionsWithIndex(part)
