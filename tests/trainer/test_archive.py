"""Keras' archive, for files that people keep: what it can hold is saved whole, and what it cannot is said."""

from __future__ import annotations

from pathlib import Path

import keras
import numpy as np
import pytest

from elephas_like.core.errors import ElephasError
from elephas_like.trainer.archive import architecture, archive_of, custom_objects_of, lambdas_of


def small(*layers: keras.layers.Layer) -> keras.Model:
    model = keras.Sequential([keras.Input((3,)), *layers])
    model.compile("adam", "mse")
    return model


class Silent(keras.layers.Layer):
    def __init__(self, factor: object) -> None:
        super().__init__()
        self.factor = factor

    def call(self, x):
        return x


class Own(keras.Sequential):
    def compile(self, optimizer, distance) -> None:
        super().compile(optimizer=optimizer, loss=distance)


def bent(x):
    return keras.ops.maximum(0.3 * x, x)


def helper(x):
    return (lambda y: 2 * y)(x)


def test_an_archive_is_loaded_by_keras(tmp_path: Path) -> None:
    model = small(keras.layers.Dense(1))
    model.optimizer.build(model.trainable_variables)
    (tmp_path / "model.keras").write_bytes(archive_of(model))
    again = keras.saving.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(again.get_weights()[0], model.get_weights()[0])
    assert type(again.optimizer) is keras.optimizers.Adam


def test_a_layer_without_get_config_is_refused_with_what_to_do() -> None:
    with pytest.raises(ElephasError, match="get_config"):
        archive_of(small(Silent(object()), keras.layers.Dense(1)))


def test_a_model_with_its_own_compile_is_refused_with_what_to_do() -> None:
    """Keras does not compile it on loading: it says so in a warning, and the loaded model would have no optimizer."""
    model = Own([keras.Input((3,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    with pytest.raises(ElephasError, match="compile_from_config"):
        archive_of(model)


def test_saving_leaves_the_names_of_lambdas_as_they_were() -> None:
    double = lambda x: 2 * x  # noqa: E731
    archive_of(small(keras.layers.Lambda(double), keras.layers.Dense(1)))
    assert double.__name__ == "<lambda>"


def test_what_a_model_refers_to_itself_and_nothing_that_its_functions_use() -> None:
    model = small(keras.layers.Dense(2, activation=bent), keras.layers.Dense(1, activation=helper))
    assert custom_objects_of(model) == {"bent": bent, "helper": helper}
    assert lambdas_of(model) == {}
    assert custom_objects_of(small(keras.layers.Dense(1))) == {}


def test_an_architecture_is_what_is_computed_whatever_its_names() -> None:
    plain, again = small(keras.layers.Dense(2)), small(keras.layers.Dense(2, kernel_regularizer="l2"))
    assert architecture(plain) == architecture(again)
    assert architecture(plain) != architecture(small(keras.layers.Dense(2, "relu")))
    dropping = [small(keras.layers.Dense(2), keras.layers.Dropout(rate)) for rate in (0.1, 0.5)]
    assert architecture(dropping[0]) == architecture(dropping[1])


def test_convolutions_of_another_dilation_are_another_architecture() -> None:
    def dilated(rate: int) -> keras.Model:
        model = keras.Sequential([keras.Input((8, 1)), keras.layers.Conv1D(1, 3, padding="same", dilation_rate=rate)])
        model.compile("sgd", "mse")
        return model

    assert architecture(dilated(1)) != architecture(dilated(2))
