"""Features with labels in Spark's older forms: RDDs of pairs, RDDs of LabeledPoints, and DataFrames of both."""

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
    """Return an RDD of (feature row, label) pairs from two arrays, in their order."""
    _same_rows(features, labels)
    return sc.parallelize(list(zip(features, labels, strict=True)))


def to_labeled_point(sc: SparkContext, features: Any, labels: Any, categorical: bool = False) -> RDD:
    """Return an RDD of LabeledPoints from two arrays.

    Args:
        features: shape (rows, columns).
        labels: numbers, shape (rows,) or (rows, 1); with `categorical`, one-hot rows, which are stored as the index of
            the class.
    """
    _same_rows(features, labels)
    points = [
        LabeledPoint(int(np.argmax(label)) if categorical else float(np.asarray(label).item()), to_vector(row))
        for row, label in zip(features, labels, strict=True)
    ]
    return sc.parallelize(points)


def from_labeled_point(rdd: RDD, categorical: bool = False, nb_classes: int | None = None) -> tuple[Array, Array]:
    """Return features (rows, columns) and labels of an RDD of LabeledPoints, collected in order.

    Args:
        categorical: return one-hot rows, shape (rows, nb_classes), instead of numbers.
        nb_classes: None takes the largest label + 1.

    Returns:
        Labels are int64 if all are whole numbers, else float64.

    Raises:
        ValueError: the RDD is empty, or with `categorical` a label is no class.
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
    """Return an RDD of (feature row, label) pairs from an RDD of LabeledPoints.

    Args:
        categorical: labels become one-hot rows.
        nb_classes: None takes the largest label + 1, which costs a job.

    Raises:
        TypeError: `lp_rdd` is no RDD; or, when rows are computed, a row is no LabeledPoint.
    """
    pairs = _pairs(lp_rdd)
    if not categorical:
        return pairs
    classes = nb_classes or classes_of(lp_rdd)
    return pairs.map(lambda pair: (pair[0], encode_label(pair[1], classes)))


def classes_of(lp_rdd: RDD) -> int:
    """Return the largest label of an RDD of LabeledPoints, plus 1. It costs a job.

    Raises:
        TypeError: as `lp_to_simple_rdd`.
    """
    return int(_pairs(lp_rdd).map(lambda pair: pair[1]).max()) + 1


def _pairs(lp_rdd: RDD) -> RDD:
    if not isinstance(lp_rdd, RDD):
        raise TypeError(f"expected an RDD of LabeledPoints, got {type(lp_rdd).__name__}; SparkModel takes other data.")
    return lp_rdd.map(_pair)


def to_data_frame(sc: SparkContext, features: Any, labels: Any, categorical: bool = False) -> DataFrame:
    """Return a DataFrame with the columns `features` (MLlib vectors) and `label` (double) from two arrays.

    Args:
        categorical: labels are one-hot rows, which are stored as the index of the class.
    """
    return _session().createDataFrame(to_labeled_point(sc, features, labels, categorical))


def from_data_frame(df: DataFrame, categorical: bool = False, nb_classes: int | None = None) -> tuple[Array, Array]:
    """Return features and labels of a DataFrame with the columns `features` and `label`, as `from_labeled_point` does."""
    return from_labeled_point(_points(df, "features", "label"), categorical, nb_classes)


def df_to_simple_rdd(
    df: DataFrame,
    categorical: bool = False,
    nb_classes: int | None = None,
    features_col: str = "features",
    label_col: str = "label",
) -> RDD:
    """Return an RDD of (feature row, label) pairs from a column of vectors (`ml` or `mllib`) and one of numbers."""
    return lp_to_simple_rdd(_points(df, features_col, label_col), categorical, nb_classes)


def argmax(col: str | Column) -> Column:
    """Return a column with the index, from 0, of the largest element of an array column: a class from probabilities."""
    column = F.col(col) if isinstance(col, str) else col
    # In Spark 3.5 F.array_position takes no column as the element.
    return F.call_function("array_position", column, F.array_max(column)) - 1


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

    # Backquotes, because column names may contain dots and blanks.
    return df.select(_quoted(features_col), _quoted(label_col)).rdd.mapPartitions(points)


def _pair(point: Any) -> tuple[Array, float]:
    if not hasattr(point, "features"):  # a Row with these fields is accepted too
        raise TypeError(f"expected a LabeledPoint, got {type(point).__name__}: to_labeled_point makes them of arrays.")
    return from_vector(point.features), point.label


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def _session() -> SparkSession:
    return SparkSession.builder.getOrCreate()


def _same_rows(features: Any, labels: Any) -> None:
    if len(features) != len(labels):
        raise ValueError(f"features and labels must have as many rows; got {len(features)} and {len(labels)}.")
