"""Digits, and a model that learns them."""

from __future__ import annotations

import keras
from sklearn.datasets import load_digits

X, Y = load_digits(return_X_y=True)
X, Y = (X[:240] / 16).astype("float32"), Y[:240].astype("int64")


def classifier() -> keras.Model:
    """A compiled model, the same each time."""
    keras.utils.set_random_seed(3)
    layers = [keras.layers.Dense(16, "relu"), keras.layers.Dropout(0.2), keras.layers.Dense(10, "softmax")]
    model = keras.Sequential([keras.Input((64,)), *layers])
    model.compile(keras.optimizers.Adam(0.01), "sparse_categorical_crossentropy", metrics=["accuracy"])
    return model
