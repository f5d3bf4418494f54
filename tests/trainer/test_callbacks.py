"""What callbacks may ask for on the driver, and what DriverHooks does around them, without any worker."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import replace

import keras
import numpy as np
import pytest

from elephas_like.core.errors import ElephasWarning
from elephas_like.core.pieces import same_bits
from elephas_like.core.types import EpochRecord, RoundRecord, WorkerRecord
from elephas_like.trainer.building import build
from elephas_like.trainer.callbacks import DriverHooks
from elephas_like.trainer.state import Variables
from trainer.small import mlp, rows

X, Y = rows(8)


def hooks(*callbacks: keras.callbacks.Callback, optimizer: object = "adam", verbose: int = 0) -> DriverHooks:
    model = mlp(optimizer, metrics=["mae"])
    build(model, (X[:1], Y[:1]))
    return DriverHooks(model, list(callbacks), epochs=3, steps=2, rows=8, verbose=verbose)


def epoch(state, number: int = 0, validation=None) -> EpochRecord:
    return EpochRecord(number, state, np.array([6.0, 4.0, 2.0, 4.0]), 4, validation)


def test_an_epoch_s_sums_become_logs_and_history() -> None:
    """loss 6 / 4, mae 2 / 4; validation 1 / 2 and 4 / 2."""
    driver = hooks()
    state, begin = driver.train_begin(0)
    driver.epoch_begin(0, state)
    driver.epoch_end(epoch(state, validation=np.array([1.0, 2.0, 4.0, 2.0])))
    driver.train_end(state)
    assert begin == 0
    assert driver.history.epoch == [0]
    assert driver.history.history == {"loss": [1.5], "mae": [0.5], "val_loss": [0.5], "val_mae": [2.0]}


def test_metrics_are_built_beside_the_first_round() -> None:
    model = mlp("adam", metrics=["mae"])
    driver = DriverHooks(model, [], epochs=3, verbose=0)
    driver.order_given()
    assert not all(getattr(metric, "built", True) for metric in model.metrics)  # no worker has said what rows are like
    driver.planned(8, 2, (X[:1], Y[:1]))
    state, _ = driver.train_begin(0)
    driver.order_given()
    assert all(getattr(metric, "built", True) for metric in model.metrics)
    np.testing.assert_array_equal(driver.variables.read().weights, state.weights)
    driver.epoch_end(epoch(state))
    assert driver.history.history == {"loss": [1.5], "mae": [0.5]}


def test_a_result_that_reads_a_variable_of_the_model_is_that_of_the_epoch() -> None:
    """So does a learning rate in `get_metrics_result`, or a temperature that is trained."""
    driver = hooks()
    own = driver.model.get_metrics_result
    driver.model.get_metrics_result = lambda: own() | {"bias": driver.model.layers[-1].bias[0]}
    state, _ = driver.train_begin(0)
    state = driver.epoch_begin(0, state)
    weights = state.weights.copy()
    weights[-1] = 3.0  # the bias of the last layer
    driver.epoch_end(epoch(state.but(weights=weights), validation=np.array([1.0, 2.0, 4.0, 2.0])))
    assert (driver.history.history["bias"], driver.history.history["val_bias"]) == ([3.0], [3.0])


def test_the_loss_of_a_round_is_the_mean_of_the_tracker_in_front() -> None:
    driver = hooks()
    assert driver.loss_of(np.array([6.0, 4.0, 2.0, 4.0])) == 1.5
    assert driver.loss_of(np.zeros(0)) is None
    assert driver.loss_of(np.zeros(4)) is None


class Watcher(keras.callbacks.Callback):
    """Notes what the model holds at each hook, and doubles the first weight at the end of an epoch."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[str, float]] = []

    def note(self, hook: str) -> None:
        self.seen.append((hook, float(self.model.get_weights()[0][0, 0])))

    def on_train_begin(self, logs=None) -> None:
        self.note("train begin")
        weights = self.model.get_weights()
        weights[0][0, 0] = 1.0
        self.model.set_weights(weights)

    def on_epoch_begin(self, epoch, logs=None) -> None:
        self.note("epoch begin")

    def on_epoch_end(self, epoch, logs=None) -> None:
        self.note("epoch end")
        weights = self.model.get_weights()
        weights[0][0, 0] *= 2
        self.model.set_weights(weights)

    def on_train_end(self, logs=None) -> None:
        self.note("train end")


def test_hooks_see_the_state_of_their_moment_and_what_they_change_goes_on() -> None:
    watcher = Watcher()
    driver = hooks(watcher)
    first = float(driver.model.get_weights()[0][0, 0])
    state, _ = driver.train_begin(0)
    assert state.weights[0] == 1.0
    state = driver.epoch_begin(0, state)
    trained = state.but(weights=state.weights + 3)
    after = driver.epoch_end(epoch(trained))
    assert after.weights[0] == 8.0
    np.testing.assert_array_equal(after.weights[1:], trained.weights[1:])
    assert after.slots is trained.slots  # what nobody touched is handed on as it is
    driver.train_end(after)
    assert watcher.seen == [("train begin", first), ("epoch begin", 1.0), ("epoch end", 4.0), ("train end", 8.0)]


def test_a_changed_learning_rate_is_part_of_the_state() -> None:
    driver = hooks(keras.callbacks.LearningRateScheduler(lambda epoch: 0.5**epoch))
    state, _ = driver.train_begin(0)
    assert driver.epoch_begin(2, state).learning_rate.tolist() == [0.25]


def test_the_average_of_weights_takes_their_place_once_before_train_end() -> None:
    class Last(keras.callbacks.Callback):
        def on_train_end(self, logs=None) -> None:
            self.weights = Variables(self.model).read().weights

    last = Last()
    driver = hooks(last, optimizer=keras.optimizers.SGD(use_ema=True))
    state, _ = driver.train_begin(0)
    state = state.but(slots=np.arange(state.slots.size, dtype="float32"))
    driver.train_end(state)
    np.testing.assert_array_equal(last.weights, np.arange(state.weights.size))
    np.testing.assert_array_equal(Variables(driver.model).read().weights, last.weights)


def finished(loss: float | None, dropped: int = 0) -> RoundRecord:
    return RoundRecord(0, 0, (WorkerRecord(0, 8, 2, 0.0, dropped=dropped),), loss)


@pytest.mark.parametrize(
    ("loss", "dropped", "stops"), [(1.0, 0, False), (np.nan, 0, True), (np.inf, 0, True), (1.0, 1, True)]
)
def test_terminate_on_nan_looks_at_rounds(loss: float, dropped: int, stops: bool) -> None:
    driver = hooks(keras.callbacks.TerminateOnNaN())
    driver.train_begin(0)
    for sums in (np.zeros(0), np.array([6.0, 4.0, 2.0, 4.0])):  # of no round, or of those before
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            driver.round_end(finished(loss, dropped), np.zeros(0))
        assert driver.stopped() is stops
        driver.epoch_end(replace(epoch(driver.variables.read()), metrics=sums))
        assert ["TerminateOnNaN" in str(warning.message) for warning in caught] == [True] * stops
    assert np.isnan(driver.history.history.get("loss", [0.0])).all() == stops
    driver.round_end(finished(1.0), np.zeros(0))  # a callback has let it go on
    driver.epoch_end(replace(epoch(driver.variables.read()), metrics=sums))
    assert driver.history.history["loss"][-1] == 1.5


def test_without_terminate_on_nan_a_round_s_loss_stops_nothing() -> None:
    driver = hooks()
    driver.train_begin(0)
    driver.round_end(finished(np.nan), np.zeros(0))
    assert not driver.stopped()


def test_what_stopped_the_last_fit_does_not_stop_this_one() -> None:
    driver = hooks()
    driver.model.stop_training = True
    driver.train_begin(0)
    assert not driver.stopped()


def test_progress_is_a_line_an_epoch(capsys: pytest.CaptureFixture[str]) -> None:
    for verbose, expected in ((0, ""), (1, "Epoch 1/3 - "), (2, "Epoch 1/3 - ")):
        driver = hooks(verbose=verbose)
        state, _ = driver.train_begin(0)
        driver.epoch_begin(0, state)
        driver.round_end(finished(1.0), np.zeros(0))
        driver.epoch_end(epoch(state))
        driver.train_end(state)
        shown = "".join(capsys.readouterr())
        assert (expected in shown) if expected else not shown
        assert ("loss: 1.5000" in shown) == bool(verbose)


def test_averages_take_the_place_of_weights_for_an_evaluation_alone() -> None:
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(0.1, use_ema=True, ema_momentum=0.5), "mse")
    build(model, (X[:1], Y[:1]))
    callback = keras.callbacks.SwapEMAWeights(swap_on_epoch=True)
    driver = DriverHooks(model, [callback], epochs=1, verbose=0)
    state = driver.variables.read()
    state = state.but(slots=np.full_like(state.slots, 7))  # plain SGD has no others than the averages
    found = driver.evaluated(state)
    assert found.weights.tolist() == pytest.approx([7] * 5)
    assert same_bits(driver.variables.read().weights, state.weights)
    plain = DriverHooks(model, [], epochs=1, verbose=0)
    assert plain.evaluated(state) is state


class Annealed(keras.layers.Dense):
    beta = 0.0

    def call(self, x):
        return self.beta * super().call(x)


def _raise_beta(model: keras.Model) -> None:
    model.layers[0].beta += 0.5


def _lower_momentum(model: keras.Model) -> None:
    model.optimizer.momentum = 0.5


def _decay(model: keras.Model) -> None:
    model.optimizer.weight_decay = 0.125


def _drop_less(model: keras.Model) -> None:
    model.layers[1].rate = 0.25


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (_raise_beta, r"annealed\.beta to 0\.75.*train on with 0\.25.*add_weight"),
        (_lower_momentum, r"(?i:sgd)\w*\.momentum to 0\.5, and workers train on with 0\.9"),
        (_decay, r"(?i:sgd)\w*\.weight_decay to 0\.125, and workers train on with None"),
        (_drop_less, r"thinned\.rate to 0\.25, and workers train on with 0\.5"),
    ],
)
def test_an_attribute_that_a_callback_sets_between_epochs_is_named_in_a_warning(change: Callable, said: str) -> None:
    layer = Annealed(1, name="annealed")
    layer.beta = 0.25
    model = keras.Sequential([keras.Input((4,)), layer, keras.layers.Dropout(0.5, name="thinned")])
    model.compile(keras.optimizers.SGD(momentum=0.9), "mse")
    build(model, (X[:1], Y[:1]))

    callback = keras.callbacks.LambdaCallback(on_epoch_begin=lambda epoch, logs: change(model))
    driver = DriverHooks(model, [callback], epochs=2, verbose=0)
    state, _ = driver.train_begin(0)
    with pytest.warns(ElephasWarning, match=said):
        driver.epoch_begin(0, state)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        driver.epoch_begin(1, state)  # said once


def test_steps_are_unknown_until_workers_have_counted_their_rows() -> None:
    told: list[object] = []
    callback = keras.callbacks.LambdaCallback(on_train_begin=lambda logs: told.append(callback.params["steps"]))
    driver = DriverHooks(mlp(), [callback], epochs=2, verbose=0)
    driver.train_begin(0)
    driver.planned(8, 2, None)
    assert [*told, callback.params["steps"]] == [None, 2]  # None is Keras' own word for it


@pytest.mark.parametrize("clears", [True, False])
@pytest.mark.parametrize(("keeps", "said"), [(True, 1), (False, 0)])
def test_slots_that_a_callback_sets_where_workers_keep_their_own_are_said_once(
    keeps: bool, said: int, clears: bool
) -> None:
    """The driver's are zeros while workers keep their own: of a callback that clears them all it sees the step counter."""
    model = mlp(keras.optimizers.SGD(0.1, momentum=0.9))
    build(model, (X[:1], Y[:1]))

    def forget(epoch: int, logs: object = None) -> None:
        for slot in model.optimizer.variables[2:]:
            slot.assign(slot * 0 if clears else slot + 1)
        if clears:
            model.optimizer.iterations.assign(0)

    forgets = keras.callbacks.LambdaCallback(on_epoch_begin=forget, on_epoch_end=forget)
    driver = DriverHooks(model, [forgets], epochs=3, verbose=0, keeps_slots=keeps)
    state, _ = driver.train_begin(0)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        counts = []
        for epoch in range(3):
            state = driver.epoch_begin(epoch, state)
            counts.append(len(caught))
            state = driver.epoch_end(EpochRecord(epoch, state.but(counters=state.counters + 1), np.zeros(2), 4))
    assert len(caught) == said
    assert counts[0] == 0  # before the first round all begin with what is set
    assert all("a callback has set variables of the optimizer" in str(each.message) for each in caught)


class Listed(keras.metrics.Metric):
    """Keeps what it saw in a list."""

    def __init__(self) -> None:
        super().__init__(name="listed")
        self.seen: list[float] = []

    def update_state(self, y_true, y_pred, sample_weight=None) -> None:
        self.seen.append(1.0)

    def result(self):
        return float(len(self.seen))


@pytest.mark.parametrize("built", [True, False])
@pytest.mark.parametrize("begun", [True, False], ids=["beside the first round", "where workers answer in one go"])
def test_a_metric_without_variables_is_named_in_a_warning(built: bool, begun: bool) -> None:
    """Keras does not tell the metrics that `compile` was given until it has built them, which a fit of Spark's rows has not when it begins."""
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse", metrics=[Listed()], run_eagerly=True)
    if built:
        build(model, (X[:1], Y[:1]))
    else:
        model.optimizer.build(model.trainable_variables)
    driver = DriverHooks(model, [], epochs=1, verbose=0)
    state, _ = driver.train_begin(0)
    driver.planned(8, 2, (X[:1], Y[:1]))
    ended = replace(epoch(state), metrics=np.array([6.0, 4.0]))
    with pytest.warns(ElephasWarning, match="'listed'.*no variables.*stays on the workers") as caught:
        driver.order_given() if begun else driver.epoch_end(ended)
    driver.epoch_end(ended)
    assert len(caught) == 1
