"""Probabilities of classifiers: which softmax is not the last layer's activation by Keras' name, and losses in lists."""

from __future__ import annotations

from collections.abc import Callable

import keras
import numpy as np
import pytest
from stable_ids import named

from elephas_like import ElephasTransformer, register_keras_udf

X = np.random.default_rng(0).normal(size=(6, 4)).astype("float32")


@pytest.fixture(scope="module")
def df(spark):
    return spark.createDataFrame([(x.tolist(),) for x in X], ["features"])


def operation(x: keras.KerasTensor) -> keras.KerasTensor:
    return keras.ops.softmax(keras.layers.Dense(3)(x))


def mean_of_two(x: keras.KerasTensor) -> keras.KerasTensor:
    return keras.layers.Average()([keras.layers.Dense(3, "softmax")(x) for _ in range(2)])


@pytest.mark.parametrize("end", [operation, mean_of_two], ids=named)
def test_probabilities_are_what_the_model_puts_out(spark, df, end: Callable) -> None:
    keras.utils.set_random_seed(1)
    x = keras.Input((4,))
    model = keras.Model(x, end(x))
    model.compile("sgd", "sparse_categorical_crossentropy")
    expected = model.predict(X, verbose=0)
    rows = ElephasTransformer(model).transform(df).collect()
    np.testing.assert_allclose([row.probability.toArray() for row in rows], expected, rtol=1e-4)
    np.testing.assert_allclose([row.rawPrediction.toArray() for row in rows], np.log(expected), rtol=1e-3, atol=1e-4)
    function = register_keras_udf(spark, "probabilities", model, output="probability")
    np.testing.assert_allclose([row[0] for row in df.select(function("features")).collect()], expected, rtol=1e-4)


def test_a_loss_in_a_list_or_dict_makes_the_same_columns(df) -> None:
    loss = keras.losses.BinaryCrossentropy(from_logits=True)
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1, name="out")])
    found = []
    for given in (loss, [loss], {"out": loss}):
        model.compile("sgd", given)
        found.append(ElephasTransformer(model).transform(df).collect())
    assert found[0][0].probability.size == 2
    assert found[0] == found[1] == found[2]
