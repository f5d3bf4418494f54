"""What a model refers to is found, wherever it is kept, and nothing is found twice."""

from __future__ import annotations

import dataclasses
import functools

import keras
import pytest
import tensorflow as tf

from elephas_like.trainer.graph import code_of, layers_of, optimizers_of, path_to, reachable

SCALE = tf.Variable(2.0)


class Part:
    def __init__(self, layer: keras.layers.Layer) -> None:
        self.kept = {"deep": [layer]}

    def loss(self, y_true, y_pred):
        return SCALE * keras.ops.mean(y_true - y_pred)


def model_of(loss: object) -> keras.Model:
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    model.compile("sgd", loss)
    return model


def test_layers_in_the_order_of_their_weights_first() -> None:
    extra = keras.layers.Dense(2)
    model = model_of(Part(extra).loss)
    assert layers_of(model)[0] is model.layers[0]
    assert extra in layers_of(model)
    assert len(layers_of(model)) == len({id(layer) for layer in layers_of(model)})


def powered(y_true, y_pred, power):
    return SCALE**power


@pytest.mark.parametrize(
    "loss",
    [
        Part(keras.layers.Dense(1)).loss,
        lambda y, p: SCALE * 2,
        functools.partial(powered, power=2),
        tf.function(lambda y, p: SCALE),
        (lambda scale: lambda y, p: scale)(SCALE),
    ],
)
def test_variables_are_found_through_functions(loss: object) -> None:
    assert any(thing is SCALE for thing in reachable(model_of(loss)))
    assert not any(thing is SCALE for thing in reachable(model_of("mse")))


@dataclasses.dataclass(slots=True)
class Slots:
    inner: object


class Private:
    __slots__ = ("__inner", "unset")

    def __init__(self, inner: object) -> None:
        self.__inner = inner


def namespace(**attributes: object) -> tf.Module:
    module = tf.Module()
    for name, value in attributes.items():
        setattr(module, name, value)  # TensorFlow tracks it
    return module


def averages() -> tf.train.ExponentialMovingAverage:
    average = tf.train.ExponentialMovingAverage(0.5)
    average._averages = {tf.Variable(1.0).ref(): SCALE}
    return average


@pytest.mark.parametrize(
    "holder",
    [
        Slots(SCALE),
        Private([SCALE]),
        averages(),
        tf.train.Checkpoint(held=SCALE),
        namespace(parts=[namespace(layer=Slots(SCALE))]),
        {SCALE.ref(): SCALE},
        lambda: [SCALE for _ in range(2)],
        lambda: lambda: SCALE,
    ],
)
def test_variables_are_found_wherever_objects_keep_them(holder: object) -> None:
    model = model_of("mse")
    assert not any(thing is SCALE for thing in reachable(model))
    model.holder = holder
    assert [thing for thing in reachable(model) if thing is SCALE] == [SCALE]
    assert path_to(model, SCALE).startswith(".holder")


def test_tensors_graphs_and_tables_are_not_looked_into() -> None:
    model = model_of("mse")
    kinds = {type(thing) for thing in reachable(model)}
    table = tf.lookup.experimental.MutableHashTable(tf.string, tf.float32, 0.0)
    graph = tf.function(lambda: SCALE * 2).get_concrete_function().graph
    model.held = [tf.constant(1.0), graph, graph.outputs, table]
    assert {type(thing) for thing in reachable(model)} - kinds <= {type(table)}


def test_optimizers_once_each_and_none_inside_another() -> None:
    inner, other = keras.optimizers.Adam(), keras.optimizers.SGD()
    model = model_of("mse")
    model.compile(keras.optimizers.LossScaleOptimizer(inner), "mse")
    model.second = other
    model.parts = [{"again": other}]
    assert optimizers_of(model) == [model.optimizer, other]


def test_a_learning_rate_that_was_replaced_is_not_found() -> None:
    """TensorFlow's lists keep a copy of what was in them."""
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile(keras.optimizers.Adam(0.1), "mse")
    before = model.optimizer._learning_rate
    model.optimizer.build(model.trainable_variables)
    model.optimizer.learning_rate = keras.optimizers.schedules.ExponentialDecay(0.1, 1, 0.5)
    assert not any(thing is before for thing in reachable(model))


def test_a_path_is_what_one_would_type() -> None:
    layer = keras.layers.Dense(1)
    model = model_of("mse")
    model.held = Part(layer)
    assert path_to(model, layer) == ".held.kept['deep'][0]"
    assert path_to(model, model) == ""
    assert path_to(model, object()) is None


def test_the_user_s_code_only() -> None:
    assert code_of(model_of("mse")) == []
    found = code_of(model_of(Part(keras.layers.Dense(1)).loss))
    assert Part in found
    assert Part.loss in found
