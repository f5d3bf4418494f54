"""What only TensorFlow can compute with is found in a model's layers and code, and in rows, whatever Keras runs on here."""

from __future__ import annotations

import keras
import numpy as np
import pytest

from elephas_like.core.errors import ElephasError
from elephas_like.trainer.backends.foreign_code import (
    check_no_tensorflow,
    own_steps,
    requires_state,
    takes_state,
    without_text,
)
from trainer.small import mlp


class StringLookup(keras.layers.Layer):
    """As Keras' own, by its name."""


def imports_it(y_true, y_pred):
    import tensorflow.math as tm

    return tm.abs(y_true - y_pred)


def uses_keras_only(y_true, y_pred):
    return keras.ops.abs(y_true - y_pred)


def test_layers_and_functions_of_tensorflow_are_refused_by_name() -> None:
    model = mlp()
    check_no_tensorflow(model, [model, *model.layers, uses_keras_only], "JAX")
    for thing, said in (
        (
            StringLookup(name="words"),
            r"layer 'words' .* is a StringLookup, which computes with TensorFlow.*runs on JAX\. Convert",
        ),
        (
            imports_it,
            r"imports_it of the model 'sequential.*' uses TensorFlow, and this Keras runs on JAX\. Use keras\.ops, or set KERAS",
        ),
    ):
        with pytest.raises(ElephasError, match=said):
            check_no_tensorflow(model, [thing], "JAX")


def asks_first(y_true, y_pred):
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        return tf.abs(y_true - y_pred)
    return keras.ops.abs(y_true - y_pred)


def test_code_that_asks_for_the_backend_is_trusted() -> None:
    check_no_tensorflow(mlp(), [asks_first], "JAX")


def test_packages_of_keras_own_team_are_trusted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the models of keras-hub use TensorFlow, it is for text that they generate, not to train."""
    monkeypatch.setattr(imports_it, "__module__", "keras_hub.src.models.causal_lm")
    check_no_tensorflow(mlp(), [imports_it], "JAX")


class Optional(keras.Model):
    def train_step(self, data, scale=1.0):
        return {}

    def test_step(self, *data):
        return {}


def test_a_step_that_the_data_is_enough_for_requires_no_state() -> None:
    found = [requires_state(step) for kind in (Stateless, Optional) for _, step in own_steps(kind())]
    assert found == [True, False, False]


class Stateless(keras.Model):
    def train_step(self, state, data):
        return {}, state


class Stateful(keras.Model):
    def train_step(self, data):
        return {}

    def test_step(self, *data):
        return {}


def test_the_form_of_a_step_is_read_from_its_arguments() -> None:
    found = {name: takes_state(step) for kind in (Stateless, Stateful) for name, step in own_steps(kind())}
    assert found == {"Stateless.train_step": True, "Stateful.train_step": False, "Stateful.test_step": True}


def test_text_is_refused_and_numbers_pass() -> None:
    numbers = {"a": np.zeros(2), "b": np.array([1, 2], dtype=object)}
    assert without_text(numbers, "PyTorch") is numbers
    with pytest.raises(ElephasError, match=r"^Keras on PyTorch computes with numbers, and the rows hold text"):
        without_text({"a": np.zeros(2), "b": np.array(["x"])}, "PyTorch")
