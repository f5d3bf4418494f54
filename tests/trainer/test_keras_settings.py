"""Keras' global settings go where models are built; Keras keeps one of them for each thread."""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import keras
import numpy as np
import pytest
import tensorflow as tf

from elephas_like.trainer.keras_settings import KerasSettings
from elephas_like.trainer.programs import Program
from elephas_like.trainer.spec import ModelSpec


@pytest.fixture
def others() -> Iterator[KerasSettings]:
    """Settings that are not Keras' own, in this thread."""
    before = KerasSettings.current()
    keras.config.set_image_data_format("channels_first")
    keras.config.set_epsilon(1e-3)
    keras.config.set_dtype_policy("mixed_bfloat16")
    yield KerasSettings.current()
    before.apply()
    keras.config.set_dtype_policy("float32")


def elsewhere(call):
    """What a call returns in a thread that Keras has not seen."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(call).result()


def test_settings_travel_and_are_put_back(others: KerasSettings) -> None:
    assert (others.floatx, others.epsilon, others.image_data_format) == ("float32", 1e-3, "channels_first")
    sent = pickle.loads(pickle.dumps(others))  # noqa: S301  # our own

    def there() -> list[str]:
        found = [keras.config.dtype_policy().name]
        with sent.applied():
            assert KerasSettings.current() == others
            assert str(KerasSettings.current()) == str(others)
            found.append(keras.config.dtype_policy().name)
        return [*found, keras.config.dtype_policy().name]

    assert elsewhere(there) == ["float32", "mixed_bfloat16", "float32"]
    assert KerasSettings.current() == others


def test_plain_settings_are_those_that_keras_begins_with(others: KerasSettings) -> None:
    assert not others.plain
    assert not replace(others, dtype_policy=elsewhere(KerasSettings.current).dtype_policy).plain
    others_of = {"epsilon": 1e-7, "image_data_format": "channels_last"}
    assert not replace(others, **others_of).plain  # the policy is not
    assert replace(elsewhere(KerasSettings.current), **others_of).plain
    assert json.loads(others.dtype_policy) == keras.dtype_policies.serialize(keras.config.dtype_policy())


@keras.saving.register_keras_serializable("test_keras_settings")
class Late(keras.Model):
    """Makes its layers when it is built, as Keras' guide to subclasses does."""

    def build(self, shape: tuple[int | None, ...]) -> None:
        self.out = keras.layers.Dense(1)
        self.out.build(shape)

    def call(self, x):
        return self.out(x)


def test_layers_that_a_worker_makes_have_the_drivers_policy(others: KerasSettings) -> None:
    model = Late()
    model.compile("sgd", "mse")
    spec = ModelSpec.from_model(model)

    def there() -> tuple[str, str]:
        program = Program(spec, (np.ones((1, 2), "float32"), np.ones((1, 1), "float32")), 0)
        return program.model.out.compute_dtype, keras.config.dtype_policy().name

    assert elsewhere(there) == ("bfloat16", "float32")


def test_workers_compute_as_exactly_as_the_driver() -> None:
    """TensorFlow's two settings, in the context of a worker that had others."""
    own, experimental = KerasSettings.current(), tf.config.experimental
    try:
        experimental.enable_tensor_float_32_execution(False)
        experimental.enable_op_determinism()
        exact = KerasSettings.current()
        assert exact != own
        assert not exact.plain
        own.apply()
        assert experimental.tensor_float_32_execution_enabled()
        with exact.applied():
            assert not experimental.tensor_float_32_execution_enabled()
            assert KerasSettings.current() == exact
        assert KerasSettings.current() == own
        replace(own, arithmetic='{"products": "medium"}').apply()  # of a driver whose Keras has another backend
        assert KerasSettings.current() == own
    finally:
        own.apply()
