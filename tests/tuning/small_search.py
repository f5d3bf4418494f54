"""A search of a few short trials on real data, without Spark."""

from __future__ import annotations

from functools import cache

import keras
import numpy as np
import pandas as pd

from elephas_like import search

SPACE = {"units": [4, 8], "rate": ("loguniform", -7, -3)}


@cache
def cancer() -> tuple[np.ndarray, np.ndarray]:
    """(569, 30) float32 of mean 0 and variance 1, and labels."""
    from sklearn.datasets import load_breast_cancer

    x, y = load_breast_cancer(return_X_y=True)
    return ((x - x.mean(0)) / x.std(0)).astype("float32"), y.astype("int64")


def build(params: dict) -> keras.Model:
    """Runs eagerly: a trial's few steps cost less than a graph of them. test_search_with_spark.py has graphs."""
    model = keras.Sequential(
        [keras.Input((30,)), keras.layers.Dense(params["units"], "relu"), keras.layers.Dense(1, "sigmoid")]
    )
    optimizer = keras.optimizers.Adam(params["rate"])
    model.compile(optimizer, "binary_crossentropy", metrics=["accuracy"], run_eagerly=True)
    return model


def small(**arguments: object):
    """A search of a few short trials."""
    given = {"max_evals": 3, "epochs": 2, "batch_size": 150, "validation_split": 0.3, "seed": 1, "verbose": 0}
    return search(arguments.pop("build", build), SPACE, cancer(), **(given | arguments))  # type: ignore[arg-type]


def plain(table: pd.DataFrame) -> list:
    return table.drop(columns=["seconds"]).to_dict("records")
