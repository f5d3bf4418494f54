from __future__ import annotations

from pathlib import Path

import keras
import numpy as np
import pytest

from elephas_like import SparkModel
from elephas_like.core.types import Role
from elephas_like.trainer.building import build_optimizer
from elephas_like.trainer.learning_rate import LearningRates, ScaledSchedule, ScaledVariables, scaled_schedules
from elephas_like.trainer.state import Variables
from trainer.small import mlp

RATE = 0.0078125  # times 4, and half of it, are exact
X = np.random.default_rng(0).normal(size=(64, 3)).astype("float32")
Y = X.sum(axis=1, keepdims=True)
SCHEDULES = keras.optimizers.schedules


def test_a_plain_learning_rate_is_the_states() -> None:
    model = mlp(keras.optimizers.SGD(0.25))
    build_optimizer(model)
    rate, state = LearningRates(model), Variables(model).read()
    assert rate(state, 0) == rate(state, 100) == 0.25
    assert rate(state.but(learning_rate=np.array([0.5], np.float32)), 3) == 0.5


def test_a_schedule_is_asked_for_the_states_step() -> None:
    schedule = keras.optimizers.schedules.PiecewiseConstantDecay([10, 20], [1.0, 0.5, 0.25])
    model = mlp(keras.optimizers.Adam(schedule))
    build_optimizer(model)
    rate, state = LearningRates(model), Variables(model).read()
    assert [rate(state, steps) for steps in (0, 10, 11, 21)] == [1.0, 1.0, 0.5, 0.25]
    model.optimizer.iterations.assign(15)
    later = Variables(model).read()
    assert [rate(later, steps) for steps in (0, 5, 6)] == [0.5, 0.5, pytest.approx(0.25)]


def test_the_rate_is_that_of_the_optimizer_inside_a_loss_scale() -> None:
    """The wrapper has a learning rate of 0 and an iteration of its own, which never moves."""
    model = mlp(keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.25)))
    build_optimizer(model)
    rate, state = LearningRates(model), Variables(model).read()
    assert rate(state, 0) == 0.25
    assert rate(state.but(learning_rate=np.array([0.0, 0.5], np.float32)), 3) == 0.5


class Counted(keras.layers.Layer):
    """Three integers, which lie before those of the optimizer."""

    def build(self, shape) -> None:
        self.add_weight(shape=(3,), dtype="int32", initializer="zeros", trainable=False, name="iteration")

    def call(self, x):
        return x


@pytest.mark.parametrize("scaled", [False, True])
def test_a_schedule_counts_the_steps_of_its_own_optimizer(scaled: bool) -> None:
    schedule = keras.optimizers.schedules.PiecewiseConstantDecay([10, 20], [1.0, 0.5, 0.25])
    optimizer = keras.optimizers.SGD(schedule)
    model = keras.Sequential([keras.Input((4,)), Counted(), keras.layers.Dense(1)])
    model.compile(keras.optimizers.LossScaleOptimizer(optimizer) if scaled else optimizer, "mse")
    build_optimizer(model)
    optimizer.iterations.assign(15)
    rate, state = LearningRates(model), Variables(model).read()
    assert [rate(state, steps) for steps in (0, 5, 6)] == [0.5, 0.5, 0.25]


@pytest.mark.parametrize("wrapped", [False, True])
def test_states_have_the_scaled_rate_and_the_model_keeps_its_own_to_the_bit(wrapped: bool) -> None:
    inner = keras.optimizers.SGD(0.1)
    model = mlp(keras.optimizers.LossScaleOptimizer(inner) if wrapped else inner)
    build_optimizer(model)
    own, scaled, plain = np.float32(inner.learning_rate), ScaledVariables(model, 8**0.5), Variables(model)
    state = scaled.read()
    assert state.learning_rate.tolist() == [*[0.0] * wrapped, np.float32(float(own) * 8**0.5)]
    for _ in range(3):
        scaled.write(state)
        assert np.float32(inner.learning_rate) == own
    assert [part.tolist() for part in scaled.read().parts().values()] == [
        part.tolist() for part in state.parts().values()
    ]
    assert plain.read().learning_rate[-1] == own


def test_a_rate_that_steps_or_callbacks_have_set_is_scaled_either_way() -> None:
    model = mlp(keras.optimizers.SGD(0.125))
    build_optimizer(model)
    scaled = ScaledVariables(model, 4.0)
    model.optimizer.learning_rate = 0.0625  # a callback has halved it
    assert scaled.read().learning_rate.tolist() == [0.25]
    other = scaled.read().but(learning_rate=np.array([1.0], np.float32))
    scaled.write(other, frozenset(Role) - {Role.LEARNING_RATE})
    assert float(model.optimizer.learning_rate) == 0.0625
    scaled.write(other)
    assert float(model.optimizer.learning_rate) == 0.25
    assert other.learning_rate.tolist() == [1.0]


def test_a_schedule_is_scaled_step_by_step_and_comes_back() -> None:
    schedule = keras.optimizers.schedules.PiecewiseConstantDecay([10], [1.0, 0.5])
    model = mlp(keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam(schedule)))
    build_optimizer(model)
    state = ScaledVariables(model, 3.0).read()
    rate = LearningRates(model, 3.0)
    assert [rate(state, steps) for steps in (0, 11)] == [3.0, 1.5]
    with pytest.raises(KeyboardInterrupt), scaled_schedules(model, 3.0):
        rate = LearningRates(model)
        assert [rate(state, steps) for steps in (0, 11)] == [3.0, 1.5]
        given = model.optimizer.inner_optimizer._learning_rate
        again = ScaledSchedule.from_config(given.get_config())
        assert [float(again(step)) for step in (0, 11)] == [3.0, 1.5]
        raise KeyboardInterrupt
    assert model.optimizer.inner_optimizer._learning_rate is schedule


def test_a_function_of_the_users_own_is_not_scaled() -> None:
    model = mlp(keras.optimizers.SGD(lambda: 0.1))
    build_optimizer(model)
    with pytest.raises(TypeError, match="the optimizer's is a function"):
        ScaledVariables(model, 2.0)
    with pytest.raises(TypeError, match="the optimizer's is a function"), scaled_schedules(model, 2.0):
        pass
    with scaled_schedules(model, 1.0):  # one worker
        pass


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
