"""Predictions as columns beside all that a DataFrame has."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from pyspark.ml.linalg import Vectors, VectorUDT
from pyspark.sql import functions
from pyspark.sql import types as sql
from small_frames import X

from elephas_like.core.types import Slot
from elephas_like.rows import prediction_columns
from elephas_like.rows.frame_plan import ColumnChoice, Invalid
from elephas_like.rows.frame_schema import plan
from elephas_like.rows.prediction_columns import Field, with_predictions

BOTH_WAYS = pytest.mark.parametrize(
    "way",
    [
        pytest.param(
            prediction_columns._by_udf,
            marks=pytest.mark.skipif(not hasattr(functions, "arrow_udf"), reason="Arrow UDFs came with Spark 4.1"),
        ),
        prediction_columns._by_map,
    ],
    ids=["arrow_udf", "mapInArrow"],
)


@BOTH_WAYS
def test_predictions_stand_after_all_columns_in_order(table, way) -> None:
    made = plan(table.schema, ColumnChoice("dense", None), X, None, floatx="float32", classes=None)

    def score(x, rows: int):
        assert len(x) == rows
        return [x.sum(axis=1), x]

    fields = [Field("total", 0), Field("vector", 1, rank=1, vector=True), Field("list", 1, rank=1, dtype="float")]
    found = way(table, made, score, fields)
    assert found.columns == [*table.columns, "total", "vector", "list"]
    assert found.schema[: len(table.columns)] == table.schema[:]
    rows = found.collect()
    assert [row.id for row in rows] == [0, 1, 2, 3]
    assert [row.total for row in rows] == [1.0, 3.0, 5.0, 7.0]
    assert [row.vector for row in rows] == [row.dense for row in rows]
    assert rows[1].list == [1.0, 2.0]
    assert rows[2].sparse == Vectors.sparse(2, [1], [2.0])


def test_predictions_of_empty_partitions_and_of_a_name_that_is_taken(spark, table) -> None:
    made = plan(table.schema, ColumnChoice("dense", None), X, None, floatx="float32", classes=None)
    few = table.filter("id = 3").repartition(3)

    def score(x, rows: int):
        return [x.sum(axis=1)]

    assert [row.p for row in with_predictions(few, made, score, [Field("p", 0)]).collect()] == [7.0]
    assert with_predictions(table.filter("id > 9"), made, score, [Field("p", 0)]).collect() == []
    with pytest.raises(ValueError, match="has a column 'label' already"):
        with_predictions(table, made, score, [Field("label", 0)])
    with pytest.raises(ValueError, match="has a column 'label' already"):  # Spark would find two of them
        with_predictions(table, made, score, [Field("Label", 0)])
    spark.conf.set("spark.sql.caseSensitive", "true")
    try:
        assert with_predictions(few, made, score, [Field("Label", 0)]).select("Label").collect() == [(7.0,)]
    finally:
        spark.conf.unset("spark.sql.caseSensitive")


@BOTH_WAYS
def test_columns_stay_whatever_they_are_called(spark, way) -> None:
    """Spark replaces a column whose name differs from a new one in case alone: Scores, where scores is to be added."""
    df = spark.createDataFrame([(1.0, 2, 3, 4, 5)], "v double, Scores int, _SCORES int, Columns int, _Columns int")
    made = plan(df.schema, ColumnChoice("v", None), Slot("x", (1,)), None, floatx="float32", classes=None)
    (row,) = way(df, made, lambda x, rows: [x[:, 0] * 10], [Field("p", 0)]).collect()
    assert row.asDict() == {"v": 1.0, "Scores": 2, "_SCORES": 3, "Columns": 4, "_Columns": 5, "p": 10.0}


PARQUET = {
    column: [(Vectors.dense([1.0, 2.0]), 3.0), (second, 4.0)]
    for column, second in (("features", Vectors.dense([5.0, 6.0])), ("v", None))
}
"""Vectors and numbers in files, by the column that is read: where it is not theirs, a vector is null."""


@pytest.fixture(scope="module")
def vector_files(spark, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """PARQUET, and one vector of it that lies deeper."""
    folder = tmp_path_factory.mktemp("vectors")
    schema = sql.StructType([sql.StructField("features", VectorUDT()), sql.StructField("v", sql.DoubleType())])
    for column, rows in PARQUET.items():
        spark.createDataFrame(rows, schema).coalesce(1).write.parquet(str(folder / column))
    one = spark.createDataFrame(rows[:1], schema).coalesce(1)
    one.selectExpr("struct(features as f) as s", "v").write.parquet(str(folder / "deeper"))
    return folder


@BOTH_WAYS
def test_vectors_of_a_parquet_file_are_read_and_stay(spark, way, vector_files: Path) -> None:
    """Spark 4.3 gives a function the file's own batches, and fails at vectors in them, whether the function reads them or not."""
    for (column, rows), width in zip(PARQUET.items(), (2, 1), strict=True):
        df = spark.read.parquet(str(vector_files / column))
        made = plan(df.schema, ColumnChoice(column, None), Slot("x", (width,)), None, floatx="float32", classes=None)
        found = way(df, made, lambda x, rows: [x[:, 0] * 10], [Field("p", 0)]).collect()
        assert [tuple(row)[:2] for row in found] == rows
        assert [row.p for row in found] == ([10.0, 50.0] if width == 2 else [30.0, 40.0])
    # Two columns of one name, and a vector that lies deeper.
    df = df.where("features is not null").selectExpr(
        "features", "features as FEATURES", "struct(features as f) as s", "v"
    )
    for read in (df, spark.read.parquet(str(vector_files / "deeper"))):
        made = plan(read.schema, ColumnChoice("v", None), Slot("x", (1,)), None, floatx="float32", classes=None)
        (row,) = way(read, made, lambda x, rows: [x[:, 0] * 10], [Field("p", 0)]).collect()
        assert (row.s.f, row.p) == (rows[0][0], 30.0)


@BOTH_WAYS
def test_predictions_may_be_called_anything(spark, way) -> None:
    df = spark.createDataFrame([(1.0,)], "v double")
    made = plan(df.schema, ColumnChoice("v", None), Slot("x", (1,)), None, floatx="float32", classes=None)
    found = way(df, made, lambda x, rows: [x[:, 0] * 10, x[:, 0]], [Field("a`b", 0), Field("c.d e", 1)])
    assert [row.asDict() for row in found.collect()] == [{"v": 1.0, "a`b": 10.0, "c.d e": 1.0}]


@BOTH_WAYS
def test_several_columns_of_one_name_stay(spark, way) -> None:
    """As a join leaves them; a plan reads none of them. Fields may be called as the column that holds the work."""
    one = spark.createDataFrame([(1, 2.0)], "id int, v double")
    df = one.join(spark.createDataFrame([(1, 7)], "id int, z int").hint("broadcast"), one.id == 1)
    made = plan(df.schema, ColumnChoice("v", None), Slot("x", (1,)), None, floatx="float32", classes=None)
    fields = [Field("scores", 0), Field("columns", 1, rank=1, vector=True)]
    found = way(df, made, lambda x, rows: [x[:, 0] * 10, x], fields)
    assert found.columns == ["id", "v", "id", "z", "scores", "columns"]
    assert [tuple(row) for row in found.collect()] == [(1, 2.0, 1, 7, 20.0, Vectors.dense([2.0]))]


@BOTH_WAYS
def test_rows_to_keep_are_not_scored_and_stay_in_their_place(spark, way) -> None:
    rows = [(0, None), (1, [1.0, 2.0]), (2, [1.0]), (3, [math.nan, 2.0]), (4, [3.0, 4.0])]
    df = spark.createDataFrame(rows, "id int, v array<double>").coalesce(1)
    made = plan(df.schema, ColumnChoice("v", None, invalid=Invalid.KEEP), X, None, floatx="float32", classes=None)

    def score(x, rows: int):
        assert len(x) == rows == 3  # NaN is scored, and says nothing
        return [x.sum(axis=1), x]

    fields = [Field("total", 0), Field("vector", 1, rank=1, vector=True), Field("list", 1, rank=1, dtype="float")]
    found = way(df, made, score, fields).collect()
    assert [(row.id, row.total, row.list) for row in found] == [
        (0, None, None),
        (1, 3.0, [1.0, 2.0]),
        (2, None, None),
        (3, None, None),
        (4, 7.0, [3.0, 4.0]),
    ]
    assert [row.vector for row in found] == [None, Vectors.dense(1, 2), None, None, Vectors.dense(3, 4)]


def test_no_column_to_add(table) -> None:
    made = plan(table.schema, ColumnChoice("dense", None), X, None, floatx="float32", classes=None)
    assert with_predictions(table, made, lambda x, rows: [], []) is table
