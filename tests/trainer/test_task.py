"""What a model is for, read off its losses, activations and shapes."""

from __future__ import annotations

from collections.abc import Callable

import keras
import pytest
from stable_ids import named

from elephas_like.core.decisions import Task
from elephas_like.core.model_types import ModelType
from elephas_like.core.types import Slot
from elephas_like.trainer.task import inputs, loss_setting, one_hot_classes, outputs, targets, task


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


def softmax_v2(x):  # as TensorFlow calls tf.nn.softmax
    return keras.ops.softmax(x)


def shifted(x):
    return keras.ops.softmax(x) + 0.0


def last(make: Callable[[keras.KerasTensor], keras.KerasTensor], loss: object) -> keras.Model:
    """A functional model that ends with what `make` makes of its input."""
    x = keras.Input((3,))
    made = keras.Model(x, make(x))
    made.compile("sgd", loss)
    return made


Dense, Activation, SPARSE = keras.layers.Dense, keras.layers.Activation, "sparse_categorical_crossentropy"
ENDS = {
    "ops.softmax": lambda x: keras.ops.softmax(Dense(3)(x)),
    "Softmax": lambda x: keras.layers.Softmax()(Dense(3)(x)),
    "activation is a layer": lambda x: Dense(3, keras.layers.Softmax())(x),
    "tf.nn.softmax": lambda x: Dense(3, softmax_v2)(x),
    "own activation": lambda x: Dense(3, shifted)(x),
    "mean of two": lambda x: keras.layers.Average()([Dense(3, "softmax")(x), Dense(3, "softmax")(x)]),
    "operation": lambda x: keras.ops.softmax(Dense(3)(x)) * 1.0,
    "cast": lambda x: Activation("linear", dtype="float32")(Dense(3, "softmax")(x)),
    "model": lambda x: keras.Sequential([Dense(3, softmax_v2), Activation("linear")])(x),
}


@pytest.mark.parametrize("end", ENDS)
def test_an_output_that_the_loss_takes_for_probabilities_is_read_as_them(end: str) -> None:
    assert task(last(ENDS[end], SPARSE)) is Task.CLASSES
    assert task(last(ENDS[end], keras.losses.SparseCategoricalCrossentropy(from_logits=True))) is Task.CLASSES_LOGITS
    assert task(last(ENDS[end], own_loss), ModelType.CLASSIFICATION) is Task.CLASSES


@pytest.mark.parametrize(
    "end",
    [
        lambda x: Dense(3)(x),
        lambda x: Dense(3, "tanh")(x),
        lambda x: Dense(3, "log_softmax")(x),
        lambda x: Activation("linear")(Dense(3)(x)),
        lambda x: keras.Sequential([Dense(3), Activation("linear")])(x),
    ],
    ids=["linear", "tanh", "log_softmax", "cast", "model"],
)
def test_what_can_be_no_probabilities_is_read_as_logits(end: Callable) -> None:
    for loss in (SPARSE, own_loss):
        assert task(last(end, loss), ModelType.CLASSIFICATION) is Task.CLASSES_LOGITS


def test_the_last_operation_is_the_last_activation() -> None:
    assert task(last(ENDS["ops.softmax"], own_loss)) is Task.CLASSES
    assert task(last(ENDS["tf.nn.softmax"], own_loss)) is Task.CLASSES
    assert task(last(lambda x: keras.ops.sigmoid(Dense(1)(x)), own_loss)) is Task.BINARY
    assert task(last(lambda x: keras.ops.sigmoid(Dense(1)(x)), "hinge")) is Task.BINARY
    assert task(last(lambda x: Dense(1, "sigmoid")(x) * 10.0, own_loss)) is Task.VALUE


@pytest.mark.parametrize("kind", [list, tuple, dict])
def test_a_loss_alone_in_a_list_or_dict_is_the_loss(kind: type) -> None:
    def holding(loss: object) -> object:
        return {"out": loss} if kind is dict else kind([loss])

    for units, loss, expected in (
        (1, keras.losses.BinaryCrossentropy(from_logits=True), Task.BINARY_LOGITS),
        (3, keras.losses.SparseCategoricalCrossentropy(from_logits=True), Task.CLASSES_LOGITS),
        (1, "hinge", Task.BINARY_LOGITS),
        (2, "mse", Task.VALUES),
    ):
        made = last(lambda x, units=units: Dense(units, name="out")(x), holding(loss))
        assert task(made) is expected
    categorical = last(lambda x: Dense(3, "softmax", name="out")(x), holding("categorical_crossentropy"))
    assert task(categorical) is Task.CLASSES
    assert one_hot_classes(categorical) == 3
    several = last(lambda x: Dense(3, "softmax")(x), ["mse", "mae"])  # of one output: their sum
    assert task(several) is Task.CLASSES
    assert one_hot_classes(several) is None


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


@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="text is TensorFlow's")
def test_an_output_behind_text_has_the_shape_that_it_has() -> None:
    """Keras 3.15 says (None, 1, 3) of a tf_idf of `Input((1,))`, and so of all that follows."""
    words = keras.layers.TextVectorization(output_mode="count", vocabulary=["good", "bad"])
    inner = keras.Sequential([keras.Input((1,), dtype="string"), words])
    made = keras.Sequential([inner, keras.layers.Dense(2, "softmax", name="label")])
    made.compile("sgd", "sparse_categorical_crossentropy")
    assert outputs(made).shape == (2,)
    assert task(made) is Task.CLASSES
    text, number = keras.Input((1,), dtype="string", name="t"), keras.Input((4,), name="n")
    several = keras.Model({"n": number, "t": text}, {"a": keras.layers.Dense(3)(number), "b": words(text)})
    assert [slot.shape for slot in outputs(several).values()] == [(3,), (3,)]


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
    assert targets(only) == outputs(only) == {"price": Slot("price", (1,))}
    listed = keras.Model(wide, {"price": [dense(1)(wide)]})
    assert outputs(listed) == outputs(only)
    assert targets(listed) == Slot("price", (1,))  # Keras takes no dict of labels for it


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


class KeptInConfiguration(keras.losses.Loss):
    """As losses of Keras 3.16, which do not keep what they were made with as attributes."""

    def get_config(self) -> dict[str, object]:
        return super().get_config() | {"from_logits": True}


@pytest.mark.parametrize(
    ("loss", "name", "expected"),
    [
        (keras.losses.BinaryCrossentropy(from_logits=True), "from_logits", True),
        (keras.losses.BinaryCrossentropy(), "from_logits", False),
        (keras.losses.SparseCategoricalCrossentropy(ignore_class=3), "ignore_class", 3),
        (KeptInConfiguration(), "from_logits", True),
        (keras.losses.MeanSquaredError(), "from_logits", None),
        ("mse", "from_logits", None),
        (None, "from_logits", None),
    ],
)
def test_a_loss_says_what_it_was_made_with(loss: object, name: str, expected: object) -> None:
    assert loss_setting(loss, name) == expected
