"""Wrong rows of an RDD, as a new user has them: one sentence with the row's place, on every engine."""

from __future__ import annotations

import keras
import numpy as np
import pytest

from elephas_like import DataError, NonFiniteError, SparkModel, train_ensemble

X = np.linspace(-1, 1, 40, dtype="float32").reshape(20, 2)
Y = np.arange(20) % 3


def classifier(loss: str = "sparse_categorical_crossentropy") -> keras.Model:
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(3, "softmax")])
    model.compile("sgd", loss)
    return model


def changed(row: int, label: object) -> list[object]:
    return [label if number == row else value for number, value in enumerate(Y.tolist())]


def rows(sc, labels: object = Y, x: np.ndarray = X):
    return sc.parallelize(list(zip(x, labels, strict=True)), 2)


@pytest.mark.parametrize("engine", ["server", "jobs", "gang", "in_process"])
def test_a_label_without_an_output_is_named_by_its_row(sc, engine: str) -> None:
    data = rows(sc, changed(13, 7))
    with pytest.raises(DataError) as caught:
        SparkModel(classifier(), engine=engine).fit(data, verbose=0)
    assert str(caught.value).startswith("label 7 in partition 1, row 3: the model has 3 outputs (0-2).")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("labels", "loss", "expected"),
    [
        ([f"c{label}" for label in Y], "sparse_categorical_crossentropy", "text.*the numbers 0 to 2.*is 'c"),
        (np.eye(3)[Y], "sparse_categorical_crossentropy", "one-hot labels: use categorical_crossentropy"),
        (Y, "categorical_crossentropy", "use sparse_categorical_crossentropy"),
        (changed(2, float("nan")), "sparse_categorical_crossentropy", "^label nan in partition 0, row 2: "),
    ],
    ids=["text", "one-hot", "numbers", "NaN"],
)
def test_labels_of_another_kind(sc, labels: object, loss: str, expected: str) -> None:
    with pytest.raises(DataError, match=expected):
        SparkModel(classifier(loss)).fit(rows(sc, labels), verbose=0)


def test_among_validation_rows_and_in_evaluate(sc) -> None:
    with pytest.raises(DataError, match="label 9 in validation rows, partition 1, row 0"):
        SparkModel(classifier()).fit(rows(sc), validation_data=rows(sc, changed(10, 9)), verbose=0)
    with pytest.raises(DataError, match=r"^validation rows, partition [01], row 0: expected a pair"):
        SparkModel(classifier()).fit(rows(sc), validation_data=sc.parallelize(list(X), 2), verbose=0)
    with pytest.raises(DataError, match="label 9 in partition 1, row 0"):
        SparkModel(classifier()).evaluate(rows(sc, changed(10, 9)))


def test_of_an_ensemble(sc) -> None:
    with pytest.raises(DataError, match="label 9 in partition 0, row 10"):
        train_ensemble(classifier(), rows(sc, changed(10, 9)), 2, verbose=0)


def test_nan_is_named_where_the_update_becomes_nan(sc) -> None:
    x = X.copy()
    x[13, 1] = np.nan
    with pytest.raises(NonFiniteError, match="round 0: partition 1, row 3 has NaN or infinity in 'x'"):
        SparkModel(classifier()).fit(rows(sc, x=x), verbose=0)


def test_rows_of_another_width_cannot_be_predicted(sc) -> None:
    narrow = sc.parallelize(list(X[:, :1]), 2)
    with pytest.raises(DataError) as caught:
        SparkModel(classifier()).predict(narrow)
    assert "takes features of shape (2,), and the rows' are (1,)." in str(caught.value)
    with pytest.raises(Exception, match="takes features of shape"):
        SparkModel(classifier()).predict(narrow.coalesce(1), collect=False).collect()
