"""Fused kernels follow Keras' rules: the same bits where sums are rounded alike, and nearly the same where not."""

from __future__ import annotations

from collections.abc import Callable

import keras
import numpy as np
import pytest
import tensorflow as tf

from elephas_like import SparkModel
from elephas_like.trainer.backends.tensorflow_fused import for_one_process, fuse, kernel_of
from elephas_like.trainer.own_optimizers import own_optimizers

OPTIMIZERS = keras.optimizers
RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(64, 5)).astype("float32")
Y = RANDOM.integers(0, 3, 64)


def by_name(**cases: object) -> list[object]:
    return [pytest.param(case, id=name) for name, case in cases.items()]


def model(optimizer: keras.optimizers.Optimizer) -> keras.Model:
    keras.utils.set_random_seed(1)
    made = keras.Sequential([keras.Input((5,)), keras.layers.Dense(8, "tanh"), keras.layers.Dense(3, "softmax")])
    made.compile(optimizer, "sparse_categorical_crossentropy")
    return made


def apart(make: Callable[[], keras.optimizers.Optimizer], steps: int = 8) -> float:
    """The largest difference of weights and slots after some steps of both kinds, relative to values of 1."""
    found = []
    for fused in (False, True):
        made = model(make())
        made.optimizer.build(made.trainable_variables)
        assert not fused or fuse(own_optimizers(made))
        made.fit(X, Y, batch_size=64 // steps, epochs=1, shuffle=False, verbose=0)
        found.append([np.array(variable.value) for variable in (*made.variables, *made.optimizer.variables)])
    return max(float(np.abs(one - other).max()) for one, other in zip(*found, strict=True))


@pytest.mark.parametrize(
    "make",
    by_name(
        plain=lambda: OPTIMIZERS.SGD(0.1),
        momentum=lambda: OPTIMIZERS.SGD(0.1, momentum=0.9),
        nesterov=lambda: OPTIMIZERS.SGD(0.1, momentum=0.9, nesterov=True),
    ),
)
def test_sgd_has_the_same_bits(make) -> None:
    assert apart(make) == 0


@pytest.mark.parametrize(
    "make",
    by_name(
        adam=lambda: OPTIMIZERS.Adam(0.001),
        schedule=lambda: OPTIMIZERS.Adam(OPTIMIZERS.schedules.ExponentialDecay(0.001, 2, 0.5)),
        clipped=lambda: OPTIMIZERS.Adam(0.001, clipnorm=0.1),
        ema=lambda: OPTIMIZERS.Adam(0.001, use_ema=True),
        accumulated=lambda: OPTIMIZERS.Adam(0.001, gradient_accumulation_steps=2),
        adamw=lambda: OPTIMIZERS.AdamW(0.001, weight_decay=0.1),
        rmsprop=lambda: OPTIMIZERS.RMSprop(0.001, momentum=0.9),
        scaled=lambda: OPTIMIZERS.LossScaleOptimizer(OPTIMIZERS.Adam(0.001)),
    ),
)
def test_others_differ_by_rounding_after_eight_steps(make) -> None:
    assert 0 < apart(make) <= 1e-6


def that_count_steps() -> list[object]:
    """All of Keras' optimizers whose rule knows the number of the step, some of them with more that goes by it."""
    names = ("Adafactor", "Lamb", "Muon", "ScheduleFreeAdamW")
    kept = {name: getattr(OPTIMIZERS, name) for name in names if hasattr(OPTIMIZERS, name)}
    return by_name(
        **{name: lambda kind=kind: kind(0.01) for name, kind in kept.items()},
        schedule=lambda: OPTIMIZERS.Adam(OPTIMIZERS.schedules.ExponentialDecay(0.01, 2, 0.5)),
        ema=lambda: OPTIMIZERS.Adam(0.01, use_ema=True, ema_overwrite_frequency=3),
        accumulated=lambda: OPTIMIZERS.Nadam(0.01, gradient_accumulation_steps=3),
        decayed=lambda: OPTIMIZERS.Adamax(0.01, weight_decay=0.1, global_clipnorm=0.1),
        scaled=lambda: OPTIMIZERS.LossScaleOptimizer(OPTIMIZERS.Adam(0.01), dynamic_growth_steps=3),
    )


@pytest.mark.parametrize("make", that_count_steps())
def test_a_step_number_that_is_read_once_changes_no_bit(make) -> None:
    found = []
    for once in (False, True):
        made = model(make())
        made.optimizer.build(made.trainable_variables)
        if once:
            for_one_process(own_optimizers(made))
        made.fit(X, Y, batch_size=8, epochs=2, shuffle=False, verbose=0)
        found.append([np.array(variable.value) for variable in (*made.variables, *made.optimizer.variables)])
    for one, other in zip(*found, strict=True):
        np.testing.assert_array_equal(one, other)


class AppliesTwice(keras.optimizers.Adam):
    """Its step number goes on amid what the model calls one step."""

    def apply(self, grads, trainable_variables=None):
        super().apply(grads, trainable_variables)
        super().apply(grads, trainable_variables)


class ReadsTheVariable(keras.optimizers.Adam):
    """Code that Keras' update step calls, and that uses the variable."""

    def assign_sub(self, variable, value):
        super().assign_sub(variable, value * tf.cast(self.iterations.value >= 0, value.dtype))


class StepsByItself(keras.Sequential):
    """Calls the optimizer's update step past `apply`."""

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = self.compute_loss(x, y, self(x, training=True))
        gradients = tape.gradient(loss, self.trainable_variables)
        for _ in range(2):
            for gradient, variable in zip(gradients, self.trainable_variables, strict=True):
                self.optimizer.update_step(gradient, variable, self.optimizer.learning_rate)
            self.optimizer.iterations.assign_add(1)
        return {"loss": loss}


@pytest.mark.parametrize(
    ("kind", "optimizer", "eagerly"),
    [
        (keras.Sequential, AppliesTwice, False),
        (keras.Sequential, ReadsTheVariable, False),
        (StepsByItself, keras.optimizers.Adam, False),
        (keras.Sequential, AppliesTwice, True),
    ],
)
def test_code_of_the_user_s_finds_the_step_s_variable(kind, optimizer, eagerly: bool) -> None:
    found = []
    for once in (False, True):
        keras.utils.set_random_seed(1)
        made = kind([keras.Input((5,)), keras.layers.Dense(8, "tanh"), keras.layers.Dense(3, "softmax")])
        made.compile(optimizer(0.01), "sparse_categorical_crossentropy", run_eagerly=eagerly)
        made.optimizer.build(made.trainable_variables)
        if once:
            for_one_process(own_optimizers(made))
        made.fit(X, Y, batch_size=16, shuffle=False, verbose=0)
        found.append(made.get_weights())
    for one, other in zip(*found, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize(("fused", "accumulated"), [(False, None), (True, None), (False, 2)])
def test_the_step_number_is_read_once_for_all_variables(fused: bool, accumulated: int | None) -> None:
    """Of four variables; where gradients are accumulated, the two branches of a step read it."""

    def reads(*, once: bool) -> int:
        made = model(OPTIMIZERS.Adam(0.001, gradient_accumulation_steps=accumulated))
        made.optimizer.build(made.trainable_variables)
        if fused:
            fuse(own_optimizers(made))
        if once:
            for_one_process(own_optimizers(made))
        batch = tf.constant(X), tf.constant(Y)
        graph = tf.function(made.train_step, autograph=False).get_concrete_function(batch).graph
        bodies = [graph.as_graph_def().node, *(each.node_def for each in graph.as_graph_def().library.function)]
        whole = [node for body in bodies for node in body if node.op == "ReadVariableOp"]
        return sum(
            node.attr["dtype"].type == made.optimizer.variables[0].value.dtype.as_datatype_enum for node in whole
        )

    assert reads(once=False) - reads(once=True) == 3


@pytest.mark.skipif(not hasattr(OPTIMIZERS, "MultiOptimizer"), reason="this Keras has no MultiOptimizer")
def test_each_inside_a_multi_optimizer_takes_its_kernel() -> None:
    def make() -> keras.optimizers.Optimizer:
        return OPTIMIZERS.MultiOptimizer(
            OPTIMIZERS.OptimizerMap(OPTIMIZERS.Adam(0.001), {".*/bias": OPTIMIZERS.SGD(0.1)})
        )

    assert 0 < apart(make) <= 1e-6
    made = model(make())
    made.optimizer.build(made.trainable_variables)
    assert fuse(own_optimizers(made))
    assert all("update_step" in vars(inside) for inside in made.optimizer.optimizers)


class Halved(keras.optimizers.Adam):
    """An optimizer with a step of its own."""

    def update_step(self, gradient, variable, learning_rate):
        super().update_step(gradient, variable, learning_rate / 2)


@pytest.mark.parametrize(
    "optimizer",
    by_name(
        subclass=Halved(),
        amsgrad=OPTIMIZERS.Adam(amsgrad=True),
        centered=OPTIMIZERS.RMSprop(centered=True, momentum=0.9),
        no_momentum=OPTIMIZERS.RMSprop(),
        other=OPTIMIZERS.Adagrad(),
    ),
)
def test_what_has_no_kernel_keeps_keras_own_step(optimizer: keras.optimizers.Optimizer) -> None:
    assert kernel_of(optimizer) is None
    made = model(optimizer)
    before = made.optimizer.update_step
    assert not fuse(own_optimizers(made))
    assert made.optimizer.update_step == before


def test_sparse_gradients_of_embeddings_take_keras_own_step() -> None:
    """Adam's moments decay for all rows, as Keras has it, not only for those that were looked up."""
    found = []
    for fused in (False, True):
        keras.utils.set_random_seed(1)
        made = keras.Sequential(
            [keras.Input((2,), dtype="int32"), keras.layers.Embedding(9, 3), keras.layers.Flatten()]
        )
        made.add(keras.layers.Dense(1))
        made.compile(OPTIMIZERS.Adam(0.01), "mse")
        made.optimizer.build(made.trainable_variables)
        assert not fused or fuse(own_optimizers(made))
        made.fit(np.arange(8).reshape(4, 2), np.ones(4), batch_size=2, epochs=2, shuffle=False, verbose=0)
        found.append(made.get_weights()[0])
    np.testing.assert_allclose(*found, atol=1e-6)


def test_a_model_on_half_precision_is_fused_in_its_variables_precision() -> None:
    keras.utils.set_random_seed(1)
    dense = keras.layers.Dense(3, "softmax", dtype="mixed_float16")
    made = keras.Sequential([keras.Input((5,)), dense])
    made.compile(OPTIMIZERS.Adam(0.001), "sparse_categorical_crossentropy")
    made.optimizer.build(made.trainable_variables)
    assert fuse(own_optimizers(made))
    made.fit(X, Y, batch_size=8, verbose=0)
    assert made.get_weights()[0].dtype == np.float32
    assert np.isfinite(made.get_weights()[0]).all()


def test_the_switch_gives_keras_own_steps_to_the_last_bit_and_costs_a_program_of_its_own() -> None:
    """With one worker and a round for each epoch, training is Keras' fit."""
    theirs = model(OPTIMIZERS.Adam(0.001))
    theirs.fit(X, Y, batch_size=16, epochs=2, shuffle=False, verbose=0)
    found = {}
    for fused in (True, False):
        ours = model(OPTIMIZERS.Adam(0.001))
        spark_model = SparkModel(ours, 1, engine="in_process", batch_size=16, fused_optimizer=fused)
        spark_model.fit(X, Y, epochs=2, shuffle=False, verbose=0)
        found[fused] = max(np.abs(a - b).max() for a, b in zip(ours.get_weights(), theirs.get_weights(), strict=True))
    assert found[False] == 0
    assert 0 < found[True] <= 1e-6
