"""Simple RDDs, LabeledPoints and DataFrames, to and fro."""

from __future__ import annotations

import numpy as np
import pytest
from pyspark.ml.linalg import Vectors as MLVectors
from pyspark.ml.linalg import VectorUDT
from pyspark.mllib.regression import LabeledPoint
from pyspark.sql import Row
from pyspark.sql.types import StructType

from elephas_like.compat.labeled import (
    argmax,
    classes_of,
    df_to_simple_rdd,
    from_data_frame,
    from_labeled_point,
    lp_to_simple_rdd,
    to_data_frame,
    to_labeled_point,
    to_simple_rdd,
)

X = np.arange(8.0).reshape(4, 2)
CLASSES = np.array([0, 2, 1, 2])
ONE_HOT = np.eye(3)[CLASSES]


def test_a_simple_rdd_has_the_rows_in_order(sc) -> None:
    rows = to_simple_rdd(sc, X, CLASSES).collect()
    assert [(x.tolist(), int(y)) for x, y in rows] == [([0, 1], 0), ([2, 3], 2), ([4, 5], 1), ([6, 7], 2)]
    with pytest.raises(ValueError, match="as many rows; got 4 and 3"):
        to_simple_rdd(sc, X, CLASSES[:3])


def test_labeled_points_come_back(sc) -> None:
    for labels, categorical in ((CLASSES, False), (ONE_HOT, True), (CLASSES[:, None], False)):
        points = to_labeled_point(sc, X, labels, categorical)
        assert [point.label for point in points.collect()] == [0.0, 2.0, 1.0, 2.0]
        features, numbers = from_labeled_point(points)
        np.testing.assert_array_equal(features, X)
        assert numbers.dtype == np.int64
        np.testing.assert_array_equal(from_labeled_point(points, categorical=True)[1], ONE_HOT)
        assert from_labeled_point(points, True, nb_classes=5)[1].shape == (4, 5)
    with pytest.raises(ValueError, match="the RDD is empty"):
        from_labeled_point(sc.parallelize([], 1))


def test_pairs_of_labeled_points(sc) -> None:
    points = to_labeled_point(sc, X, CLASSES)
    assert [y for _, y in lp_to_simple_rdd(points).collect()] == [0.0, 2.0, 1.0, 2.0]
    for classes in (None, 3):
        rows = lp_to_simple_rdd(points, categorical=True, nb_classes=classes).collect()
        np.testing.assert_array_equal([y for _, y in rows], ONE_HOT)


def test_data_frames_come_back(sc) -> None:
    df = to_data_frame(sc, X, ONE_HOT, categorical=True)
    assert set(df.columns) == {"features", "label"}
    features, labels = from_data_frame(df)
    np.testing.assert_array_equal(features, X)
    np.testing.assert_array_equal(labels, CLASSES)
    np.testing.assert_array_equal(from_data_frame(df, categorical=True, nb_classes=3)[1], ONE_HOT)


def test_columns_of_any_name_and_of_ml_vectors(spark) -> None:
    rows = [
        Row(**{"my.features": MLVectors.sparse(2, [0], [3.0]), "the `label`": 1}),
        Row(**{"my.features": MLVectors.dense([1, 2]), "the `label`": 0}),
    ]
    df = spark.createDataFrame(rows).coalesce(1)
    found = df_to_simple_rdd(df, features_col="my.features", label_col="the `label`").collect()
    assert [(x.tolist(), y) for x, y in found] == [([3.0, 0.0], 1.0), ([1.0, 2.0], 0.0)]
    assert [y.tolist() for _, y in df_to_simple_rdd(df, True, 2, "my.features", "the `label`").collect()] == [
        [0, 1],
        [1, 0],
    ]
    assert "temp_table" not in [table.name for table in spark.catalog.listTables()]
    with pytest.raises(ValueError, match=r"no column 'features'; the DataFrame has 'my.features'"):
        df_to_simple_rdd(df)


def test_rows_of_another_kind_are_named(spark, sc) -> None:
    with pytest.raises(TypeError, match="expected an RDD of LabeledPoints, got DataFrame"):
        lp_to_simple_rdd(to_data_frame(sc, X, CLASSES))
    with pytest.raises(Exception, match="expected a LabeledPoint, got tuple"):
        lp_to_simple_rdd(sc.parallelize([(1.0, 2.0)], 1)).collect()
    kind = StructType().add("features", VectorUDT()).add("label", "double")
    for row in ((None, 1.0), (MLVectors.dense([1.0]), None)):
        with pytest.raises(Exception, match=r"expected a vector in 'features' and a number in 'label', got"):
            df_to_simple_rdd(spark.createDataFrame([row], kind)).collect()


def test_argmax_is_a_column(spark) -> None:
    df = spark.createDataFrame([([0.1, 0.7, 0.2],), ([0.9, 0.05, 0.05],)], ["p"])
    assert [row.c for row in df.select(argmax("p").alias("c")).collect()] == [1, 0]


def test_the_number_of_classes(sc) -> None:
    assert classes_of(sc.parallelize([LabeledPoint(0.0, [1.0]), LabeledPoint(3.0, [1.0])])) == 4
