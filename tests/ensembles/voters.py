"""Small models that vote, and rows for them."""

from __future__ import annotations

import keras
import numpy as np

layers = keras.layers
X = np.random.default_rng(0).normal(size=(40, 3)).astype("float32")


def model(outputs: int = 3, activation: str | None = "softmax", seed: int = 0, **compiled: object) -> keras.Model:
    keras.utils.set_random_seed(seed)
    made = keras.Sequential(
        [keras.Input((3,)), layers.Dense(outputs, activation, kernel_regularizer=keras.regularizers.L2(0.1))]
    )
    made.compile(**({"loss": "sparse_categorical_crossentropy", "metrics": ["accuracy"]} | compiled))
    return made


def members(count: int = 3, **options: object) -> list[keras.Model]:
    return [model(seed=seed, **options) for seed in range(count)]


def masking(seed: int) -> keras.Model:
    """A model of sequences, whose outputs bear the mask of its inputs."""
    keras.utils.set_random_seed(seed)
    inner = [
        keras.Input((4,), dtype="int32"),
        layers.Embedding(5, 3, mask_zero=True),
        layers.LSTM(3, return_sequences=True),
        layers.Dense(2, "softmax"),
    ]
    model = keras.Sequential(inner)
    model.compile("sgd", "sparse_categorical_crossentropy", metrics=["accuracy"], run_eagerly=True)
    return model
