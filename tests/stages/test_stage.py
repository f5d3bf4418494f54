"""What both stages check: one model, and a DataFrame."""

from __future__ import annotations

import numpy as np
import pytest
from frame_data import mlp

from elephas_like import ElephasEstimator, ElephasTransformer


def test_a_model_is_given_once() -> None:
    model = mlp(2, 1, None, "mse")
    for kind in (ElephasEstimator, ElephasTransformer):
        with pytest.raises(ValueError, match="give a model or keras_model_config, not both"):
            kind(model, keras_model_config=model.to_json())
    with pytest.raises(ValueError, match="weights= goes with keras_model_config"):
        ElephasTransformer(model, weights=model.get_weights())


def test_data_of_another_kind_is_named() -> None:
    model = mlp(2, 1, None, "mse")
    for use in (ElephasEstimator(model).fit, ElephasTransformer(model).transform):
        with pytest.raises(TypeError, match=r"expected a Spark DataFrame, got numpy\.ndarray; spark\.createDataFrame"):
            use(np.zeros((2, 2)))
