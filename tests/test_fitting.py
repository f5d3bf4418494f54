"""Which engine is taken, and why. What a fit does is in tests/test_spark_model.py and tests/integration."""

from __future__ import annotations

import logging

import keras
import numpy as np
import pytest

from elephas_like import SparkModel
from elephas_like.core.types import EngineName
from elephas_like.fitting import choose_engine


def settings(**options: object):
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    return SparkModel(model, num_workers=2, **options)._settings(2)


def test_without_spark_it_is_this_process_and_the_reason_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "elephas_like")
    assert choose_engine(settings(), None, 2, 1.0) == (EngineName.IN_PROCESS, 0)
    assert "no Spark session is active" in caplog.text


def test_what_was_asked_for_is_taken(sc) -> None:
    assert choose_engine(settings(engine="in_process"), sc, 2, 1.0)[0] is EngineName.IN_PROCESS
    assert choose_engine(settings(engine="jobs"), sc, 2, 1.0)[0] is EngineName.JOBS
    assert choose_engine(settings(engine="server"), sc, 99, 1.0) == (EngineName.SERVER, 2)


def test_auto_follows_mode_and_slots(sc) -> None:
    assert choose_engine(settings(), sc, 2, 1.0) == (EngineName.SERVER, 2)
    assert choose_engine(settings(), sc, 3, 1.0) == (EngineName.JOBS, 2)
    assert choose_engine(settings(mode="asynchronous"), sc, 3, 1.0) == (EngineName.SERVER, 2)


def test_rows_that_are_all_held_out_or_missing_are_said() -> None:
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    few = SparkModel(model, num_workers=2, engine="in_process")
    with pytest.raises(ValueError, match="leaves no validation rows"):
        few.fit(np.zeros((4, 1)), np.zeros(4), validation_split=0.1, verbose=0)
