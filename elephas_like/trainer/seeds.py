"""The generators that draw weights, dropout and whatever a user's code draws, seeded for a while."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager

import keras
import numpy as np


@contextmanager
def seeded(seed: int, *more: int) -> Iterator[None]:
    """Keras', NumPy's and Python's generators begin at a seed; the last two go on from where they were at the end.

    Args:
        more: what else the seed follows from, such as a trial's number.
    """
    keep = np.random.get_state(), random.getstate()
    keras.utils.set_random_seed(int(np.random.SeedSequence([seed, *more]).generate_state(1)[0]) if more else seed)
    try:
        yield
    finally:
        np.random.set_state(keep[0])
        random.setstate(keep[1])
