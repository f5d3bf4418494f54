"""What Keras takes as data and arguments, SparkModel takes too, or says what to pass instead."""

from __future__ import annotations

import keras
import numpy as np
import pandas as pd
import pytest
import scipy.sparse
import tensorflow as tf

from conformance.models import TABLE, WORDS, X, Y, small
from elephas_like import SparkModel

L = keras.layers


def fitted(model: keras.Model, *data: object, **arguments: object) -> list[float]:
    trained = SparkModel(model, num_workers=1, engine="in_process", seed=1)
    return trained.fit(*data, **({"epochs": 2, "batch_size": 8, "shuffle": False, "verbose": 0} | arguments)).history


def twins() -> tuple[keras.Model, keras.Model]:
    made = []
    for _ in range(2):
        keras.utils.set_random_seed(3)
        made.append(small(L.Dense(3, "tanh"), L.Dense(1)))
    return made[0], made[1]


def test_text_is_predicted_and_evaluated_as_it_is_trained_on() -> None:
    keras.utils.set_random_seed(3)
    model, _ = TABLE["text_vectorization"]()
    fitted(model, WORDS, Y)
    spark_model = SparkModel(model, engine="in_process")
    tensor = tf.constant(WORDS.tolist())
    expected = model.predict(tensor, verbose=0)
    for words in (WORDS, WORDS.astype(str)):
        np.testing.assert_array_equal(spark_model.predict(words), expected)
        assert spark_model.evaluate(words, Y) == pytest.approx(model.evaluate(tensor, Y, verbose=0))


def test_an_equal_model_with_labels_of_another_look_is_trained_as_keras_trains_it() -> None:
    """Losses and metrics are built for the look of their labels: "accuracy" is another metric for one-hot ones."""

    def loss(y_true, y_pred):
        return keras.ops.mean(y_pred, axis=-1)

    classes = np.arange(24) % 3
    for labels in (np.eye(3, dtype="float32")[classes], classes, classes[:, None]):
        histories = []
        for by_keras in (True, False):
            keras.utils.set_random_seed(3)
            model = small(L.Dense(3, "softmax"), loss=loss, metrics=["accuracy"])
            if by_keras:
                histories.append(model.fit(X, labels, batch_size=8, epochs=2, shuffle=False, verbose=0).history)
            else:
                histories.append(fitted(model, X, labels))
        for name, values in histories[0].items():
            assert histories[1][name] == pytest.approx(values, abs=1e-5)


@pytest.mark.parametrize("sparse", [scipy.sparse.csr_matrix(X), scipy.sparse.coo_array(X), tf.sparse.from_dense(X)])
def test_sparse_rows_are_trained_as_dense_ones(sparse: object) -> None:
    one, other = twins()
    assert fitted(one, sparse, Y) == fitted(other, X, Y)
    assert np.array_equal(SparkModel(one, engine="in_process").predict(sparse), other.predict(X, verbose=0))


def test_series_are_columns_as_in_keras() -> None:
    def model() -> keras.Model:
        keras.utils.set_random_seed(3)
        inputs = {"a": keras.Input((1,), name="a"), "b": keras.Input((1,), name="b")}
        model = keras.Model(inputs, L.Dense(1)(L.Concatenate()([inputs["a"], inputs["b"]])))
        model.compile("sgd", "mse")
        return model

    frame = pd.DataFrame(X[:, :2], columns=["a", "b"])
    weights = pd.Series(np.linspace(0, 1, 24))
    columns = {name: frame[name] for name in frame}
    expected = (
        model()
        .fit(columns, pd.Series(Y[:, 0]), sample_weight=weights, batch_size=8, epochs=2, shuffle=False, verbose=0)
        .history
    )
    found = fitted(model(), columns, pd.Series(Y[:, 0]), sample_weight=weights)
    assert found["loss"] == pytest.approx(expected["loss"], rel=1e-5)


def test_validation_data_without_targets() -> None:
    keras.utils.set_random_seed(3)
    model, rows = TABLE["model_without_call"]()
    assert set(fitted(model, rows[0])) == {"total"}
    autoencoder = Autoencoder(keras.Sequential([keras.Input((4,)), L.Dense(4)]))
    autoencoder.compile("sgd")
    assert set(fitted(autoencoder, X, validation_data=(X[:8],))) == {"error", "val_error"}


class Autoencoder(keras.Model):
    def __init__(self, network: keras.Model) -> None:
        super().__init__()
        self.network, self.error = network, keras.metrics.Mean(name="error")

    @property
    def metrics(self):
        return [self.error]

    def call(self, x):
        return self.network(x)

    def _loss(self, x):
        loss = keras.ops.mean((self(x) - x) ** 2)
        self.error.update_state(loss)
        return loss

    def train_step(self, data):
        x = data[0] if isinstance(data, tuple) else data
        with tf.GradientTape() as tape:
            loss = self._loss(x)
        self.optimizer.apply(tape.gradient(loss, self.trainable_variables), self.trainable_variables)
        return {"error": self.error.result()}

    def test_step(self, data):
        self._loss(data[0] if isinstance(data, tuple) else data)
        return {"error": self.error.result()}


@pytest.mark.parametrize("data", [iter([(X, Y)]), zip(X, Y, strict=True), (pair for pair in ())])
def test_iterators_are_refused_in_a_sentence(data: object) -> None:
    with pytest.raises(TypeError, match=r"iterators live on one machine"):
        fitted(small(L.Dense(1)), data)


def test_ragged_rows_are_refused_in_a_sentence() -> None:
    with pytest.raises(TypeError, match=r"unequal shape.*to_tensor"):
        fitted(small(L.Dense(1)), tf.ragged.constant([[1.0], [1.0, 2.0]]), Y[:2])


def test_predict_and_evaluate_take_keras_arguments_for_arrays() -> None:
    seen = []
    callback = keras.callbacks.LambdaCallback()
    callback.on_predict_end = callback.on_test_end = lambda logs=None: seen.append(1)
    spark_model = SparkModel(small(L.Dense(1)), engine="in_process")
    assert spark_model.predict(X, 8, 0, callbacks=[callback]).shape == (24, 1)
    assert isinstance(spark_model.evaluate(X, Y, verbose=0, callbacks=[callback]), float)
    assert seen == [1, 1]


def test_nested_logs_of_a_metric_are_no_missed_logs(caplog: pytest.LogCaptureFixture) -> None:
    model, rows = TABLE["metric_of_several_numbers"]()
    history = fitted(model, *rows)
    assert set(history) == {"loss", "total", "mean"}
    assert not [record for record in caplog.records if "do not reach the history" in record.getMessage()]
