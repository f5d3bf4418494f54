"""What a row may be, the dtypes that its parts are stored in, and what is said of a row that does not fit."""

from __future__ import annotations

from collections import OrderedDict, namedtuple
from decimal import Decimal
from pathlib import Path

import numpy as np
import pytest
from pyspark.ml.linalg import Vectors
from pyspark.mllib.linalg import SparseVector
from pyspark.mllib.regression import LabeledPoint
from spooling import Spool, columns, dtypes

from elephas_like.core.errors import DataError
from elephas_like.core.structure import unflatten
from elephas_like.rows.spool import Block

CELLS = np.array([np.zeros(2), None], object)
CELLS[1] = np.ones(2)


@pytest.mark.parametrize(
    ("x", "dtype"),
    [
        (True, "bool"),
        (2, "int64"),
        (0.5, "float32"),
        (np.float64(0.5), "float32"),
        (np.float16(0.5), "float32"),
        (np.uint8(2), "uint8"),
        (np.int32(2), "int32"),
        (np.array([1, 2], ">i4"), "int32"),
        (np.array([0.5, 2], ">f8"), "float32"),
        ([0.5, 2], "float32"),
        ([[1, 2], [3, 4]], "int64"),
        ([np.float32(0.5), np.float32(2)], "float32"),
        ([], "float32"),
        (2**63, "uint64"),
        (Decimal("0.5"), "float32"),
        ([Decimal("0.5"), 2], "float32"),
    ],
)
def test_stored_dtypes(spooled: Spool, x: object, dtype: str) -> None:
    ref = spooled([(x, 1), (x, 1)])
    assert (dtypes(ref), ref.structure) == ([dtype, "int64"], [0, 1])
    np.testing.assert_array_equal(columns(ref)[0], np.stack([np.asarray(x)] * 2).astype(dtype))


@pytest.mark.parametrize(("floatx", "dtype"), [("float16", "float16"), ("float64", "float64"), ("bfloat16", "float32")])
def test_floats_are_stored_as_floatx(spooled: Spool, floatx: str, dtype: str) -> None:
    ref = spooled([(np.float32(0.5), 0.25)], floatx=floatx)
    assert dtypes(ref) == [dtype, dtype]
    assert [column.tolist() for column in columns(ref)] == [[0.5], [0.25]]


def test_text_and_bytes(spooled: Spool) -> None:
    ref = spooled(
        [("größe", ["a", "b\0"]), (b"abc", np.array(["", "dd"])), (np.str_("x"), np.array([b"y", "z"], object))]
    )
    assert dtypes(ref) == ["string", "string"]
    x, y = columns(ref)
    assert x.tolist() == ["größe", "abc", "x"]
    assert y.tolist() == [["a", "b\0"], ["", "dd"], ["y", "z"]]


def test_trees_of_inputs(spooled: Spool) -> None:
    rows = [({"b": [1.0, 2.0], "a": (index, np.array([index]))}, {"y": index % 2}) for index in range(3)]
    ref = spooled(rows)
    assert ref.structure == [{"a": [0, 1], "b": 2}, {"y": 3}]
    x, y = unflatten(ref.structure, columns(ref))  # type: ignore[misc]
    assert x["a"][0].tolist() == [0, 1, 2]
    assert x["a"][1].tolist() == [[0], [1], [2]]
    assert x["b"].tolist() == [[1, 2]] * 3
    assert y["y"].tolist() == [0, 1, 0]


def test_dicts_in_another_order_and_lists_of_arrays_are_the_same_row(spooled: Spool) -> None:
    one, two = np.ones(2), np.zeros(3)
    ref = spooled([({"a": (one, two), "b": 1}, 0), (OrderedDict(b=1, a=[one, two]), 0)])
    assert ref.rows == 2
    other = spooled([({"b": 1, "a": (one, two)}, 0), ({"b": 1, "a": (one, two)}, 0)], worker=1)
    assert other.structure == ref.structure
    assert other.checksum == ref.checksum
    with pytest.raises(DataError, match=r"expected \(x\['a'\], x\['b'\], y\).* got \(x\['a'\], x\['c'\], y\)"):
        spooled([({"b": 1, "a": 2}, 0), ({"c": 1, "a": 2}, 0)], worker=2)


def test_triples(spooled: Spool) -> None:
    ref = spooled([([1.0], 1, 0.5), [[2.0], 0, 2]])  # Spark sometimes yields lists
    assert ref.structure == [0, 1, 2]
    assert [column.tolist() for column in columns(ref)] == [[[1.0], [2.0]], [1, 0], [0.5, 2.0]]
    assert dtypes(ref)[2] == "float32"


def test_sample_weight_none_is_a_pair(spooled: Spool) -> None:
    ref = spooled([(1.0, 1, None), (2.0, 0)])
    assert ref.structure == [0, 1]


@pytest.mark.parametrize(("expect_target", "structure"), [(True, [0, 1]), (None, [0, 1]), (False, [0])])
def test_labeled_points_are_pairs(spooled: Spool, expect_target: bool | None, structure: object) -> None:
    points = [LabeledPoint(1.0, [0.5, 2.0]), LabeledPoint(0.0, SparseVector(2, [1], [3.0]))]
    ref = spooled(points, expect_target=expect_target)
    assert ref.structure == structure
    assert [column.tolist() for column in columns(ref)] == [[[0.5, 2.0], [0.0, 3.0]], [1.0, 0.0]][: len(structure)]


def test_vectors_of_spark_are_read_whole(spooled: Spool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Element by element a sparse vector is looked up, each time anew."""
    rows = [(Vectors.sparse(3, [1], [2.0]), 1.0), (Vectors.dense([4.0, 5.0, 6.0]), 0.0)]
    monkeypatch.delattr(type(rows[0][0]), "__getitem__")
    assert columns(spooled(rows))[0].tolist() == [[0, 2, 0], [4, 5, 6]]
    assert dtypes(spooled(rows))[0] == "float32"


def test_a_tuple_of_that_name_is_the_user_s_own(spooled: Spool) -> None:
    point = namedtuple("LabeledPoint", "features label")
    assert [column.tolist() for column in columns(spooled([point([0.5, 2.0], 1.0)], expect_target=True))] == [
        [[0.5, 2.0]],
        [1.0],
    ]


@pytest.mark.parametrize("row", [np.array([1.0, 2.0]), [1.0, 2.0], ([1.0, 2.0],)])
def test_rows_without_a_target(spooled: Spool, row: object) -> None:
    ref = spooled([row, row], expect_target=False)
    assert ref.structure == [0]
    assert columns(ref)[0].tolist() == [[1, 2], [1, 2]]


def test_a_row_without_a_target_may_be_a_tree(spooled: Spool) -> None:
    assert spooled([(1, 2.0)], expect_target=False).structure == [[0, 1]]
    assert spooled([{"a": 1}], expect_target=False, worker=1).structure == [{"a": 0}]


@pytest.mark.parametrize(
    ("row", "structure"),
    [
        ((1.0, 2), [0, 1]),
        ((1.0, 2, 0.5), [0, 1, 2]),
        ((1.0, 2, None), [0, 1]),
        ((1.0, 2, 3, 4), [[0, 1, 2, 3]]),
        (((1.0, 2),), [[0, 1]]),
        ([1.0, 2.0], [0]),
        (Block((np.ones(1), np.ones(1)), 1), [0, 1]),
        (Block((np.ones(1),), 1), [0]),
    ],
)
def test_rows_may_say_themselves_whether_they_have_a_target(spooled: Spool, row: object, structure: object) -> None:
    assert spooled([row, row], expect_target=None).structure == structure


@pytest.mark.parametrize(
    ("first", "second", "dtype"),
    [
        (np.uint8(200), np.int64(-1), "int64"),
        (np.uint8(200), np.int8(-1), "int16"),
        (True, 3, "int64"),
        (True, 0.5, "float32"),
        (3, 2**63, "float32"),
        (0.5, 3, "float32"),
        (0.5, True, "float32"),
        (3, True, "int64"),
    ],
)
def test_two_dtypes(spooled: Spool, first: object, second: object, dtype: str) -> None:
    ref = spooled([(first, 0), (second, 0), (first, 0)])
    assert dtypes(ref)[0] == dtype
    assert columns(ref)[0].tolist() == [first, second, first]


@pytest.mark.parametrize(
    ("row", "got"),
    [
        (7, "int"),
        (None, "NoneType"),
        (np.zeros(2), r"ndarray of shape \(2,\)"),
        ((1,), "tuple of 1"),
        ([1, 2, 3, 4], "list of 4"),
        ({"x": 1, "y": 2}, "dict of 2"),
        ("ab", "str"),
    ],
)
def test_not_a_pair(spooled: Spool, row: object, got: str) -> None:
    with pytest.raises(
        DataError,
        match=r"^partition 0, row 0: expected a pair \(features, label\) or a triple \(features, label, sample_weight\), "
        rf"got {got}\. Map the rows to pairs first",
    ):
        spooled([row])


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([(1, None)], "row 0: label 'y' expected a number, text or an array, got None"),
        ([((1, None), 1)], r"row 0: feature 'x\[1\]' expected .*, got None"),
        ([((), 1)], "row 0: feature 'x' expected .*, got an empty tuple or dict"),
        ([(1, 1), (1, 1, 0.5)], r"row 1: expected \(x, y\), as in the rows before, got \(x, y, sample_weight\)"),
        ([(1, 1, 0.5), (1, 1, None)], r"row 1: expected \(x, y, sample_weight\), as in the rows before, got \(x, y\)"),
        ([({"a": 1}, 1), ({"b": 1}, 1)], r"row 1: expected \(x\['a'\], y\), as in .*, got \(x\['b'\], y\)"),
        ([({"a": 1}, 1), ({"a": [1]}, 1)], r"row 1: feature \"x\['a'\]\" expected shape \(\), got \(1,\)"),
        ([([[1, 2], [3]], 1)], r"row 0: feature 'x' expected numbers or text in an array, got \[\[1, 2\], \[3\]\]"),
        ([([np.float32(1), [2]], 1)], r"row 0: expected numbers of one shape in a list"),
        ([(1j, 1)], "row 0: feature 'x' expected integers, floats, booleans or text, got dtype complex128"),
        ([(np.datetime64("2020-01-01"), 1)], "row 0: feature 'x' expected .*, got dtype datetime64"),
        ([([1, None], 1)], "row 0: feature 'x' expected .*, got (int|NoneType) in an array"),
        ([(["a", 1], 1)], r"row 0: feature 'x' expected .*, got int in an array of dtype object"),
        ([([Decimal(1), None], 1)], "row 0: feature 'x' expected .* got Decimal in an array"),
        ([(object(), 1)], "row 0: feature 'x' expected .* got object in an array"),
        ([(2**64, 1)], "row 0: feature 'x' expected .*, got int in an array"),
        (
            [Block((np.array([1.5, 2], object), np.ones(2)), 2)],
            r"rows from 0: .*, got float in an .*\. Convert it: x\.astype\('float32'\)\.$",
        ),
        (
            [Block((CELLS, np.ones(2)), 2)],
            r"rows from 0: .*, got ndarray in an .*\. Make one array of them: np\.stack\(x\)\.$",
        ),
        ([({0: 1}, 1)], r"row 0: expected the names of inputs as keys of a dict, got \[0\]"),
        ([("a", 1), (1, 1)], r"row 1: feature 'x' expected text, got numbers \(int64\)"),
        ([(1, 1), (1, "a")], r"row 1: label 'y' expected numbers \(int64\), got text"),
        ([(b"\xff", 1)], r"row 0: feature 'x' expected UTF-8 text, got b'\\xff'"),
        ([("\ud800", 1)], "row 0: feature 'x' expected UTF-8 text"),
        ([(b"\xff" * 10**6, 1)], r"row 0: feature 'x' expected UTF-8 text, got .{77}\.\.\.\.$"),
        ([(np.ma.array([1, 2], mask=[0, 1]), 1)], "row 0: feature 'x' has masked values.*: fill them"),
        ([Block((np.ma.array([1, 2], mask=[0, 1]), np.ones(2)), 2)], "rows from 0: feature 'x' has masked values"),
        ([(1, 1, "a")], "row 0: sample weight 'sample_weight' expected numbers, got text"),
    ],
)
def test_rows_that_do_not_fit(spooled: Spool, tmp_path: Path, rows: list[object], message: str) -> None:
    with pytest.raises(DataError, match=f"^validation partition 4, {message}"):
        spooled(rows, worker=4, place="validation partition")
    assert not list(tmp_path.iterdir())
