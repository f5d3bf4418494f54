"""What is compiled of a model goes with it."""

from __future__ import annotations

import gc

import keras
import numpy as np
import pytest
import tensorflow as tf

from elephas_like.trainer.building import build
from elephas_like.trainer.inference import Predicting
from elephas_like.trainer.programs import Program
from elephas_like.trainer.spec import ModelSpec
from elephas_like.trainer.tensors import row_numbers, tensors
from trainer.small import rows

X, Y = rows(12)


def operations() -> int:
    """How many operations of graphs are in memory."""
    for _ in range(3):
        gc.collect()
    return sum(isinstance(thing, tf.Operation) for thing in gc.get_objects())


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


@pytest.mark.parametrize("kind", ["dense", "LSTM", "XLA", "predicts"])
def test_graphs_go_with_their_program(kind: str) -> None:
    """TensorFlow registers gradients of some functions for good, and with them whole graphs: Keras' sum over devices is one."""
    trained(compiled(keras.layers.Dense(3)))  # what is traced once for all
    before = operations()
    if kind == "predicts":
        predicting = Predicting(ModelSpec.from_model(compiled(keras.layers.Dense(3))).build())
        assert sum(len(outputs[0]) for outputs, _ in predicting(X, 12, 3)) == 12
        there = operations()
        del predicting
    elif kind == "LSTM":
        there = trained(compiled(keras.layers.LSTM(3), shape=(4, 1)), X[..., None])
    else:
        there = trained(compiled(keras.layers.Dense(3), jit_compile=kind == "XLA"))
    assert there - before > 20
    assert operations() <= before
