from __future__ import annotations

import numpy as np

from elephas_like.core.scores import add


def test_sums_of_totals_and_counts() -> None:
    # losses 6 over 2 rows and 1 over 8 rows: 7 over 10, a mean of 0.7, where the mean of the means would be 1.5625
    total = add([np.array([6.0, 2.0]), np.array([1.0, 8.0])])
    assert total.tolist() == [7.0, 10.0]


def test_workers_that_trained_nothing_count_as_zero() -> None:
    assert add([np.zeros(0), np.array([1.0, 2.0]), np.zeros(0), np.array([3.0, 4.0])]).tolist() == [4.0, 6.0]


def test_nothing_at_all() -> None:
    assert add([]).size == 0
    assert add(iter([np.zeros(0), np.zeros(0)])).size == 0


def test_the_first_state_is_not_changed() -> None:
    first = np.array([1.0, 2.0])
    add([first, first])
    assert first.tolist() == [1.0, 2.0]


def test_counts_beyond_float32() -> None:
    many = np.array([2.0**24], np.float32)
    assert add([many, np.array([1.0])]).tolist() == [16777217.0]  # float32 would give 16777216
    assert add([many]).dtype == np.float64
