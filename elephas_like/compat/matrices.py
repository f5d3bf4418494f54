"""Convert matrices and vectors of `pyspark.mllib` and `pyspark.ml` to arrays and back."""

from __future__ import annotations

from typing import Any

import numpy as np
from pyspark.ml import linalg as ml
from pyspark.mllib import linalg as mllib

from elephas_like.core.types import Array


def from_matrix(matrix: mllib.Matrix | ml.Matrix) -> Array:
    """Return the array of a matrix, shape (rows, columns), float64; a sparse matrix becomes dense."""
    array: Array = matrix.toArray()
    return array


def to_matrix(np_array: Array) -> mllib.DenseMatrix:
    """Return the dense MLlib matrix of an array with two axes; `from_matrix` is the inverse.

    Raises:
        ValueError: the array has another number of axes.
    """
    array = _of_axes(np_array, 2, "an MLlib matrix")
    return mllib.Matrices.dense(*array.shape, array.ravel(order="F"))  # MLlib stores columns one after the other


def from_vector(vector: mllib.Vector | ml.Vector) -> Array:
    """Return the array of a vector, shape (size,), float64; a sparse vector becomes dense."""
    array: Array = vector.toArray()
    return array


def to_vector(np_array: Array) -> mllib.DenseVector:
    """Return the dense MLlib vector of an array with one axis.

    Raises:
        ValueError: the array has another number of axes.
    """
    return mllib.Vectors.dense(_of_axes(np_array, 1, "an MLlib vector"))


def is_matrix(thing: object) -> bool:
    """Return whether an object is a matrix of either package."""
    return isinstance(thing, mllib.Matrix | ml.Matrix)


def is_vector(thing: object) -> bool:
    """Return whether an object is a vector of either package."""
    return isinstance(thing, mllib.Vector | ml.Vector)


def like_vector(array: Array, kind: object) -> Any:
    """Return the dense vector of an array, of the same package as `kind`."""
    return ml.Vectors.dense(array) if isinstance(kind, ml.Vector) else to_vector(array)


def like_matrix(array: Array, kind: object) -> Any:
    """Return the dense matrix of an array, of the same package as `kind`."""
    if isinstance(kind, ml.Matrix):
        two = _of_axes(array, 2, "a matrix")
        return ml.Matrices.dense(*two.shape, two.ravel(order="F"))
    return to_matrix(array)


def _of_axes(given: Array, axes: int, what: str) -> Array:
    array = np.asarray(given)
    if array.ndim != axes:
        words = {1: "one axis", 2: "two axes"}
        raise ValueError(f"{what} is made from an array of {words[axes]}; got shape {array.shape}.")
    return array
