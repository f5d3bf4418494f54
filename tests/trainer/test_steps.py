"""The compiled loop takes the steps of Keras' `fit(shuffle=False)`, to the last bit, and is traced once."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

import keras
import numpy as np
import pytest
import tensorflow as tf

from elephas_like.core.structure import flatten
from elephas_like.core.types import Role
from elephas_like.trainer.building import build
from elephas_like.trainer.metric_results import metric_results
from elephas_like.trainer.state import Variables, read_metrics
from elephas_like.trainer.steps import StepLoop
from elephas_like.trainer.tensors import row_numbers, tensors
from trainer.small import mlp, rows

X, Y = rows(22)
BATCH = 4  # 22 rows: five whole batches and one of two


def dense(*layers: keras.layers.Layer, shape: tuple[int, ...] = (4,), **compiled: object) -> keras.Model:
    model = keras.Sequential([keras.Input(shape), *layers, keras.layers.Dense(1)])
    model.compile(**({"optimizer": keras.optimizers.Adam(0.01), "loss": "mse"} | compiled))
    return model


def several(as_dict: bool) -> keras.Model:
    one, two = keras.Input((4,), name="one"), keras.Input((1,), name="two")
    hidden = keras.layers.Dense(3, activation="tanh")(keras.layers.Concatenate()([one, two]))
    left, right = keras.layers.Dense(1, name="left")(hidden), keras.layers.Dense(2, name="right")(hidden)
    if as_dict:
        model = keras.Model({"one": one, "two": two}, {"left": left, "right": right})
        model.compile("adam", {"left": "mse", "right": "mae"}, metrics={"right": ["mse"]})
    else:
        model = keras.Model((one, two), (left, right))
        model.compile("adam", ["mse", "mae"], metrics=[[], ["mse"]])
    return model


Y2 = np.concatenate([Y, -Y], axis=1)
WEIGHTS = np.linspace(0, 2, 22).astype("float32")
TUPLES = ((X, Y), (Y, Y2))
DICTS = ({"one": X, "two": Y}, {"left": Y, "right": Y2})
CASES: dict[str, tuple[Callable[[], keras.Model], tuple[object, ...]]] = {
    "dropout and batch normalization": (
        lambda: dense(keras.layers.Dense(5), keras.layers.BatchNormalization(), keras.layers.Dropout(0.5)),
        (X, Y),
    ),
    "gradient accumulation and sample weights": (
        lambda: dense(
            optimizer=keras.optimizers.Adam(0.01, gradient_accumulation_steps=4),
            weighted_metrics=["mae"],
            metrics=["mse"],
        ),
        (X, Y, WEIGHTS),
    ),
    "moving average": (lambda: dense(optimizer=keras.optimizers.SGD(0.01, use_ema=True)), (X, Y)),
    "inputs and outputs as tuples": (lambda: several(as_dict=False), TUPLES),
    "inputs and outputs as dicts": (lambda: several(as_dict=True), DICTS),
    "run eagerly": (lambda: dense(keras.layers.Dropout(0.5), run_eagerly=True), (X, Y)),
    "xla": (lambda: dense(keras.layers.Dropout(0.5), jit_compile=True), (X, Y)),
}
"""What may matter to an epoch in several rounds. Models of all kinds: tests/conformance."""


def ready(make: Callable[[], keras.Model], data: tuple[object, ...]) -> keras.Model:
    keras.utils.set_random_seed(11)
    model = make()
    build(model, keras.tree.map_structure(lambda array: array[:1], data))
    return model


def run(loop: StepLoop, data: tuple[object, ...], first: int, last: int, order: np.ndarray | None = None) -> None:
    leaves, structure = flatten(data)
    count = len(leaves[0])
    loop.run(tensors(leaves), structure, tf.constant(np.arange(count) if order is None else order), BATCH, first, last)


def steps_of(data: tuple[object, ...]) -> int:
    return -(-len(flatten(data)[0][0]) // BATCH)


@pytest.mark.parametrize("name", CASES)
def test_rounds_of_the_loop_are_an_epoch_of_keras_fit(name: str) -> None:
    make, data = CASES[name]
    ours, keras_own = ready(make, data), ready(make, data)
    loop = StepLoop(ours, ours.train_step)
    for _ in range(2):
        ours.reset_metrics()
        for first, last in ((0, 1), (1, 4), (4, 4), (4, steps_of(data))):
            run(loop, data, first, last)
    x, y, *weights = data
    sample_weight = weights[0] if weights else None
    history = keras_own.fit(
        x, y, sample_weight=sample_weight, batch_size=BATCH, epochs=2, shuffle=False, verbose=0
    ).history
    here, there = Variables(ours).read(), Variables(keras_own).read()
    for role in Role:
        part = there.part(role)
        if role is Role.WEIGHT and name == "moving average":
            continue  # fit ends by putting the average in the weights' place; the slots hold it
        np.testing.assert_array_equal(here.part(role), part, err_msg=role.value)
    for metric, value in metric_results(ours, read_metrics(ours)).items():
        assert value == pytest.approx(history[metric][-1], abs=1e-6), metric


def test_the_order_of_rows_is_the_caller_s() -> None:
    def make() -> keras.Model:
        return mlp("adam")

    order = np.random.default_rng(5).permutation(22)
    ours, keras_own = ready(make, (X, Y)), ready(make, (X, Y))
    run(StepLoop(ours, ours.train_step), (X, Y), 0, 6, order)
    keras_own.fit(X[order], Y[order], batch_size=BATCH, shuffle=False, verbose=0)
    np.testing.assert_array_equal(Variables(ours).read().weights, Variables(keras_own).read().weights)


class Counting(keras.Model):
    """Says so in the log whenever Python runs its train step: once a trace."""

    def train_step(self, data):
        logging.getLogger("traces").warning("traced")
        return super().train_step(data)


def counting() -> keras.Model:
    inputs = keras.Input((4,))
    model = Counting(inputs, keras.layers.Dense(1)(inputs))
    model.compile("adam", "mse")
    return model


def test_rounds_of_any_length_and_rows_of_any_number_cost_one_trace(caplog: pytest.LogCaptureFixture) -> None:
    model = ready(counting, (X, Y))
    loop = StepLoop(model, model.train_step)
    for count, first, last in ((22, 0, 1), (22, 1, 6), (7, 0, 2), (1, 0, 1), (22, 3, 3)):
        run(loop, (X[:count], Y[:count]), first, last)
    assert [record.message for record in caplog.records if record.name == "traces"] == ["traced"]
    assert int(model.optimizer.iterations) == 1 + 5 + 2 + 1


class Reading(keras.Model):
    """Reads in Python how many rows a batch has, and says in the log what it has read."""

    def __init__(self) -> None:
        super().__init__()
        self.out = keras.layers.Dense(1)

    def call(self, x):
        noise = keras.ops.reshape(keras.ops.arange(x.shape[0] * 4, dtype="float32"), (x.shape[0], 4))
        logging.getLogger("traces").warning("%s", x.shape[0])
        return self.out(x + noise / 100)


def reading(**compiled: object) -> keras.Model:
    model = Reading()
    model.compile("sgd", "mse", **compiled)
    return model


@pytest.mark.parametrize(
    ("count", "sizes", "jit"),
    [(20, {"4"}, False), (22, {"4", "2"}, False), (3, {"3"}, False), (22, {"4", "2"}, True)],
)
def test_a_step_may_read_the_number_of_its_rows(
    count: int, sizes: set[str], jit: bool, caplog: pytest.LogCaptureFixture
) -> None:
    data = X[:count], Y[:count]
    ours, keras_own = (
        ready(lambda: reading(jit_compile=jit), data),
        ready(lambda: reading(run_eagerly=jit or count != 20), data),
    )
    loop = StepLoop(ours, ours.train_step)
    caplog.clear()
    run(loop, data, 0, 1)
    run(loop, data, 1, steps_of(data))
    assert {record.message for record in caplog.records if record.name == "traces"} == sizes
    caplog.clear()
    run(loop, data, 0, steps_of(data))
    assert not [record for record in caplog.records if record.name == "traces"]  # nothing is traced again
    assert loop.done == int(ours.optimizer.iterations) == 2 * steps_of(data)
    keras_own.fit(
        *data, batch_size=BATCH, epochs=2, shuffle=False, verbose=0
    )  # eager where they do not divide, or XLA rounds otherwise
    here, there = Variables(ours).read().weights, Variables(keras_own).read().weights
    np.testing.assert_allclose(here, there, rtol=1e-5, atol=1e-6)
    if count == 20 and not jit:
        np.testing.assert_array_equal(here, there)


def test_an_error_of_a_trace_is_that_of_rows_of_any_number() -> None:
    model = ready(reading, (X, Y))
    loop = StepLoop(model, model.train_step)
    for _ in range(2):
        with pytest.raises((TypeError, ValueError), match="None"):
            run(loop, (X, np.zeros((22, 3, 3), "float32")), 0, 5)
    run(loop, (X, Y), 0, 5)
    assert loop.done == 5


@pytest.mark.parametrize("eagerly", [False, True])
def test_steps_are_counted_while_the_loop_is_at_work(eagerly: bool) -> None:
    """Another thread sees the count in the middle of a call, which may be hours long."""
    seen: list[int] = []
    go_on = threading.Event()

    class Waits(keras.Model):
        def train_step(self, data):
            def wait(x):
                if (x > 90).any():
                    go_on.wait(60)
                return np.float32(0)

            with tf.control_dependencies([tf.numpy_function(wait, [data[0]], tf.float32)]):
                return super().train_step(data)

    def waiting() -> keras.Model:
        inputs = keras.Input((4,))
        model = Waits(inputs, keras.layers.Dense(1)(inputs))
        model.compile("sgd", "mse", run_eagerly=eagerly)
        return model

    model = ready(waiting, (X, Y))
    loop = StepLoop(model, model.train_step)
    x = X.copy()
    x[3 * BATCH] = 99.0
    training = threading.Thread(target=lambda: run(loop, (x, Y), 0, 6), daemon=True)
    training.start()
    while training.is_alive() and (not seen or seen[-1] < 3):
        seen.append(loop.done)
    assert seen[-1] in (3, 4)  # the count does not wait for the step that it counts
    go_on.set()
    training.join(60)
    assert loop.done == 6


def test_no_steps_do_nothing() -> None:
    model = ready(mlp, (X, Y))
    before = Variables(model).read().weights
    run(StepLoop(model, model.train_step), (X[:0], Y[:0]), 0, 0)
    np.testing.assert_array_equal(Variables(model).read().weights, before)


class TakesX(keras.Model):
    """A train step written for `fit(x)`: what it gets is x itself."""

    def train_step(self, data):
        with tf.GradientTape() as tape:
            loss = keras.ops.mean((self(data) - data) ** 2)
        self.optimizer.apply(tape.gradient(loss, self.trainable_variables), self.trainable_variables)
        return {"loss": loss}


def test_rows_without_target_come_as_fit_hands_them_over() -> None:
    def make() -> keras.Model:
        inputs = keras.Input((4,))
        model = TakesX(inputs, keras.layers.Dense(4)(inputs))
        model.compile("adam")
        return model

    ours, keras_own = ready(make, (X,)), ready(make, (X,))
    run(StepLoop(ours, ours.train_step), (X,), 0, 6)
    keras_own.fit(X, batch_size=BATCH, shuffle=False, verbose=0)
    np.testing.assert_array_equal(Variables(ours).read().weights, Variables(keras_own).read().weights)


def test_text_goes_through_the_loop() -> None:
    words = np.array([["red"], ["blue"], ["red"], ["green"]] * 3, dtype=object)
    target = np.arange(12, dtype="float32")[:, None] % 4

    def make() -> keras.Model:
        lookup = keras.layers.StringLookup(vocabulary=["red", "blue", "green"], output_mode="one_hot")
        model = keras.Sequential([keras.Input((1,), dtype="string"), lookup, keras.layers.Dense(1)])
        model.compile("sgd", "mse")
        return model

    keras.utils.set_random_seed(11)
    ours, keras_own = ready(make, (words.astype(str), target)), ready(make, (words.astype(str), target))
    run(StepLoop(ours, ours.train_step), (words, target), 0, 3)
    keras_own.fit(tf.constant(words.astype(str)), target, batch_size=BATCH, shuffle=False, verbose=0)
    np.testing.assert_array_equal(Variables(ours).read().weights, Variables(keras_own).read().weights)


def test_the_test_step_scores_as_evaluate_does() -> None:
    model = ready(lambda: mlp("sgd", metrics=["mae"]), (X, Y))
    run(StepLoop(model, model.test_step), (X, Y), 0, 6)
    ours = metric_results(model, read_metrics(model))
    expected = model.evaluate(X, Y, batch_size=7, return_dict=True, verbose=0)
    assert ours == pytest.approx(expected, abs=1e-6)


class Tells(keras.Model):
    """A train step that returns more than it keeps: the metrics' own results, or none of them, and one number."""

    keeps = True

    def train_step(self, data):
        x, y = data
        error = keras.ops.mean((self(x) - y) ** 2)
        kept = super().train_step(data) if self.keeps else {"loss": error}
        return {**kept, "error": error}


class TellsOnly(Tells):
    keeps = False


@pytest.mark.parametrize("eagerly", [False, True])
@pytest.mark.parametrize(("kind", "named", "kept"), [(Tells, "'error'", ["loss"]), (TellsOnly, "'error', 'loss'", [])])
def test_logs_that_are_no_metrics_are_named_once_and_no_loss_is_made_up(
    kind: type[keras.Model], named: str, kept: list[str], eagerly: bool, caplog: pytest.LogCaptureFixture
) -> None:
    inputs = keras.Input((4,))
    model = kind(inputs, keras.layers.Dense(1)(inputs))
    model.compile("sgd", "mse", run_eagerly=eagerly)
    build(model, (X[:1], Y[:1]))
    loop = StepLoop(model, model.train_step)
    run(loop, (X, Y), 0, 2)
    run(loop, (X, Y), 2, 6)
    assert list(metric_results(model, read_metrics(model))) == kept
    (record,) = (record for record in caplog.records if record.name == "elephas_like.trainer.steps")
    assert f"train_step of the model {model.name!r} returns {named}: logs that are no metrics" in record.getMessage()


def test_steps_that_return_their_metrics_say_nothing(caplog: pytest.LogCaptureFixture) -> None:
    model = ready(lambda: dense(metrics=["mae"]), (X, Y))
    run(StepLoop(model, model.train_step), (X, Y), 0, 2)
    run(StepLoop(model, model.test_step), (X, Y), 0, 2)
    assert not [record for record in caplog.records if record.name == "elephas_like.trainer.steps"]


def test_a_loop_for_each_of_many_models_is_no_retracing(caplog: pytest.LogCaptureFixture) -> None:
    tf.get_logger().addHandler(caplog.handler)
    try:
        for _ in range(8):
            model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
            model.compile("sgd", "mse")
            columns = [tf.ones((4, 2)), tf.ones((4, 1))]
            StepLoop(model, model.test_step).run(columns, [0, 1], tf.range(4, dtype=tf.int64), 2, 0, 2)
    finally:
        tf.get_logger().removeHandler(caplog.handler)
    assert "retracing" not in caplog.text


def test_the_error_of_a_last_batch_is_its_own() -> None:
    class Pairs(keras.layers.Layer):
        def call(self, x):
            return keras.ops.reshape(keras.ops.reshape(x, (x.shape[0] // 2, 2, -1)), (x.shape[0], -1))

    model = keras.Sequential([Pairs(), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    x, y = np.ones((5, 2), np.float32), np.ones((5, 1), np.float32)
    build(model, (x[:4], y[:4]))
    loop = StepLoop(model, model.train_step)
    with pytest.raises((TypeError, ValueError)) as caught:
        loop.run(tensors([x, y]), [0, 1], row_numbers(5), 4, 0, 2)
    assert loop.done == 1
    assert "NoneType" not in str(caught.value)  # as the first trace says, of any number of rows


@pytest.mark.skipif(not hasattr(keras.layers, "RandomElasticTransform"), reason="this Keras has no such layer")
def test_a_layer_that_takes_an_unknown_batch_for_one_row_is_told_its_size() -> None:
    """Image i is of the colour i: it stays so, in whole batches and in the last one."""
    transform = keras.layers.RandomElasticTransform(factor=1.0, scale=0.5, value_range=(0, 255), seed=1)
    head = keras.layers.Dense(1, kernel_initializer="ones")
    model = keras.Sequential([keras.Input((4, 4, 1)), transform, keras.layers.GlobalMaxPooling2D(), head])
    model.compile(keras.optimizers.SGD(0.0), "mae")
    y = np.arange(6, dtype=np.float32)[:, None]
    x = np.ones((6, 4, 4, 1), np.float32) * y[:, :, None, None]
    build(model, (x[:1], y[:1]))
    run(StepLoop(model, model.train_step), (x, y), 0, 2)
    assert metric_results(model, read_metrics(model))["loss"] < 1e-4
