"""The loop of JAX takes the steps of Keras' `fit(shuffle=False)` on the same backend. Run by `make test-jax`."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import jax
import keras
import numpy as np
import pytest

from elephas_like import SparkModel
from elephas_like.core.structure import flatten
from elephas_like.trainer.backends.jax_loop import JaxLoop, has_convolution, state_variables, unshared
from elephas_like.trainer.building import build
from elephas_like.trainer.metric_results import metrics_of
from elephas_like.trainer.state import Variables
from elephas_like.trainer.steps import StepLoop
from elephas_like.trainer.tensors import row_numbers, tensors
from trainer.small import mlp, rows

L = keras.layers
X, Y = rows(22)
BATCH = 4  # 22 rows: five whole batches and one of two
IMAGES = np.random.default_rng(1).normal(size=(22, 6, 6, 1)).astype("float32")
WEIGHTS = np.linspace(0, 2, 22).astype("float32")


def dense(*layers: keras.layers.Layer, shape: tuple[int, ...] = (4,), **compiled: object) -> keras.Model:
    model = keras.Sequential([keras.Input(shape), *layers, L.Dense(1)])
    model.compile(**({"optimizer": keras.optimizers.Adam(0.01), "loss": "mse"} | compiled))
    return model


class Scaled(keras.Model):
    """A step of the user's own, in JAX's form."""

    def train_step(self, state, data):
        logs, after = super().train_step(state, data)
        return {"loss": logs["loss"], "twice": 2 * logs["loss"]}, after


def own_step() -> keras.Model:
    inputs = keras.Input((4,))
    model = Scaled(inputs, L.Dense(1)(inputs))
    model.compile("sgd", "mse")
    return model


CASES: dict[str, tuple[Callable[[], keras.Model], tuple[object, ...]]] = {
    "dropout, batch normalization": (lambda: dense(L.Dense(5), L.BatchNormalization(), L.Dropout(0.5)), (X, Y)),
    "sample weights": (lambda: dense(weighted_metrics=["mae"], metrics=["mse"]), (X, Y, WEIGHTS)),
    "gradient accumulation": (
        lambda: dense(optimizer=keras.optimizers.Adam(0.01, gradient_accumulation_steps=4)),
        (X, Y),
    ),
    "loss scaling": (
        lambda: dense(
            L.Dense(5, dtype="mixed_float16"),
            optimizer=keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam(0.01), initial_scale=2.0**20),
        ),
        (X, Y),
    ),
    "moving average": (lambda: dense(optimizer=keras.optimizers.SGD(0.01, use_ema=True)), (X, Y)),
    "lstm": (lambda: dense(L.LSTM(3, recurrent_dropout=0.2), shape=(4, 1)), (X[:, :, None], Y)),
    "convolution": (lambda: dense(L.Conv2D(3, 3), L.Flatten(), shape=(6, 6, 1)), (IMAGES, Y)),
    "run eagerly": (lambda: dense(L.Dropout(0.5), run_eagerly=True), (X, Y)),
    "a step of one's own": (own_step, (X, Y)),
}


def ready(make: Callable[[], keras.Model], data: tuple[object, ...]) -> keras.Model:
    keras.utils.set_random_seed(11)
    model = make()
    build(model, keras.tree.map_structure(lambda array: array[:1], data))
    return model


def run(loop: StepLoop, data: tuple[object, ...], first: int, last: int) -> None:
    leaves, structure = flatten(data)
    loop.run(tensors(leaves), structure, row_numbers(len(leaves[0])), BATCH, first, last)


@pytest.mark.parametrize("name", CASES)
def test_rounds_of_the_loop_are_an_epoch_of_keras_fit(name: str) -> None:
    make, data = CASES[name]
    ours, keras_own = ready(make, data), ready(make, data)
    loop = StepLoop(ours, ours.train_step)
    for _ in range(2):
        ours.reset_metrics()
        for first, last in ((0, 1), (1, 4), (4, 4), (4, 6)):
            run(loop, data, first, last)
    assert loop.done == 12
    ours.optimizer.finalize_variable_values(ours.trainable_variables)  # as Keras' fit ends
    x, y, *weights = data
    keras_own.fit(
        x, y, sample_weight=weights[0] if weights else None, batch_size=BATCH, epochs=2, shuffle=False, verbose=0
    )
    here, there = Variables(ours).read().parts(), Variables(keras_own).read().parts()
    for part, expected in there.items():
        np.testing.assert_allclose(here[part], expected, rtol=1e-5, atol=1e-6, err_msg=part)


def test_how_a_round_is_cut_changes_no_bit() -> None:
    states = []
    for cuts in ((0, 6), (0, 2, 6), (0, 1, 2, 3, 4, 5, 6)):
        model = ready(lambda: dense(L.Dense(5, "tanh"), L.Dropout(0.3)), (X, Y))
        loop = StepLoop(model, model.train_step)
        for first, last in itertools.pairwise(cuts):
            run(loop, (X, Y), first, last)
        states.append({name: part.tobytes() for name, part in Variables(model).read().parts().items()})
    assert states[0] == states[1] == states[2]


def test_only_steps_without_convolutions_are_compiled_as_a_loop() -> None:
    made = {}
    for name in ("convolution", "lstm"):
        make, data = CASES[name]
        model = ready(make, data)
        loop = JaxLoop(model, model.train_step)
        leaves, structure = flatten(data)
        loop.run(tensors(leaves), structure, row_numbers(22), BATCH, 0, 2)
        ((_, several),) = loop._compiled.values()
        made[name] = several is not None
    assert made == {"convolution": jax.default_backend() != "cpu", "lstm": True}
    inner = jax.make_jaxpr(jax.jit(lambda x: jax.lax.conv(x, x, (1, 1), "SAME")))(IMAGES)
    assert has_convolution(inner.jaxpr)


def test_a_step_is_traced_once_for_each_program() -> None:
    traces = []

    class Noted(keras.Model):
        def train_step(self, state, data):
            traces.append(data[0].shape)
            return super().train_step(state, data)

    inputs = keras.Input((4,))
    model = Noted(inputs, L.Dense(1)(inputs))
    model.compile("sgd", "mse")
    build(model, (X, Y))
    loop = StepLoop(model, model.train_step)
    traces.clear()
    for first, last in ((0, 3), (3, 6), (0, 6)):
        run(loop, (X, Y), first, last)
    assert traces == [(4, 4), (2, 4)]


def test_shards_of_almost_one_size_share_a_program() -> None:
    x, y = rows(1000)
    model = ready(mlp, (x, y))
    loop = JaxLoop(model, model.train_step)
    for size in (1000, 990, 980):
        columns = tensors([x[:size], y[:size]])
        loop.run(columns, [0, 1], row_numbers(size), 10, 0, 3)
    assert len(loop._compiled) == 1


def test_no_row_of_the_padding_is_seen() -> None:
    x, y = rows(33)  # padded to 36
    model = ready(lambda: dense(metrics=["mae"]), (x, y))
    loop = StepLoop(model, model.test_step)
    loop.run(tensors([x, y]), [0, 1], row_numbers(33), 8, 0, 5)
    expected = model.evaluate(x, y, batch_size=33, verbose=0, return_dict=True)
    model.reset_metrics()
    loop.run(tensors([x, y]), [0, 1], row_numbers(33), 8, 0, 5)
    assert metrics_of(model) == pytest.approx(expected, rel=1e-5)


def test_an_array_that_two_variables_hold_is_given_to_a_step_twice() -> None:
    model = ready(mlp, (X, Y))
    first, second = model.trainable_variables[1], model.trainable_variables[3]
    shared = jax.numpy.zeros(first.shape)
    first._direct_assign(shared)
    model.optimizer.variables[0].assign(0)
    third = keras.Variable(np.zeros(first.shape, "float32"))
    third._direct_assign(shared)
    values = unshared(([first, third], [second]))
    assert values[0][0] is shared
    assert values[0][1] is not shared
    assert [len(group) for group in state_variables(model, trains=True)] == [4, 0, len(model.optimizer.variables), 2]


def test_a_step_sees_the_value_that_a_variable_of_no_layer_has_now() -> None:
    offset, scale = keras.Variable(0.0, trainable=False), keras.Variable(1.0, trainable=False)

    @jax.jit
    def scaled(error: jax.Array) -> jax.Array:
        return error * scale.value  # as JAX wants it only where the value stays

    model = ready(
        lambda: dense(loss=lambda y, p: keras.ops.mean(scaled((y - p) ** 2)) + 100 * offset + 0 * scale), (X, Y)
    )
    losses, traces = [], []
    loop = StepLoop(model, model.train_step)
    for value in (0.0, 1.0, 3.0):
        offset.assign(value)
        scale.assign(1.0)
        model.reset_metrics()
        run(loop, (X, Y), 0, 6)
        losses.append(metrics_of(model)["loss"])
        traces.append(list(loop._loop._compiled.values()))
        assert float(offset.value) == value
    assert np.diff(losses) == pytest.approx([100, 200], abs=10)
    assert traces[0] != traces[1] == traces[2]


def test_fits_of_equal_models_have_the_values_of_their_own_variables() -> None:
    offset = keras.Variable(0.0, trainable=False)

    def loss_of_a_fit() -> float:
        model = ready(lambda: dense(loss=lambda y, p: keras.ops.mean((y - p) ** 2) + 100 * offset), (X, Y))
        spark_model = SparkModel(model, num_workers=1, strategy="average", engine="in_process")
        return spark_model.fit(X, Y, epochs=1, shuffle=False, verbose=0).history["loss"][0]

    first = loss_of_a_fit()
    offset.assign(1.0)
    assert loss_of_a_fit() == pytest.approx(first + 100, rel=1e-5)
