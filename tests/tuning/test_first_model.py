"""A search's objective is looked for in a first model, before a trial runs."""

from __future__ import annotations

import keras
import numpy as np
import pytest
from small_search import small

from elephas_like import search
from elephas_like.core.errors import DataError


def labels_from_0_to_2() -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(0)
    return random.normal(size=(60, 4)).astype("float32"), np.arange(60) % 3


def classes(params: dict) -> keras.Model:
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(params["units"], "softmax")])
    model.compile("sgd", "sparse_categorical_crossentropy", run_eagerly=True)
    return model


@pytest.mark.parametrize("seed", [1, 3])
def test_labels_that_one_model_does_not_take_are_that_trials_affair(seed: int) -> None:
    """Whichever point is drawn for the first model: with seed 1 it is the model of two classes, with seed 3 that of three."""
    found = search(
        classes,
        {"units": [2, 3]},
        labels_from_0_to_2(),
        objective="loss",
        max_evals=4,
        epochs=1,
        algo="random",
        seed=seed,
        verbose=0,
    )
    failed = found.trials["status"] == "failed"
    assert failed.any()
    assert failed.equals(found.trials["param_units"] == 2)
    assert found.best_params == {"units": 3}
    assert found.trials["error"][failed].str.contains("label 2").all()


def test_labels_that_no_model_takes_are_refused_before_a_trial() -> None:
    with pytest.raises(DataError, match=r"label 2.*the model has 2 outputs"):
        search(
            classes, {"units": [2]}, labels_from_0_to_2(), objective="loss", max_evals=2, epochs=1, seed=0, verbose=0
        )


def test_an_objective_is_checked_beside_keras_own_callbacks_and_left_to_those_that_may_add_it() -> None:
    keras_own = [keras.callbacks.ReduceLROnPlateau()]
    with pytest.raises(ValueError, match="not among the metrics: 'loss', 'accuracy'"):
        small(callbacks=keras_own, objective="val_f1_score")
    small(callbacks=keras_own, objective="learning_rate", direction="min", max_evals=1, epochs=1)

    adds = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: logs.update(val_f1_score=0.25))
    assert small(callbacks=adds, objective="val_f1_score", max_evals=1, epochs=1).best_value == 0.25

    class Adds(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs):
            logs["val_f1_score"] = 0.5

    assert small(callbacks=[Adds()], objective="val_f1_score", max_evals=1, epochs=1).best_value == 0.5
