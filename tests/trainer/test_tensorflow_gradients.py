"""Custom gradients are unregistered with the graphs that they are of, and stay where a function has them that models share."""

from __future__ import annotations

from collections.abc import Callable

import keras
import pytest
import tensorflow as tf

from elephas_like.trainer.inference import Predicting
from elephas_like.trainer.spec import ModelSpec
from trainer.small import operations
from trainer.test_tensorflow_loop import X, compiled, trained


def half() -> Callable[[tf.Tensor], tf.Tensor]:
    """A `tf.function`, not traced yet, with a gradient of its own."""
    halved = tf.custom_gradient(lambda x: (x / 2, lambda up: up * 3.0))
    return tf.function(lambda x: halved(x), input_signature=[tf.TensorSpec((None, None))])


@keras.saving.register_keras_serializable("tests")
class Halved(keras.layers.Layer):
    """Half of its input, by a `tf.function` that its models share and a loop, which have gradients of their own."""

    def compute_output_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """That of the input: else Keras would find it by a graph, which would stay for its custom gradients."""
        return shape

    half = staticmethod(half())

    def call(self, x: tf.Tensor) -> tf.Tensor:
        doubled = tf.custom_gradient(lambda x: (x * 2, lambda up: up * 5.0))
        return tf.while_loop(lambda step, _: step < 2, lambda step, x: (step + 1, doubled(x) / 2), (0, self.half(x)))[1]


def test_those_of_a_model_go_with_it() -> None:
    trained(compiled(keras.layers.Dense(3), Halved()))
    before = operations()
    assert trained(compiled(keras.layers.Dense(3), Halved())) - before > 20
    assert operations() <= before


def test_a_function_that_models_share_keeps_its_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is traced by the predictions of a model that is gone before another one is trained with it."""
    predicting = Predicting(ModelSpec.from_model(compiled(keras.layers.Dense(3), Halved())).build())
    monkeypatch.setattr(Halved, "half", staticmethod(half()))  # building has traced the one before
    assert list(predicting(X, 12, 3))
    del predicting
    assert operations() < trained(compiled(keras.layers.Dense(3), Halved()))
