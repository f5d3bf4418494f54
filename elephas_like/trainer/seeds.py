"""Seed the random generators of Keras, NumPy and Python for a while."""

from __future__ import annotations

import random
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace
from typing import Any

import keras
import numpy as np
from keras.src.backend.common import global_state
from keras.src.utils import rng_utils

from elephas_like.core.types import Integers
from elephas_like.trainer.tensors import assign


class _Users(threading.local):
    """How many `seeded` this thread is in."""

    depth = 0


_lock = threading.Lock()
_here = _Users()
_threads = 0
_before: tuple[Any, tuple[Any, ...]] = (None, ())
"""Threads that are in one, and the generators as the first of them found them: they are the process's."""


@contextmanager
def seeded(seed: int, *more: int, tensorflow: bool = False) -> Iterator[None]:
    """Seed the generators of Keras, NumPy and Python. NumPy's and Python's are restored at the end.

    Where several threads are in one, the last to leave restores what the first has found. TensorFlow's seed stays, for it does
    not say what it was.

    Args:
        more: further numbers that the seed is derived from, such as a trial's number.
        tensorflow: whether to import and seed TensorFlow, too, where it is installed beside another backend that Keras runs on.
    """
    global _threads, _before
    with _lock:
        outer = np.random.get_state(), random.getstate()
        derived = int(np.random.SeedSequence([seed, *more]).generate_state(1)[0]) if more else seed
        with nullcontext() if tensorflow or "tensorflow" in sys.modules else _without_tensorflow():
            keras.utils.set_random_seed(derived)
        if not _here.depth:
            if not _threads:
                _before = outer
            _threads += 1
        _here.depth += 1
    try:
        yield
    finally:
        with _lock:
            _here.depth -= 1
            if not _here.depth:
                _threads -= 1
            if _here.depth or not _threads:
                numpys, pythons = outer if _here.depth else _before
                np.random.set_state(numpys)
                random.setstate(pythons)


@contextmanager
def _without_tensorflow() -> Iterator[None]:
    """Let Keras set its seeds without TensorFlow, which it imports for that: 3 s, and 190,000 objects that Spark looks at after each task."""
    held = vars(rng_utils).get("tf")  # Keras' name for what it imports when it is asked whether that is available
    rng_utils.tf = SimpleNamespace(available=False)
    try:
        yield
    finally:
        rng_utils.tf = held


_GENERATOR = "global_seed_generator"
"""The name under which Keras keeps the process's generator; older versions have no constant for it."""


class Draws:
    """The generator of one compiled model for calls of `keras.random` that give no seed.

    A compiled loop keeps the generator with which it was traced, and Keras makes another one for the process whenever somebody sets a seed
    (`keras.utils.set_random_seed`, and so each new model here). So each model brings its own, and the process's stays as it is.
    """

    def __init__(self) -> None:
        self._generator = keras.random.SeedGenerator(0)

    @contextmanager
    def seeded(self, seeds: Integers) -> Iterator[None]:
        """Draw from two numbers, in this thread. Keras has no public name for the generator that it draws from."""
        before = global_state.get_global_attribute(_GENERATOR)
        assign(self._generator.state, seeds % 2**31)  # on PyTorch the generator's numbers have a sign
        global_state.set_global_attribute(_GENERATOR, self._generator)
        try:
            yield
        finally:
            global_state.set_global_attribute(_GENERATOR, before)
