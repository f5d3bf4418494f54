"""Predictions and evaluations of rows on executors: evaluations are Keras' on the pooled rows, and errors say where."""

from __future__ import annotations

import os

import keras
import numpy as np
import pandas as pd
import pytest
import tensorflow as tf
from small import classifier, digits, line, parts_of, points

from elephas_like import ElephasError, SparkModel, VotingModel, WorkerError, shard
from elephas_like.core.errors import DataError
from elephas_like.model.given_rows import Given

layers = keras.layers


def test_a_model_is_built_once_per_python_worker(sc) -> None:
    model = line()
    name = f"built-{os.getpid()}"

    class Noticed(layers.Layer):
        """Counts how often it is made in this process."""

        def __setstate__(self, state: dict) -> None:
            vars(self).update(state)
            os.environ[name] = str(int(os.environ.get(name, "0")) + 1)

        def call(self, x):
            return x

    model = keras.Sequential([keras.Input((2,)), Noticed(), layers.Dense(1)])
    model.compile("sgd", "mse")
    fitted = SparkModel(model)
    rdd = sc.parallelize([x for x, _ in points(40)], 8)
    for _ in range(3):
        fitted.predict(rdd)

    def made(_: object):
        return [(os.getpid(), int(os.environ.get(name, "0")))]

    counted = dict(sc.parallelize(range(8), 8).mapPartitions(made).collect())
    assert max(counted.values()) == 1  # 3 predictions of 8 partitions would make it 24 times
    before = fitted.predict(rdd)
    model.set_weights([w + 1 for w in model.get_weights()])
    assert np.abs(fitted.predict(rdd) - before).max() > 0.1  # other weights are another model


def test_an_rdd_is_evaluated_as_keras_evaluates_its_rows_together_and_the_model_stays_as_it_was(sc) -> None:
    x, y = digits()
    x, y = x[:300], np.eye(10, dtype="float32")[y[:300]]
    weights = np.random.default_rng(0).uniform(0.1, 2, 300).astype("float32")
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((64,)), layers.Dense(10, "softmax")])
    model.compile(
        "adam",
        "categorical_crossentropy",
        metrics=["accuracy", keras.metrics.F1Score(average=None)],
        weighted_metrics=[keras.metrics.AUC(name="auc"), keras.metrics.CategoricalAccuracy(name="weighted_accuracy")],
    )
    model.fit(x[:100], y[:100], verbose=0)
    fitted = SparkModel(model, batch_size=16)
    triples = [(a, b, float(c)) for a, b, c in zip(x, y, weights, strict=True)]
    before = [variable.numpy().copy() for variable in (*model.variables, *model.optimizer.variables)]
    found = fitted.evaluate(parts_of(sc, triples, [100, 0, 150, 1, 49]), return_dict=True)
    for one, variable in zip(before, (*model.variables, *model.optimizer.variables), strict=True):
        np.testing.assert_array_equal(one, variable.numpy())
    expected = model.evaluate(x, y, sample_weight=weights, batch_size=16, return_dict=True, verbose=0)
    assert set(found) == set(expected)
    for name, value in expected.items():
        np.testing.assert_allclose(np.asarray(found[name]), np.asarray(value), atol=1e-5, err_msg=name)
    assert np.asarray(found["f1_score"]).shape == (10,)
    plain = fitted.evaluate(parts_of(sc, list(zip(x, y, strict=True)), [300]))
    expected = model.evaluate(x, y, batch_size=16, verbose=0)
    for ours, theirs in zip(plain, expected, strict=True):
        np.testing.assert_allclose(np.asarray(ours), np.asarray(theirs), atol=1e-5)


def test_several_outputs_are_evaluated_into_the_list_that_keras_gives(sc) -> None:
    keras.utils.set_random_seed(1)
    x = keras.Input((2,))
    model = keras.Model(x, [layers.Dense(1, name=name)(x) for name in ("z", "b")])
    model.compile("sgd", ["mse", "mae"], metrics=[["mae"], ["mse"]])
    rows = [(x, (np.array([y], "float32"), np.array([-y], "float32"))) for x, y in points(30)]
    found = SparkModel(model, batch_size=30).evaluate(sc.parallelize(rows, 1))
    columns = [np.stack([row[1][side] for row in rows]) for side in (0, 1)]
    expected = model.evaluate(np.stack([x for x, _ in rows]), columns, batch_size=30, verbose=0)
    assert found == pytest.approx(expected, rel=1e-5)


def test_a_sharded_dataset_is_evaluated_as_its_rows_and_has_no_order_to_predict(sc) -> None:
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse", metrics=["mae"])
    x = np.random.default_rng(0).normal(size=(30, 2)).astype("float32")
    y = x.sum(axis=1, keepdims=True)
    spark_model, ensemble = SparkModel(model, 2), VotingModel([model])
    with shard((x, y), 2) as dataset:
        for evaluated in (spark_model, ensemble):
            assert evaluated.evaluate(dataset) == pytest.approx(model.evaluate(x, y, verbose=0), abs=1e-6)
            with pytest.raises(TypeError, match="predict what it was made from"):
                evaluated.predict(dataset)


def test_a_loss_alone_is_a_number_and_no_rows_are_refused(sc) -> None:
    model = line()
    x, y = np.array([x for x, _ in points(30)], "float32"), np.array([[y] for _, y in points(30)], "float32")
    found = SparkModel(model).evaluate(sc.parallelize(points(30), 4))
    assert found == pytest.approx(model.evaluate(x, y, verbose=0), rel=1e-5)
    with pytest.raises(ValueError, match="no rows to evaluate"):
        SparkModel(model).evaluate(sc.parallelize([], 2))


def test_empty_arrays_are_what_empty_rdds_are(sc) -> None:
    x, y = np.zeros((0, 64), "float32"), np.zeros(0)
    model = classifier()
    for each, of_rows in (
        (SparkModel(model), ((0, 10), np.float32)),
        (VotingModel([model, model]), ((0,), np.int64)),
        (VotingModel([model, model], "mean"), ((0, 10), np.float32)),
    ):
        found, expected = each.predict(x), each.predict(sc.parallelize([], 2))
        assert (found.shape, found.dtype) == (expected.shape, expected.dtype) == of_rows
        with pytest.raises(ValueError, match="no rows to evaluate"):
            each.evaluate(x, y)


def test_predictions_of_no_rows_have_the_shapes_of_the_outputs() -> None:
    inputs = keras.Input((None, 3))
    each, last = keras.layers.Dense(2, name="each")(inputs), keras.layers.GlobalMaxPooling1D(name="last")(inputs)
    x = np.zeros((0, 5, 3), "float32")

    def shapes(model: keras.Model) -> object:
        model.compile("sgd", "mse")
        return keras.tree.map_structure(lambda array: array.shape, SparkModel(model).predict(x))

    assert shapes(keras.Model(inputs, {"each": each, "last": last})) == {"each": (0, 0, 2), "last": (0, 3)}
    assert shapes(keras.Model(inputs, [last, each])) == [(0, 3), (0, 0, 2)]
    assert shapes(keras.Sequential([inputs, keras.layers.Dense(4)])) == (0, 0, 4)

    class Halves(keras.Model):
        """What it predicts its step says, and not its graph."""

        def predict_step(self, x):
            return self(x)[:, 0]

    assert shapes(Halves(inputs, each)) == (0,)


@pytest.mark.parametrize(
    ("x", "columns", "said"),
    [
        (np.array([[1j, 2], [3, 4]]), None, "'x' expected integers, floats, booleans or text, got dtype complex128"),
        (
            pd.DataFrame({"t": [["a", "b"], ["c", np.nan]]}),
            "t",
            "'x' expected .* got float in an array of dtype object",
        ),
        (pd.DataFrame({"t": pd.Series([None, 1], dtype=object)}), "t", "'x' expected .* got NoneType in an array"),
        (pd.DataFrame({"t": pd.date_range("2020", periods=2)}), "t", "'x' expected .* got dtype datetime64"),
    ],
    ids=["complex", "text", "numbers", "dates"],
)
def test_arrays_that_a_fit_refuses_are_refused_in_its_words(x: object, columns: object, said: str) -> None:
    """Complex numbers lost their imaginary part, and of the others Keras said that object is an invalid dtype."""
    model = SparkModel(line(), engine="in_process")
    with pytest.raises(DataError, match=f"^feature {said}"):
        model.predict(x, features_col=columns)
    with pytest.raises(DataError, match=f"^feature {said}"):
        model.evaluate(Given.of(x, features_col=columns, target=False).x, np.zeros(2))
    with pytest.raises(DataError, match=f"^feature {said}"):
        VotingModel([line()], "soft").predict(x, features_col=columns)


@pytest.mark.parametrize(
    ("labels", "weights", "said"),
    [
        (np.arange(2) + 1j, None, "label 'y' expected integers, .* got dtype complex128"),
        (np.arange(2), np.arange(2) + 1j, "sample weight 'sample_weight' expected integers, .* got dtype complex128"),
        ([1, "2"], None, "label 'y' expected integers, .* got int in an array of dtype object"),
    ],
    ids=["labels", "weights", "numbers beside text"],
)
def test_labels_and_weights_that_a_fit_refuses_are_refused(labels: object, weights: object, said: str) -> None:
    for each in (SparkModel(line(), engine="in_process"), VotingModel([line()])):
        with pytest.raises(DataError, match=f"^{said}"):
            each.evaluate(np.zeros((2, 2)), labels, sample_weight=weights)


def test_bytes_that_are_no_text_are_predicted() -> None:
    entry = keras.Input((), dtype="string")
    length = keras.layers.Lambda(lambda z: tf.cast(tf.strings.length(z), "float32")[:, None], output_shape=(1,))
    model = keras.Model(entry, length(entry))
    model.compile("sgd", "mse")
    images = np.array([b"\xff\xfe\x00", b"\x01"], object)
    for given in (images, tf.constant(images.tolist())):
        assert SparkModel(model, engine="in_process").predict(given).tolist() == [[3], [1]]
        assert SparkModel(model, engine="in_process").evaluate(given, np.zeros(2)) == 5


@pytest.mark.parametrize(
    ("wrong", "said"), [({"timeout": "x"}, "timeout must be"), ({"verbose": "loud"}, "verbose must be")]
)
def test_arguments_are_checked_where_they_change_nothing(wrong: dict[str, object], said: str) -> None:
    model, x, y = SparkModel(line(), engine="in_process"), np.zeros((4, 2)), np.zeros(4)
    with pytest.raises((TypeError, ValueError), match=said):
        model.predict(x, **wrong)
    with pytest.raises((TypeError, ValueError), match=said):
        model.evaluate(x, y, **wrong)


def test_rows_that_cannot_be_predicted_or_evaluated_say_where(sc) -> None:
    with pytest.raises(WorkerError, match=r"row 2: .*expected shape \(2,\), got \(3,\)") as caught:
        SparkModel(line()).predict(sc.parallelize([[1.0, 2.0], [1.0, 2.0], [1.0, 2.0, 3.0]], 1))
    assert "at org.apache" not in str(caught.value)
    with pytest.raises(WorkerError, match=r"partition 0, row 0: expected a pair"):
        SparkModel(line()).evaluate(sc.parallelize([1.0, 2.0], 1))


def test_other_versions_on_an_executor_are_named(sc, monkeypatch: pytest.MonkeyPatch) -> None:
    named = {"elephas-like": "9.9.9", "keras": "3.0.0"}
    monkeypatch.setattr("elephas_like.model.source.versions", lambda: named)
    model, rdd = SparkModel(line()), sc.parallelize(points(4), 2)
    said = r"elephas-like is 9\.9\.9 on the driver and .* on executor host"
    with pytest.raises(ElephasError, match=said):
        model.predict(rdd.map(lambda row: row[0]))
    with pytest.raises(ElephasError, match=said):
        model.evaluate(rdd)
    with pytest.raises(Exception, match=said):
        model.predict(rdd.map(lambda row: row[0]), collect=False).collect()


def test_a_model_that_prepares_its_rows_predicts_them_as_keras_does(sc) -> None:
    """As keras-hub's models with a preprocessor: rows need not be what the steps take."""

    class Prepares(keras.Sequential):
        def preprocess_samples(self, x, y=None, sample_weight=None):
            return x[:, :2] / 255

        def fit(self, x, y=None, **arguments):
            return super().fit(self.preprocess_samples(x), y, **arguments)

        def evaluate(self, x, y=None, **arguments):
            return super().evaluate(self.preprocess_samples(x), y, **arguments)

        def predict(self, x, **arguments):
            return super().predict(self.preprocess_samples(x), **arguments)

        def predict_on_batch(self, x):
            return super().predict_on_batch(self.preprocess_samples(x))

    model = Prepares([keras.Input((2,)), layers.Dense(1)])
    model.compile("sgd", "mse")
    x = np.arange(30, dtype="float32").reshape(10, 3)
    fitted = SparkModel(model)
    expected = model.predict(x, verbose=0)
    np.testing.assert_array_equal(fitted.predict(x), expected)
    np.testing.assert_allclose(fitted.predict(sc.parallelize(list(x), 2)), expected, rtol=1e-6)
    with pytest.raises(ElephasError, match=r"prepares its rows in Prepares\.fit.*in a layer or in train_step"):
        fitted.fit(sc.parallelize([(row, 1.0) for row in x], 2))
    with pytest.raises(ElephasError, match=r"prepares its rows in Prepares\.evaluate"):
        fitted.evaluate(sc.parallelize([(row, 1.0) for row in x], 2))
