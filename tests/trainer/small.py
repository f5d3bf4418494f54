"""Small models and shards that the tests of this folder share."""

from __future__ import annotations

import gc
from pathlib import Path

import keras
import numpy as np

from elephas_like.core.types import FitConfig, ShardRef
from elephas_like.rows.spool import Block, spool


def rows(count: int, width: int = 4, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """x (count, width) and y (count, 1), a linear function of x with some noise."""
    random = np.random.default_rng(seed)
    x = random.normal(size=(count, width)).astype("float32")
    y = x.sum(axis=1, keepdims=True) + random.normal(0, 0.1, (count, 1)).astype("float32")
    return x, y.astype("float32")


def mlp(optimizer: object = "sgd", *, width: int = 4, seed: int = 3, **compiled: object) -> keras.Model:
    """A compiled regression with one hidden layer, the same weights for the same seed."""
    keras.utils.set_random_seed(seed)
    model = keras.Sequential([keras.Input((width,)), keras.layers.Dense(5, activation="tanh"), keras.layers.Dense(1)])
    model.compile(**({"optimizer": optimizer, "loss": "mse"} | compiled))
    return model


def shard(base: Path, *columns: object, worker: int = 0, name: str = "data") -> ShardRef:
    """The columns, x and y and sample weights, written down as a worker's shard."""
    count = len(keras.tree.flatten(columns)[0])
    return spool([Block(columns, count)], dataset=name, worker=worker, base=str(base), expect_target=len(columns) > 1)


def config(**fields: object) -> FitConfig:
    """A FitConfig without shuffling."""
    return FitConfig(**({"batch_size": 4, "shuffle": False} | fields))


def operations() -> int:
    """How many operations of TensorFlow's graphs are in memory."""
    import tensorflow as tf

    for _ in range(3):
        gc.collect()
    return sum(isinstance(thing, tf.Operation) for thing in gc.get_objects())
