"""Fits with scale_learning_rate: workers train with the scaled rate, callbacks and the files that they write have the model's own."""

from __future__ import annotations

from pathlib import Path

import keras
import numpy as np
import pytest

from elephas_like import SparkModel

RATE = 0.0078125  # times 4, and half of it, are exact
X = np.random.default_rng(0).normal(size=(64, 3)).astype("float32")
Y = X.sum(axis=1, keepdims=True)
SCHEDULES = keras.optimizers.schedules


def regression(optimizer: object) -> keras.Model:
    keras.utils.set_random_seed(2)
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    model.compile(optimizer, "mse")
    return model


def fit(model: keras.Model, *callbacks: keras.callbacks.Callback, epochs: int = 3, **options: object) -> keras.Model:
    fitted = SparkModel(model, 4, engine="in_process", seed=1, batch_size=4, **options)
    fitted.fit(X, Y, epochs=epochs, verbose=0, callbacks=list(callbacks))
    return model


def scheduled(*rates: float) -> keras.callbacks.Callback:
    """Sets a rate for each epoch, whatever the rate was."""
    return keras.callbacks.LearningRateScheduler(lambda epoch: rates[epoch])


@pytest.mark.parametrize(("scale", "factor"), [("linear", 4.0), ("sqrt", 2.0)])
def test_a_rate_that_a_callback_sets_is_scaled_and_stays_the_models(scale: str, factor: float) -> None:
    rates = [RATE, RATE / 2, RATE / 4]
    scaled = fit(regression(keras.optimizers.SGD(RATE)), scheduled(*rates), scale_learning_rate=scale)
    by_hand = fit(regression(keras.optimizers.SGD(RATE)), scheduled(*(rate * factor for rate in rates)))
    np.testing.assert_array_equal(scaled.get_weights()[0], by_hand.get_weights()[0])
    assert float(scaled.optimizer.learning_rate) == rates[-1]


def test_callbacks_see_the_rates_that_they_would_in_keras() -> None:
    def seen(scale: str | None, *callbacks: keras.callbacks.Callback) -> list[float]:
        found: list[float] = []
        look = keras.callbacks.LambdaCallback(
            on_epoch_end=lambda epoch, logs: found.append(float(model.optimizer.learning_rate))
        )
        model = regression(keras.optimizers.SGD(0.1))
        fit(model, *callbacks, look, scale_learning_rate=scale)
        return [*found, float(model.optimizer.learning_rate)]

    for schedule in (lambda epoch: 0.1, lambda epoch, rate: rate * 0.7):
        callback = keras.callbacks.LearningRateScheduler(schedule)
        assert seen("sqrt", callback) == seen(None, callback)
    assert seen("sqrt") == [float(np.float32(0.1))] * 4


def test_a_fit_that_fails_leaves_the_models_own_rate() -> None:
    def fails(epoch: int, logs: object) -> None:
        raise KeyboardInterrupt

    model = regression(keras.optimizers.SGD(0.1))
    with pytest.raises(KeyboardInterrupt):
        fit(model, keras.callbacks.LambdaCallback(on_epoch_end=fails), scale_learning_rate="sqrt")
    assert float(model.optimizer.learning_rate) == float(np.float32(0.1))


def test_files_that_callbacks_write_have_the_models_own_rate(tmp_path: Path) -> None:
    place = str(tmp_path / "model.keras")
    fit(regression(keras.optimizers.SGD(0.1)), keras.callbacks.ModelCheckpoint(place), scale_learning_rate="linear")
    assert float(keras.models.load_model(place).optimizer.learning_rate) == float(np.float32(0.1))


def test_files_that_callbacks_write_have_the_models_own_schedule(tmp_path: Path) -> None:
    place, decay = str(tmp_path / "model.keras"), SCHEDULES.ExponentialDecay(RATE, 4, 0.5, staircase=True)
    optimizer = keras.optimizers.SGD(decay)
    model = fit(regression(optimizer), keras.callbacks.ModelCheckpoint(place), scale_learning_rate="linear")
    loaded = keras.models.load_model(place).optimizer
    assert float(loaded.learning_rate) == float(optimizer.learning_rate) == RATE / 2**3  # 12 steps
    by_hand = SCHEDULES.ExponentialDecay(4 * RATE, 4, 0.5, staircase=True)
    np.testing.assert_array_equal(
        model.get_weights()[0], fit(regression(keras.optimizers.SGD(by_hand))).get_weights()[0]
    )


def test_files_that_worker_callbacks_write_can_be_loaded(tmp_path: Path) -> None:
    place, decay = str(tmp_path / "model.keras"), SCHEDULES.ExponentialDecay(RATE, 1000, 0.5, staircase=True)
    model = SparkModel(
        regression(keras.optimizers.SGD(decay)), 4, engine="in_process", batch_size=4, scale_learning_rate="linear"
    )
    model.fit(X, Y, verbose=0, worker_callbacks=keras.callbacks.ModelCheckpoint(place))
    assert float(keras.models.load_model(place).optimizer.learning_rate) == 4 * RATE
