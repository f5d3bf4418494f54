"""Features with labels in Spark's older clothes: simple RDDs of pairs, RDDs of LabeledPoints, and DataFrames of both."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
from pyspark import RDD, SparkContext
from pyspark.mllib.regression import LabeledPoint
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from elephas_like.compat.labels import encode_label
from elephas_like.compat.matrices import from_vector, is_vector, to_vector
from elephas_like.core.errors import DataError
from elephas_like.core.types import Array


def to_simple_rdd(sc: SparkContext, features: Any, labels: Any) -> RDD:
    """An RDD of (feature row, label) pairs from two arrays, in their order."""
    _same_rows(features, labels)
    return sc.parallelize(list(zip(features, labels, strict=True)))


def to_labeled_point(sc: SparkContext, features: Any, labels: Any, categorical: bool = False) -> RDD:
    """An RDD of LabeledPoints from two arrays.

    Args:
        features: shape (rows, columns).
        labels: numbers, shape (rows,) or (rows, 1); one-hot rows, of which the class is taken, where `categorical`.
    """
    _same_rows(features, labels)
    points = [
        LabeledPoint(int(np.argmax(label)) if categorical else float(np.asarray(label).item()), to_vector(row))
        for row, label in zip(features, labels, strict=True)
    ]
    return sc.parallelize(points)


def from_labeled_point(rdd: RDD, categorical: bool = False, nb_classes: int | None = None) -> tuple[Array, Array]:
    """Features (rows, columns) and labels of an RDD of LabeledPoints, collected in order.

    Args:
        categorical: one-hot rows, shape (rows, nb_classes), instead of numbers.
        nb_classes: None takes the largest label + 1.

    Returns:
        Labels that are all whole are int64, others float64.

    Raises:
        ValueError: an empty RDD, or labels that are no classes where `categorical`.
    """
    rows = rdd.map(lambda point: (from_vector(point.features), point.label)).collect()
    if not rows:
        raise ValueError("there are no rows: the RDD is empty.")
    features, numbers = np.array([row for row, _ in rows]), np.array([label for _, label in rows], dtype=float)
    if categorical:
        classes = nb_classes or int(numbers.max()) + 1
        return features, np.stack([encode_label(label, classes) for label in numbers])
    whole = bool(np.all(numbers == np.rint(numbers)))
    return features, numbers.astype(np.int64) if whole else numbers


def lp_to_simple_rdd(lp_rdd: RDD, categorical: bool = False, nb_classes: int | None = None) -> RDD:
    """An RDD of (feature row, label) pairs from one of LabeledPoints.

    Args:
        categorical: labels become one-hot rows.
        nb_classes: None takes the largest label + 1, which costs a job.

    Raises:
        TypeError: something else than an RDD; and when rows are asked for, rows that are no LabeledPoints.
    """
    pairs = _pairs(lp_rdd)
    if not categorical:
        return pairs
    classes = nb_classes or classes_of(lp_rdd)
    return pairs.map(lambda pair: (pair[0], encode_label(pair[1], classes)))


def classes_of(lp_rdd: RDD) -> int:
    """The largest label of an RDD of LabeledPoints + 1; it costs a job.

    Raises:
        TypeError: as `lp_to_simple_rdd`.
    """
    return int(_pairs(lp_rdd).map(lambda pair: pair[1]).max()) + 1


def _pairs(lp_rdd: RDD) -> RDD:
    if not isinstance(lp_rdd, RDD):
        raise TypeError(f"expected an RDD of LabeledPoints, got {type(lp_rdd).__name__}; SparkModel takes other data.")
    return lp_rdd.map(_pair)


def to_data_frame(sc: SparkContext, features: Any, labels: Any, categorical: bool = False) -> DataFrame:
    """A DataFrame with the columns `features` (MLlib vectors) and `label` (double) from two arrays.

    Args:
        categorical: labels are one-hot rows, of which the class is stored.
    """
    return _session().createDataFrame(to_labeled_point(sc, features, labels, categorical))


def from_data_frame(df: DataFrame, categorical: bool = False, nb_classes: int | None = None) -> tuple[Array, Array]:
    """Features and labels of a DataFrame with the columns `features` and `label`, as `from_labeled_point` gives them."""
    return from_labeled_point(_points(df, "features", "label"), categorical, nb_classes)


def df_to_simple_rdd(
    df: DataFrame,
    categorical: bool = False,
    nb_classes: int | None = None,
    features_col: str = "features",
    label_col: str = "label",
) -> RDD:
    """An RDD of (feature row, label) pairs from a column of vectors (of `ml` or `mllib`) and one of numbers."""
    return lp_to_simple_rdd(_points(df, features_col, label_col), categorical, nb_classes)


def argmax(col: str | Column) -> Column:
    """The place of the largest element of an array column, from 0: a class from probabilities, for `withColumn`."""
    column = F.col(col) if isinstance(col, str) else col
    return F.array_position(column, F.array_max(column)) - 1


def _points(df: DataFrame, features_col: str, label_col: str) -> RDD:
    missing = [name for name in (features_col, label_col) if name not in df.columns]
    if missing:
        raise ValueError(f"there is no column {missing[0]!r}; the DataFrame has {', '.join(map(repr, df.columns))}.")

    def points(rows: Iterable[Any]) -> Iterator[LabeledPoint]:
        for vector, label in rows:
            if not is_vector(vector) or label is None:
                raise DataError(
                    f"expected a vector in {features_col!r} and a number in {label_col!r}, got {vector!r} and {label!r}. "
                    "SparkModel and ElephasEstimator take columns of other kinds."
                )
            yield LabeledPoint(float(label), to_vector(np.asarray(from_vector(vector))))

    # Backquotes: names with dots and blanks are names all the same.
    return df.select(_quoted(features_col), _quoted(label_col)).rdd.mapPartitions(points)


def _pair(point: Any) -> tuple[Array, float]:
    if not hasattr(point, "features"):  # a Row with these fields does as well
        raise TypeError(f"expected a LabeledPoint, got {type(point).__name__}: to_labeled_point makes them of arrays.")
    return from_vector(point.features), point.label


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def _session() -> SparkSession:
    return SparkSession.builder.getOrCreate()


def _same_rows(features: Any, labels: Any) -> None:
    if len(features) != len(labels):
        raise ValueError(f"features and labels must have as many rows; got {len(features)} and {len(labels)}.")
