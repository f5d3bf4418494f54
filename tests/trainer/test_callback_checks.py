"""Callbacks that cannot work where they are given are refused, or named in a warning, before anything starts."""

from __future__ import annotations

import random
import warnings

import keras
import pytest

from elephas_like.core.errors import ElephasError
from elephas_like.trainer.callback_checks import check_callbacks, check_worker_callbacks, shipped_callbacks


class Own(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None) -> None:
        """Never called."""


class OwnCheckpoint(keras.callbacks.ModelCheckpoint):
    """Keras' own batch hooks, which do nothing at save_freq='epoch'."""


class OwnBoard(keras.callbacks.TensorBoard):
    def on_train_batch_begin(self, batch, logs=None) -> None:
        """Never called."""


class OwnTests(keras.callbacks.Callback):
    def on_test_batch_end(self, batch, logs=None) -> None:
        """Never called: evaluation is on the workers."""


@pytest.mark.parametrize(
    ("callback", "named"),
    [
        (lambda: keras.callbacks.ModelCheckpoint("x.keras", save_freq=5), r"ModelCheckpoint\(save_freq=5\)"),
        (lambda: keras.callbacks.BackupAndRestore("x", save_freq=5), r"BackupAndRestore\(save_freq=5\)"),
        (lambda: keras.callbacks.TensorBoard(update_freq="batch"), r"TensorBoard\(update_freq=1\)"),
        (lambda: keras.callbacks.TensorBoard(profile_batch=2), "profile_batch"),
        (lambda: keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: None), "on_train_batch_end"),
        (lambda: keras.callbacks.LambdaCallback(on_train_batch_begin=print), "on_train_batch_begin"),
    ],
)
def test_settings_that_count_batches_are_refused_by_name(callback, named: str) -> None:
    with pytest.raises(ValueError, match=f"{named}.*worker_callbacks"):
        check_callbacks([callback()])


@pytest.mark.skipif(not hasattr(keras.callbacks, "OrbaxCheckpoint"), reason="OrbaxCheckpoint came with Keras 3.14")
def test_a_checkpoint_by_orbax_after_so_many_batches_would_never_be_saved() -> None:
    callback = object.__new__(keras.callbacks.OrbaxCheckpoint)  # its constructor wants the library
    callback.save_freq = "epoch"
    check_callbacks([callback])
    callback.save_freq = 100
    with pytest.raises(ValueError, match=r"OrbaxCheckpoint\(save_freq=100\).*worker_callbacks"):
        check_callbacks([callback])


@pytest.mark.parametrize("kind", [keras.callbacks.EarlyStopping, keras.callbacks.TerminateOnNaN])
def test_what_ends_a_training_is_no_worker_callback(kind) -> None:
    with pytest.raises(ValueError, match=rf"{kind.__name__}.*callbacks=\["):
        check_worker_callbacks([kind()])
    with pytest.raises(TypeError, match=r"worker_callbacks.*str"):
        check_worker_callbacks(["EarlyStopping"])


@pytest.mark.parametrize(
    "callback", [keras.callbacks.LearningRateScheduler(lambda epoch: 0.1), keras.callbacks.ReduceLROnPlateau()]
)
def test_what_sets_the_learning_rate_is_no_worker_callback(callback) -> None:
    with pytest.raises(ValueError, match=rf"{type(callback).__name__} sets the learning rate.*callbacks=\["):
        check_worker_callbacks([callback])


@pytest.mark.parametrize(
    ("callback", "named"),
    [
        (Own, "Own.on_train_batch_end"),
        (OwnBoard, "OwnBoard.on_train_batch_begin"),
        (OwnTests, "OwnTests.on_test_batch_end"),
    ],
)
def test_hooks_of_the_user_s_that_are_not_called_are_named_in_a_warning(callback, named: str) -> None:
    with pytest.warns(UserWarning, match=named):
        check_callbacks([callback()])


def test_callbacks_that_need_no_batches_pass_without_a_word() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_callbacks(
            [
                keras.callbacks.EarlyStopping(),
                keras.callbacks.ModelCheckpoint("x.keras"),
                OwnCheckpoint("x.keras"),
                keras.callbacks.BackupAndRestore("x"),
                keras.callbacks.ReduceLROnPlateau(),
                keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate),
                keras.callbacks.CSVLogger("x.csv"),
                keras.callbacks.TensorBoard(),
                keras.callbacks.TerminateOnNaN(),
                keras.callbacks.SwapEMAWeights(),
                keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: None, on_test_end=lambda logs: None),
                keras.callbacks.ProgbarLogger(),
                keras.callbacks.Callback(),
            ]
        )


@pytest.mark.parametrize("thing", [print, keras.callbacks.EarlyStopping, "csv"])
def test_what_is_no_callback_is_refused(thing: object) -> None:
    with pytest.raises(TypeError, match=r"keras\.callbacks\.Callback"):
        check_callbacks([thing])


def test_a_callback_of_another_package_is_named_with_its_module() -> None:
    foreign = type("EarlyStopping", (), {"__module__": "tf_keras.src.callbacks"})()
    with pytest.raises(TypeError, match=r"got tf_keras\.src\.callbacks\.EarlyStopping\.$"):
        check_callbacks([foreign])


class Proxy:
    """Stands for another object, as progress bars' files do: made without it, it asks itself for it without end."""

    def __init__(self, wrapped: object) -> None:
        self.wrapped = wrapped

    def __getattr__(self, name: str) -> object:
        return getattr(self.wrapped, name)


def test_a_callback_that_cannot_be_made_again_on_a_worker_is_named() -> None:
    csv = keras.callbacks.CSVLogger("log.csv")
    assert shipped_callbacks([]) == b""
    assert shipped_callbacks([csv])
    bar = keras.callbacks.LambdaCallback()
    bar.file = Proxy("a file")
    with pytest.raises(
        ElephasError, match=r"LambdaCallback cannot be sent to workers.*made again \(RecursionError.*stay on the driver"
    ):
        shipped_callbacks([csv, bar])


class OfExecutors(keras.callbacks.Callback):
    """Needs what only executors have."""

    def __setstate__(self, state: dict[str, object]) -> None:
        raise KeyError("THEIR_VARIABLE")


def test_a_callback_that_only_executors_can_make_is_sent() -> None:
    drawn = random.getstate()
    assert shipped_callbacks([OfExecutors()])
    assert random.getstate() == drawn
