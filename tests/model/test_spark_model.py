"""SparkModel without Spark: what a user types, against what Keras does and against laws worked out by hand."""

from __future__ import annotations

import csv
import itertools
import logging
import math
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import keras
import numpy as np
import pandas as pd
import pytest
import tensorflow as tf
from forked import run
from sklearn.datasets import load_digits

from elephas_like import (
    DataError,
    ElephasError,
    NonFiniteError,
    ShardedDataset,
    SparkModel,
    load_spark_model,
)
from elephas_like.core.errors import ElephasWarning
from elephas_like.core.types import Role
from elephas_like.strategies import Average, Median
from elephas_like.trainer.state import Variables

RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(50, 4)).astype("float32")
Y = (X.sum(axis=1, keepdims=True) + RANDOM.normal(0, 0.1, (50, 1))).astype("float32")
LABELS = (Y[:, 0] > 0).astype("int64")


def mlp(optimizer: object = "adam", *, hidden: tuple[keras.layers.Layer, ...] = (), **compiled: object) -> keras.Model:
    """A regression of 4 numbers with one hidden layer; the same weights each time."""
    keras.utils.set_random_seed(3)
    dense = keras.layers.Dense(6, activation="tanh")
    model = keras.Sequential([keras.Input((4,)), dense, *hidden, keras.layers.Dense(1)])
    model.compile(**({"optimizer": optimizer, "loss": "mse"} | compiled))
    return model


def classifier(optimizer: object = "adam") -> keras.Model:
    keras.utils.set_random_seed(3)
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(6, "tanh"), keras.layers.Dense(2, "softmax")])
    model.compile(optimizer, "sparse_categorical_crossentropy", metrics=["accuracy"])
    return model


def spark(model: keras.Model, num_workers: int | None = 1, **options: object) -> SparkModel:
    return SparkModel(model, num_workers, **({"engine": "in_process", "batch_size": 8, "seed": 5} | options))


def fitted(model: keras.Model, num_workers: int = 1, *, options: dict | None = None, **fit: object) -> SparkModel:
    spark_model = spark(model, num_workers, **(options or {}))
    spark_model.fit(**({"data": X, "y": Y, "verbose": 0} | fit))
    return spark_model


def state(model: keras.Model) -> dict[str, np.ndarray]:
    return Variables(model).read().parts()


def assert_states_close(ours: keras.Model, theirs: keras.Model, atol: float) -> None:
    here, there = state(ours), state(theirs)
    for role in Role:
        if atol == 0:
            np.testing.assert_array_equal(here[role.value], there[role.value], err_msg=role.value)
        else:
            np.testing.assert_allclose(here[role.value], there[role.value], atol=atol, rtol=0, err_msg=role.value)


# One worker with `average`: what Keras' fit does.


def several() -> keras.Model:
    keras.utils.set_random_seed(3)
    one, two = keras.Input((4,), name="one"), keras.Input((1,), name="two")
    hidden = keras.layers.Dense(3, "tanh")(keras.layers.Concatenate()([one, two]))
    outputs = {"a": keras.layers.Dense(1, name="a")(hidden), "b": keras.layers.Dense(1, name="b")(hidden)}
    model = keras.Model({"one": one, "two": two}, outputs)
    model.compile("adam", {"a": "mse", "b": "mae"}, loss_weights={"a": 1.0, "b": 0.5}, metrics={"b": ["mse"]})
    return model


DATA: dict[str, tuple[Callable[[], keras.Model], dict[str, object]]] = {
    "dicts": (several, {"data": {"one": X, "two": Y}, "y": {"a": Y, "b": -Y}}),
    "pandas and class weights": (
        classifier,
        {"data": pd.DataFrame(X), "y": pd.Series(LABELS), "class_weight": {0: 3.0}},
    ),
}


@pytest.mark.parametrize("name", DATA)
def test_one_worker_is_keras_fit(name: str) -> None:
    """Of models of all kinds: tests/conformance."""
    make, data = DATA[name]
    ours, theirs = make(), make()
    history = spark(ours, fused_optimizer=False).fit(**data, epochs=3, shuffle=False, verbose=0)
    given = {"x" if argument == "data" else argument: value for argument, value in data.items()}
    expected = theirs.fit(**given, batch_size=8, epochs=3, shuffle=False, verbose=0)
    assert_states_close(ours, theirs, atol=1e-6)
    assert history.history.keys() == expected.history.keys()
    for metric, values in expected.history.items():
        assert history.history[metric] == pytest.approx(values, abs=1e-5), metric
    assert history.epoch == expected.epoch


def test_one_worker_s_weights_obey_their_constraints_to_the_last_bit() -> None:
    """A weight of -1e-9 where Keras has 0 is NaN in what takes its root. What they obey, they do as Keras' own do."""

    def make() -> keras.Model:
        keras.utils.set_random_seed(1)
        start = keras.initializers.RandomUniform(0, 0.3, seed=1)
        made = mlp(
            "adam", hidden=(keras.layers.Dense(64, "tanh", kernel_initializer=start, kernel_constraint="non_neg"),)
        )
        made.optimizer.learning_rate = 0.1
        return made

    theirs, ours = make(), make()
    theirs.fit(X, LABELS, batch_size=7, epochs=2, shuffle=False, verbose=0)
    spark(ours, batch_size=7, fused_optimizer=False).fit(X, LABELS, epochs=2, shuffle=False, verbose=0)
    kernels = [model.layers[1].get_weights()[0] for model in (theirs, ours)]
    assert kernels[0].min() == 0
    np.testing.assert_array_equal(*kernels)


def test_fit_again_goes_on_from_the_trained_state_and_so_does_the_model_s_own_fit() -> None:
    ours, theirs = (mlp(hidden=(keras.layers.Dropout(0.3, seed=1),)) for _ in range(2))
    spark_model = spark(ours, fused_optimizer=False)
    for _ in range(2):
        spark_model.fit(X, Y, epochs=2, shuffle=False, verbose=0)
    theirs.fit(X, Y, batch_size=8, epochs=4, shuffle=False, verbose=0)
    assert_states_close(ours, theirs, atol=1e-6)
    assert int(ours.optimizer.iterations) == 4 * 7
    for model in (ours, theirs):
        model.fit(X, Y, batch_size=8, shuffle=False, verbose=0)
    assert_states_close(ours, theirs, atol=1e-6)
    assert [len(history["loss"]) for history in spark_model.training_histories] == [2, 2]


def test_layers_adapted_to_other_rows_between_two_fits_are_not_taken_for_the_old_ones() -> None:
    normalizes = [keras.layers.Normalization(), keras.layers.Normalization()]
    for normalize in normalizes:
        normalize.adapt(X)
    ours, theirs = (keras.Sequential([keras.Input((4,)), n, keras.layers.Dense(1)]) for n in normalizes)
    theirs.set_weights(ours.get_weights())
    for model in (ours, theirs):
        model.compile("sgd", "mse")
    spark_model = spark(ours)
    for rows in (X, 3 * X + 1):
        for normalize in normalizes:
            normalize.adapt(rows)
        spark_model.fit(X, Y, shuffle=False, verbose=0)
        theirs.make_train_function(force=True)  # Keras itself would take them for the old ones
        theirs.fit(X, Y, batch_size=8, shuffle=False, verbose=0)
    assert_states_close(ours, theirs, atol=1e-6)


def test_text_is_trained_on() -> None:
    words = np.array(["red green", "blue", "green blue", "red"] * 5)
    target = np.array([0.0, 1.0, 2.0, 3.0] * 5, "float32")

    def make() -> keras.Model:
        keras.utils.set_random_seed(3)
        vectorize = keras.layers.TextVectorization(output_mode="multi_hot")
        vectorize.adapt(words)
        model = keras.Sequential([keras.Input((), dtype="string"), vectorize, keras.layers.Dense(1)])
        model.compile("sgd", "mse")
        return model

    ours, theirs = make(), make()
    spark(ours).fit(words, target, epochs=2, shuffle=False, verbose=0)
    theirs.fit(tf.constant(words), target, batch_size=8, epochs=2, shuffle=False, verbose=0)
    assert_states_close(ours, theirs, atol=1e-6)


# Several workers: laws.


def test_averaging_two_workers_every_batch_is_one_gradient_of_both_batches() -> None:
    """Rows are dealt like cards, so batch i of both workers is batch i of twice the size; SGD is linear in gradients."""
    ours, theirs = mlp(keras.optimizers.SGD(0.05)), mlp(keras.optimizers.SGD(0.05))
    options = {"strategy": Average(), "frequency": "batch", "batch_size": 4}
    fitted(ours, 2, options=options, data=X[:48], y=Y[:48], epochs=3, shuffle=False)
    theirs.fit(X[:48], Y[:48], batch_size=8, epochs=3, shuffle=False, verbose=0)
    np.testing.assert_allclose(state(ours)["weights"], state(theirs)["weights"], atol=1e-6)


def bits() -> tuple[keras.Model, np.ndarray, np.ndarray]:
    """A model that is 0 and stays so, and targets 2^row: a sum of losses says which rows went into it."""
    inputs = keras.Input((4,))
    model = keras.Model(inputs, keras.layers.Dense(1, kernel_initializer="zeros")(inputs))
    model.compile(keras.optimizers.SGD(0.0), "mae")
    return model, X[:20], (2.0 ** np.arange(20)).astype("float32")[:, None]


@pytest.mark.parametrize(
    ("num_workers", "frequency", "batch_size", "shuffle"),
    [
        (1, "auto", 3, True),
        (3, "auto", 1, False),
        (3, "epoch", 4, True),
        (7, "batch", 2, False),
        (2, 3, 3, True),
        (25, "auto", 8, True),
        (4, "fit", 32, False),
    ],
)
def test_every_row_is_trained_on_once_an_epoch(num_workers, frequency, batch_size, shuffle) -> None:
    model, x, y = bits()
    options = {"frequency": frequency, "batch_size": batch_size, "strategy": "average"}
    history = spark(model, num_workers, **options).fit(x, y, epochs=2, verbose=0, shuffle=shuffle)
    assert [round(loss * 20) for loss in history.history["loss"]] == [2**20 - 1] * len(history.history["loss"])
    assert sum(record.samples for record in history.rounds) == 40


def test_validation_rows_are_an_exact_seeded_share_that_is_never_trained_on() -> None:
    def masks(seed: int) -> tuple[set[int], set[int]]:
        model, x, y = bits()
        history = spark(model, 2, seed=seed).fit(x, y, epochs=3, validation_split=0.25, verbose=0).history
        trained = {round(loss * 16) for loss in history["loss"]}
        held_out = {round(loss * 4) for loss in history["val_loss"]}
        assert len(trained) == len(held_out) == 1
        return trained, held_out

    trained, held_out = masks(seed=1)
    assert (trained.copy().pop().bit_count(), held_out.copy().pop().bit_count()) == (16, 4)
    assert trained.copy().pop() ^ held_out.copy().pop() == 2**20 - 1
    assert masks(seed=1) == (trained, held_out)
    assert masks(seed=2) != (trained, held_out)


def test_a_model_that_was_made_under_a_tf_distribute_strategy_trains_as_any_other() -> None:
    plain = mlp("adam", metrics=["mae"])
    with tf.distribute.MirroredStrategy(["/cpu:0"]).scope():
        model = mlp("adam", metrics=["mae"])
    model.set_weights(plain.get_weights())
    given, trained = (spark(each, 2).fit(X, Y, epochs=2, verbose=0).history for each in (plain, model))
    assert trained == given
    assert all(np.array_equal(*pair) for pair in zip(model.get_weights(), plain.get_weights(), strict=True))
    assert model.fit(X, Y, shuffle=False, verbose=0).history.keys() == given.keys()  # it is still under its strategy


TWO_DEVICES = """
import keras, numpy as np, tensorflow as tf
from elephas_like import SparkModel
tf.config.set_logical_device_configuration(tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * 2)
x = np.random.default_rng(0).normal(size=(16, 2)).astype("float32")
with tf.distribute.MirroredStrategy(["/cpu:0", "/cpu:1"]).scope():
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
before = model.get_weights()[0]
SparkModel(model, 1, engine="in_process").fit(x, x.sum(1, keepdims=True), epochs=1, verbose=0)
first, second = (part.numpy() for part in model.trainable_variables[0].value.values)
assert (first == second).all() and (first != before).all(), (before, first, second)
"""


@pytest.mark.slow
def test_each_device_of_a_tf_distribute_strategy_gets_the_trained_weights() -> None:
    """In a process of its own, which can still say how many devices it has."""
    done = run(["-c", TWO_DEVICES])
    assert done.returncode == 0, done.stderr


def test_the_same_seed_gives_the_same_bits_and_another_seed_others() -> None:
    def weights(seed: int | None) -> bytes:
        model = mlp(hidden=(keras.layers.Dropout(0.3, seed=1),))  # made before mlp() seeds Keras
        fitted(model, 3, options={"seed": seed}, epochs=2)
        return b"".join(part.tobytes() for part in state(model).values())

    first = weights(1)
    assert weights(1) == first
    assert weights(2) != first
    assert weights(None) == weights(None)  # the seed is drawn after keras.utils.set_random_seed


def test_validation_changes_nothing_of_what_is_trained() -> None:
    def weights(**validation: object) -> bytes:
        model = mlp(hidden=(keras.layers.Dropout(0.3, seed=1),))
        fitted(model, 2, epochs=2, **validation)
        return b"".join(part.tobytes() for part in state(model).values())

    assert weights() == weights(validation_data=(X, Y))


def test_optimizer_state_is_averaged_kept_or_reset() -> None:
    found = {}
    for treatment in ("average", "per_worker", "reset"):
        model = mlp(keras.optimizers.SGD(0.01, momentum=0.9))
        fitted(model, 2, options={"optimizer_state": treatment, "strategy": "average"}, epochs=2)
        found[treatment] = state(model)
    assert found["average"]["slots"].any()
    assert not found["reset"]["slots"].any()
    assert found["per_worker"]["slots"].any()
    assert [part["counters"].tolist() for part in found.values()] == [[8], [8], [0]]  # 2 epochs of 4 steps
    assert len({part["weights"].tobytes() for part in found.values()}) == 3


class Stopping(keras.callbacks.Callback):
    def on_epoch_end(self, epoch: int, logs: object = None) -> None:
        self.model.stop_training = epoch == 1


class StoppingAtBegin(keras.callbacks.Callback):
    def on_epoch_begin(self, epoch: int, logs: object = None) -> None:
        self.model.stop_training = epoch == 2


@pytest.mark.parametrize(
    ("kept", "how"),
    [
        ({"optimizer_state": "per_worker"}, {}),
        ({"optimizer_state": "per_worker"}, {"callbacks": [Stopping()]}),
        (
            {"optimizer_state": "per_worker"},
            {"mode": "asynchronous", "strategy": "downpour", "callbacks": [Stopping()]},
        ),
        ({"optimizer_state_every": 4}, {}),
        ({"optimizer_state_every": 5}, {"callbacks": [StoppingAtBegin()]}),
    ],
)
def test_slots_that_a_worker_kept_to_itself_are_the_models_at_the_end(kept: dict, how: dict[str, object]) -> None:
    ends = []
    for keeps in ({}, kept):
        fit = {name: how[name] for name in how if name == "callbacks"}
        options = {name: how[name] for name in how if name != "callbacks"} | {"frequency": 2} | keeps
        model = mlp("adam")
        fitted(model, 1, options=options, epochs=3, **fit)
        ends.append(model)
    assert_states_close(*ends, atol=1e-5)


def bits_of(**options: object) -> dict[str, bytes]:
    model = mlp("adam")
    fitted(model, 3, options={"frequency": 2, "seed": 1, **options}, epochs=2)
    return {name: part.tobytes() for name, part in state(model).items()}


def test_slots_averaged_every_so_many_rounds_lie_between_always_and_never() -> None:
    always, never = bits_of(), bits_of(optimizer_state="per_worker")
    assert bits_of(optimizer_state_every=1) == always
    assert bits_of(optimizer_state_every=99) == never
    assert len({one["weights"] for one in (always, never, bits_of(optimizer_state_every=2))}) == 3


@pytest.mark.parametrize(
    ("optimizer", "frequency", "why"),
    [("sgd", 2, "the optimizer has no slots"), ("adam", "fit", "frequency='fit' has one round"), ("adam", 2, "")],
)
def test_slots_that_do_not_travel_anyway_are_said(
    optimizer: str, frequency: object, why: str, caplog: pytest.LogCaptureFixture
) -> None:
    fitted(mlp(optimizer), 2, options={"frequency": frequency, "optimizer_state_every": 3})
    said = f"optimizer_state_every=3 saves nothing here: {why}"
    assert (said in caplog.text) is bool(why)


def test_a_rate_that_begins_or_ends_at_almost_nothing_makes_no_step_long() -> None:
    """Both count steps in learning rates: those of a round's steps, and not that of its first one."""
    schedule = keras.optimizers.schedules.CosineDecay(1e-6, 20, warmup_target=0.01, warmup_steps=10)
    losses = {}
    for name, more in (("plain", {}), ("variates", {"control_variates": True}), ("slowmo", {"strategy": "slowmo"})):
        model = mlp()
        model.compile(keras.optimizers.SGD(schedule), "mse")
        found = spark(model, 2, frequency=5, **more).fit(X, Y, epochs=8, batch_size=5, verbose=0)
        losses[name] = found.history["loss"]
    assert max(*losses["variates"], *losses["slowmo"]) <= 1.1 * max(losses["plain"])


@pytest.mark.parametrize("how", [{"strategy": "nesterov"}, {"mode": "asynchronous"}])
def test_a_momentum_that_comes_to_nothing_is_no_error_where_a_program_asks_for_errors(how: dict) -> None:
    model = mlp(keras.optimizers.SGD(1e-37))
    with np.errstate(all="raise"):
        history = spark(model, 2, frequency=1, **how).fit(X, np.zeros_like(Y), epochs=3, batch_size=5, verbose=0)
    assert history.epoch == [0, 1, 2]


def test_control_variates_of_a_single_round_are_said_to_change_nothing(caplog: pytest.LogCaptureFixture) -> None:
    fitted(mlp(), 2, options={"frequency": "fit", "control_variates": True})
    assert "control_variates change nothing here: frequency='fit' has one round" in caplog.text


def test_with_slots_that_are_reset_every_round_begins_as_a_new_optimizer_does() -> None:
    """The first step of Adam has the length of the learning rate, in each weight, if its step counter begins with its moments."""
    weights: list[np.ndarray] = []
    seen = keras.callbacks.LambdaCallback(
        on_epoch_end=lambda epoch, logs: weights.append(np.copy(model.get_weights()[0]))
    )
    model = mlp(keras.optimizers.Adam(0.01, epsilon=1e-12))
    options = {"optimizer_state": "reset", "strategy": "average", "batch_size": 50}
    fitted(model, 1, options=options, epochs=6, callbacks=[seen])
    for before, after in itertools.pairwise(weights):
        np.testing.assert_allclose(np.abs(after - before), 0.01, rtol=1e-3)


def test_a_schedule_goes_on_where_slots_are_reset() -> None:
    model = mlp(keras.optimizers.Adam(keras.optimizers.schedules.ExponentialDecay(0.01, 4, 0.5)))
    fitted(model, 2, options={"optimizer_state": "reset", "strategy": "average"}, epochs=2)
    assert int(model.optimizer.iterations.numpy()) == 8


def test_a_batch_over_all_workers_is_split_among_them() -> None:
    """20 rows, 4 workers of 5, a global batch of 8: batches of 2, so 3 steps each."""
    model, x, y = bits()
    history = spark(model, 4, frequency="epoch").fit(x, y, global_batch_size=8, verbose=0)
    assert [record.steps for record in history.rounds[0].workers] == [3, 3, 3, 3]


def test_a_global_batch_that_is_no_multiple_is_split_to_the_row() -> None:
    """20 rows, 4 workers of 5, a global batch of 9: 3 + 2 + 2 + 2 rows a step, so 2 steps for the first worker and 3 else."""
    model, x, y = bits()
    history = spark(model, 4, frequency="epoch").fit(x, y, global_batch_size=9, verbose=0)
    assert [(record.samples, record.steps) for record in history.rounds[0].workers] == [(5, 2), (5, 3), (5, 3), (5, 3)]


def test_a_global_batch_of_less_than_a_row_a_worker_is_said() -> None:
    model, x, y = bits()
    with pytest.warns(UserWarning, match="global_batch_size=3 gives 4 workers.*effective global batch of 4"):
        history = spark(model, 4, frequency="epoch").fit(x, y, global_batch_size=3, verbose=0)
    assert [record.steps for record in history.rounds[0].workers] == [5, 5, 5, 5]


class Counting(keras.Model):
    """Says so in the log whenever Python runs its train step: once a trace."""

    def train_step(self, data):
        logging.getLogger("traces").warning("traced")
        return super().train_step(data)


def test_eight_workers_and_two_fits_cost_one_trace(caplog: pytest.LogCaptureFixture) -> None:
    inputs = keras.Input((4,))
    model = Counting(inputs, keras.layers.Dense(1)(inputs))
    model.compile("adam", "mse")
    spark_model = spark(model, 8, batch_size=2)
    for _ in range(2):
        spark_model.fit(X, Y, epochs=3, verbose=0)
    assert [record.message for record in caplog.records if record.name == "traces"] == ["traced"]


class Untold(keras.Model):
    """A train step that keeps no loss."""

    def train_step(self, data):
        super().train_step(data)
        self.reset_metrics()
        return {}


def test_a_loss_that_no_train_step_keeps_is_in_no_history() -> None:
    inputs = keras.Input((4,))
    model = Untold(inputs, keras.layers.Dense(1)(inputs))
    model.compile("sgd", "mse")
    assert list(fitted(model, 2, validation_split=0.2).training_histories[0]) == ["val_loss"]


# Real data.


@pytest.fixture(scope="module")
def digits() -> tuple[np.ndarray, np.ndarray]:
    x, y = load_digits(return_X_y=True)
    return (x / 16).astype("float32"), y


def digits_model(optimizer: object = "adam") -> keras.Model:
    keras.utils.set_random_seed(3)
    model = keras.Sequential([keras.Input((64,)), keras.layers.Dense(32, "relu"), keras.layers.Dense(10, "softmax")])
    model.compile(optimizer, "sparse_categorical_crossentropy", metrics=["accuracy"])
    return model


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"mode": "asynchronous"},
        {"mode": "asynchronous", "strategy": "downpour", "frequency": "batch"},
        {"mode": "hogwild", "frequency": "batch"},
    ],
)
def test_every_mode_learns_digits(digits, options: dict[str, object]) -> None:
    x, y = digits
    model = digits_model(keras.optimizers.SGD(0.1) if "frequency" in options else keras.optimizers.Adam(0.003))
    spark_model = spark(model, 4, batch_size=16, **options)
    history = spark_model.fit(x[:1500], y[:1500], epochs=3, validation_data=(x[1500:], y[1500:]), verbose=0)
    assert len(history.history["loss"]) == len(history.history["val_accuracy"]) == 3
    assert history.history["val_accuracy"][-1] > 0.8  # 0.83 to 0.85, of ten classes
    assert sum(record.samples for record in history.rounds) >= 3 * 1500


def test_an_asynchronous_run_repeats_itself_for_the_same_seed() -> None:
    def weights() -> bytes:
        model = mlp()
        fitted(model, 3, options={"mode": "asynchronous"}, epochs=2)
        return state(model)["weights"].tobytes()

    assert weights() == weights()


# History.


def test_loss_and_metrics_are_those_of_the_weighted_rows_together() -> None:
    """Nothing moves at a learning rate of 0, so the epoch's metrics are Keras' evaluation of all rows."""
    model = mlp(keras.optimizers.SGD(0.0), metrics=["mae"], weighted_metrics=["mse"])
    weights = np.linspace(0, 3, 50).astype("float32")
    history = spark(model, 3).fit(X, Y, sample_weight=weights, epochs=2, verbose=0)
    expected = model.evaluate(X, Y, sample_weight=weights, return_dict=True, verbose=0)
    for epoch in range(2):
        assert {metric: values[epoch] for metric, values in history.history.items()} == pytest.approx(
            expected, abs=1e-5
        )


def test_auc_is_that_of_the_rows_together() -> None:
    keras.utils.set_random_seed(3)
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1, "sigmoid")])
    model.compile(keras.optimizers.SGD(0.0), "binary_crossentropy", metrics=["auc", keras.metrics.Precision(name="p")])
    history = spark(model, 3).fit(X, LABELS[:, None], validation_data=(X[:21], LABELS[:21, None]), verbose=0).history
    expected = model.evaluate(X, LABELS[:, None], return_dict=True, verbose=0)
    held = model.evaluate(X[:21], LABELS[:21, None], return_dict=True, verbose=0)
    expected |= {f"val_{metric}": value for metric, value in held.items()}
    assert {metric: values[-1] for metric, values in history.items()} == pytest.approx(expected, abs=1e-5)


def test_validation_data_is_scored_whole_by_the_state_at_the_epoch_s_end() -> None:
    model = mlp(metrics=["mae"])
    held = X[:11], Y[:11], np.linspace(0, 2, 11).astype("float32")
    spark_model = spark(model, 3)
    history = spark_model.fit(X, Y, epochs=2, validation_data=held, verbose=0)
    expected = spark_model.master_network.evaluate(*held[:2], sample_weight=held[2], return_dict=True, verbose=0)
    found = {metric: history.history[f"val_{metric}"][-1] for metric in expected}
    assert found == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("validation", [{"validation_data": (X[:9], LABELS[:9])}, {"validation_split": 0.2}])
def test_class_weights_do_not_weigh_validation_rows(validation: dict[str, object]) -> None:
    """As in Keras. A constant model's loss over any rows is log 2, unless rows are weighed."""
    inputs = keras.Input((4,))
    model = keras.Model(inputs, keras.layers.Dense(2, "softmax", kernel_initializer="zeros")(inputs))
    model.compile(keras.optimizers.SGD(0.0), "sparse_categorical_crossentropy")
    history = spark(model, 2).fit(X, LABELS, class_weight={0: 5.0, 1: 2.0}, verbose=0, **validation).history
    weights = np.where(LABELS == 0, 5.0, 2.0)
    assert history["val_loss"] == pytest.approx([math.log(2)], abs=1e-5)
    if "validation_data" in validation:
        assert history["loss"] == pytest.approx([math.log(2) * weights.mean()], abs=1e-5)


@pytest.mark.parametrize(("frequency", "expected"), [(3, 1), ([1, 4], 2)])
def test_validation_happens_after_the_epochs_that_were_asked_for(frequency: object, expected: int) -> None:
    history = spark(mlp(), 2).fit(X, Y, epochs=4, validation_split=0.2, validation_freq=frequency, verbose=0)
    assert len(history.history["val_loss"]) == expected


def test_rounds_tell_who_trained_what() -> None:
    """50 rows over 3 workers: 17, 17, 16, so 5, 5, 4 batches of 4; two steps a round of the largest make 3 rounds."""
    model = mlp(keras.optimizers.SGD(0.0))
    history = spark(model, 3, batch_size=4, frequency=2).fit(X, Y, epochs=2, shuffle=False, verbose=0)
    assert [(record.round, record.epoch) for record in history.rounds] == [(i, i // 3) for i in range(6)]
    steps = [[worker.steps for worker in record.workers] for record in history.rounds]
    assert steps == [[1, 1, 1], [2, 2, 1], [2, 2, 2]] * 2
    samples = [[worker.samples for worker in record.workers] for record in history.rounds]
    assert samples == [[4, 4, 4], [8, 8, 4], [5, 5, 8]] * 2
    assert [[worker.worker for worker in record.workers] for record in history.rounds] == [[0, 1, 2]] * 6
    pooled = sum(record.loss * record.samples for record in history.rounds[:3]) / 50
    assert pooled == pytest.approx(history.history["loss"][0], abs=1e-6)


def test_initial_epoch_counts_on() -> None:
    history = spark(mlp(), 2).fit(X, Y, epochs=4, initial_epoch=2, verbose=0)
    assert history.epoch == [2, 3]
    assert spark(mlp(), 2).fit(X, Y, epochs=2, initial_epoch=2, verbose=0).history == {}


# Callbacks on the driver.


class Recorder(keras.callbacks.Callback):
    """The state after each epoch, and the logs."""

    def __init__(self) -> None:
        super().__init__()
        self.states: list[dict[str, np.ndarray]] = []
        self.logs: list[dict[str, float]] = []

    def on_epoch_end(self, epoch, logs=None) -> None:
        self.states.append(state(self.model))
        self.logs.append(dict(logs))


def up_and_down(epoch: int) -> float:
    """A learning rate that descends for three epochs and climbs afterwards."""
    return 0.05 if epoch < 3 else -0.05


def test_early_stopping_restores_the_best_epoch_s_weights() -> None:
    recorder = Recorder()
    callbacks = [
        keras.callbacks.LearningRateScheduler(up_and_down),
        recorder,
        keras.callbacks.EarlyStopping(monitor="val_loss", patience=2, restore_best_weights=True),
    ]
    model = mlp(keras.optimizers.SGD())
    spark_model = spark(model, 2, frequency="epoch")
    history = spark_model.fit(X, Y, epochs=20, validation_split=0.2, callbacks=callbacks, verbose=0).history
    best = int(np.argmin(history["val_loss"]))
    assert len(history["val_loss"]) == best + 3 < 20
    np.testing.assert_array_equal(state(model)["weights"], recorder.states[best]["weights"])
    assert not np.array_equal(state(model)["weights"], recorder.states[-1]["weights"])


class Scaled(keras.layers.Layer):
    """Adds beta times the mean square of its inputs to the loss; nothing trains beta."""

    def build(self, shape: tuple[int | None, ...]) -> None:
        self.beta = self.add_weight(shape=(), initializer="zeros", trainable=False)

    def call(self, x: object) -> object:
        self.add_loss(self.beta * keras.ops.mean(x**2))
        return x


class Annealing(keras.callbacks.Callback):
    """Raises beta over the first four epochs, as a variational autoencoder's is, and starts the optimizer's count again."""

    def on_epoch_begin(self, epoch: int, logs: object = None) -> None:
        if epoch < 4:
            self.model.layers[0].beta.assign((epoch + 1) / 4)
        if epoch == 4:
            self.model.optimizer.iterations.assign(0)


@pytest.mark.parametrize("how", [{}, {"mode": "asynchronous"}, {"mode": "hogwild"}, {"quorum": 2}])
def test_workers_do_not_undo_what_callbacks_set(how: dict[str, object]) -> None:
    keras.utils.set_random_seed(3)
    model = keras.Sequential([keras.Input((4,)), Scaled(), keras.layers.Dense(1)])
    model.compile("adam", "mse")
    fitted(model, 4, options=how, epochs=6, callbacks=[Annealing()])
    assert float(model.layers[0].beta.numpy()) == 1.0
    assert 2 <= int(model.optimizer.iterations.numpy()) <= 8  # of two epochs of two steps; six epochs have twelve


def test_a_callback_that_compiles_anew_is_refused() -> None:
    class Recompiling(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch: int, logs: object = None) -> None:
            if epoch == 1:
                self.model.compile(keras.optimizers.SGD(0.05), "mse")

    with pytest.raises(ElephasError, match=r"compiled the model anew.*fit again"):
        fitted(mlp(), 2, epochs=3, callbacks=[Recompiling()])


HALVED = keras.optimizers.schedules.ExponentialDecay(0.05, 1, 0.5)


def add_to(model: keras.Model) -> None:
    model.head = keras.layers.Dense(1, trainable=False)
    model.head.build((None, 3))
    model.mine = keras.metrics.Mean(name="mine")


def test_what_a_callback_changes_before_the_first_epoch_counts_as_in_keras() -> None:
    """Which layers are trained, a schedule, and what is added to the model."""

    def change(logs: object) -> None:
        for model in (ours, theirs):
            model.layers[0].trainable = False
            model.optimizer.learning_rate = HALVED
            add_to(model)

    ours, theirs = (mlp(keras.optimizers.SGD(0.3)) for _ in range(2))
    frozen = ours.get_weights()[0]
    changing = keras.callbacks.LambdaCallback(on_train_begin=change)
    theirs.fit(X, Y, epochs=2, batch_size=8, shuffle=False, verbose=0, callbacks=[changing])
    fitted(ours, epochs=2, shuffle=False, callbacks=[changing])
    for one, other in zip(theirs.layers[:2], ours.layers[:2], strict=True):
        for expected, found in zip(one.get_weights(), other.get_weights(), strict=True):
            np.testing.assert_allclose(found, expected, rtol=0, atol=1e-6)
    np.testing.assert_array_equal(ours.layers[0].get_weights()[0], frozen)


def test_a_callback_that_freezes_a_layer_is_warned_of_once() -> None:
    def freeze(epoch: int, logs: object) -> None:
        model.layers[0].trainable = False

    model = mlp()
    with pytest.warns(ElephasWarning, match="which layers are trainable") as caught:
        fitted(model, 2, epochs=3, callbacks=[keras.callbacks.LambdaCallback(on_epoch_begin=freeze)])
    assert len(caught) == 1


def test_a_layer_that_a_callback_unfreezes_needs_another_optimizer() -> None:
    def unfreeze(logs: object) -> None:
        model.layers[0].trainable = True

    model = mlp()
    model.layers[0].trainable = False
    model.compile("adam", "mse")
    with pytest.raises(ValueError, match=r"were unfrozen .* Compile the model again"):
        fitted(model, 2, callbacks=[keras.callbacks.LambdaCallback(on_train_begin=unfreeze)])


def test_a_metric_that_a_callback_adds_to_the_model_later_is_named() -> None:
    model = mlp()
    adding = keras.callbacks.LambdaCallback(on_epoch_begin=lambda epoch, logs: add_to(model))
    with pytest.raises(ElephasError, match=r"more metrics than it had when the fit began \(loss, .*mine.*self.metric"):
        fitted(model, 2, epochs=1, callbacks=[adding])


def test_weights_that_a_callback_takes_out_of_the_model_end_the_fit() -> None:
    model = mlp()
    quantizing = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: model.layers[0].quantize("int8"))
    with pytest.raises(ElephasError, match=r"taken '.*kernel' out of the model, as quantize"):
        fitted(model, 2, epochs=3, callbacks=[quantizing])
    model = mlp()
    with pytest.warns(ElephasWarning, match="which layers are trainable"):
        fitted(model, 2, epochs=1, callbacks=[quantizing])  # nothing is trained afterwards


def test_a_schedule_that_a_callback_sets_amid_the_fit_is_warned_of_once() -> None:
    def schedule(*_: object) -> None:
        model.optimizer.learning_rate = HALVED

    model = mlp(keras.optimizers.SGD(0.3))
    with pytest.warns(ElephasWarning, match="learning rate schedule") as caught:
        fitted(model, 2, epochs=3, callbacks=[keras.callbacks.LambdaCallback(on_epoch_end=schedule)])
    assert len(caught) == 1


@pytest.mark.parametrize("mode", ["synchronous", "asynchronous"])
def test_an_epoch_whose_updates_are_all_dropped_is_an_error(mode: str) -> None:
    model = mlp(keras.optimizers.SGD(1e30))
    before = model.get_weights()
    with pytest.raises(NonFiniteError, match=r"all updates of epoch 1 .*dropped.*learning rate"):
        fitted(model, 2, options={"on_nan": "drop", "mode": mode}, epochs=3)
    for one, other in zip(before, model.get_weights(), strict=True):
        np.testing.assert_array_equal(one, other)


def test_a_checkpoint_is_the_whole_model_with_its_optimizer(tmp_path: Path) -> None:
    recorder = Recorder()
    checkpoint = keras.callbacks.ModelCheckpoint(str(tmp_path / "{epoch}-{loss:.2f}.keras"))
    fitted(mlp(), 2, epochs=3, callbacks=[recorder, checkpoint])
    files = sorted(tmp_path.iterdir())
    assert [file.name for file in files] == [f"{i + 1}-{log['loss']:.2f}.keras" for i, log in enumerate(recorder.logs)]
    for file, expected in zip(files, recorder.states, strict=True):
        loaded = state(keras.saving.load_model(file))
        assert loaded["slots"].any()
        for role, part in expected.items():
            np.testing.assert_array_equal(loaded[role], part, err_msg=role)


class Interruption(keras.callbacks.Callback):
    def __init__(self, epoch: int, error: BaseException) -> None:
        super().__init__()
        self.epoch, self.error = epoch, error

    def on_epoch_end(self, epoch, logs=None) -> None:
        if epoch == self.epoch:
            raise self.error


def test_an_interrupted_fit_goes_on_from_its_backup_as_if_nothing_had_happened(tmp_path: Path) -> None:
    def backup() -> keras.callbacks.Callback:
        return keras.callbacks.BackupAndRestore(str(tmp_path / "backup"), double_checkpoint=False)

    options = {"strategy": "average"}
    undisturbed, again = mlp(), mlp()
    fitted(undisturbed, 2, options=options, epochs=4)
    with pytest.raises(RuntimeError, match="power cut"):
        fitted(mlp(), 2, options=options, epochs=4, callbacks=[backup(), Interruption(1, RuntimeError("power cut"))])
    history = spark(again, 2, **options).fit(X, Y, epochs=4, callbacks=[backup()], verbose=0)
    assert history.epoch == [2, 3]
    assert_states_close(again, undisturbed, atol=0)


def test_workers_train_with_the_learning_rate_that_callbacks_set() -> None:
    """Before an epoch and after it."""

    def callbacks() -> list[keras.callbacks.Callback]:
        return [
            keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate * (epoch + 1)),
            keras.callbacks.ReduceLROnPlateau(monitor="loss", factor=0.1, patience=1, min_delta=1e3),
        ]

    ours, theirs = mlp("sgd"), mlp("sgd")
    history = spark(ours).fit(X, Y, epochs=4, shuffle=False, callbacks=callbacks(), verbose=0).history
    expected = theirs.fit(X, Y, batch_size=8, epochs=4, shuffle=False, callbacks=callbacks(), verbose=0).history
    assert history["learning_rate"] == pytest.approx(expected["learning_rate"])
    assert len(set(history["learning_rate"])) > 2
    assert_states_close(ours, theirs, atol=1e-6)


def test_averaged_weights_are_swapped_in_at_an_epoch_s_end_as_in_keras() -> None:
    recorders, models = [], []
    for train in (
        lambda model, callbacks: spark(model).fit(X, Y, epochs=3, shuffle=False, callbacks=callbacks, verbose=0),
        lambda model, callbacks: model.fit(X, Y, batch_size=8, epochs=3, shuffle=False, callbacks=callbacks, verbose=0),
    ):
        model = mlp(keras.optimizers.SGD(0.05, use_ema=True, ema_momentum=0.8))
        recorders.append(Recorder())
        models.append(model)
        train(model, [keras.callbacks.SwapEMAWeights(swap_on_epoch=True), recorders[-1]])
    for ours, theirs in zip(recorders[0].states, recorders[1].states, strict=True):
        np.testing.assert_allclose(ours["weights"], theirs["weights"], atol=1e-6)
    assert_states_close(*models, atol=1e-6)


class NotesTests(keras.callbacks.Callback):
    """Ends the training by what the second evaluation says."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[object] = []

    def on_test_begin(self, logs=None) -> None:
        self.seen.append("begin")

    def on_test_end(self, logs=None) -> None:
        self.seen.append(dict(logs))
        self.model.stop_training = self.seen.count("begin") == 2

    def on_epoch_end(self, epoch, logs=None) -> None:
        self.seen.append(epoch)


# Averages are not swapped where workers evaluate while others train on: that is refused.
@pytest.mark.parametrize(("mode", "swap"), [("synchronous", True), ("asynchronous", False)])
def test_callbacks_are_called_around_evaluations_as_in_keras(mode: str, swap: bool) -> None:
    callbacks, models, histories = [], [], []
    for ours in (True, False):
        model = mlp(keras.optimizers.SGD(0.05, use_ema=True, ema_momentum=0.8))
        callbacks.append([NotesTests(), *([keras.callbacks.SwapEMAWeights()] if swap else [])])
        given = {"epochs": 5, "shuffle": False, "verbose": 0, "callbacks": callbacks[-1]}
        given |= {"validation_data": (X[:16], Y[:16]), "validation_freq": 2}
        trained = spark(model, mode=mode).fit(X, Y, **given) if ours else model.fit(X, Y, batch_size=8, **given)
        models.append(model)
        histories.append(trained.history)
    assert [type(each) for each in callbacks[0][0].seen] == [type(each) for each in callbacks[1][0].seen]
    assert [each for each in callbacks[0][0].seen if not isinstance(each, dict)] == [0, "begin", 1, 2, "begin", 3]
    for one, other in zip(callbacks[0][0].seen, callbacks[1][0].seen, strict=True):
        assert one == pytest.approx(other, abs=1e-5)
    assert histories[0]["val_loss"] == pytest.approx(histories[1]["val_loss"], abs=1e-5)
    assert_states_close(*models, atol=1e-6)


class SetsForTests(keras.callbacks.Callback):
    """Has zeros evaluated, and leaves weights and a learning rate behind."""

    def on_test_begin(self, logs=None) -> None:
        self.model.set_weights([0 * weight for weight in self.model.get_weights()])

    def on_test_end(self, logs=None) -> None:
        self.model.set_weights([weight + 0.25 for weight in self.model.get_weights()])
        self.model.optimizer.learning_rate = 0.0625


def test_what_callbacks_set_around_evaluations_is_trained_on_as_in_keras() -> None:
    models, histories = [], []
    for ours in (True, False):
        model = mlp("sgd")
        given = {"epochs": 2, "shuffle": False, "verbose": 0, "callbacks": [SetsForTests()], "validation_data": (X, Y)}
        histories.append((spark(model).fit(X, Y, **given) if ours else model.fit(X, Y, batch_size=8, **given)).history)
        models.append(model)
    for name, values in histories[1].items():
        assert histories[0][name] == pytest.approx(values, abs=1e-5)
    assert_states_close(*models, atol=1e-6)


def test_what_is_set_for_an_evaluation_that_is_over_is_said() -> None:
    with pytest.warns(ElephasWarning, match="on_test_begin, and the workers had evaluated it by then"):
        spark(mlp("sgd"), mode="asynchronous").fit(
            X, Y, epochs=2, validation_split=0.2, verbose=0, callbacks=[SetsForTests()]
        )


def test_csv_logger_writes_the_history(tmp_path: Path) -> None:
    logger = keras.callbacks.CSVLogger(str(tmp_path / "log.csv"))
    history = spark(mlp(metrics=["mae"]), 2).fit(X, Y, epochs=3, callbacks=[logger], verbose=0).history
    with open(tmp_path / "log.csv", newline="") as file:
        found = list(csv.DictReader(file))
    assert [row["epoch"] for row in found] == ["0", "1", "2"]
    for metric, values in history.items():
        assert [float(row[metric]) for row in found] == pytest.approx(values)


def test_tensorboard_is_told_the_metrics_of_each_epoch(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="TensorBoard's callback needs the tensorboard package")
    board = keras.callbacks.TensorBoard(str(tmp_path), histogram_freq=1)
    history = spark(mlp(), 2).fit(X, Y, epochs=3, validation_split=0.2, callbacks=[board], verbose=0).history

    def scalars(run: str, tag: str = "epoch_loss") -> Iterator[float]:
        for file in (tmp_path / run).glob("events*"):
            for record in tf.data.TFRecordDataset(str(file)):
                for value in tf.compat.v1.Event.FromString(record.numpy()).summary.value:
                    if value.tag == tag:
                        yield float(tf.make_ndarray(value.tensor))

    assert list(scalars("train")) == pytest.approx(history["loss"])
    assert list(scalars("validation")) == pytest.approx(history["val_loss"])
    assert list(scalars("validation", "evaluation_loss_vs_iterations")) == pytest.approx(history["val_loss"])


def test_terminate_on_nan_ends_the_training_with_the_last_good_weights() -> None:
    broken = np.where(np.arange(50)[:, None] == 49, np.nan, X)
    model = mlp("sgd")
    with pytest.warns(UserWarning, match="TerminateOnNaN"):
        history = spark(model, 2, frequency=1).fit(
            broken, Y, epochs=5, shuffle=False, callbacks=[keras.callbacks.TerminateOnNaN()], verbose=0
        )
    assert history.epoch == [0]
    assert np.isnan(history.history["loss"]).all()
    assert np.isfinite(state(model)["weights"]).all()


def test_lambda_callbacks_are_called_around_epochs_and_training() -> None:
    called: list[str] = []
    callback = keras.callbacks.LambdaCallback(
        on_train_begin=lambda logs: called.append("begin"),
        on_epoch_begin=lambda epoch, logs: called.append(f"epoch {epoch}"),
        on_epoch_end=lambda epoch, logs: called.append(f"over {sorted(logs)}"),
        on_train_end=lambda logs: called.append(f"end {sorted(logs)}"),
    )
    fitted(mlp(), 2, epochs=2, validation_split=0.2, callbacks=callback)
    logs = "['loss', 'val_loss']"
    assert called == ["begin", "epoch 0", f"over {logs}", "epoch 1", f"over {logs}", f"end {logs}"]


def test_a_callback_with_batch_hooks_is_refused_before_anything_starts() -> None:
    callback = keras.callbacks.ModelCheckpoint("never.keras", save_freq=10)
    with pytest.raises(ValueError, match=r"ModelCheckpoint\(save_freq=10\).*worker_callbacks"):
        fitted(mlp(), 2, callbacks=[callback])


class Batches(keras.callbacks.Callback):
    """Writes down that it was called, on the worker."""

    def __init__(self, path: Path, raise_at: int | None = None) -> None:
        super().__init__()
        self.path, self.raise_at = str(path), raise_at

    def on_train_batch_end(self, batch, logs=None) -> None:
        with open(self.path, "a", encoding="utf-8") as file:
            file.write(f"{batch}\n")
        with open(self.path, encoding="utf-8") as file:
            if len(file.readlines()) == self.raise_at:
                raise KeyboardInterrupt


def test_worker_callbacks_are_called_for_the_batches_of_each_worker(tmp_path: Path) -> None:
    plain, watched = mlp(), mlp()
    fitted(plain, 2, epochs=2)
    fitted(watched, 2, epochs=2, worker_callbacks=[Batches(tmp_path / "batches")])
    found = sorted((tmp_path / "batches").read_text().split())
    assert found == sorted(["0", "1", "2", "3"] * 2 * 2)  # 25 rows a worker make 4 batches of 8
    assert_states_close(watched, plain, atol=0)


# What goes wrong.


def test_ctrl_c_in_a_callback_leaves_the_last_finished_round() -> None:
    model, recorder = mlp(), Recorder()
    with pytest.raises(KeyboardInterrupt):
        fitted(model, 2, epochs=5, callbacks=[recorder, Interruption(1, KeyboardInterrupt())])
    assert len(recorder.states) == 2
    for role, part in recorder.states[-1].items():
        np.testing.assert_array_equal(state(model)[role], part, err_msg=role)
    assert recorder.states[0]["counters"] < recorder.states[1]["counters"]


def test_ctrl_c_within_a_round_leaves_the_round_before(tmp_path: Path) -> None:
    model, recorder = mlp(), Recorder()
    batches = Batches(tmp_path / "batches", raise_at=11)  # 8 batches an epoch
    options = {"frequency": "epoch"}
    with pytest.raises(KeyboardInterrupt):
        fitted(model, 2, options=options, epochs=5, callbacks=[recorder], worker_callbacks=[batches])
    assert len(recorder.states) == 1
    for role, part in recorder.states[0].items():
        np.testing.assert_array_equal(state(model)[role], part, err_msg=role)


class Refusing(keras.Model):
    def train_step(self, data):
        raise ValueError("seventeen is not a number I like")


def test_an_exception_in_the_user_s_code_on_a_worker_reaches_the_user_and_the_next_fit_is_ordinary() -> None:
    inputs = keras.Input((4,))
    model = Refusing(inputs, keras.layers.Dense(1)(inputs))
    model.compile("sgd", "mse")
    with pytest.raises(ValueError, match="seventeen"):
        fitted(model, 2)
    assert len(fitted(mlp(), 2).training_histories) == 1


def test_an_exception_in_a_loss_reaches_the_user() -> None:
    def loss(y_true, y_pred):
        raise ValueError(f"no loss for {y_pred.shape[-1]} outputs")

    with pytest.raises(ValueError, match="no loss for 1 outputs"):
        fitted(mlp(loss=loss), 2)


BROKEN = np.where(np.arange(50)[:, None] == 1, np.nan, X)  # a row of worker 1's


def test_nan_is_raised_with_worker_and_round() -> None:
    with pytest.raises(NonFiniteError, match=r"worker 1 .*round 0.*on_nan='drop'"):
        fitted(mlp("sgd"), 2, data=BROKEN, shuffle=False)


def test_updates_with_nan_are_dropped_and_counted_where_asked_for() -> None:
    """Worker 1's first batch alone is lost: what is left is trained by worker 0 and worker 1's later batches."""
    model = mlp("sgd")
    spark_model = spark(model, 2, on_nan="drop", frequency=1, strategy="average")
    history = spark_model.fit(BROKEN, Y, shuffle=False, verbose=0)
    assert np.isfinite(state(model)["weights"]).all()
    dropped = [[worker.dropped for worker in record.workers] for record in history.rounds]
    assert dropped == [[0, 1], [0, 0], [0, 0], [0, 0]]
    assert math.isfinite(history.history["loss"][0])


# Arguments.


def uncompiled() -> keras.Model:
    return keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])


CONSTRUCTOR = [
    (lambda: SparkModel(uncompiled()), ValueError, "not compiled.*model.compile"),
    (lambda: SparkModel("model.keras"), TypeError, "keras.Model; got builtins.str"),
    (lambda: SparkModel(mlp(), mode="async"), ValueError, "'synchronous', 'asynchronous', 'hogwild'; got 'async'"),
    (
        lambda: SparkModel(mlp(), frequency="epochs"),
        ValueError,
        "'auto', 'epoch', 'batch', 'fit'.*Did you mean 'epoch'",
    ),
    (lambda: SparkModel(mlp(), frequency=0), ValueError, "frequency must be a whole number of at least 1; got 0"),
    (lambda: SparkModel(mlp(), strategy="nestrov"), ValueError, "called 'nestrov'. Did you mean 'nesterov'"),
    (lambda: SparkModel(mlp(), strategy="xyz"), ValueError, "called 'xyz'. It must be one of 'adag', .*'nesterov'"),
    (lambda: SparkModel(mlp(), strategy=tf.distribute.get_strategy()), TypeError, "tf.distribute.*how the weights"),
    (lambda: SparkModel(mlp(), strategy=1), TypeError, "Strategy object; got int"),
    (lambda: SparkModel(mlp(), engine="spark"), ValueError, "'server', 'jobs', 'gang', 'in_process'; got 'spark'"),
    (lambda: SparkModel(mlp(), optimizer_state="mean"), ValueError, "'average', 'per_worker', 'reset'; got 'mean'"),
    (
        lambda: SparkModel(mlp(keras.optimizers.Ftrl()), optimizer_state="per_worker"),
        ValueError,
        "Ftrl computes the weights from its slots.*'average'; got 'per_worker'",
    ),
    (
        lambda: SparkModel(mlp(keras.optimizers.SGD(use_ema=True)), optimizer_state="reset"),
        ValueError,
        "use_ema=True needs optimizer_state='average'",
    ),
    (lambda: SparkModel(mlp(), optimizer_state_every=0), ValueError, "optimizer_state_every must be a whole number"),
    (
        lambda: SparkModel(mlp(), mode="asynchronous", control_variates=True),
        ValueError,
        "control_variates compare a worker's last round .* mode 'synchronous'",
    ),
    (
        lambda: SparkModel(mlp(), engine="jobs", control_variates=True),
        ValueError,
        "control_variates needs engine='server', 'gang' or 'in_process'",
    ),
    (
        lambda: SparkModel(mlp(), strategy=Average(reduce=Median()), control_variates=True),
        ValueError,
        r"the mean of the workers' steps, such as 'nesterov' or 'average'; got 'average' with reduce=Median\(",
    ),
    (
        lambda: SparkModel(mlp(), codec="top_k", control_variates=True),
        ValueError,
        "the mean step of all workers, of which codec 'top_k' leaves most numbers out",
    ),
    (
        lambda: SparkModel(mlp(), strategy="easgd", control_variates=True),
        ValueError,
        "the mean of the workers' steps, .* got 'easgd'",
    ),
    (
        lambda: SparkModel(mlp(keras.optimizers.Ftrl()), control_variates=True),
        ValueError,
        "Ftrl computes the weights from its slots: what control variates add",
    ),
    (
        lambda: SparkModel(mlp(), mode="asynchronous", optimizer_state_every=2),
        ValueError,
        "optimizer_state_every counts the rounds of mode 'synchronous'",
    ),
    (
        lambda: SparkModel(mlp(), optimizer_state="reset", optimizer_state_every=2),
        ValueError,
        "optimizer_state_every=2 says how often .* optimizer_state='reset' never averages them",
    ),
    (
        lambda: SparkModel(mlp(), engine="jobs", optimizer_state_every=2),
        ValueError,
        "optimizer_state_every=2 needs engine='server', 'gang' or 'in_process'",
    ),
    (
        lambda: SparkModel(mlp(keras.optimizers.Ftrl()), optimizer_state_every=2),
        ValueError,
        "Ftrl computes the weights from its slots.*'average' in each round; got optimizer_state_every=2",
    ),
    (
        lambda: SparkModel(mlp(keras.optimizers.SGD(use_ema=True)), optimizer_state_every=2),
        ValueError,
        "use_ema=True needs optimizer_state='average' in each round; got optimizer_state_every=2",
    ),
    (lambda: SparkModel(mlp(), on_nan="ignore"), ValueError, "'raise', 'drop'; got 'ignore'"),
    (lambda: SparkModel(mlp(), parameter_server_mode="ftp"), ValueError, "'http', 'socket'; got 'ftp'"),
    (lambda: SparkModel(mlp(), 0), ValueError, "num_workers must be a whole number of at least 1; got 0"),
    (lambda: SparkModel(mlp(), batch_size=0), ValueError, "batch_size must be a whole number of at least 1; got 0"),
    (lambda: SparkModel(mlp(), seed=-1), ValueError, "seed"),
    (lambda: SparkModel(mlp(), round_timeout=0), ValueError, "round_timeout must be a time in seconds above 0; got 0"),
    (lambda: SparkModel(mlp(), 2, None, 32, "synchronous"), TypeError, "3 positional arguments"),
    (
        lambda: SparkModel(mlp(), mode="hogwild", strategy="nesterov"),
        ValueError,
        r"(?s)'nesterov' is for mode 'synchronous'.*mode synchronous \| strategy nesterov.*for mode 'hogwild': .*'downpour'",
    ),
    (lambda: SparkModel(mlp(), strategy="one_shot", frequency="epoch"), ValueError, "(?s)needs frequency 'fit'.*Valid"),
    (lambda: SparkModel(mlp(), mode="asynchronous", engine="jobs"), ValueError, "(?s)'jobs' is not for.*Valid"),
    (lambda: SparkModel(mlp(), mode="asynchronous", frequency="fit"), ValueError, "(?s)'fit'.*Valid"),
    (lambda: SparkModel(mlp(), max_staleness=4), ValueError, "max_staleness is for mode 'asynchronous'"),
    (
        lambda: SparkModel(mlp(), mode="asynchronous", state_codec="int8"),
        ValueError,
        "state_codec is for mode 'synchronous'",
    ),
    (lambda: SparkModel(mlp(), state_codec="int9"), ValueError, "state_codec must be one of .*'int8'"),
    (lambda: SparkModel(mlp(), mode="hogwild", max_staleness=-1), ValueError, "max_staleness"),
]


@pytest.mark.parametrize(("make", "kind", "message"), CONSTRUCTOR)
def test_arguments_of_the_constructor_are_checked(make, kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message):
        make()


def some_rows() -> Iterator[tuple[np.ndarray, float]]:
    yield X[0], 1.0


FIT = [
    ({"epochs": 0}, ValueError, "epochs must be a whole number of at least 1; got 0"),
    ({"batch_size": 0}, ValueError, "batch_size must be a whole number of at least 1; got 0"),
    ({"global_batch_size": 0}, ValueError, "global_batch_size must be a whole number of at least 1; got 0"),
    ({"batch_size": 8, "global_batch_size": 16}, ValueError, "not both"),
    ({"validation_split": 1.0}, ValueError, "validation_split must be a share from 0 to below 1; got 1.0"),
    ({"validation_split": 0.1, "validation_data": (X, Y)}, ValueError, "not both"),
    ({"validation_split": 0.01}, ValueError, "leaves no validation rows"),
    ({"validation_data": X}, TypeError, r"validation_data must be \(x,\), \(x, y\)"),
    ({"validation_freq": 0, "validation_split": 0.2}, ValueError, "validation_freq"),
    ({"initial_epoch": -1}, ValueError, "initial_epoch"),
    ({"epoch": 3}, TypeError, "unexpected argument 'epoch'.*Did you mean 'epochs'"),
    ({"steps_per_epoch": 3}, ValueError, "steps_per_epoch= is not supported: an epoch is every row"),
    ({"validation_steps": 3}, ValueError, "validation_steps= is not supported"),
    ({"validation_batch_size": 3}, ValueError, "validation_batch_size= is not supported"),
    ({"workers": 3}, ValueError, "workers= is not supported.*num_workers"),
    ({"callbacks": ["csv"]}, TypeError, "Callback objects; got str"),
    ({"verbose": "loud"}, ValueError, "verbose"),
    ({"data": None}, TypeError, "give the data once"),
    ({"x": X}, TypeError, "give the data once"),
    ({"data": some_rows(), "y": None}, TypeError, "generators, loaders and iterators live on one machine"),
    ({"data": tf.data.Dataset.range(3), "y": None}, TypeError, "tf.data datasets live on one machine"),
    ({"y": Y[:49]}, ValueError, r"same number of rows.*\(50, 4\), \(49, 1\)"),
    ({"sample_weight": np.ones(3)}, ValueError, "same number of rows"),
    ({"sample_weight": np.ones(50), "class_weight": {0: 2.0}}, ValueError, "class_weight and sample weights"),
    ({"data": X[:0], "y": Y[:0]}, ValueError, "no rows to train on"),
    ({"y": None}, (ValueError, DataError), "y|label|target"),
    ({"data": X[:, :3]}, ValueError, r"takes features of shape \(4,\), and the rows' are \(3,\)"),
]


@pytest.mark.parametrize(("arguments", "kind", "message"), FIT)
def test_arguments_of_fit_are_checked(arguments: dict[str, object], kind: type[Exception], message: str) -> None:
    model = mlp()
    before = model.get_weights()
    with pytest.raises(kind, match=message):
        fitted(model, 2, **arguments)
    for one, other in zip(before, model.get_weights(), strict=True):
        np.testing.assert_array_equal(one, other)


def test_class_weights_beside_sample_weights_are_refused_before_rows_are_written() -> None:
    model = spark(mlp(), 2)
    for given in ({"sample_weight": LABELS}, {}):
        rows = (X, LABELS) if given else (X, LABELS, LABELS)
        with pytest.raises(ValueError, match=r"^class_weight and sample weights exclude each other"):
            model.fit(rows, class_weight={0: 1.0}, verbose=0, **given)


@pytest.mark.parametrize("given", [{"verbose": np.array([1, 2])}, {"class_weight": np.array([1.0, 2.0])}])
def test_arrays_in_the_place_of_other_arguments_are_refused_by_name(given: dict[str, object]) -> None:
    with pytest.raises((TypeError, ValueError), match=f"{next(iter(given))} must be"):
        spark(mlp()).fit(X, Y, **given)


def test_class_weights_of_several_outputs_are_refused() -> None:
    with pytest.raises(ValueError, match="single output"):
        spark(several(), 2).fit({"one": X, "two": Y}, {"a": Y, "b": Y}, class_weight={0: 1.0}, verbose=0)


class Subclassed(keras.Model):
    def __init__(self, **kwargs) -> None:
        super().__init__(**kwargs)
        self.dense = keras.layers.Dense(2, "softmax")

    def call(self, x):
        return self.dense(x)


def test_a_subclassed_model_that_is_not_built_yet_is_trained() -> None:
    model = Subclassed()
    model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
    history = spark(model, 2).fit(X, LABELS, epochs=2, class_weight={0: 2.0}, validation_split=0.2, verbose=0)
    assert set(history.history) == {"loss", "accuracy", "val_loss", "val_accuracy"}
    assert spark(model).evaluate(X, LABELS, return_dict=True)["accuracy"] > 0


def test_an_unknown_keyword_is_an_error_that_names_the_nearest() -> None:
    with pytest.raises(TypeError, match=r"no argument 'frequenzy'.*Did you mean 'frequency'"):
        SparkModel(mlp(), 2, frequenzy="batch")
    with pytest.raises(TypeError, match="epochs= is an argument of fit"):
        SparkModel(mlp(), 2, epochs=3)


def test_elephas_old_order_of_arguments() -> None:
    spark_model = SparkModel(mlp(), "asynchronous", "batch", "socket", 3, None, 16, 4000)
    given = {
        "num_workers": 3,
        "batch_size": 16,
        "mode": "asynchronous",
        "frequency": "batch",
        "parameter_server_mode": "socket",
        "port": 4000,
    }
    assert given.items() <= spark_model.get_config().items()
    assert SparkModel(mlp(), **spark_model.get_config()).get_config() == spark_model.get_config()
    assert SparkModel(mlp(), "hogwild").get_config()["mode"] == "hogwild"


def test_updates_that_are_too_stale_are_dropped_and_counted() -> None:
    # The virtual clock decides who comes when; four workers are 3 updates stale when their speeds are equal.
    kept = spark(mlp(), 4, mode="asynchronous", frequency="batch").fit(X, Y, epochs=4, verbose=0)
    limited = spark(mlp(), 4, mode="asynchronous", frequency="batch", max_staleness=3)
    history = limited.fit(X, Y, epochs=4, verbose=0)
    free = [record.workers[0] for record in kept.rounds]
    assert not any(worker.dropped for worker in free)
    assert max(worker.staleness for worker in free) > 3
    workers = [record.workers[0] for record in history.rounds]
    assert {worker.stale for worker in workers} == {False, True}
    for worker in workers:
        assert worker.stale == bool(worker.dropped) == (worker.staleness > 3)
    assert len(history.history["loss"]) == 4  # dropped rows count: the fit ends


def test_metrics_given_in_the_place_of_loss_weights_warn_and_train() -> None:
    keras.utils.set_random_seed(3)
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1, "sigmoid")])
    model.compile(keras.optimizers.SGD(0.1), "binary_crossentropy", ["acc"])
    with pytest.warns(UserWarning, match="metrics="):
        spark_model = spark(model, 2)
    assert set(spark_model.fit(X, LABELS, verbose=0).history) == {"loss", "acc"}


def test_the_names_x_and_rdd_mean_data() -> None:
    for name in ("x", "rdd"):
        assert len(fitted(mlp(), 2, data=None, **{name: X}).training_histories) == 1


# Predict, evaluate, save.


@pytest.mark.parametrize("suffix", [".keras", ".h5"])
@pytest.mark.filterwarnings("ignore:You are saving your model as an HDF5 file")
def test_a_saved_model_is_loaded_with_its_optimizer_and_trains_on(tmp_path: Path, suffix: str) -> None:
    spark_model = fitted(mlp(keras.optimizers.Adam(0.01), loss=keras.losses.MeanSquaredError()), 2, epochs=2)
    path = tmp_path / f"model{suffix}"
    spark_model.save(path)
    loaded = load_spark_model(path, num_workers=2, engine="in_process", batch_size=8, seed=5)
    assert_states_close(loaded.master_network, spark_model.master_network, atol=0)
    again = SparkModel(spark_model.master_network, num_workers=2, engine="in_process", batch_size=8, seed=5)
    for each in (loaded, again):
        each.fit(X, Y, verbose=0)
    assert_states_close(loaded.master_network, spark_model.master_network, atol=0)
    with pytest.raises(FileExistsError, match="overwrite=True"):
        spark_model.save(path, overwrite=False)
    with pytest.raises(ValueError, match=r"must end with '\.keras' or '\.h5'"):
        spark_model.save(tmp_path / "model")


def test_a_later_fit_of_one_object_shuffles_anew_and_the_same_way_in_every_run() -> None:
    def losses() -> list[float]:
        options = {"num_workers": 2, "engine": "in_process", "batch_size": 8, "seed": 5, "frequency": 1}
        spark_model = SparkModel(mlp(keras.optimizers.SGD(0.0)), **options)
        return [spark_model.fit(X, Y, verbose=0).rounds[0].loss for _ in range(2)]

    first, second = losses()
    assert first != second
    assert losses() == [first, second]


def test_a_model_that_cannot_be_sent_says_why() -> None:
    class Locked(keras.layers.Layer):
        def __init__(self) -> None:
            super().__init__()
            self.lock = threading.Lock()

        def call(self, x):
            return x

    with pytest.raises(ElephasError, match=r"cannot be sent to workers: its .*lock is a _thread\.lock"):
        fitted(mlp(hidden=(Locked(),)), 2)


def test_no_fit_leaves_a_file_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    fitted(mlp(), 2, validation_data=(X[:9], Y[:9]))
    with pytest.raises(RuntimeError):
        fitted(mlp(), 2, callbacks=[Interruption(0, RuntimeError("no"))])
    assert list(itertools.islice(tmp_path.rglob("*"), 3)) == []


def test_rows_held_out_stay_the_same_over_the_fits_of_one_object() -> None:
    spark_model = SparkModel(mlp(keras.optimizers.SGD(0.0)), num_workers=2, engine="in_process", batch_size=8, seed=5)
    scored = [spark_model.fit(X, Y, validation_split=0.2, verbose=0).history["val_loss"][0] for _ in range(2)]
    assert scored[0] == scored[1]


def test_one_round_for_the_whole_fit_begins_with_the_first_epoch_and_is_scored() -> None:
    asked: list[int] = []

    def rate(epoch: int, learning_rate: float) -> float:
        asked.append(epoch)
        return learning_rate

    spark_model = SparkModel(mlp(), num_workers=2, engine="in_process", batch_size=8, strategy="one_shot")
    callbacks = [keras.callbacks.LearningRateScheduler(rate)]
    history = spark_model.fit(X, Y, epochs=5, validation_split=0.2, validation_freq=2, callbacks=callbacks, verbose=0)
    assert asked == [0]
    assert len(history.history["val_loss"]) == 1


def test_a_sharded_dataset_has_its_labels_already() -> None:
    spark_model = SparkModel(mlp(), num_workers=2, engine="in_process")
    with pytest.raises(ValueError, match="rows carry y"):
        spark_model.fit(ShardedDataset(None, 2, "none"), Y)  # type: ignore[arg-type]  # the check comes before its use


@pytest.mark.parametrize("options", [{}, {"frequency": 1, "optimizer_state_every": 2}], ids=str)
def test_a_quorum_leaves_stragglers_behind_and_says_so(options: dict) -> None:
    spark_model = fitted(mlp(), 4, options={"quorum": 3, "quorum_grace": 0.0, "seed": 1, **options}, epochs=6)
    done = [record for each in spark_model.master_network.history.rounds for record in each.workers]
    assert any(record.staleness for record in done)
    by_worker = [sum(record.samples for record in done if record.worker == worker) for worker in range(4)]
    assert max(by_worker) <= 6 * 13
    assert min(by_worker) < 6 * 12
    assert all(np.isfinite(weight).all() for weight in spark_model.master_network.get_weights())


@pytest.mark.parametrize(
    "options",
    [
        {"quorum": 3, "quorum_grace": 0.0},
        {"strategy": "easgd"},
        {"strategy": "average", "optimizer_state": "per_worker"},
        {"num_workers": 1},
    ],
    ids=str,
)
def test_packed_steps_of_all_32_bits_are_nearly_none(options: dict) -> None:
    """fp32 packs nothing: only the sum base + (weights - base) rounds."""
    workers = options.pop("num_workers", 4)
    plain, packed = mlp(), mlp()
    fitted(plain, workers, options={"seed": 1, **options}, epochs=2)
    fitted(packed, workers, options={"seed": 1, "state_codec": "fp32", **options}, epochs=2)
    for one, other in zip(plain.get_weights(), packed.get_weights(), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-4)


@pytest.mark.filterwarnings("ignore:The model does not have any trainable weights")
def test_a_model_without_trainable_weights_has_no_steps_to_pack() -> None:
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1, trainable=False)])
    model.compile("sgd", "mse")
    before = model.get_weights()
    fitted(model, 2, options={"state_codec": "int8"}, epochs=2)
    np.testing.assert_array_equal(model.get_weights()[0], before[0])


def test_packed_steps_that_save_nothing_are_said(caplog: pytest.LogCaptureFixture) -> None:
    fitted(mlp(), 2, options={"state_codec": "int8", "frequency": "fit"}, epochs=2)
    assert "state_codec='int8' saves nothing here: frequency='fit' has one round" in caplog.text


def test_a_quorum_is_one_of_workers_with_rows() -> None:
    # two rows for four workers: two have none, and answer before those that train
    spark_model = fitted(mlp(), 4, options={"quorum": 2, "quorum_grace": 0.0}, data=X[:2], y=Y[:2], epochs=3)
    rounds = spark_model.master_network.history.rounds
    assert [sum(record.samples for record in each.workers) for each in rounds] == [2, 2, 2]


def test_a_quorum_is_compared_with_the_workers_once_they_are_known() -> None:
    with pytest.raises(ValueError, match="quorum=3 needs 3 workers; the fit has 1"):
        SparkModel(mlp(), quorum=3, engine="in_process").fit(X, Y, verbose=0)


def test_a_quorum_of_all_is_a_synchronous_fit() -> None:
    one, other = fitted(mlp(), 3, epochs=2), fitted(mlp(), 3, options={"quorum": 1.0}, epochs=2)
    for mine, theirs in zip(one.master_network.get_weights(), other.master_network.get_weights(), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=0, atol=1e-6)  # summed in another order


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"mode": "asynchronous"}, "quorum is for mode 'synchronous'"),
        ({"engine": "jobs"}, "quorum needs engine='server' or 'in_process'"),
        ({"strategy": "easgd"}, "which those of strategy 'easgd' are not made for"),
        ({"quorum": 1.5}, "quorum must be a number of workers, or a share"),
        ({"quorum": 0}, "quorum must be a whole number of at least 1"),
        ({"num_workers": 2, "quorum": 3}, "quorum=3 needs 3 workers; the fit has 2"),
        ({"quorum_grace": -1}, "quorum_grace must be"),
    ],
)
def test_a_quorum_that_cannot_be(options: dict, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        SparkModel(mlp(), **({"num_workers": 4, "quorum": 0.75} | options))


@pytest.mark.parametrize(("scale", "factor"), [("linear", 4.0), ("sqrt", 2.0)])
def test_a_scaled_learning_rate_trains_as_that_rate_does_and_the_model_keeps_its_own(scale: str, factor: float) -> None:
    x = np.random.default_rng(0).normal(size=(64, 3)).astype("float32")
    y = x.sum(axis=1, keepdims=True)

    def trained(rate: float, **options: object) -> tuple[keras.Model, list[float]]:
        keras.utils.set_random_seed(2)
        model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
        model.compile(keras.optimizers.SGD(rate, momentum=0.5), "mse")
        seen: list[float] = []
        look = keras.callbacks.LambdaCallback(
            on_epoch_end=lambda epoch, logs: seen.append(float(model.optimizer.learning_rate))
        )
        fitted = SparkModel(model, 4, engine="in_process", seed=1, batch_size=4, **options)
        fitted.fit(x, y, epochs=2, verbose=0, callbacks=[look])
        return model, seen

    scaled, seen = trained(0.0078125, scale_learning_rate=scale)
    by_hand, _ = trained(0.0078125 * factor)
    for one, other in zip(scaled.get_weights(), by_hand.get_weights(), strict=True):
        np.testing.assert_array_equal(one, other)
    assert seen == [0.0078125] * 2
    assert float(scaled.optimizer.learning_rate) == 0.0078125


def test_a_rate_is_scaled_where_that_means_something() -> None:
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    with pytest.raises(ValueError, match="scale_learning_rate must be one of 'linear', 'sqrt'"):
        SparkModel(model, scale_learning_rate="cubic")
    with pytest.raises(ValueError, match="scale_learning_rate is for mode 'synchronous'"):
        SparkModel(model, mode="asynchronous", scale_learning_rate="sqrt")
    with pytest.raises(ValueError, match="global_batch_size keeps the batch"):
        SparkModel(model, 2, engine="in_process", scale_learning_rate="sqrt").fit(
            np.ones((4, 3)), np.ones((4, 1)), global_batch_size=4, verbose=0
        )
