"""Arithmetic on weights as Keras' `get_weights()` gives them: lists of arrays, one by one. Nothing is changed in place."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from elephas_like.core.types import Array

Weights = list[Array]


def add_params(left: Sequence[Array], right: Sequence[Array]) -> Weights:
    """The sums of two lists of arrays of the same shapes."""
    return [np.asarray(np.add(one, other)) for one, other in _both(left, right)]


def subtract_params(left: Sequence[Array], right: Sequence[Array]) -> Weights:
    """The differences of two lists of arrays of the same shapes, left minus right."""
    return [np.asarray(np.subtract(one, other)) for one, other in _both(left, right)]


def get_neutral(arrays: Sequence[Array]) -> Weights:
    """Zeros of the shapes and dtypes of a list of arrays: what adding to it does not change."""
    return [np.zeros_like(array) for array in arrays]


def divide_by(arrays: Sequence[Array], num_workers: float) -> Weights:
    """A list of arrays, each divided by a number."""
    return [np.asarray(np.true_divide(array, num_workers)) for array in arrays]


def average_and_subtract(base: Sequence[Array], deltas: Sequence[Sequence[Array]]) -> Weights:
    """Base - (1/n) sum_i delta_i, array by array; a copy of `base` where there are no deltas.

    Integer arrays (counters, seeds) stay integers: the mean is rounded to the nearest one.

    Args:
        base: weights before training.
        deltas: of each worker, before minus after, in the order and shapes of `base`.
    """
    if not deltas:
        return [np.array(array) for array in base]
    total = [np.array(array) for array in deltas[0]]
    _both(base, total)
    for delta in deltas[1:]:
        total = add_params(total, delta)
    return [_less(array, summed, len(deltas)) for array, summed in zip(base, total, strict=True)]


def _less(array: Array, summed: Array, count: int) -> Array:
    mean = np.true_divide(summed, count)
    if array.dtype.kind in "iub":
        mean = np.rint(mean)
    return np.asarray(np.subtract(array, mean)).astype(array.dtype)


def _both(left: Sequence[Array], right: Sequence[Array]) -> list[tuple[Array, Array]]:
    """The pairs of two lists that fit.

    Raises:
        ValueError: naming the first arrays that do not.
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
