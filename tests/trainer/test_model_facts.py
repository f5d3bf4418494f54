"""What a model's class and arguments say about it."""

from __future__ import annotations

import keras
import pytest

from elephas_like.trainer.model_facts import is_multiple_input_model, is_multiple_output_model, target_count

from .small import mlp


def test_inputs_and_outputs_are_counted() -> None:
    one, two = keras.Input((1,)), keras.Input((1,))
    model = keras.Model([one, two], keras.layers.Add()([one, two]))
    assert is_multiple_input_model(model)
    assert not is_multiple_output_model(model)
    assert not is_multiple_input_model(mlp())


@pytest.mark.parametrize(
    ("loss", "expected"),
    [
        ("mse", 3),
        (["mse", "mae", "mse"], 3),
        (["mse", None, "mse"], 2),
        ((None, None, "mse"), 1),
        ({"a": None, "b": "mse", "c": "mse"}, 2),
        ({"a": "mse"}, 1),
        (None, 3),
    ],
)
def test_targets_are_counted_by_losses(loss: object, expected: int) -> None:
    x = keras.Input((1,))
    model = keras.Model(x, [keras.layers.Dense(1, name=name)(x) for name in "abc"])
    model.compile("sgd", loss)
    assert target_count(model) == expected
