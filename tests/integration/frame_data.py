"""Real tables as DataFrames. Only the driver imports this."""

from __future__ import annotations

import keras
import numpy as np
from pyspark.ml.linalg import Vectors
from pyspark.sql import DataFrame, SparkSession

from elephas_like.spark.session import is_remote


def frame(spark: SparkSession, x: np.ndarray, y: np.ndarray, partitions: int = 2) -> DataFrame:
    """Rows (id, features: vector, label: double) in their order."""
    rows = [
        (i, Vectors.dense(row), float(label)) for i, (row, label) in enumerate(zip(x.tolist(), y.tolist(), strict=True))
    ]
    names = ["id", "features", "label"]
    if not is_remote(spark):
        return spark.createDataFrame(spark.sparkContext.parallelize(rows, partitions), names)
    df = spark.createDataFrame(rows, names)
    return df if partitions == 2 else df.repartitionByRange(partitions, "id").sortWithinPartitions("id")


def breast_cancer() -> tuple[np.ndarray, np.ndarray]:
    """(569, 30) standardized float64 measurements, and 0 or 1, in random order."""
    from sklearn.datasets import load_breast_cancer

    return _standardized(*load_breast_cancer(return_X_y=True))


def wine() -> tuple[np.ndarray, np.ndarray]:
    """(178, 13) standardized float64 measurements, and classes 0 to 2, in random order."""
    from sklearn.datasets import load_wine

    return _standardized(*load_wine(return_X_y=True))


def diabetes() -> tuple[np.ndarray, np.ndarray]:
    """(442, 10) standardized float64 measurements, and a measure of progression, standardized."""
    from sklearn.datasets import load_diabetes

    x, y = _standardized(*load_diabetes(return_X_y=True))
    return x, (y - y.mean()) / y.std()


def _standardized(x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    order = np.random.default_rng(0).permutation(len(x))
    return ((x - x.mean(axis=0)) / x.std(axis=0))[order], y[order]


def mlp(width: int, units: int, activation: str | None, loss: object, **compiled: object) -> keras.Model:
    """A compiled model with one hidden layer, the same weights each time."""
    keras.utils.set_random_seed(1)
    model = keras.Sequential(
        [keras.Input((width,)), keras.layers.Dense(16, "relu"), keras.layers.Dense(units, activation)], name="mlp"
    )
    model.compile(**({"optimizer": keras.optimizers.Adam(0.01), "loss": loss} | compiled))
    return model
