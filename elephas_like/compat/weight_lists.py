"""Arithmetic on weights in Keras' `get_weights()` form: lists of arrays, element by element.

Nothing is changed in place.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from elephas_like.core.types import Array

Weights = list[Array]


def add_params(left: Sequence[Array], right: Sequence[Array]) -> Weights:
    """Return the sums of two lists of arrays of the same shapes."""
    return [np.asarray(np.add(one, other)) for one, other in _pairs_of_equal_shape(left, right)]


def subtract_params(left: Sequence[Array], right: Sequence[Array]) -> Weights:
    """Return the differences of two lists of arrays of the same shapes, left minus right."""
    return [np.asarray(np.subtract(one, other)) for one, other in _pairs_of_equal_shape(left, right)]


def get_neutral(arrays: Sequence[Array]) -> Weights:
    """Return zeros of the shapes and dtypes of a list of arrays, the neutral element of addition."""
    return [np.zeros_like(array) for array in arrays]


def divide_by(arrays: Sequence[Array], num_workers: float) -> Weights:
    """Return a list of arrays, each divided by a number."""
    return [np.asarray(np.true_divide(array, num_workers)) for array in arrays]


def average_and_subtract(base: Sequence[Array], deltas: Sequence[Sequence[Array]]) -> Weights:
    """Return base - (1/n) sum_i delta_i, array by array; without deltas a copy of `base`.

    Integer arrays (counters, seeds) stay integers: the mean is rounded to the nearest one.

    Args:
        base: weights before training.
        deltas: one list per worker, before minus after, in the order and shapes of `base`.
    """
    if not deltas:
        return [np.array(array) for array in base]
    total = [np.array(array) for array in deltas[0]]
    _pairs_of_equal_shape(base, total)
    for delta in deltas[1:]:
        total = add_params(total, delta)
    return [_minus_mean(array, summed, len(deltas)) for array, summed in zip(base, total, strict=True)]


def _minus_mean(array: Array, summed: Array, count: int) -> Array:
    mean = np.true_divide(summed, count)
    if array.dtype.kind in "iub":
        mean = np.rint(mean)
    return np.asarray(np.subtract(array, mean)).astype(array.dtype)


def _pairs_of_equal_shape(left: Sequence[Array], right: Sequence[Array]) -> list[tuple[Array, Array]]:
    """Return the pairs of two lists of arrays with the same shapes.

    Raises:
        ValueError: naming the first arrays that differ.
    """
    if len(left) != len(right):
        raise ValueError(f"expected two lists of as many arrays, got {len(left)} and {len(right)}.")
    for index, (one, other) in enumerate(zip(left, right, strict=True)):
        if np.shape(one) != np.shape(other):
            raise ValueError(
                f"the lists differ at index {index}: expected shape {np.shape(one)}, got {np.shape(other)}. "
                "Do they come from the same architecture?"
            )
    return list(zip(left, right, strict=True))
