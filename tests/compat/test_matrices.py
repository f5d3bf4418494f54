"""Matrices and vectors of both of Spark's packages."""

from __future__ import annotations

import numpy as np
import pytest
from pyspark.ml import linalg as ml
from pyspark.mllib import linalg as mllib

from elephas_like.compat.matrices import (
    from_matrix,
    from_vector,
    is_matrix,
    is_vector,
    like_matrix,
    like_vector,
    to_matrix,
    to_vector,
)

ARRAY = np.arange(6.0).reshape(2, 3)


def test_round_trips() -> None:
    np.testing.assert_array_equal(from_matrix(to_matrix(ARRAY)), ARRAY)
    np.testing.assert_array_equal(from_vector(to_vector(ARRAY[1])), ARRAY[1])
    np.testing.assert_array_equal(from_vector(mllib.Vectors.sparse(3, [1], [2.0])), [0, 2, 0])


def test_what_is_made_is_of_the_kind_that_came() -> None:
    for package in (ml, mllib):
        vector, matrix = package.Vectors.dense([1.0]), package.Matrices.dense(1, 1, [1.0])
        assert is_vector(vector)
        assert is_matrix(matrix)
        assert isinstance(like_vector(ARRAY[0], vector), package.DenseVector)
        assert isinstance(like_matrix(ARRAY, matrix), package.DenseMatrix)
        np.testing.assert_array_equal(like_matrix(ARRAY, matrix).toArray(), ARRAY)
    assert not is_vector([1.0])


def test_other_shapes_are_refused() -> None:
    with pytest.raises(ValueError, match=r"two axes; got shape \(3,\)"):
        to_matrix(ARRAY[0])
    with pytest.raises(ValueError, match=r"one axis; got shape \(2, 3\)"):
        to_vector(ARRAY)
