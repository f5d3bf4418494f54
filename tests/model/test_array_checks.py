"""Wrong labels and NaN in arrays: said on the driver, with the row's number in the user's own array."""

from __future__ import annotations

import keras
import numpy as np
import pytest

from elephas_like import DataError, NonFiniteError, SparkModel

X = np.linspace(-1, 1, 40, dtype="float32").reshape(20, 2)
Y = np.arange(20) % 3


def classifier(layers: tuple[keras.layers.Layer, ...] = (keras.Input((2,)),)) -> SparkModel:
    model = keras.Sequential([*layers, keras.layers.Dense(3, "softmax")])
    model.compile("sgd", "sparse_categorical_crossentropy")
    return SparkModel(model, 2, engine="in_process")


def with_value(array: np.ndarray, row: int, value: float) -> np.ndarray:
    changed = array.astype("float32")
    changed[row] = value
    return changed


@pytest.mark.parametrize("layers", [(keras.Input((2,)),), ()], ids=["built", "not built"])
def test_a_label_without_an_output(layers: tuple[keras.layers.Layer, ...]) -> None:
    with pytest.raises(DataError, match=r"^label 3 in row 7: the model has 3 outputs \(0-2\)"):
        classifier(layers).fit(X, with_value(Y, 7, 3), verbose=0)


def test_among_validation_rows_too() -> None:
    with pytest.raises(DataError, match=r"^validation_data: label 5 in row 4: "):
        classifier().fit(X, Y, validation_data=(X, with_value(Y, 4, 5)), verbose=0)


def test_evaluate_says_it_too() -> None:
    with pytest.raises(DataError, match=r"^label 4 in row 19: "):
        classifier().evaluate(X, with_value(Y, 19, 4))


def test_nan_that_did_harm_is_named_by_its_row() -> None:
    with pytest.raises(
        NonFiniteError, match=r"^worker 1 brought NaN or infinity in round 0 .*: row 7 has NaN or infinity in 'x'"
    ):
        classifier().fit(with_value(X, 7, np.nan), Y, verbose=0)


def test_a_model_that_replaces_nan_trains() -> None:
    fills = keras.layers.Lambda(lambda x: keras.ops.where(keras.ops.isnan(x), 0.0, x))
    history = classifier((keras.Input((2,)), fills)).fit(with_value(X, 7, np.nan), Y, verbose=0)
    assert np.isfinite(history.history["loss"]).all()


def test_where_no_row_holds_nan_the_other_causes_are_listed() -> None:
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(1e30), "mse")
    with pytest.raises(NonFiniteError, match="a learning rate that is too high"):
        SparkModel(model, 2, engine="in_process").fit(X * 1e20, Y, epochs=3, verbose=0)
