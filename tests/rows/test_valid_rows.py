"""Which rows can be read, as Spark sees it: the ids of those that can."""

from __future__ import annotations

import math
from decimal import Decimal

import pytest
from pyspark.ml.linalg import Vectors

from elephas_like.core.types import Slot
from elephas_like.rows.frame_plan import ColumnChoice, Invalid
from elephas_like.rows.frame_schema import plan
from elephas_like.rows.valid_rows import readable, valid

NAN = math.nan
TWO, OPEN, SQUARE = Slot("x", (2,)), Slot("x", (None,)), Slot("x", (2, 2))


def table(spark, kind: str, values: list[object]):
    return spark.createDataFrame(list(enumerate(values)), f"id int, v {kind}").coalesce(1)


def read_by(df, slot: object, *, nan: bool = False, **choice: object) -> list[int]:
    found = plan(df.schema, ColumnChoice("v", None, **choice), slot, None, floatx="float32", classes=None)
    return [row.id for row in df.filter(valid(found, df.schema, nan=nan)).collect()]


KINDS: list[tuple[str, Slot, list[object], list[int]]] = [
    ("double", Slot("x", (1,)), [1.0, None, NAN, 0.0], [0, 3]),
    ("int", Slot("x", (1,)), [1, None], [0]),
    ("decimal(5,2)", Slot("x", (1,)), [None], []),
    ("string", Slot("x", (1,), text=True), ["a", None, ""], [0, 2]),
    ("array<double>", TWO, [[1.0, 2.0], None, [1.0, None], [NAN, 1.0], [1.0], [1.0, 2.0, 3.0]], [0]),
    ("array<float>", OPEN, [[1.0], [1.0, 2.0], [NAN], None], [0, 1]),
    ("array<int>", TWO, [[1, 2], [1, None], [1]], [0]),
    ("array<decimal(5,2)>", TWO, [[Decimal(1), None], None, [Decimal(1), Decimal(2)]], [2]),
    ("array<array<decimal(5,2)>>", SQUARE, [[[Decimal(1), Decimal(2)], [Decimal(3), Decimal(4)]]], [0]),
    ("array<string>", Slot("x", (2,), text=True), [["a", "b"], ["a", None]], [0]),
    (
        "array<array<double>>",
        SQUARE,
        [
            [[1.0, 2.0], [3.0, 4.0]],
            [[1.0], [2.0, 3.0, 4.0]],
            [[1.0, NAN], [3.0, 4.0]],
            [None, [3.0, 4.0]],
            [[1.0, 2.0]],
        ],
        [0],
    ),
]


@pytest.fixture(scope="module")
def readable_rows(spark) -> list[list[int]]:
    """The ids of the rows that can be read of each of KINDS, a column each: all by one job. Shorter columns end in nulls."""
    most = max(len(values) for _, _, values, _ in KINDS)
    padded = [values + [None] * (most - len(values)) for _, _, values, _ in KINDS]
    schema = ", ".join(["id int", *(f"v{place} {kind}" for place, (kind, *_) in enumerate(KINDS))])
    df = spark.createDataFrame(list(zip(range(most), *padded, strict=True)), schema).coalesce(1)
    conditions = []
    for place, (_, slot, _, _) in enumerate(KINDS):
        found = plan(df.schema, ColumnChoice(f"v{place}", None), slot, None, floatx="float32", classes=None)
        conditions.append(valid(found, df.schema).alias(f"v{place}"))
    rows = df.select("id", *conditions).collect()
    return [[row.id for row in rows if row[f"v{place}"]] for place in range(len(KINDS))]


@pytest.mark.parametrize("place", range(len(KINDS)), ids=[kind for kind, *_ in KINDS])
def test_columns_of_all_kinds(readable_rows, place: int) -> None:
    assert readable_rows[place] == KINDS[place][-1]


def test_vectors_dense_and_sparse(spark) -> None:
    nan = [Vectors.sparse(2, {1: NAN}), Vectors.dense(NAN, 1)]
    vectors = [Vectors.dense(1, 2), nan[0], Vectors.sparse(2, {}), None, Vectors.dense(1), nan[1]]
    df = spark.createDataFrame(list(enumerate(vectors)), ["id", "v"]).coalesce(1)
    assert read_by(df, TWO) == [0, 2]
    assert read_by(df, TWO, nan=True) == [0, 1, 2, 5]


def test_bytes_by_their_number_and_dtype(spark) -> None:
    df = table(spark, "binary", [bytes(8), bytes(4), None, bytes(9)])
    assert read_by(df, TWO, dtypes={"v": "float32"}) == [0]
    assert read_by(df, SQUARE, dtypes={"v": "uint8"}, shapes={"v": (4,)}) == [1]


def test_several_columns_hold_what_the_model_takes(spark) -> None:
    df = spark.createDataFrame(
        [(0, 1.0, [2.0]), (1, 1.0, [2.0, 3.0]), (2, None, [2.0])], "id int, a double, b array<double>"
    )
    found = plan(df.schema, ColumnChoice(["a", "b"], None), TWO, None, floatx="float32", classes=None)
    assert [row.id for row in df.filter(valid(found, df.schema)).collect()] == [0]


def test_the_condition_of_many_columns_is_no_deep_one(spark) -> None:
    """One as deep as there are columns overflows the stack of Spark's JVM at some hundred of them."""
    df = spark.createDataFrame(
        [(1.0,) * 130, (1.0,) * 129 + (None,)], " double, ".join(f"c{i}" for i in range(130)) + " double"
    )
    found = plan(df.schema, ColumnChoice(df.columns, None), Slot("x", (130,)), None, floatx="float32", classes=None)
    condition = valid(found, df.schema)
    depth, deepest = 0, 0
    for sign in str(condition):
        depth += (sign == "(") - (sign == ")")
        deepest = max(deepest, depth)
    assert 8 <= deepest < 30
    assert df.filter(condition).count() == 1


def test_one_column_in_parts_for_several_inputs(spark) -> None:
    df = table(spark, "array<double>", [[1.0, 2.0, 3.0, 4.0], [1.0, 2.0]])
    assert read_by(df, (TWO, Slot("y", (2,)))) == [0]


def test_fields_of_a_struct(spark) -> None:
    df = spark.createDataFrame([(0, (1.0, 2.0)), (1, (None, 2.0)), (2, None)], "id int, s struct<a:double,b:double>")
    found = plan(df.schema, ColumnChoice(["s.a", "s.b"], None), TWO, None, floatx="float32", classes=None)
    assert [row.id for row in df.filter(valid(found, df.schema)).collect()] == [0]


def test_labels_and_weights(spark) -> None:
    rows = [
        (0, 1.0, 1.0, 1.0),
        (1, 1.0, 3.0, 1.0),
        (2, 1.0, 0.5, 1.0),
        (3, 1.0, NAN, 1.0),
        (4, 1.0, 2.0, None),
        (5, 1.0, -1.0, 1.0),
    ]
    df = spark.createDataFrame(rows, "id int, v double, label double, w double").coalesce(1)

    def skipped(classes: int | None) -> list[int]:
        choice = ColumnChoice("v", "label", "w", invalid=Invalid.SKIP)
        found = plan(df.schema, choice, Slot("x", (1,)), Slot("y", (3,)), floatx="float32", classes=classes)
        return [row.id for row in readable(df, found).collect()]

    assert skipped(3) == [0]  # becomes one-hot: classes 0 to 2
    assert skipped(None) == [0, 1, 2, 5]


def test_labels_that_are_true_or_false(spark) -> None:
    df = spark.createDataFrame([(0, 1.0, True), (1, 1.0, False), (2, 1.0, None)], "id int, v double, label boolean")
    choice = ColumnChoice("v", "label", None, invalid=Invalid.SKIP)
    found = plan(df.schema, choice, Slot("x", (1,)), Slot("y", (2,)), floatx="float32", classes=2)
    assert sorted(row.id for row in readable(df, found).collect()) == [0, 1]


@pytest.mark.parametrize("invalid", [None, Invalid.ERROR, Invalid.KEEP])
def test_rows_are_left_out_only_if_they_are_to_be_skipped(spark, invalid: Invalid | None) -> None:
    df = table(spark, "double", [1.0, None])
    found = plan(
        df.schema, ColumnChoice("v", None, invalid=invalid), Slot("x", (1,)), None, floatx="float32", classes=None
    )
    assert readable(df, found) is df
