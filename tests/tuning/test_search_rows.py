"""Rows of a search: what is none is refused before a model is built."""

from __future__ import annotations

import keras
import numpy as np
import pandas as pd
import pytest
from small_search import SPACE, build, cancer

from elephas_like import search


@pytest.mark.parametrize(
    ("data", "error", "said"),
    [
        (np.ones(3), TypeError, "data must be"),
        ((), ValueError, "data must be"),
        ((np.ones((0, 30)), np.ones(0)), ValueError, "no rows"),
        ((np.ones((3, 30)), np.ones(2)), ValueError, "same number of rows"),
        (pd.DataFrame({"x": [1]}), TypeError, "data must be"),
    ],
)
def test_bad_data_is_refused(data: object, error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said):
        search(build, SPACE, data, max_evals=1, epochs=1, objective="loss", verbose=0)


def test_data_of_the_wrong_kind_is_refused_before_a_model_is_built() -> None:
    def never(params: dict) -> keras.Model:
        raise AssertionError("a model was built")

    with pytest.raises(TypeError, match="generators, loaders and iterators live on one machine"):
        search(never, SPACE, (row for row in ()), max_evals=1, verbose=0, objective="loss")
    with pytest.raises(TypeError, match="validation_data must be"):
        search(never, SPACE, cancer(), max_evals=1, verbose=0, validation_data=3)


def test_validation_data_without_rows_is_refused() -> None:
    x, y = cancer()
    with pytest.raises(ValueError, match="validation_data has no rows"):
        search(build, SPACE, (x, y), max_evals=1, epochs=1, verbose=0, validation_data=(x[:0], y[:0]))
