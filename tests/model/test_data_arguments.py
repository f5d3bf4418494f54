"""What users pass as data: converted to arrays, its columns chosen, or refused in a sentence."""

from __future__ import annotations

import re
from decimal import Decimal

import keras
import ml_dtypes
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import scipy.sparse
from pyspark.sql import functions

from elephas_like import SparkModel
from elephas_like.model.data_arguments import arrays, column_choice, frame_plan, refuse_foreign
from elephas_like.model.given_rows import Given
from elephas_like.rows.frame_plan import ColumnChoice


def test_pandas_tensors_and_lists_become_arrays_and_trees_stay_trees() -> None:
    frame = pd.DataFrame({"a": [1.0, 2.0], "b": [3.0, 4.0]})
    assert arrays(frame).tolist() == [[1.0, 3.0], [2.0, 4.0]]
    assert arrays([1, 2]).tolist() == [1, 2]
    for kind in (scipy.sparse.dia_matrix, scipy.sparse.dok_matrix):
        assert arrays(kind(np.eye(2))).tolist() == [[1.0, 0.0], [0.0, 1.0]]
    tree = arrays({"x": frame["a"], "y": (np.ones(2), [np.zeros(2), np.ones(2)])})
    assert tree["x"].tolist() == [[1.0], [2.0]]  # a column, as in Keras
    assert isinstance(tree["y"][1], tuple)


@pytest.mark.parametrize(
    ("kinds", "expected"),
    [
        ({"b": "float64"}, "float64"),
        ({"b": "float32"}, "float32"),
        ({"b": "int64"}, "int64"),
        ({"b": "boolean"}, "bool"),
        ({"a": "boolean", "b": "Float32"}, "float32"),
        ({"a": "Sparse[bool]", "b": "float64"}, "float64"),
        ({"a": "Int8", "b": "Int64"}, "int64"),
        ({"a": "int32[pyarrow]", "b": "double[pyarrow]"}, "float64"),
    ],
)
def test_columns_of_numbers_and_booleans_are_one_array_of_numbers(kinds: dict[str, str], expected: str) -> None:
    frame = pd.DataFrame({"a": [True, False, True], "b": [1, 0, 1]}).astype(kinds)
    found = arrays(frame)
    assert found.dtype == expected
    assert found.tolist() == [[1, 1], [0, 0], [1, 1]]
    assert arrays(frame["b"]).dtype.kind in "biuf"
    assert Given.of(frame, features_col=["a", "b"], target=False).x.dtype == expected


def test_dummies_beside_numbers_are_predicted_from() -> None:
    frame = pd.get_dummies(pd.DataFrame({"kind": ["a", "b", "a"], "v": [0.5, 1.5, 2.5]}))
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    expected = model.predict(frame.to_numpy("float32"), verbose=0)
    np.testing.assert_array_equal(SparkModel(model, engine="in_process").predict(frame), expected)


@pytest.mark.parametrize("kind", ["Int64", "Float64", "boolean", "int64[pyarrow]"])
def test_missing_values_of_columns_that_know_them_are_refused(kind: str) -> None:
    frame = pd.DataFrame({"a": [0.5, 1.0], "b": pd.array([1, None], kind)})
    said = (
        rf"^column 'b' of type {re.escape(str(frame['b'].dtype))} has missing values: fill them, .*astype\('float64'\)"
    )
    with pytest.raises(ValueError, match=said):
        arrays(frame)
    with pytest.raises(ValueError, match=said):
        Given.of(frame, features_col="a", label_col="b")
    if "pyarrow" not in kind or not pd.__version__.startswith("1."):  # which cannot
        assert np.isnan(arrays(frame.astype({"b": "float64"}))[1, 1])


@pytest.mark.parametrize(("values", "advice"), [([7, None, 8], "They are NaN after "), (["a", None, "b"], "")])
def test_missing_values_of_categories_are_refused(values: list[object], advice: str) -> None:
    frame = pd.DataFrame({"a": [0.5, 1.0, 1.5], "b": pd.Categorical(values)})
    said = (
        rf"^column 'b' of type category has missing values: .* or leave out their rows with dropna\(\)\.( {advice}.*)?$"
    )
    for given in (frame, frame["b"], frame[["b"]]):
        with pytest.raises(ValueError, match=said) as caught:
            arrays(given)
        assert str(caught.value).endswith("astype('float64').") == bool(advice)
    with pytest.raises(ValueError, match=said):
        Given.of(frame, features_col="b", label_col="a")
    full = Given.of(frame.dropna(), features_col="b", label_col="a").x
    assert full.ravel().tolist() == [values[0], values[2]]


def test_lists_of_rows_of_unequal_length_are_refused_in_a_sentence() -> None:
    for given in ([[1, 2], [3]], {"a": [[1, 2], [3]]}):
        with pytest.raises(ValueError, match=r"unequal shapes: pad them"):
            arrays(given)


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        (np.array([[Decimal("1.5"), 2]], object), "float64"),
        (pd.DataFrame({"a": [Decimal("1.5")], "b": [2.0]}), "float64"),
        (np.array([[1.5, 2]], np.longdouble), "float64"),
        (np.array([[1.5, 2]], ml_dtypes.bfloat16), "float32"),
        (keras.ops.cast([[1.5, 2]], "bfloat16"), "float32"),
    ],
)
def test_numbers_of_rare_types_are_those_that_backends_take(given: object, kept: str) -> None:
    found = arrays(given)
    assert (found.dtype.name, found.tolist()) == (kept, [[1.5, 2.0]])


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (3.0, r"got a single float: 3\.0\."),
        (((1, 2), (3, 4)), "got a single int: 1. Give lists or NumPy arrays; a tuple stands for several inputs"),
        (map, "got a single type: <class 'map'>"),
    ],
)
def test_what_has_no_rows_is_said_to_be_so(given: object, said: str) -> None:
    with pytest.raises(ValueError, match=f"expected arrays with a row for each example, {said}"):
        arrays(given)


def test_masked_values_are_refused() -> None:
    masked = np.ma.array([[1.0, 2.0]], mask=[[False, True]])
    for given in (masked, {"a": masked}, (masked, masked)):
        with pytest.raises(ValueError, match=r"masked values.*fill them"):
            arrays(given)
    assert arrays(np.ma.array([1.0])).tolist() == [1.0]


@pytest.mark.parametrize("odd", [np.nan, 5, True, np.float32(2)])
def test_numbers_beside_text_in_lists_do_not_become_text(odd: object) -> None:
    """NumPy makes "nan" of NaN there."""
    for given in (["a", odd, "b"], [["a", "b"], [odd, "c"]], {"x": [odd, "a"]}):
        (found,) = keras.tree.flatten(arrays(given))
        assert odd in found.ravel().tolist()
    for text in (["a", "nan"], [np.str_("a"), "b"], [b"a", b"bc"], [["a"], ["b"]]):
        found = arrays(text)
        assert found.dtype == np.asarray(text).dtype
        assert found.tolist() == np.asarray(text).tolist()


def test_text_beside_numbers_stays_objects() -> None:
    assert arrays(pd.DataFrame({"a": [True], "b": ["x"]})).tolist() == [[True, "x"]]
    assert arrays(pd.DataFrame(index=[0, 1])).shape == (2, 0)


def test_columns_are_a_dataframes() -> None:
    assert column_choice(np.zeros(2)) is None
    with pytest.raises(
        ValueError, match="label_col= names columns of a DataFrame or of Parquet files; the data is of type ndarray"
    ):
        column_choice(np.zeros(2), label_col="y")


def test_columns_go_by_their_names(spark) -> None:
    frame = spark.range(1)
    for named in ({"features_col": frame.id}, {"label_col": ["id", frame["id"]]}, {"features_col": {"x": frame.id}}):
        with pytest.raises(TypeError, match=r"_col= takes names of columns; got a Column\. Name it first"):
            column_choice(frame, **named)


def test_columns_that_differ_in_capitals_alone_are_read_where_spark_tells_them_apart(spark) -> None:
    df = spark.createDataFrame([(1.0, 2.0, 3.0, 4.0), (5.0, 6.0, 7.0, 8.0)], ["a", "A", "label", "x"])
    read = ColumnChoice(["a", "A"])
    with pytest.raises(
        ValueError, match="cannot tell the columns 'a' and 'A' apart, of which 'a' is read: it ignores capitals"
    ):
        frame_plan(df, read, None)
    assert [cell.name for cell in frame_plan(df, ColumnChoice("x"), None).cells] == [
        "x",
        "label",
    ]  # a and A are not read
    structs = df.select(functions.struct(functions.col("x").alias("X"), "x").alias("s"), "label")
    twice = structs.select("label", "s", "s")
    with pytest.raises(ValueError, match=r"the fields 'X' and 'x' apart, of which 's\.x' is read: it ignores capitals"):
        frame_plan(structs, ColumnChoice(["s.x", "s.X"]), None)
    spark.conf.set("spark.sql.caseSensitive", "TRUE")
    try:
        found = frame_plan(df, read, None)
        assert [tuple(row) for row in df.select(*found.selected()).collect()] == [(1, 2, 3), (5, 6, 7)]
        with pytest.raises(
            ValueError, match=r"the columns 's' and 's' apart, of which 's\.x' is read\. Rename them, as"
        ):
            frame_plan(twice, ColumnChoice(["s.x", "s.X"]), None)
    finally:
        spark.conf.unset("spark.sql.caseSensitive")


class Loader:
    """Batches in turn, and how many there are, as PyTorch's DataLoader has them."""

    def __iter__(self):
        return iter([(np.zeros((2, 1)), np.zeros(2))])

    def __len__(self) -> int:
        return 1


class Numbered:
    """A row by its number, as PyTorch's Dataset has them."""

    def __getitem__(self, number: int):
        return np.zeros(1), 0.0


@pytest.mark.parametrize(
    ("data", "name"),
    [
        (iter([1, 2]), "list_iterator"),
        (Loader(), "Loader"),
        (type("Own", (type("Dataset", (Numbered,), {"__module__": "torch.utils.data.dataset"}),), {})(), "Own"),
    ],
)
def test_what_comes_in_turn_is_refused_by_its_name(data: object, name: str) -> None:
    with pytest.raises(
        TypeError, match=f"generators, loaders and iterators live on one machine; got one of type {name}"
    ):
        refuse_foreign(data)


def test_arrays_lists_and_tables_are_not() -> None:
    for data in (
        scipy.sparse.dia_matrix(np.eye(2)),
        [[1.0]],
        (np.zeros(1),),
        {"a": np.zeros(1)},
        pd.DataFrame({"a": [1]}),
        pd.Series([1]),
        np.zeros(1),
        range(3),
    ):
        assert refuse_foreign(data) is None


@pytest.mark.parametrize("texts", [["a\0\0", "b"], [b"a\0", b"bc"]], ids=["text", "bytes"])
def test_zeros_at_the_end_of_text_stay(texts: list[object]) -> None:
    """NumPy's arrays of text drop them."""
    assert arrays(texts).tolist() == texts


@pytest.mark.parametrize(
    ("given", "place"),
    [
        (pa.table({"a": [1, 2], "b": [3, None]}), "column 'b' of type int64"),
        (pa.array([1, None]), "an array of type int64"),
        (pa.chunked_array([[1], [None]]), "an array of type int64"),
    ],
    ids=["table", "array", "chunks"],
)
def test_nulls_of_arrow_are_refused_where_no_column_is_named(given: object, place: str) -> None:
    with pytest.raises(ValueError, match=f"^{place} has missing values, the first in row 1"):
        arrays(given)
