"""What is selected of a DataFrame by a plan."""

from __future__ import annotations

import pytest
from pyspark.sql import functions
from pyspark.sql import types as sql

from elephas_like.core.types import Slot
from elephas_like.rows.frame_plan import Cell, ColumnChoice, Kind
from elephas_like.rows.frame_read import Frame
from elephas_like.rows.frame_schema import plan


def test_a_column_is_named_in_sql_but_where_sql_would_take_it_for_another_one() -> None:
    assert Cell(("a`b",), Kind.NUMBER).text() == "`a``b`"
    assert Cell(("price",), Kind.ARRAY, cast="bigint", depth=2).text() == "CAST(`price` AS array<array<bigint>>)"
    assert Cell(("t", "e"), Kind.NUMBER).text() is None
    assert Cell(("${x}",), Kind.NUMBER).text() is None


@pytest.mark.classic
@pytest.mark.parametrize("patterns", ["false", "true"])
def test_names_are_names_and_no_sql(spark, patterns: str) -> None:
    """A dot, backticks, two that differ in a bracket, what Spark replaces in SQL; decimals, and a struct's field that is named like a column of a table."""
    names = ["a.b", "`c` AS d", "[e]", "e", "sum(f)", "price", "price${eur}"]
    df = spark.range(1).select(*(functions.lit(float(i)).alias(name) for i, name in enumerate(names)))
    df = df.select(
        "*",
        functions.lit(5).cast("decimal(4,1)").alias("money"),
        functions.array(functions.lit(6).cast("decimal(4,1)")).alias("monies"),
        functions.struct(functions.lit(7.0).alias("e")).alias("t"),
    ).alias("t")
    setting = "spark.sql.parser.quotedRegexColumnNames"
    spark.conf.set(setting, patterns)
    try:
        for chosen, expected in (
            ([*names[:5], "money", "monies"], [0, 1, 2, 3, 4, 5, 6]),
            (["price${eur}", "e"], [6, 3]),
            (["e", "t.e"], [3, 7]),
        ):
            choice = ColumnChoice(chosen, None)
            made = plan(df.schema, choice, Slot("x", (len(chosen),)), None, floatx="float32", classes=None)
            frame = Frame(df, made)
            assert [frame.columns.schema[i].dataType for i in range(len(chosen))].count(sql.DecimalType(4, 1)) == 0
            (block,) = frame.blocks.collect()
            assert block.columns[0].tolist() == [expected]
    finally:
        spark.conf.unset(setting)
