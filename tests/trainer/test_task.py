"""What a model is for, read off its losses, activations and shapes."""

from __future__ import annotations

import keras
import pytest
from stable_ids import named

from elephas_like.core.decisions import Task
from elephas_like.core.model_types import ModelType
from elephas_like.core.types import Slot
from elephas_like.trainer.task import inputs, one_hot_classes, outputs, targets, task


def model(units: int, activation: str | None, loss: object) -> keras.Model:
    made = keras.Sequential([keras.Input((3,), name="x"), keras.layers.Dense(units, activation)])
    made.compile("sgd", loss)
    return made


def own_loss(y_true, y_pred):
    return keras.ops.mean(keras.ops.square(y_true - y_pred))


@pytest.mark.parametrize(
    ("units", "activation", "loss", "expected"),
    [
        (1, "sigmoid", "binary_crossentropy", Task.BINARY),
        (1, None, keras.losses.BinaryCrossentropy(from_logits=True), Task.BINARY_LOGITS),
        (1, "tanh", "hinge", Task.BINARY_LOGITS),
        (3, "softmax", "sparse_categorical_crossentropy", Task.CLASSES),
        (3, "softmax", keras.losses.CategoricalCrossentropy(), Task.CLASSES),
        (3, None, keras.losses.SparseCategoricalCrossentropy(from_logits=True), Task.CLASSES_LOGITS),
        (3, "sigmoid", "binary_crossentropy", Task.VALUES),
        (1, None, "mse", Task.VALUE),
        (1, None, keras.losses.Huber(), Task.VALUE),
        (2, None, "mae", Task.VALUES),
        (3, "softmax", own_loss, Task.CLASSES),
        (1, "sigmoid", own_loss, Task.BINARY),
    ],
    ids=named,
)
def test_how_an_output_is_read(units: int, activation: str | None, loss: object, expected: Task) -> None:
    assert task(model(units, activation, loss)) is expected


def test_what_the_user_says_comes_first() -> None:
    assert task(model(1, "sigmoid", own_loss), ModelType.REGRESSION) is Task.VALUE
    assert task(model(3, None, own_loss), ModelType.CLASSIFICATION) is Task.CLASSES_LOGITS


def test_one_hot_labels_are_wanted_by_some_losses_only() -> None:
    assert one_hot_classes(model(3, "softmax", "categorical_crossentropy")) == 3
    assert one_hot_classes(model(3, "softmax", keras.losses.CategoricalCrossentropy())) == 3
    assert one_hot_classes(model(3, "softmax", "sparse_categorical_crossentropy")) is None
    assert one_hot_classes(model(1, "sigmoid", "binary_crossentropy")) is None


def test_inputs_and_outputs_in_the_model_s_structure() -> None:
    assert inputs(model(1, None, "mse")) == Slot("x", (3,))
    a, b = keras.Input((2,), name="a"), keras.Input((None,), name="b", dtype="string")
    left = keras.layers.Dense(1, name="left")(a)
    right = keras.layers.Dense(2, name="right")(a)
    several = keras.Model({"a": a, "b": b}, [left, right])
    assert inputs(several) == {"a": Slot("a", (2,)), "b": Slot("b", (None,), text=True)}
    assert outputs(several) == (Slot("left", (1,)), Slot("right", (2,)))
    assert task(several) is Task.VALUES
    assert targets(several) == outputs(several)
    several.compile("sgd", [None, "mse"])
    assert targets(several) == Slot("right", (2,))
    unbuilt = keras.Sequential([keras.layers.Dense(1)])
    assert inputs(unbuilt) == Slot("input")
    assert outputs(unbuilt) == Slot("output")


@pytest.mark.filterwarnings("ignore:When providing `inputs` as a dict")
def test_the_keys_of_a_dict_are_the_names_of_what_it_holds() -> None:
    """As in Keras' compile; the names of layers and of inputs do not matter, and the dict keeps its order."""
    wide, deep = keras.Input((1,)), keras.Input((2,), name="other")
    dense = keras.layers.Dense
    made = keras.Model({"wide": wide, "deep": deep}, {"price": dense(1)(wide), "amount": [dense(2, name="q")(deep)]})
    assert list(inputs(made).items()) == [("wide", Slot("wide", (1,))), ("deep", Slot("deep", (2,)))]
    assert list(outputs(made).items()) == [("price", Slot("price", (1,))), ("amount", Slot("amount", (2,)))]
    assert targets(made) == outputs(made)
    only = keras.Model(wide, {"price": dense(1)(wide)})
    assert outputs(only) == {"price": Slot("price", (1,))}


def test_keys_that_are_no_names_of_one_output_each_leave_the_layers_names() -> None:
    x = keras.Input((1,))
    p, q, r, s = (keras.layers.Dense(1, name=name)(x) for name in "pqrs")
    twice = keras.Model(x, {"b": {"mean": p}, "a": {"mean": q}})
    assert outputs(twice) == {"b": {"mean": Slot("p", (1,))}, "a": {"mean": Slot("q", (1,))}}
    listed = keras.Model(x, {"b": [p, q], "a": {"d": r, "c": s}})
    assert outputs(listed) == {
        "b": (Slot("p", (1,)), Slot("q", (1,))),
        "a": {"d": Slot("d", (1,)), "c": Slot("c", (1,))},
    }
