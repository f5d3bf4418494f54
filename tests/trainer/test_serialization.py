"""A model as a dict."""

from __future__ import annotations

import keras
import numpy as np

from elephas_like.trainer.serialization import dict_to_model, model_to_dict, write_weights

from .small import mlp


@keras.saving.register_keras_serializable("mine_of_serialization")
class Doubled(keras.layers.Layer):
    def call(self, x):
        return 2 * x


def test_a_model_goes_through_a_dict() -> None:
    model = mlp()
    plain = model_to_dict(model)
    assert list(plain) == ["model", "weights"]
    rows = np.ones((2, 4), "float32")
    np.testing.assert_array_equal(dict_to_model(plain).predict(rows, verbose=0), model.predict(rows, verbose=0))


def test_weights_of_normalization_are_those_it_computes_with() -> None:
    """Keras' set_weights writes them, and leaves the constants that the layer has made of others."""
    layer = keras.layers.Normalization()
    layer.adapt(np.array([[0.0], [4.0]]))  # mean 2, variance 4
    model = keras.Sequential([keras.Input((1,)), keras.Sequential([layer])])
    assert dict_to_model(model_to_dict(model)).predict(np.array([[6.0]]), verbose=0).tolist() == [[2.0]]
    write_weights(model, [np.array([4.0]), np.array([0.25]), np.array(0)])
    assert model.predict(np.array([[6.0]]), verbose=0).tolist() == [[4.0]]
    compiled = model.predict_function
    write_weights(model, model.get_weights())  # as a worker does at each exchange
    assert model.predict_function is compiled


def test_custom_objects_are_found() -> None:
    model = keras.Sequential([keras.Input((2,)), Doubled()])
    found = dict_to_model(model_to_dict(model), {"Doubled": Doubled})
    assert found.predict(np.ones((1, 2)), verbose=0).tolist() == [[2.0, 2.0]]
