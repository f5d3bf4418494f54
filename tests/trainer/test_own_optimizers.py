"""Optimizers inside Keras' MultiOptimizer count wherever a fit asks what the model's optimizer is like."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import keras
import numpy as np
import pytest

from elephas_like import SparkModel, load_spark_model
from elephas_like.core.types import OptimizerState
from elephas_like.trainer.building import build, build_optimizer
from elephas_like.trainer.compile_arguments import compiled_as
from elephas_like.trainer.learning_rate import LearningRates, ScaledVariables, scaled_schedules
from elephas_like.trainer.momentum import gathers_speed
from elephas_like.trainer.own_optimizers import own_optimizers
from elephas_like.trainer.programs import Program
from elephas_like.trainer.request import check_optimizer_state
from elephas_like.trainer.spec import ModelSpec
from elephas_like.trainer.state import Variables
from trainer.small import mlp, rows

OPTIMIZERS = keras.optimizers
Optimizer = keras.optimizers.Optimizer
X, Y = rows(32)
multi = pytest.mark.skipif(not hasattr(OPTIMIZERS, "MultiOptimizer"), reason="this Keras has no MultiOptimizer")


class ByKind:
    """A function from variables to optimizers, which a MultiOptimizer asks only when it is built."""

    def __init__(self, kernels: Optimizer, biases: Optimizer) -> None:
        self.kernels, self.biases = kernels, biases

    def __call__(self, variable: keras.Variable) -> Optimizer:
        return self.biases if variable.name == "bias" else self.kernels


def mapped(kernels: Optimizer, biases: Optimizer) -> Optimizer:
    return OPTIMIZERS.MultiOptimizer(OPTIMIZERS.OptimizerMap(kernels, {".*/bias": biases}))


def asked(kernels: Optimizer, biases: Optimizer) -> Optimizer:
    return OPTIMIZERS.MultiOptimizer(ByKind(kernels, biases))


def built(optimizer: Optimizer) -> keras.Model:
    model = mlp(optimizer)
    build_optimizer(model)
    return model


def test_plain_optimizers_are_their_models_own() -> None:
    plain = OPTIMIZERS.SGD()
    assert own_optimizers(mlp(plain)) == [plain]
    assert own_optimizers(mlp(OPTIMIZERS.LossScaleOptimizer(plain))) == [plain]
    assert own_optimizers(keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])) == []


@multi
@pytest.mark.parametrize("made", [mapped, asked])
@pytest.mark.parametrize("scaled", [False, True])
def test_those_inside_are_found(made: Callable[..., Optimizer], scaled: bool) -> None:
    inside = OPTIMIZERS.Adam(), OPTIMIZERS.SGD()
    both = made(*inside)
    assert set(own_optimizers(built(OPTIMIZERS.LossScaleOptimizer(both) if scaled else both))) == set(inside)


@multi
def test_one_that_steps_nothing_does_not_count() -> None:
    used, unused = OPTIMIZERS.SGD(), OPTIMIZERS.Ftrl()
    model = mlp(OPTIMIZERS.MultiOptimizer(OPTIMIZERS.OptimizerMap(unused, {".*": used})))
    assert set(own_optimizers(model)) == {used, unused}  # nobody knows yet
    build_optimizer(model)
    assert own_optimizers(model) == [used]


@multi
@pytest.mark.parametrize(
    ("inside", "said"),
    [
        (lambda: OPTIMIZERS.Adam(use_ema=True), "an optimizer with use_ema=True needs"),
        (lambda: OPTIMIZERS.Ftrl(), "Ftrl computes the weights from its slots"),
    ],
)
def test_slots_that_make_weights_must_come_back(inside: Callable[[], Optimizer], said: str) -> None:
    for pair in ((inside(), OPTIMIZERS.SGD()), (OPTIMIZERS.SGD(), inside())):
        model = mlp(mapped(*pair))
        check_optimizer_state(model, OptimizerState.AVERAGE)
        for treatment in (OptimizerState.RESET, OptimizerState.PER_WORKER):
            with pytest.raises(ValueError, match=said):
                check_optimizer_state(model, treatment)


@multi
def test_those_that_are_known_only_when_the_optimizer_is_built_are_checked_in_the_fit() -> None:
    model = mlp(asked(OPTIMIZERS.Adam(use_ema=True), OPTIMIZERS.SGD()))
    fitted = SparkModel(model, 2, engine="in_process", optimizer_state="reset")
    with pytest.raises(ValueError, match="use_ema=True needs"):
        fitted.fit(X, Y, verbose=0)
    model = mlp(asked(OPTIMIZERS.Lion(), OPTIMIZERS.SGD()))
    report = SparkModel(model, 2, engine="in_process", optimizer_state="reset").fit(X, Y, verbose=0).report
    assert report["about"]["strategy"] == "Average"  # for Lion gathers speed


@multi
def test_rounds_end_where_all_of_them_step() -> None:
    def accumulation(*steps: int | None) -> int:
        inside = [OPTIMIZERS.SGD(gradient_accumulation_steps=count) for count in steps]
        model = mlp(mapped(*inside))
        build(model, (X[:1], Y[:1]))
        return Program(ModelSpec.from_model(model), (X[:1], Y[:1]), 0).accumulation

    assert [accumulation(*steps) for steps in ((2, 2), (None, 3), (4, 6), (None, None))] == [2, 3, 12, 1]


@multi
def test_accumulated_gradients_move_all_weights_also_where_slots_are_reset() -> None:
    model = mlp(mapped(*(OPTIMIZERS.SGD(0.1, gradient_accumulation_steps=count) for count in (2, 4))))
    before = model.get_weights()
    fitted = SparkModel(
        model, 1, engine="in_process", optimizer_state="reset", frequency="batch", strategy="average", batch_size=4
    )
    history = fitted.fit(X, Y, epochs=1, shuffle=False, verbose=0)
    assert [record.of for record in history.rounds] == [2, 2]
    assert all(np.any(one != other) for one, other in zip(before, model.get_weights(), strict=True))


@pytest.mark.parametrize(
    "made", [lambda slow: slow, pytest.param(lambda slow: mapped(slow, OPTIMIZERS.SGD()), marks=multi)]
)
def test_gradients_that_are_accumulated_for_longer_than_slots_are_kept_are_refused(
    made: Callable[..., Optimizer],
) -> None:
    def fit(optimizer_state: str, frequency: str) -> None:
        model = mlp(made(OPTIMIZERS.SGD(gradient_accumulation_steps=10)))
        fitted = SparkModel(
            model, 2, engine="in_process", optimizer_state=optimizer_state, frequency=frequency, batch_size=2
        )
        fitted.fit(X, Y, epochs=2, verbose=0)

    with pytest.raises(ValueError, match=r"gradient_accumulation_steps=10 with optimizer_state='reset'.* 8 batches"):
        fit("reset", "epoch")
    fit("reset", "fit")  # 16 batches
    fit("average", "epoch")


@pytest.mark.parametrize(
    ("treatment", "accumulated", "epochs", "frequency", "lost"),
    [
        ("reset", 2, 2, "epoch", True),
        ("reset", 3, 2, "epoch", False),
        ("reset", 2, 1, "epoch", False),  # Keras' fit ends with them, too
        ("reset", 2, 2, "fit", False),
        ("average", 2, 2, "epoch", False),
        ("per_worker", 2, 2, "epoch", False),
    ],
)
def test_gradients_that_a_reset_takes_at_the_end_of_an_epoch_are_warned_of(
    treatment: str, accumulated: int, epochs: int, frequency: str, lost: bool, caplog: pytest.LogCaptureFixture
) -> None:
    def made() -> keras.Model:
        return mlp(OPTIMIZERS.SGD(0.1, gradient_accumulation_steps=accumulated))

    model, keras_own = made(), made()
    fitted = SparkModel(model, 1, engine="in_process", optimizer_state=treatment, frequency=frequency, batch_size=4)
    keras_own.run_eagerly = True  # which has fewer steps than a trace costs
    fitted.fit(X[:12], Y[:12], epochs=epochs, shuffle=False, verbose=0)
    keras_own.fit(X[:12], Y[:12], epochs=epochs, batch_size=4, shuffle=False, verbose=0)
    assert ("(1 of up to 3) make no whole step" in caplog.text) is lost
    one, other = (np.concatenate([weight.ravel() for weight in each.get_weights()]) for each in (model, keras_own))
    assert np.allclose(one, other, atol=1e-6) is not lost


@multi
@pytest.mark.parametrize(
    ("inside", "gathers"), [(lambda: OPTIMIZERS.Lion(), True), (lambda: OPTIMIZERS.RMSprop(), False)]
)
def test_speed_that_one_of_them_gathers_counts(inside: Callable[[], Optimizer], gathers: bool) -> None:
    assert gathers_speed(mlp(mapped(OPTIMIZERS.SGD(), inside()))) is gathers
    assert gathers_speed(mlp(mapped(inside(), OPTIMIZERS.SGD()))) is gathers


@multi
def test_the_rate_is_the_largest() -> None:
    decay = OPTIMIZERS.schedules.PiecewiseConstantDecay([3], [1.0, 0.125])
    model = built(OPTIMIZERS.LossScaleOptimizer(mapped(OPTIMIZERS.Adam(decay), OPTIMIZERS.SGD(0.25))))
    rate, state = LearningRates(model), Variables(model).read()
    assert [rate(state, steps) for steps in (0, 3, 4)] == [1.0, 1.0, 0.25]
    scaled = LearningRates(model, 2.0)
    state = ScaledVariables(model, 2.0).read()
    assert [scaled(state, steps) for steps in (0, 3, 4)] == [2.0, 2.0, 0.5]


@multi
def test_the_rate_of_each_is_scaled() -> None:
    decay = OPTIMIZERS.schedules.PiecewiseConstantDecay([3], [1.0, 0.125])
    first, second, third = OPTIMIZERS.Adam(decay), OPTIMIZERS.SGD(0.1), OPTIMIZERS.SGD(0.2)
    model = mlp()
    choose = {".*/bias": second, model.layers[0].kernel.path: third}
    model.compile(OPTIMIZERS.MultiOptimizer(OPTIMIZERS.OptimizerMap(first, choose)), "mse")
    build_optimizer(model)
    scaled = ScaledVariables(model, 4.0)
    state = scaled.read()
    assert sorted(state.learning_rate.tolist()) == sorted(np.float32([0.0, 0.1, 0.2]) * np.float32(4.0))
    scaled.write(state)
    assert [float(each.learning_rate) for each in (second, third)] == np.float32([0.1, 0.2]).tolist()
    with scaled_schedules(model, 4.0):
        assert float(first.learning_rate) == 4.0
    assert first._learning_rate is decay
    with pytest.raises(TypeError, match="is a function"):
        ScaledVariables(built(mapped(OPTIMIZERS.SGD(lambda: 0.1), OPTIMIZERS.SGD())), 2.0)


@multi
@pytest.mark.parametrize("made", [mapped, asked])
def test_a_fit_trains_with_scaled_rates(made: Callable[..., Optimizer]) -> None:
    def fitted(factor: float, **options: object) -> keras.Model:
        decay = OPTIMIZERS.schedules.ExponentialDecay(factor / 128, 4, 0.5, staircase=True)
        model = mlp(made(OPTIMIZERS.SGD(decay), OPTIMIZERS.SGD(factor / 64, momentum=0.5)))
        SparkModel(model, 4, engine="in_process", seed=1, batch_size=4, **options).fit(X, Y, epochs=2, verbose=0)
        return model

    scaled, by_hand = fitted(1.0, scale_learning_rate="linear"), fitted(4.0)
    for one, other in zip(scaled.get_weights(), by_hand.get_weights(), strict=True):
        np.testing.assert_array_equal(one, other)
    after = sorted(float(each.learning_rate) for each in own_optimizers(scaled))
    assert after == [1 / 128 / 2, 1 / 64]  # after four steps


@multi
def test_what_a_checkpoint_says_of_them_is_the_same_in_every_process_and_whatever_the_rate() -> None:
    def said(rate: float, other: Optimizer) -> object:
        return compiled_as(built(mapped(OPTIMIZERS.Adam(rate), other)))["optimizer"]

    assert said(0.1, OPTIMIZERS.SGD()) == said(0.2, OPTIMIZERS.SGD(0.5))
    assert said(0.1, OPTIMIZERS.SGD()) != said(0.1, OPTIMIZERS.SGD(momentum=0.5))
    assert said(0.1, OPTIMIZERS.SGD()) != said(0.1, OPTIMIZERS.RMSprop())


class Two(keras.Model):
    """A train step of its own with an optimizer for each of two parts. The model's own steps nothing, and neither does the one for later."""

    def __init__(self, first: Optimizer, second: Optimizer) -> None:
        super().__init__()
        self.hidden, self.out = keras.layers.Dense(3, activation="relu"), keras.layers.Dense(1)
        self.first, self.second, self.later = first, second, OPTIMIZERS.Ftrl(use_ema=True)
        self.tracker = keras.metrics.Mean(name="loss")

    @property
    def metrics(self) -> list[keras.metrics.Metric]:
        return [self.tracker]

    def call(self, x: object) -> object:
        return self.out(self.hidden(x))

    def train_step(self, data: tuple[object, object]) -> dict[str, object]:
        import tensorflow as tf

        x, y = data
        with tf.GradientTape() as tape:
            loss = keras.ops.mean((self(x) - y) ** 2)
        weights = self.hidden.trainable_weights, self.out.trainable_weights
        of_hidden, of_out = tape.gradient(loss, weights)
        self.first.apply_gradients(zip(of_hidden, weights[0], strict=True))
        self.second.apply_gradients(zip(of_out, weights[1], strict=True))
        self.tracker.update_state(loss)
        return {"loss": self.tracker.result()}


def two(first: Optimizer, second: Optimizer) -> Two:
    keras.utils.set_random_seed(2)
    model = Two(first, second)
    model.compile()
    build(model, (X[:1], Y[:1]))
    return model


by_tape = pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="its train step is TensorFlow's")


@by_tape
def test_those_that_a_train_step_of_the_users_own_calls_are_found() -> None:
    first, second = OPTIMIZERS.Adam(), OPTIMIZERS.LossScaleOptimizer(OPTIMIZERS.Lion())
    model = two(first, second)
    assert set(own_optimizers(model)) == {first, second.inner_optimizer}
    assert gathers_speed(model)
    check_optimizer_state(model, OptimizerState.RESET)  # the Ftrl for later steps nothing
    for inside, said in ((OPTIMIZERS.Ftrl(), "Ftrl computes"), (OPTIMIZERS.Adam(use_ema=True), "use_ema=True needs")):
        with pytest.raises(ValueError, match=said):
            check_optimizer_state(two(OPTIMIZERS.SGD(), inside), OptimizerState.RESET)
    accumulating = two(*(OPTIMIZERS.SGD(gradient_accumulation_steps=count) for count in (2, 3)))
    assert Program(ModelSpec.from_model(accumulating), (X[:1], Y[:1]), 0).accumulation == 6


@by_tape
def test_the_optimizer_of_a_compiled_model_inside_does_not_count() -> None:
    teacher = mlp(OPTIMIZERS.SGD(momentum=0.5))
    build(teacher, (X[:1], Y[:1]))
    keras.utils.set_random_seed(2)
    model = Two(OPTIMIZERS.Adam(), OPTIMIZERS.SGD())
    model.teacher = teacher
    model.compile()
    build(model, (X[:1], Y[:1]))
    assert set(own_optimizers(model)) == {model.first, model.second}
    assert not gathers_speed(model)


@by_tape
def test_a_fit_scales_the_rates_of_optimizers_that_its_train_step_calls() -> None:
    def fitted(factor: float, **options: object) -> Two:
        decay = OPTIMIZERS.schedules.ExponentialDecay(factor / 128, 4, 0.5, staircase=True)
        model = two(OPTIMIZERS.SGD(decay), OPTIMIZERS.SGD(factor / 64, momentum=0.5))
        fitted = SparkModel(model, 4, engine="in_process", seed=1, batch_size=4, **options)
        report = fitted.fit(X, Y, epochs=2, verbose=0).report
        assert report["about"]["strategy"] == "Average"  # for one of them gathers speed
        return model

    scaled, by_hand = fitted(1.0, scale_learning_rate="linear"), fitted(4.0)
    for one, other in zip(scaled.get_weights(), by_hand.get_weights(), strict=True):
        np.testing.assert_array_equal(one, other)
    assert [float(each.learning_rate) for each in (scaled.first, scaled.second)] == [1 / 128 / 2, 1 / 64]
    assert float(scaled.optimizer.learning_rate) == float(by_hand.optimizer.learning_rate)


@by_tape
def test_a_checkpoint_says_them_apart_from_the_models_own() -> None:
    def said(second: Optimizer) -> dict[str, str]:
        return compiled_as(two(OPTIMIZERS.Adam(), second))

    plain = said(OPTIMIZERS.SGD(0.1))
    assert plain == said(OPTIMIZERS.SGD(0.2)) != said(OPTIMIZERS.SGD(momentum=0.5))
    assert plain["optimizer"] == said(OPTIMIZERS.Lion())["optimizer"]  # as earlier versions wrote it
    assert compiled_as(mlp())["other_optimizers"] == ""


def test_what_keras_loads_from_h5_has_to_be_loaded_otherwise(tmp_path: Path) -> None:
    mlp("adam", loss=keras.losses.MeanSquaredError()).save(tmp_path / "model.h5")
    with pytest.raises(
        ValueError, match=r"was built for no weights at all: .* Load the file with elephas_like\.load_spark_model"
    ):
        SparkModel(keras.models.load_model(tmp_path / "model.h5"), 1, engine="in_process").fit(X, Y, verbose=0)
    load_spark_model(str(tmp_path / "model.h5"), num_workers=1, engine="in_process").fit(X, Y, verbose=0)


def test_layers_that_are_unfrozen_after_the_optimizer_was_built_are_named() -> None:
    model = mlp("adam")
    model.layers[0].trainable = False
    model.compile("adam", "mse")
    trained = SparkModel(model, 1, engine="in_process")
    trained.fit(X, Y, verbose=0)
    model.layers[0].trainable = True  # Keras on TensorFlow warns, and goes on without it; on other backends it raises
    with pytest.raises(
        ValueError, match=r"were unfrozen .* does not know '.*kernel', '.*bias'. Compile the model again"
    ):
        trained.fit(X, Y, verbose=0)
    model.compile("adam", "mse")
    before = model.layers[0].get_weights()[0]
    trained.fit(X, Y, verbose=0)
    assert (model.layers[0].get_weights()[0] != before).all()


@by_tape
def test_an_optimizer_that_was_replaced_does_not_count_and_one_that_a_part_was_compiled_with_does() -> None:
    class Own(keras.Model):
        def train_step(self, data):
            return super().train_step(data)

    inputs = keras.Input(X.shape[1:])
    model = Own(inputs, keras.layers.Dense(Y.shape[-1])(inputs))
    model.compile(OPTIMIZERS.SGD(momentum=0.9), "mse")
    model.fit(X, Y, verbose=0)
    model.optimizer = OPTIMIZERS.Adam()
    build(model, (X[:1], Y[:1]))
    assert own_optimizers(model) == [model.optimizer]
    assert not gathers_speed(model)
    held = Two(OPTIMIZERS.Adam(), OPTIMIZERS.Lion())
    held.part = mlp(held.second)
    held.compile()
    build(held, (X[:1], Y[:1]))
    assert set(own_optimizers(held)) == {held.first, held.second}
