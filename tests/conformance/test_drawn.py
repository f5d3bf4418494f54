"""Models, optimizers, rows and what is done with them, drawn by a seed: one worker and Keras come to the same bits.

ELEPHAS_LIKE_DRAWS=300 draws so many, from seed 0 on.
"""

from __future__ import annotations

import os

import keras
import numpy as np
import pytest

from conformance.compare import by_keras, by_spark_model, difference, graphs_as_written
from conformance.drawn import drawn
from conformance.lives import lived

FEW = 2 if keras.backend.backend() == "jax" else 4  # JAX compiles for ten seconds each
DRAWS = os.environ.get("ELEPHAS_LIKE_DRAWS")


@pytest.mark.parametrize("seed", range(int(DRAWS or FEW)))
def test_one_worker_trains_what_keras_trains_whatever_is_drawn(seed: int) -> None:
    words = []

    def make() -> tuple[object, tuple[object, ...]]:
        model, rows, said = drawn(seed)
        words.append(said)
        return model, rows

    with graphs_as_written():
        found = difference(by_keras(make), by_spark_model(make), exact=True)
    assert not found, f"{words[0]}: {found}"


@pytest.mark.parametrize("seed", range(int(DRAWS or FEW // 2)))
def test_one_worker_is_keras_whatever_is_done_with_a_model(seed: int) -> None:
    with graphs_as_written():
        theirs, ours = (lived(seed, with_spark_model=spark) for spark in (False, True))
    assert ours[1] == theirs[1], theirs[2]
    for name, part in theirs[0].items():
        np.testing.assert_array_equal(ours[0][name], part, err_msg=f"{name}: {theirs[2]}")
