"""dist-keras' trainers, by their names, on RDDs and DataFrames."""

from __future__ import annotations

import importlib

import keras
import numpy as np
import pytest
from sklearn.datasets import load_digits

from elephas_like import distkeras, strategies

X, Y = load_digits(return_X_y=True)
X = (X / 16).astype("float32")
TRAINERS = [
    (distkeras.SingleTrainer, "adam", {}),
    (distkeras.AveragingTrainer, "adam", {"num_workers": 2}),
    (distkeras.AEASGD, "adam", {"num_workers": 2, "communication_window": 8}),
    (distkeras.EAMSGD, "sgd", {"num_workers": 2, "communication_window": 8, "learning_rate": 0.05}),
    (distkeras.DynSGD, "adam", {"num_workers": 2}),
    (distkeras.ADAG, keras.optimizers.SGD(1.0), {"num_workers": 2, "communication_window": 4}),
]


def classifier() -> keras.Model:
    keras.utils.set_random_seed(5)
    return keras.Sequential([keras.Input((64,)), keras.layers.Dense(32, "relu"), keras.layers.Dense(10, "softmax")])


def test_what_is_not_here_is_said_with_what_replaces_it() -> None:
    with pytest.raises(ImportError, match=r"^elephas_like has no ModelPredictor: use SparkModel\(model\)\.predict"):
        from elephas_like.distkeras.predictors import ModelPredictor  # noqa: F401
    for module in ("evaluators", "parameter_servers", "transformers", "utils"):
        with pytest.raises(ImportError, match=r"^elephas_like has no \w+: use "):
            exec(f"from elephas_like.distkeras.{module} import *", {})
        found = importlib.import_module(f"elephas_like.distkeras.{module}")
        assert found.__doc__
        assert found.__all__  # which help() lists


QUICK = (distkeras.SingleTrainer, distkeras.ADAG)


@pytest.mark.parametrize(
    ("kind", "optimizer", "options"),
    [pytest.param(*each, marks=() if each[0] in QUICK else pytest.mark.slow) for each in TRAINERS],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_trainer_returns_a_trained_copy(sc, kind, optimizer, options) -> None:
    model = classifier()
    before = model.get_weights()
    trainer = kind(model, optimizer, "sparse_categorical_crossentropy", batch_size=16, num_epoch=4, seed=1, **options)
    trained = trainer.train(sc.parallelize(list(zip(X, Y, strict=True)), 2))
    for kept, weights in zip(model.get_weights(), before, strict=True):
        np.testing.assert_array_equal(kept, weights)
    assert trained.evaluate(X, Y, verbose=0, return_dict=True)["accuracy"] > 0.75
    assert len(trainer.get_history()[0]["loss"]) == 4
    assert trainer.has_history()
    assert trainer.get_training_time() > 0


def test_columns_of_a_dataframe_are_named(spark) -> None:
    rows = [([float(value) for value in x], int(y)) for x, y in zip(X[:200], Y[:200], strict=True)]
    frame = spark.createDataFrame(rows, "pixels array<float>, digit int").repartition(2)
    trainer = distkeras.AveragingTrainer(
        classifier(), "adam", "sparse_categorical_crossentropy", features_col="pixels", label_col="digit", num_epoch=2
    )
    trainer.train(frame, shuffle=True)
    first, second = trainer.get_history()[0]["loss"]
    assert second < first


def test_members_of_an_ensemble_come_as_a_list(sc) -> None:
    rdd = sc.parallelize(list(zip(X, Y, strict=True)), 2)
    trainer = distkeras.EnsembleTrainer(
        classifier(), "adam", "sparse_categorical_crossentropy", num_ensembles=2, num_epoch=6, seed=2
    )
    one, other = trainer.train(rdd, shuffle=True)
    assert len(trainer.get_history()) == 2
    assert not np.array_equal(one.get_weights()[0], other.get_weights()[0])
    assert one.evaluate(X, Y, verbose=0, return_dict=True)["accuracy"] > 0.75
    assert np.mean(np.argmax(np.asarray(other(X)), axis=1) == Y) > 0.75


@pytest.mark.parametrize("shuffle", [pytest.param(False, marks=pytest.mark.slow), True])
def test_members_of_an_ensemble_are_trained_on_a_dataframe(spark, shuffle: bool) -> None:
    rows = [([float(value) for value in x], int(y)) for x, y in zip(X[:200], Y[:200], strict=True)]
    frame = spark.createDataFrame(rows, "pixels array<float>, digit int").coalesce(1)
    trainer = distkeras.EnsembleTrainer(
        classifier(), "adam", "sparse_categorical_crossentropy", features_col="pixels", label_col="digit", seed=2
    )
    one, other = trainer.train(frame, shuffle=shuffle)
    assert not np.array_equal(one.get_weights()[0], other.get_weights()[0])


def test_the_pull_of_elastic_trainers() -> None:
    def pull(workers: int, **options: float) -> float:
        trainer = distkeras.AEASGD(classifier(), "adam", "mse", num_workers=workers, **options)
        return trainer._strategy(workers).beta / workers

    assert pull(4) == pytest.approx(0.9 / 4)
    assert pull(2, rho=2.0, learning_rate=0.1) == pytest.approx(0.2)
    with pytest.warns(UserWarning, match=r"alpha=0.5.*8 workers is unstable; alpha is 0.1125"):
        assert pull(8, rho=5.0, learning_rate=0.1) == pytest.approx(0.9 / 8)
    with pytest.raises(ValueError, match="give both"):
        pull(2, rho=5.0)


@pytest.mark.parametrize(
    ("kind", "strategy", "window"),
    [
        (distkeras.DOWNPOUR, strategies.DownPour, 5),
        (distkeras.ADAG, strategies.ADAG, 12),
        (distkeras.DynSGD, strategies.DynSGD, 5),
        (distkeras.AEASGD, strategies.AEASGD, 32),
        (distkeras.EAMSGD, strategies.EAMSGD, 32),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_asynchronous_trainers_have_the_strategy_and_the_window_of_their_names(kind, strategy, window: int) -> None:
    trainer = kind(classifier(), "adam", "mse")
    assert type(trainer._strategy(2)) is strategy
    assert trainer.communication_window == window


def test_an_optimizer_without_momentum_is_not_for_eamsgd() -> None:
    trainer = distkeras.EAMSGD(classifier(), "adam", "mse")
    with pytest.raises(ValueError, match=r"'sgd'.*AEASGD takes any"):
        trainer._optimizer()
    optimizer = distkeras.EAMSGD(classifier(), "sgd", "mse", learning_rate=0.2, momentum=0.8)._optimizer()
    assert (float(optimizer.learning_rate), optimizer.momentum, optimizer.nesterov) == (pytest.approx(0.2), 0.8, True)


def test_arguments_are_checked_when_they_are_given() -> None:
    with pytest.raises(ValueError, match="batch_size"):
        distkeras.SingleTrainer(classifier(), "adam", "mse", batch_size=0)
    for shuffle in (False, True):
        with pytest.raises(TypeError, match=r"a DataFrame or an RDD of \(x, y\) rows; got ndarray"):
            distkeras.ADAG(classifier(), "adam", "mse").train(X, shuffle=shuffle)
    with pytest.raises(TypeError, match="DataFrame"):
        distkeras.EnsembleTrainer(classifier(), "adam", "mse").train(X)


def test_a_vocabulary_that_was_adapted_is_copied_with_the_model(sc) -> None:
    words = keras.layers.StringLookup(output_mode="multi_hot")
    words.adapt(np.array(["a", "b", "c"]))
    model = keras.Sequential([keras.Input((1,), dtype="string"), words, keras.layers.Dense(1)])
    rows = sc.parallelize([(np.array([word]), float(word == "a")) for word in "abca"], 1)
    trained = distkeras.SingleTrainer(model, "sgd", "mse", num_epoch=1, batch_size=2).train(rows)
    assert trained.layers[0].get_vocabulary() == words.get_vocabulary()
