"""What is compiled of a model goes with it."""

from __future__ import annotations

from collections.abc import Callable

import keras
import numpy as np
import pytest

from elephas_like.trainer.building import build
from elephas_like.trainer.inference import Predicting
from elephas_like.trainer.programs import Program
from elephas_like.trainer.spec import ModelSpec
from elephas_like.trainer.tensors import row_numbers, tensors
from trainer.small import operations, rows

X, Y = rows(12)


def trained(model: keras.Model, x: np.ndarray = X) -> int:
    """The operations in memory after some steps of a program that is then dropped, as executors drop those not needed."""
    build(model, (x[:1], Y[:1]))
    program = Program(ModelSpec.from_model(model), (x[:1], Y[:1]), 0)
    for loop in (program.training, program.testing):
        loop.run(tensors([x, Y]), [0, 1], row_numbers(12), 5, 0, 3)
        loop.run(tensors([x, Y]), [0, 1], row_numbers(12), 4, 0, 3, sized=True)
    return operations()


def compiled(*layers: keras.layers.Layer, shape: tuple[int, ...] = (4,), **options: object) -> keras.Model:
    model = keras.Sequential([keras.Input(shape), *layers, keras.layers.Dense(1)])
    model.compile("adam", "mse", metrics=["mae"], **options)
    return model


def predicted(*layers: keras.layers.Layer) -> int:
    """The operations in memory while a model that has predicted is there."""
    predicting = Predicting(ModelSpec.from_model(compiled(*layers)).build())
    assert sum(len(outputs[0]) for outputs, _ in predicting(X, 12, 3)) == 12
    return operations()


@pytest.mark.parametrize(
    "used",
    [
        lambda: trained(compiled(keras.layers.Dense(3, "silu"))),
        lambda: trained(compiled(keras.layers.Dense(3, "silu"), jit_compile=True)),
        lambda: trained(compiled(keras.layers.LSTM(3, "silu"), shape=(4, 1)), X[..., None]),
        lambda: predicted(keras.layers.Dense(3, "silu")),
    ],
    ids=["silu", "XLA", "LSTM", "predicts"],
)
def test_graphs_go_with_their_program(used: Callable[[], int]) -> None:
    """TensorFlow registers gradients of some functions for good, and with them whole graphs: `silu` and Keras' sum over devices do."""
    used()
    before = operations()  # of what is traced once for all
    assert used() - before > 20
    assert operations() <= before
