"""Columns of a pandas UDF's batch, as Arrow arrays of the types that Spark's own would have."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from elephas_like.rows.series import VECTOR_FIELDS, from_pandas
from elephas_like.rows.vectors import vectors

NUMBERS, LISTS = pa.float64(), pa.list_(pa.float64())


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (pa.array([1, 2]), pa.array([1, 2])),
        (pa.array([1, None]), pa.array([1.0, None])),  # pandas' ints hold no null
        (pa.array([1.0, float("nan")]), pa.array([1.0, None])),
        (pa.array([True, False]), pa.array([True, False])),
        (pa.array(["a", None]), pa.array(["a", None])),
        (pa.array([b"ab", b""]), pa.array([b"ab", b""])),
        (pa.array([[1.0, 2.0], [3.0]]), pa.array([[1.0, 2.0], [3.0]])),
        (pa.array([[[1.0], [2.0]]]), pa.array([[[1.0], [2.0]]])),
        (pa.array([[1.0, None]]), pa.array([[1.0, None]])),
        (pa.array([None, None], NUMBERS), pa.array([None, None], NUMBERS)),
        (pa.array([None], pa.string()), pa.array([None], NUMBERS)),
        (pa.array([], LISTS), pa.array([], NUMBERS)),
    ],
    ids=str,
)
def test_a_column_survives_pandas(given: pa.Array, expected: pa.Array) -> None:
    found = from_pandas(given.to_pandas())
    assert found.to_pylist() == expected.to_pylist()
    assert found.type == expected.type or (found.type, given.type) == (pa.large_string(), pa.string())  # of pandas 3


def test_vectors_dense_sparse_and_null_survive_pandas() -> None:
    rows = [
        {"type": 1, "size": None, "indices": None, "values": [1.0, 2.0]},
        {"type": 0, "size": 2, "indices": [1], "values": [5.0]},
    ]
    kind = pa.struct(list(VECTOR_FIELDS.items()))

    def as_spark_hands_it_over(array: pa.StructArray) -> pd.DataFrame:
        return pd.concat(
            [part.to_pandas().rename(name) for part, name in zip(array.flatten(), VECTOR_FIELDS, strict=True)], axis=1
        )

    whole = from_pandas(as_spark_hands_it_over(pa.array(rows, kind)))
    assert whole.type == kind
    np.testing.assert_array_equal(vectors(whole, "float32"), [[1, 2], [0, 5]])
    dense = from_pandas(as_spark_hands_it_over(pa.array(rows[:1], kind)))  # size and indices are null throughout
    assert dense.type == kind
    np.testing.assert_array_equal(vectors(dense, "float32"), [[1, 2]])
    assert from_pandas(as_spark_hands_it_over(pa.array([rows[0], None], kind))).is_null().to_pylist() == [False, True]
