"""What `predict` and `evaluate` of a SparkModel give for arrays, and what they refuse. test_predict.py has rows on executors."""

from __future__ import annotations

import keras
import numpy as np
import pytest

from elephas_like import SparkModel

RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(50, 4)).astype("float32")
Y = (X.sum(axis=1, keepdims=True) + RANDOM.normal(0, 0.1, (50, 1))).astype("float32")


def mlp() -> keras.Model:
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(6, activation="tanh"), keras.layers.Dense(1)])
    model.compile("adam", "mse", metrics=["mae"])
    return model


def test_arguments_that_evaluate_does_not_have_get_the_nearest_of_its_own() -> None:
    spark_model = SparkModel(mlp(), engine="in_process")
    with pytest.raises(TypeError, match=r"unexpected argument 'batch_sizes'\. Did you mean 'batch_size'"):
        spark_model.evaluate(X, Y, batch_sizes=3)
    with pytest.raises(TypeError, match=r"unexpected argument 'epochs'\.$"):
        spark_model.evaluate(X, Y, epochs=2)
    with pytest.raises(TypeError, match=r"unexpected argument 'batchsize'\. Did you mean 'batch_size'"):
        spark_model.predict(X, batchsize=3)
    with pytest.raises(ValueError, match="steps= is not supported: all rows are predicted and evaluated"):
        spark_model.predict(X, steps=3)


def test_arrays_are_predicted_and_evaluated_as_keras_does() -> None:
    model = mlp()
    spark_model = SparkModel(model, 2, engine="in_process", batch_size=8)
    np.testing.assert_allclose(spark_model.predict(X), model.predict(X, verbose=0), atol=1e-6)
    assert spark_model.evaluate(X, Y) == pytest.approx(model.evaluate(X, Y, verbose=0), abs=1e-6)
    assert spark_model.evaluate(x_test=X, y_test=Y, return_dict=True).keys() == {"loss", "mae"}
    with_loss_alone = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    with_loss_alone.compile("adam", "mse")
    assert isinstance(SparkModel(with_loss_alone).evaluate(X, Y), float)
    with pytest.raises(ValueError, match="collect=False needs an RDD"):
        spark_model.predict(X, collect=False)
