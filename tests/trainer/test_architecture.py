"""What a model is made of, in words."""

from __future__ import annotations

import keras
import pytest

from elephas_like.trainer.architecture import layers_in_words, variables_in_words
from elephas_like.trainer.state import Variables


def model(activation: str = "relu", rate: float = 0.1, **options: object) -> keras.Model:
    found = keras.Sequential(
        [
            keras.Input((4,)),
            keras.layers.Normalization(mean=0.1, variance=0.3),
            keras.layers.Dense(4, activation, **options),
            keras.layers.Dropout(rate),
            keras.layers.Dense(1),
        ]
    )
    found.compile("sgd", "mse")
    found.optimizer.build(found.trainable_variables)
    return found


def test_words_of_a_model_made_twice_are_the_same() -> None:
    one, other = model(), model()
    assert one.layers[1].name != other.layers[1].name
    assert layers_in_words(one) == layers_in_words(other)
    assert "Dense (activation: relu, units: 4, use_bias: True)" in layers_in_words(one)
    assert variables_in_words(one, Variables(one)) == variables_in_words(other, Variables(other))
    assert variables_in_words(one, Variables(one))[-2:] == ["weights of float32 (4, 1)", "weights of float32 (1,)"]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"activation": "tanh"}, "activation: tanh"),
        ({"rate": 0.5}, "rate: 0.5"),
        ({"kernel_regularizer": "l2"}, "kernel_regularizer: L2 l2 0.01"),
        ({"kernel_constraint": keras.constraints.MaxNorm(3)}, "kernel_constraint: MaxNorm axis 0, max_value 3"),
        ({"dtype": "mixed_bfloat16"}, "dtype: mixed_bfloat16"),
    ],
)
def test_what_differs_is_said(options: dict, said: str) -> None:
    (differs,) = set(layers_in_words(model(**options))) - set(layers_in_words(model()))
    assert said in differs


def test_how_weights_began_is_no_difference() -> None:
    assert layers_in_words(model(kernel_initializer="ones", trainable=False)) == layers_in_words(model())
