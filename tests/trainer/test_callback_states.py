"""What training changes in Keras' callbacks and in one's own."""

from __future__ import annotations

import json

import keras
import numpy as np

from elephas_like.core import plain_data
from elephas_like.trainer.callback_states import CallbackStates


def begun(callback: keras.callbacks.Callback) -> tuple[keras.callbacks.Callback, CallbackStates]:
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(1.0), "mse")
    callback.set_model(model)
    callback.on_train_begin()
    return callback, CallbackStates([callback])


def carried_over(one: CallbackStates, other: CallbackStates) -> None:
    arrays: dict = {}
    text = json.dumps(plain_data.encode(one.changed(), arrays, "callbacks"))
    assert other.restore(plain_data.decode(json.loads(text), arrays)) == []


def test_early_stopping_waits_on() -> None:
    def new() -> tuple[keras.callbacks.EarlyStopping, CallbackStates]:
        return begun(keras.callbacks.EarlyStopping("loss", patience=3, min_delta=0.5, restore_best_weights=True))

    first, states = new()
    for epoch, loss in enumerate([4.0, 3.0, 2.9]):  # the third is no half better
        first.on_epoch_end(epoch, {"loss": loss})
    second, others = new()
    carried_over(states, others)
    assert (second.wait, second.best, second.best_epoch) == (1, 3.0, 1)
    assert [w.tolist() for w in second.best_weights] == [w.tolist() for w in first.best_weights]
    second.on_epoch_end(3, {"loss": 2.8})  # min_delta has the sign that Keras gives it at the first call
    assert (second.wait, second.min_delta) == (2, -0.5)
    second.on_epoch_end(4, {"loss": 2.7})
    assert second.model.stop_training


def test_reduce_lr_on_plateau_waits_and_cools_down() -> None:
    def new() -> tuple[keras.callbacks.ReduceLROnPlateau, CallbackStates]:
        return begun(keras.callbacks.ReduceLROnPlateau("loss", factor=0.1, patience=2, cooldown=3))

    first, states = new()
    for epoch in range(3):
        first.on_epoch_end(epoch, {"loss": 1.0})
    assert first.cooldown_counter == 3
    second, others = new()
    carried_over(states, others)
    assert (second.cooldown_counter, second.wait, second.best) == (3, 0, 1.0)


def test_arguments_that_training_changes_are_carried_over() -> None:
    """A callback of one's own, or another callback, makes EarlyStopping more patient: the fit that went on stopped early."""
    first, states = begun(keras.callbacks.EarlyStopping("loss", patience=1, baseline=9.0))
    first.patience = 10
    plateau, others = begun(keras.callbacks.ReduceLROnPlateau("loss", min_lr=0.1, min_delta=0.5))
    plateau.min_lr = 0.2
    second, of_second = begun(keras.callbacks.EarlyStopping("loss", patience=1, baseline=3.0))
    carried_over(states, of_second)
    assert (second.patience, second.baseline) == (10, 3.0)  # the baseline is the program's, as no training changed it
    third, of_third = begun(keras.callbacks.ReduceLROnPlateau("loss", min_lr=0.1, min_delta=0.5))
    carried_over(others, of_third)
    assert (third.min_lr, third.min_delta) == (0.2, 0.5)


def test_what_training_does_not_change_is_left_to_the_program() -> None:
    class Own(keras.callbacks.Callback):
        def __init__(self, label: str, table: np.ndarray) -> None:
            super().__init__()
            self.label, self.table, self.sums, self.stream = label, table, np.zeros(2), None
            self.tree: dict = {}
            self.tree["root"] = self.tree  # a RecursionError ended the fit

        def on_epoch_end(self, epoch: int, logs: dict) -> None:
            self.sums += 1  # in place
            self.stream = open  # no plain data

    first, states = begun(Own("first", np.arange(3)))
    first.on_epoch_end(0, {})
    assert {name: list(state) for name, state in states.changed().items()} == {"Own 1": ["sums"]}
    second, others = begun(Own("second", np.arange(5)))
    carried_over(states, others)
    assert second.sums.tolist() == [1, 1]
    assert (second.label, len(second.table), second.stream) == ("second", 5, None)


def test_callbacks_of_one_class_are_told_apart_and_lost_ones_named() -> None:
    class Own(keras.callbacks.Callback):
        seen = 0

    one, two = Own(), Own()
    states = CallbackStates([one, two])
    two.seen = 7
    found = states.changed()
    assert found == {"Own 1": {}, "Own 2": {"seen": 7}}
    assert CallbackStates([Own()]).restore(found) == ["Own 2"]
    later = [Own(), Own(), Own()]
    assert CallbackStates(later).restore(found) == []
    assert [each.seen for each in later] == [0, 7, 0]
