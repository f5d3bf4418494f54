"""What labels a model takes, as its losses and outputs say."""

from __future__ import annotations

import keras
import pytest

from elephas_like.core.row_checks import LabelKind, LabelRule
from elephas_like.trainer.label_rules import label_rules

SPARSE, ONE_HOT = "sparse_categorical_crossentropy", "categorical_crossentropy"


def model(loss: object, units: int = 4, kind: type[keras.Model] = keras.Model) -> keras.Model:
    x = keras.Input((3,))
    made = kind(x, keras.layers.Dense(units)(x))
    made.compile("sgd", loss)
    return made


def of_classes() -> list[keras.losses.Loss]:
    """Losses that take whole class numbers, and leave class 2 out: the second comes with Keras 3.16."""
    names = ("SparseCategoricalCrossentropy", "SparseCategoricalFocalCrossentropy")
    return [getattr(keras.losses, name)(ignore_class=2) for name in names if hasattr(keras.losses, name)]


@pytest.mark.parametrize("loss", of_classes(), ids=lambda loss: loss.name)
def test_a_class_that_a_loss_leaves_out_is_known(loss: keras.losses.Loss) -> None:
    assert label_rules(model(loss)) == LabelRule(LabelKind.INDEX, loss.name, 4, ignored=2)


@pytest.mark.parametrize(
    ("loss", "expected"),
    [
        (SPARSE, LabelRule(LabelKind.INDEX, SPARSE, 4)),
        (keras.losses.CategoricalFocalCrossentropy(), LabelRule(LabelKind.ONE_HOT, "categorical_focal_crossentropy", 4)),
        (ONE_HOT, LabelRule(LabelKind.ONE_HOT, ONE_HOT, 4)),
        ("mse", LabelRule(LabelKind.NUMBER, "mean_squared_error", 4)),
        ([SPARSE], LabelRule(LabelKind.INDEX, SPARSE, 4)),
        (lambda y, found: keras.ops.mean(found), None),
    ],
    ids=["sparse", "focal", "one_hot", "mse", "list", "own"],
)  # fmt: skip
def test_the_loss_says_it(loss: object, expected: LabelRule | None) -> None:
    assert label_rules(model(loss)) == expected


def test_one_output_of_a_categorical_loss_is_left_to_keras() -> None:
    found = label_rules(model(ONE_HOT, units=1))
    assert isinstance(found, LabelRule)
    assert found.kind is LabelKind.NUMBER


@pytest.mark.parametrize("name", ["train_step", "compute_loss"])
def test_a_models_own_step_may_take_any_labels(name: str) -> None:
    def own(self: keras.Model, *args: object, **named: object) -> None:
        raise NotImplementedError

    assert label_rules(model(SPARSE, kind=type("Own", (keras.Model,), {name: own}))) is None


def test_a_model_that_is_not_built_is_not_known() -> None:
    made = keras.Sequential([keras.layers.Dense(4)])
    made.compile("sgd", SPARSE)
    assert label_rules(made) is None


def several(outputs: object, loss: object) -> keras.Model:
    x = keras.Input((3,))
    kind, price = keras.layers.Dense(4, name="kind")(x), keras.layers.Dense(1, name="price")(x)
    made = keras.Model(x, {"kind": kind, "price": price} if outputs is dict else [kind, price])
    made.compile("sgd", loss)
    return made


KIND, PRICE = LabelRule(LabelKind.INDEX, SPARSE, 4), LabelRule(LabelKind.NUMBER, "mean_squared_error", 1)


def test_each_of_several_outputs_has_a_loss() -> None:
    assert label_rules(several(dict, {"kind": SPARSE, "price": "mse"})) == {"kind": KIND, "price": PRICE}
    assert label_rules(several(list, [SPARSE, "mse"])) == (KIND, PRICE)
    assert label_rules(several(list, {"kind": SPARSE, "price": "mse"})) == (KIND, PRICE)
    assert label_rules(several(list, [None, "mse"])) == PRICE
