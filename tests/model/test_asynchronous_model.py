"""AsynchronousSparkModel: the defaults and the order of arguments that Elephas gave it."""

from __future__ import annotations

import keras
import numpy as np

from elephas_like import AsynchronousSparkModel


def line() -> keras.Model:
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    return model


def test_the_asynchronous_model_is_asynchronous_by_default() -> None:
    spark_model = AsynchronousSparkModel(line(), 2, engine="in_process", seed=5)
    assert spark_model.get_config()["mode"] == "asynchronous"
    assert AsynchronousSparkModel(line(), mode="hogwild").get_config()["mode"] == "hogwild"
    history = spark_model.fit(np.ones((40, 2)), np.ones(40), epochs=2, verbose=0)
    assert len(history.history["loss"]) == 2
