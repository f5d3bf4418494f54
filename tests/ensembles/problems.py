"""Real data in two parts, and a function that builds a model for it."""

from __future__ import annotations

import keras
import numpy as np
from sklearn.datasets import load_breast_cancer, load_diabetes, load_digits

layers = keras.layers


def split(x: np.ndarray, y: np.ndarray, seed: int = 0) -> tuple[np.ndarray, ...]:
    order = np.random.default_rng(seed).permutation(len(x))
    train, test = order[: 2 * len(x) // 3], order[2 * len(x) // 3 :]
    mean, spread = x[train].mean(0), x[train].std(0) + 1e-6
    x = ((x - mean) / spread).astype("float32")
    return x[train], y[train], x[test], y[test]


def mlp(inputs: int, outputs: int, activation: str | None, loss: str, metric: str):
    def build() -> keras.Model:
        model = keras.Sequential([keras.Input((inputs,)), layers.Dense(32, "relu"), layers.Dense(outputs, activation)])
        model.compile(keras.optimizers.Adam(0.005), loss, metrics=[metric])
        return model

    return build


def digits() -> tuple[object, tuple[np.ndarray, ...]]:
    data = split(*load_digits(return_X_y=True))
    return mlp(64, 10, "softmax", "sparse_categorical_crossentropy", "accuracy"), data


def breast_cancer() -> tuple[object, tuple[np.ndarray, ...]]:
    data = split(*load_breast_cancer(return_X_y=True))
    return mlp(30, 1, "sigmoid", "binary_crossentropy", "accuracy"), data


def diabetes() -> tuple[object, tuple[np.ndarray, ...]]:
    x, y = load_diabetes(return_X_y=True)
    return mlp(10, 1, None, "mse", "mae"), split(x, ((y - y.mean()) / y.std()).astype("float32"))
