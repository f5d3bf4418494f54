"""A score as a SQL function of columns whose types are known only when rows come."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from pyspark.ml.linalg import Vectors, VectorUDT
from pyspark.sql import functions
from pyspark.sql.types import StructField, StructType
from stable_ids import named

from elephas_like.core.types import Slot
from elephas_like.rows.prediction_columns import Field
from elephas_like.stages.udf import sql_function


def adding():
    """The sum of all inputs of a row; a local function, since executors cannot import this file."""

    def total(x, rows: int):
        parts = x.values() if isinstance(x, dict) else x if isinstance(x, tuple) else (x,)
        return [sum(part.reshape(rows, -1).sum(axis=1, dtype=np.float64) for part in parts)]

    return total


@pytest.fixture(scope="module")
def table(spark):
    rows = [(i, float(i), Vectors.dense([i, 1.0]), [[1.0, float(i)]], bytes([i, 2])) for i in range(5)]
    df = spark.createDataFrame(rows, ["i", "f", "v", "a", "b"]).repartition(3)
    df = df.withColumn("s", functions.struct(functions.col("i").alias("y"), functions.col("v").alias("x")))
    return df.withColumn("t", functions.struct(functions.col("i").alias("y"), functions.col("b").alias("x")))


ARGUMENTS = [
    (Slot("x", (2,)), ["v"], lambda i: i + 1),
    (Slot("x", (2,)), ["i", "f"], lambda i: 2 * i),
    (Slot("x", (3,)), ["v", "f"], lambda i: 2 * i + 1),
    (Slot("x", (1, 2)), ["a"], lambda i: i + 1),
    (Slot("x", (2,)), ["b"], lambda i: i + 2),
    ((Slot("x", (2,)), Slot("y", (1,))), ["v", "i"], lambda i: 2 * i + 1),
    ({"x": Slot("x", (2,)), "y": Slot("y", (1,))}, ["s"], lambda i: 2 * i + 1),
    ((Slot("x", (1,)), Slot("y", (1,))), ["v"], lambda i: i + 1),
    ({"x": Slot("x", (2,)), "y": Slot("y", (1,))}, ["t"], lambda i: 2 * i + 2),
]


@pytest.fixture(scope="module", params=["arrow", "pandas"])
def way(request: pytest.FixtureRequest) -> Iterator[str]:
    """With the UDFs of Spark 4.1 and later, and with those before."""
    if request.param == "arrow" and not hasattr(functions, "arrow_udf"):
        pytest.skip("Arrow UDFs came with Spark 4.1")
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "pandas":
            patch.delattr(functions, "arrow_udf", raising=False)
        yield request.param


@pytest.fixture(scope="module")
def scored(table, way: str) -> list:
    """The rows, with a column for each of `ARGUMENTS`."""
    columns = [
        sql_function(inputs, adding(), Field("p", 0), floatx="float32", dtype="uint8")(*columns).alias(f"p{number}")
        for number, (inputs, columns, _) in enumerate(ARGUMENTS)
    ]
    return table.select("i", *columns).collect()


@pytest.mark.parametrize("number", range(len(ARGUMENTS)), ids=lambda number: named(ARGUMENTS[number][0]))
def test_arguments_of_all_kinds(scored, number: int) -> None:
    expected = ARGUMENTS[number][2]
    assert {row.i: row[f"p{number}"] for row in scored} == {i: float(expected(i)) for i in range(5)}


def test_literals_of_sql_are_decimals(spark, way: str) -> None:
    function = sql_function(Slot("x", (2,)), adding(), Field("p", 0), floatx="float32", dtype=None)
    spark.udf.register("adds_decimals", function)
    several = "adds_decimals(1.5, 2.25) AS p, adds_decimals(array(1.5, 0.25)) AS q"
    assert spark.sql(f"SELECT {several} FROM range(1)").first() == (3.75, 1.75)


def test_an_argument_that_does_not_fit_is_named(table, way: str) -> None:
    function = sql_function(Slot("x", (3,)), adding(), Field("p", 0), floatx="float32", dtype=None)
    with pytest.raises(Exception, match=r"column 'argument 1', .*the model takes shape"):
        table.select(function("v")).collect()
    with pytest.raises(Exception, match="a model's SQL function takes numbers, text, vectors, arrays or bytes"):
        table.select(function(functions.current_date())).collect()


def test_nulls_are_errors_and_lists_of_lists_come_back(spark, way: str) -> None:
    total = sql_function(Slot("x", (2,)), adding(), Field("p", 0), floatx="float32", dtype=None)
    nulls = {
        "v": spark.createDataFrame(
            [(Vectors.dense([1.0, 2.0]),), (None,)], StructType([StructField("v", VectorUDT())])
        ),
        "a": spark.createDataFrame([([1.0, 2.0],), ([1.0, None],)], "a array<double>"),
    }
    one = sql_function(Slot("x", (1,)), adding(), Field("p", 0), floatx="float32", dtype=None)
    with pytest.raises(Exception, match="Fill or drop nulls first"):
        spark.createDataFrame([(None,)], "t double").select(one("t")).collect()
    for name, rows in nulls.items():
        with pytest.raises(Exception, match="Fill or drop nulls first"):
            rows.coalesce(1).select(total(name)).collect()

    def twice(x, rows: int):
        return [np.stack([x, x * 2], axis=1)]

    table = sql_function(Slot("x", (2,)), twice, Field("p", 0, rank=2, dtype="float"), floatx="float32", dtype=None)
    (row,) = spark.createDataFrame([([1.0, 3.0],)], "a array<double>").select(table("a").alias("p")).collect()
    assert row.p == [[1.0, 3.0], [2.0, 6.0]]
