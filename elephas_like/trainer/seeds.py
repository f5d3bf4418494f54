"""Seed the random generators of Keras, NumPy and Python for a while."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager

import keras
import numpy as np


@contextmanager
def seeded(seed: int, *more: int) -> Iterator[None]:
    """Seed the generators of Keras, NumPy and Python. NumPy's and Python's are restored at the end.

    Args:
        more: further numbers that the seed is derived from, such as a trial's number.
    """
    keep = np.random.get_state(), random.getstate()
    keras.utils.set_random_seed(int(np.random.SeedSequence([seed, *more]).generate_state(1)[0]) if more else seed)
    try:
        yield
    finally:
        np.random.set_state(keep[0])
        random.setstate(keep[1])
