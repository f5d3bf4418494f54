"""Models, optimizers and rows that are drawn by a seed train with one worker as with Keras.

ELEPHAS_LIKE_DRAWS=300 draws so many, from seed 0 on.
"""

from __future__ import annotations

import os

import keras
import pytest

from conformance.compare import EXACT, by_keras, by_spark_model, difference, graphs_as_written
from conformance.drawn import drawn

FEW = 4 if keras.backend.backend() == "jax" else 8  # JAX compiles for ten seconds each


@pytest.mark.parametrize("seed", range(int(os.environ.get("ELEPHAS_LIKE_DRAWS", FEW))))
def test_one_worker_trains_what_keras_trains_whatever_is_drawn(seed: int) -> None:
    words = []

    def make() -> tuple[object, tuple[object, ...]]:
        model, rows, said = drawn(seed)
        words.append(said)
        return model, rows

    with graphs_as_written():
        found = difference(by_keras(make), by_spark_model(make), exact=EXACT)
    assert not found, f"{words[0]}: {found}"
