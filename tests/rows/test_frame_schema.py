"""What a DataFrame's schema does not fit is said before any job."""

from __future__ import annotations

import pytest
from pyspark.sql import functions
from pyspark.sql import types as sql
from small_frames import X, Y

from elephas_like.core.types import Slot
from elephas_like.rows.frame_plan import ColumnChoice
from elephas_like.rows.frame_schema import plan


@pytest.mark.parametrize(
    ("choice", "inputs", "kind", "said"),
    [
        (ColumnChoice("sparce"), X, ValueError, "there is no column 'sparce'.*Did you mean 'sparse'"),
        (ColumnChoice("dense", "text"), X, TypeError, "label_col='text' holds text. Index it first.*StringIndexer"),
        (ColumnChoice("raw"), X, ValueError, "'raw' is binary; say what its bytes are"),
        (ColumnChoice("raw", dtypes={"raw": "floaty"}), X, ValueError, "must be a dtype of numbers"),
        (ColumnChoice("when"), X, TypeError, "'when' is of type date, which is none to train on"),
        (ColumnChoice(["id", "small", "label"]), X, ValueError, r"hold 3 numbers a row.*takes shape \(2,\)"),
        (ColumnChoice("text"), X, TypeError, "'text' is text, and the model's input 'x' takes numbers.*inferSchema"),
        (ColumnChoice(["id", "raw"], dtypes={"raw": "uint8"}), X, TypeError, "'raw' holds bytes, which cannot be put"),
        (ColumnChoice("both"), X, ValueError, r"a struct of 'a', 'b'.*Name its fields"),
        (ColumnChoice("small"), (X, Y), ValueError, r"the model has several \('x', 'y'\)"),
        (ColumnChoice(["id", "small", "label"]), (X, Y), ValueError, "must have a column for each of the model's"),
        (ColumnChoice({"x": "id", "z": "id"}), (X, Y), ValueError, "must name the model's 'x', 'y'; got 'x', 'z'"),
        (ColumnChoice("dense", "label", "text"), X, TypeError, "sample_weight_col='text' must hold numbers"),
        (ColumnChoice("dense", shapes={"grid": (4,)}), X, ValueError, "column_shapes names 'grid', which is not read"),
        (
            ColumnChoice("raw", dtypes={"raw": "image"}),
            X,
            ValueError,
            r"arrays of \(height.*'x' has the shape \(2,\). Say a",
        ),
        (ColumnChoice("dense", dtypes={"dense": "image"}), X, TypeError, "'dense' holds vectors, no images"),
        (ColumnChoice("text", dtypes={"text": "image"}), X, TypeError, "'text' holds text, no images"),
        (
            ColumnChoice("raw", dtypes={"raw": "image"}, shapes={"raw": (2, 2, 2)}),
            *(X, ValueError, "with 1 or 3 channels"),
        ),
        (
            ColumnChoice("raw", dtypes={"raw": "image"}, shapes={"raw": (2, 2, 1)}),
            *(X, ValueError, r"holds 4 numbers a row.*takes shape \(2,\)"),
        ),
        (
            ColumnChoice("dense", "raw", dtypes={"raw": "image"}, shapes={"raw": (2, 2, 1)}),
            *(X, TypeError, "label_col='raw' would be decoded as images"),
        ),
        (ColumnChoice("dense", dtypes={"dense": "uint8"}), X, ValueError, "column_dtypes is for binary columns"),
        (ColumnChoice([]), X, ValueError, "features_col names no column"),
    ],
    ids=str,
)
def test_what_the_schema_does_not_fit_is_said_before_any_job(table, choice, inputs, kind, said) -> None:
    schema = table.withColumn("when", functions.current_date()).schema
    with pytest.raises(kind, match=said):
        plan(schema, choice, inputs, Y, floatx="float32", classes=None)


def test_names_of_fields_may_have_dots() -> None:
    inner = sql.StructType([sql.StructField(name, sql.FloatType()) for name in ("b.c", "d")])
    schema = sql.StructType(
        [sql.StructField("s", inner), sql.StructField("s.d", inner), sql.StructField("y", sql.FloatType())]
    )
    chosen = ColumnChoice(["s.b.c", "s.d.d"], "y")
    cells = plan(schema, chosen, X, Y, floatx="float32", classes=None).cells
    assert [cell.path for cell in cells] == [("s", "b.c"), ("s.d", "d"), ("y",)]
    with pytest.raises(ValueError, match=r"there is no column 's\.b'"):
        plan(schema, ColumnChoice("s.b", "y"), X, Y, floatx="float32", classes=None)


def test_the_size_that_vector_assembler_leaves_is_compared_before_any_job(table) -> None:
    from pyspark.ml.feature import VectorAssembler

    assembled = VectorAssembler(inputCols=["id", "small", "label"], outputCol="v").transform(table)
    with pytest.raises(ValueError, match=r"'v' holds 3 numbers a row, and the model's input 'x' takes shape \(2,\)"):
        plan(assembled.schema, ColumnChoice("v"), X, Y, floatx="float32", classes=None)


def test_images_get_the_size_that_was_said_or_else_the_model_s(table) -> None:
    def size(slot, **shapes):
        choice = ColumnChoice("raw", None, dtypes={"raw": "image"}, shapes=shapes)
        (cell,) = plan(table.schema, choice, slot, None, floatx="float32", classes=None).cells
        return cell.shape

    assert size(Slot("x", (4, 6, 3))) == (4, 6, 3)
    assert size(Slot("x", (None, None, 3)), raw=(8, 9, 3)) == (8, 9, 3)
    assert size(Slot("x"), raw=(8, 9, 1)) == (8, 9, 1)
    assert size(Slot("x", (72,)), raw=(8, 9, 1)) == (8, 9, 1)  # and is reshaped to 72 numbers


PRICE_FIRST = {"price": Slot("price", (1,)), "amount": Slot("amount", (1,))}


@pytest.mark.parametrize(
    ("chosen", "expected"),
    [
        (["price", "amount"], {"price": "price", "amount": "amount"}),
        (["amount", "price"], {"price": "price", "amount": "amount"}),
        ({"amount": "id", "price": "small"}, {"price": "small", "amount": "id"}),
        (["id", "small"], {"price": "id", "amount": "small"}),  # in the order of the dict, not of its sorted keys
        (["small", "id"], {"price": "small", "amount": "id"}),
    ],
    ids=str,
)
def test_columns_for_a_dict_go_by_its_keys_and_otherwise_in_its_order(table, chosen, expected) -> None:
    schema = table.withColumns({"price": table.id, "amount": table.small}).schema
    for choice, inputs, outputs in (
        (ColumnChoice(chosen, None), PRICE_FIRST, None),
        (ColumnChoice("dense", chosen), X, PRICE_FIRST),
    ):
        found = plan(schema, choice, inputs, outputs, floatx="float32", classes=None)
        tree = found.tree([leaf.name for leaf in found.leaves])[-1]
        assert list(tree.items()) == list(expected.items())


def test_one_column_for_a_dict_is_cut_in_the_order_of_its_keys(table) -> None:
    for choice, inputs, outputs in (
        (ColumnChoice("dense", None), PRICE_FIRST, None),
        (ColumnChoice("dense", "dense"), X, PRICE_FIRST),
    ):
        found = plan(table.schema, choice, inputs, outputs, floatx="float32", classes=None)
        assert found.tree([leaf.part for leaf in found.leaves])[-1] == {"price": (0, 2), "amount": (1, 2)}


def test_what_does_not_name_the_keys_is_said_with_them_in_their_order(table) -> None:
    for chosen, said in (
        ({"price": "id", "amounts": "id"}, "must name the model's 'price', 'amount'; got 'price', 'amounts'"),
        (["id", "small", "label"], "must have a column for each of the model's 'price', 'amount'"),
        ("small", r"the model has several \('price', 'amount'\)"),
    ):
        with pytest.raises(ValueError, match=said):
            plan(table.schema, ColumnChoice(chosen), PRICE_FIRST, Y, floatx="float32", classes=None)


def test_a_dict_of_one_takes_columns_as_its_entry_alone_does(table) -> None:
    one = {"price": Slot("price", (2,))}
    for chosen, columns in (
        ("small", ["small"]),
        (["small"], ["small"]),
        (["small", "id"], ["small", "id"]),
        ({"price": "small"}, ["small"]),
    ):
        labels = plan(table.schema, ColumnChoice("dense", chosen), X, one, floatx="float32", classes=None)
        tree = labels.tree([[cell.name for cell in leaf.cells] for leaf in labels.leaves])
        assert tree[-1] == {"price": columns}
    features = plan(table.schema, ColumnChoice(["small", "id"], None), one, None, floatx="float32", classes=None)
    assert [[cell.name for cell in leaf.cells] for leaf in features.leaves] == [["small", "id"]]
