"""Bagged classifiers of digits, as the tests of ensembles on Spark train them. Only the driver imports this."""

from __future__ import annotations

from functools import cache

import keras
import numpy as np
from small import digits

from elephas_like import VotingModel, train_ensemble

layers = keras.layers
X, Y = digits()
X, Y = X[:600], Y[:600]


def build() -> keras.Model:
    model = keras.Sequential(
        [keras.Input((64,)), layers.Dense(16, "relu"), layers.BatchNormalization(), layers.Dense(10, "softmax")]
    )
    model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
    return model


@cache
def three() -> VotingModel:
    """Three bagged members, trained in this process. No test may change them."""
    options = {"epochs": 3, "seed": 5, "validation_data": (X[500:], Y[500:]), "verbose": 0}
    return train_ensemble(build, (X[:500], Y[:500]), 3, engine="in_process", **options)


def same(one: VotingModel, other: VotingModel, tolerance: float = 1e-6) -> None:
    for a, b in zip(one.models, other.models, strict=True):
        for left, right in zip(a.get_weights(), b.get_weights(), strict=True):
            np.testing.assert_allclose(left, right, atol=tolerance)
