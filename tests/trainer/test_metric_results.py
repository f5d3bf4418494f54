"""Metrics of summed states, by name and in Keras' order."""

from __future__ import annotations

import keras
import numpy as np
import pytest

from elephas_like import SparkModel
from elephas_like.trainer.building import build
from elephas_like.trainer.metric_results import in_order, metric_results, metrics_of
from elephas_like.trainer.state import read_metrics
from trainer.small import mlp, rows

X, Y = rows(8)
NO_METRICS = [[], {}] if keras.__version__.startswith("3.8.") else [[], {}, [[]]]
"""Keras 3.8 refuses the last."""


def test_metric_sums_of_two_halves_are_the_metrics_of_the_whole() -> None:
    """loss 1: mean of (0, 0, 3, 1)^2 / 2.5; accuracy and AUC over pooled counts, not means of means."""
    inputs = keras.Input((1,))
    model = keras.Model(inputs, keras.layers.Identity()(inputs))
    model.compile("sgd", "mse", metrics=["mae", keras.metrics.MeanMetricWrapper(lambda y, p: p, name="mean")])
    build(model, (np.zeros((1, 1)), np.zeros((1, 1))))
    x, y = np.array([[0.0], [0.0], [3.0], [1.0]]), np.zeros((4, 1))
    sums = []
    for part in (slice(0, 3), slice(3, 4)):
        model.test_on_batch(x[part], y[part])
        sums.append(read_metrics(model))
        model.reset_metrics()
    assert metric_results(model, sums[0] + sums[1]) == {"loss": 2.5, "mae": 1.0, "mean": 1.0}
    assert read_metrics(model).sum() == 0
    assert metric_results(model, np.zeros(0)) == {}


@pytest.mark.parametrize("none", NO_METRICS)
def test_no_metrics_in_a_list_are_no_metrics(none: object) -> None:
    """As on the driver of a fit of an RDD, whose model has seen no batch."""
    seen, unseen = mlp(metrics=none), mlp(metrics=none)
    seen.test_on_batch(X, Y)
    results = metric_results(unseen, read_metrics(seen), (X, Y))
    assert list(results) == ["loss"]
    assert results["loss"] == pytest.approx(seen.evaluate(X, Y, verbose=0), rel=1e-5)


def test_a_metric_per_class_is_an_array_in_the_results() -> None:
    inputs = keras.Input((3,))
    model = keras.Model(inputs, keras.layers.Identity()(inputs))
    model.compile("sgd", "categorical_crossentropy", metrics=[keras.metrics.F1Score(name="f1")])
    build(model, (np.eye(3)[:1], np.eye(3)[:1]))
    model.test_on_batch(np.eye(3), np.eye(3)[[0, 1, 1]])
    np.testing.assert_allclose(metric_results(model, read_metrics(model))["f1"], [1.0, 2 / 3, 0.0], atol=1e-6)


class Scores(keras.Model):
    """Its test step leaves the metrics of `compile` alone."""

    def __init__(self, *args: object, **named: object) -> None:
        super().__init__(*args, **named)
        self.score = keras.metrics.Mean(name="score")

    def test_step(self, data: object) -> dict[str, object]:
        self.score.update_state(self(data[0], training=False))
        return {"score": self.score.result()}


def test_a_metric_that_no_test_step_has_touched_has_no_score() -> None:
    """A mean of nothing is 0, the best of all errors."""
    inputs = keras.Input((4,))
    model = Scores(inputs, keras.layers.Dense(1)(inputs))
    model.compile("sgd", "mse", metrics=["mae"])
    history = SparkModel(model, num_workers=2, engine="in_process").fit(X, Y, validation_data=(X, Y), verbose=0).history
    assert sorted(history) == ["loss", "mae", "score", "val_score"]


class ScoresOne(keras.Model):
    """Its test step leaves one output's metrics alone."""

    def test_step(self, data: object) -> dict[str, object]:
        outputs = self(data[0], training=False)
        _, error = (metric for each in self.metrics for metric in getattr(each, "metrics", []) if metric.name == "mae")
        error.update_state(data[1][1], outputs[1])
        return {"b_mae": error.result()}


def test_of_two_outputs_one_has_no_score() -> None:
    inputs = keras.Input((4,))
    model = ScoresOne(inputs, [keras.layers.Dense(1, name=name)(inputs) for name in "ab"])
    model.compile("sgd", ["mse", "mse"], metrics=[["mae"], ["mae"]])
    both = (X, (Y, Y))
    history = SparkModel(model, num_workers=2, engine="in_process").fit(*both, validation_data=both, verbose=0).history
    assert [name for name in sorted(history) if name.startswith("val_")] == ["val_b_mae"]
    assert history["val_b_mae"][0] > 0


def test_results_are_listed_in_the_order_of_keras_evaluate() -> None:
    """Losses of outputs in the outputs' order, then their metrics by name: results have them the other way round."""
    inputs = keras.Input((1,))
    heads = [keras.layers.Rescaling(scale, name=name)(inputs) for scale, name in ((2.0, "z"), (3.0, "b"))]
    model = keras.Model(inputs, heads)
    model.compile("sgd", ["mse", "mae"], metrics=[["mae"], ["mse", keras.metrics.MeanAbsoluteError(name="own")]])
    x, y = np.array([[1.0], [2.0]]), [np.zeros((2, 1)), np.ones((2, 1))]
    expected = model.evaluate(x, y, verbose=0)
    sums = read_metrics(model)
    results = metric_results(model, sums)
    assert sorted(results) == ["b_loss", "b_mse", "b_own", "loss", "z_loss", "z_mae"]
    assert in_order(model, results) == pytest.approx(expected)
    assert list(results.values()) != pytest.approx(expected)


def test_a_train_step_s_own_metric_named_loss_is_not_taken_for_keras_tracker_which_saw_nothing() -> None:
    model = mlp()
    build(model, (X, Y))
    assert metrics_of(model) == {}
    model.own = keras.metrics.Mean(name="loss")
    model.own.update_state(3.0)
    assert metrics_of(model) == {"loss": 3.0}


def test_under_bfloat16_losses_and_learning_rates_are_numbers() -> None:
    before = keras.config.floatx()
    keras.config.set_floatx("bfloat16")
    try:
        model = mlp(keras.optimizers.SGD(keras.optimizers.schedules.CosineDecay(0.5, 10)))
        history = SparkModel(model, 2, engine="in_process").fit(X, Y, batch_size=4, verbose=0).history
    finally:
        keras.config.set_floatx(before)
    assert type(history["loss"][0]) is float
    assert np.isfinite(history["loss"][0])
