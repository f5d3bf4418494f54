"""Arithmetic on lists of arrays, by hand."""

from __future__ import annotations

import numpy as np
import pytest

from elephas_like.compat.weight_lists import add_params, average_and_subtract, divide_by, get_neutral, subtract_params

ONE = [np.array([1.0, 2.0]), np.array([[3.0]]), np.array(4.0)]
TWO = [np.array([10.0, 20.0]), np.array([[30.0]]), np.array(40.0)]


def plain(weights: list[np.ndarray]) -> list[object]:
    return [weight.tolist() for weight in weights]


def test_lists_are_added_subtracted_divided() -> None:
    assert plain(add_params(ONE, TWO)) == [[11.0, 22.0], [[33.0]], 44.0]
    assert plain(subtract_params(TWO, ONE)) == [[9.0, 18.0], [[27.0]], 36.0]
    assert plain(divide_by(TWO, 4)) == [[2.5, 5.0], [[7.5]], 10.0]
    assert plain(get_neutral(ONE)) == [[0.0, 0.0], [[0.0]], 0.0]
    assert [weight.shape for weight in add_params(ONE, TWO)] == [(2,), (1, 1), ()]


def test_the_mean_of_deltas_is_subtracted_and_nothing_is_changed() -> None:
    base = [np.array([10.0, 20.0], "float32")]
    deltas = [[np.array([1.0, 2.0], "float32")], [np.array([3.0, 6.0], "float32")]]
    assert plain(average_and_subtract(base, deltas)) == [[8.0, 16.0]]
    assert plain(base) == [[10.0, 20.0]]
    assert plain(deltas[0]) == [[1.0, 2.0]]
    copy = average_and_subtract(base, [])
    assert plain(copy) == plain(base)
    assert copy[0] is not base[0]
    assert average_and_subtract(base, deltas)[0].dtype == np.float32


def test_counters_stay_whole() -> None:
    (found,) = average_and_subtract([np.array([5, 10])], [[np.array([-4, -1])], [np.array([-2, -2])]])
    assert found.dtype == np.int64
    assert found.tolist() == [8, 12]  # 10 + 1.5 is halfway, and numpy rounds to the even one


def test_lists_that_do_not_fit_are_named() -> None:
    with pytest.raises(ValueError, match="expected two lists of as many arrays, got 3 and 1"):
        add_params(ONE, ONE[:1])
    with pytest.raises(ValueError, match=r"differ at index 0: expected shape \(2,\), got \(3,\)"):
        subtract_params(ONE[:1], [np.zeros(3)])
    with pytest.raises(ValueError, match="index 0"):
        average_and_subtract(ONE[:1], [[np.zeros(3)]])
