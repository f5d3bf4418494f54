"""Generators are the process's: whoever borrows them puts them back."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import numpy as np

from elephas_like.trainer.seeds import seeded


def drawn() -> tuple[float, float]:
    return float(np.random.random()), random.random()


def test_an_inner_seed_gives_back_the_outer_one() -> None:
    with seeded(1):
        expected = drawn(), drawn()
    before = np.random.get_state()[1].tolist()
    with seeded(1):
        first = drawn()
        with seeded(2):
            other = drawn()
        assert (first, drawn()) == expected
    assert other not in expected
    assert np.random.get_state()[1].tolist() == before


def test_threads_that_overlap_leave_the_generators_as_they_found_them() -> None:
    step = Barrier(2, timeout=60)
    before = np.random.get_state()[1].tolist(), random.getstate()

    def first() -> None:
        with seeded(1):
            step.wait()
            step.wait()  # the other has seeded, too

    def second() -> None:
        step.wait()
        with seeded(2):
            step.wait()
            one.result()  # it has left

    with ThreadPoolExecutor(2) as pool:
        one = pool.submit(first)
        pool.submit(second).result()
    assert (np.random.get_state()[1].tolist(), random.getstate()) == before
