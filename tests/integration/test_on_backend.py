"""Keras without TensorFlow over real Spark: fit on all engines, predict, evaluate, search, ensembles, stages.

Run by `make test-jax` and `make test-torch`.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import keras
import numpy as np
import pytest

from elephas_like import MissingExtraError, SparkModel, read_tfrecords, search, train_ensemble
from elephas_like.trainer.backends.chosen import BACKEND
from elephas_like.trainer.inference import Predictor
from elephas_like.trainer.keras_settings import KerasSettings

pytestmark = [pytest.mark.slow, pytest.mark.classic]

X = np.random.default_rng(0).normal(size=(300, 4)).astype("float32")
Y = X.sum(axis=1, keepdims=True)
CLASSES = (X[:, 0] > 0).astype("int32") + (X[:, 1] > 0)


def model(units: int = 5, *, classes: int = 0) -> keras.Model:
    keras.utils.set_random_seed(1)
    last = keras.layers.Dense(classes, "softmax") if classes else keras.layers.Dense(1)
    made = keras.Sequential(
        [keras.Input((4,)), keras.layers.Dense(units, "relu"), keras.layers.BatchNormalization(), last]
    )
    made.compile(
        "adam", "sparse_categorical_crossentropy" if classes else "mse", metrics=["accuracy"] if classes else ["mae"]
    )
    return made


def pairs(sc):
    return sc.parallelize(list(zip(X, Y, strict=True)), 2)


def test_four_engines_give_the_same_bits(sc) -> None:
    found = {}
    for engine in ("in_process", "jobs", "server", "gang"):
        trained = SparkModel(model(), num_workers=2, engine=engine, seed=3)
        history = trained.fit(pairs(sc), epochs=2, batch_size=32, verbose=0).history
        weights = b"".join(weight.tobytes() for weight in trained.master_network.get_weights())
        found[engine] = (weights, history["loss"])
    assert found["jobs"] == found["server"] == found["gang"] == found["in_process"]


class Centred(keras.Model):
    """Its predict step takes x as Keras' predict hands it over, in its backend's form."""

    def __init__(self) -> None:
        super().__init__()
        self.dense = keras.layers.Dense(2)

    def call(self, x):
        return self.dense(x)

    def predict_step(self, *given):
        *state, x = given
        if not state:
            return self(x) / x.shape[0] - keras.ops.mean(x)
        found, kept = self.stateless_call(*state[0], x)
        return found / x.shape[0] - keras.ops.mean(x), kept


@pytest.mark.parametrize("eagerly", [False, True])
def test_a_predict_step_gets_what_keras_hands_it(eagerly: bool) -> None:
    made = Centred()
    made(X[:1])
    made.compile("sgd", "mse", run_eagerly=eagerly)
    expected, predictor = made.predict(X, batch_size=64, verbose=0), Predictor.of(made, 64)

    def predicted(x: np.ndarray) -> np.ndarray:
        return np.concatenate([arrays[0] for arrays, _ in predictor.of_arrays(x, len(x))])

    np.testing.assert_allclose(predicted(X), expected, atol=1e-6)
    with pytest.raises(ValueError, match="incompatible"):
        predicted(X[:, :2])
    np.testing.assert_allclose(predicted(X), expected, atol=1e-6)  # the model that is kept is whole


def test_workers_have_the_driver_s_backend_and_no_tensorflow(sc) -> None:
    SparkModel(model(), num_workers=2).fit(pairs(sc), epochs=1, verbose=0)

    def modules(_):
        import os
        import sys

        yield os.environ.get("KERAS_BACKEND"), own in sys.modules, "tensorflow" in sys.modules

    own = keras.backend.backend()
    assert sc.parallelize([0], 1).mapPartitions(modules).collect() == [(own, True, False)]


@pytest.mark.skipif(keras.backend.backend() != "jax", reason="it is JAX's own setting")
def test_workers_keep_as_many_bits_as_the_driver(sc) -> None:
    import jax

    try:
        for wide in (True, False):
            jax.config.update("jax_enable_x64", wide)
            keras.config.set_floatx("float64" if wide else "float32")
            keras.config.set_dtype_policy(keras.config.floatx())
            rows = X[:8].astype(keras.config.floatx())
            predictor = SparkModel(model(), num_workers=1)
            predictor.fit(sc.parallelize(list(zip(rows, Y[:8], strict=True)), 1), epochs=1, verbose=0)
            found = predictor.predict(sc.parallelize(list(rows), 1))
            assert found.dtype == keras.config.floatx()
            np.testing.assert_allclose(found, predictor.master_network.predict(rows), rtol=1e-12 if wide else 1e-5)
    finally:
        jax.config.update("jax_enable_x64", False)
        keras.config.set_floatx("float32")
        keras.config.set_dtype_policy("float32")


class Told(keras.layers.Layer):
    """Adds what its process's backend is told of how exactly to compute."""

    def call(self, x):
        if keras.backend.backend() == "jax":
            import jax

            return (
                x + (jax.config.jax_default_matmul_precision == "highest") + 2 * jax.config.jax_threefry_partitionable
            )
        import torch

        return x + (torch.get_float32_matmul_precision() == "medium") + 2 * torch.are_deterministic_algorithms_enabled()


def test_workers_compute_as_exactly_as_the_driver(sc) -> None:
    """Spark's processes are used for one fit after another."""
    made, own, before = keras.Sequential([keras.Input((4,)), Told()]), KerasSettings.current(), BACKEND.arithmetic()
    made.compile("sgd", "mse")
    found = []
    try:
        for other in (
            {"jax_default_matmul_precision": "highest", "products": "medium", "algorithms": [True, False]},
            before,
        ):
            BACKEND.use_arithmetic({name: value for name, value in other.items() if name in before})
            rows = SparkModel(made, num_workers=1).predict(sc.parallelize([np.zeros(4, "float32")], 1))
            assert rows[0, 0] == made.predict(np.zeros((1, 4)), verbose=0)[0, 0]
            found.append(rows[0, 0])
    finally:
        BACKEND.use_arithmetic(before)
    assert found == ([3, 2] if keras.backend.backend() == "jax" else [3, 0])
    assert KerasSettings.current() == own


def test_predictions_and_metrics_are_those_of_keras(sc) -> None:
    own = model()
    own.fit(X, Y, epochs=1, verbose=0)
    spread = SparkModel(own, num_workers=2)
    found = np.asarray(spread.predict(sc.parallelize(list(X), 2))).ravel()
    np.testing.assert_allclose(found, own.predict(X, verbose=0).ravel(), rtol=1e-5, atol=1e-6)
    assert spread.evaluate(pairs(sc)) == pytest.approx(own.evaluate(X, Y, verbose=0), rel=1e-4)


def test_all_names_are_there_without_tensorflow(spark) -> None:
    names: dict[str, object] = {}
    exec("from elephas_like import *", names)
    assert names["SparkModel"] is SparkModel
    with pytest.raises(MissingExtraError, match="tensorflow"):
        read_tfrecords(spark, "data")


def test_the_example() -> None:
    program = Path(__file__).parents[2] / "examples" / "other_backends.py"
    done = subprocess.run([sys.executable, str(program)], capture_output=True, text=True, check=False)
    assert done.stdout.startswith(f"Keras on {keras.backend.backend()}: validation accuracy 0."), done.stderr


def test_a_search(sc) -> None:
    found = search(
        lambda params: model(params["units"]),
        {"units": [3, 4]},
        pairs(sc),
        max_evals=2,
        validation_split=0.2,
        verbose=0,
    )
    assert len(found.trials) == 2
    assert found.best_model.count_params() > 0


def test_an_ensemble(sc) -> None:
    labelled = sc.parallelize(list(zip(X, CLASSES, strict=True)), 2)
    voting = train_ensemble(model(classes=3), labelled, 2, epochs=1, verbose=0)
    assert np.asarray(voting.predict(X)).shape == (300,)


def test_a_stage(spark) -> None:
    from pyspark.ml.linalg import Vectors

    from elephas_like.ml_model import ElephasEstimator

    df = spark.createDataFrame(
        [(Vectors.dense(x.tolist()), int(y)) for x, y in zip(X, CLASSES, strict=True)], ["features", "label"]
    )
    fitted = ElephasEstimator(model=model(classes=3), epochs=1, batch_size=32, num_workers=2, verbose=0).fit(df)
    assert fitted.transform(df).select("prediction").distinct().count() >= 1
