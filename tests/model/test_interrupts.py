"""Ctrl-C that Python drops ends a fit all the same."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import suppress

import keras
import numpy as np
import pytest

from elephas_like import ElephasError, SparkModel
from elephas_like.model.interrupts import Interrupts


@pytest.fixture(autouse=True)
def ctrl_c() -> Iterator[None]:
    """SIGINT as in a terminal: a shell that runs the tests in the background ignores it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_what_was_dropped_is_raised_by_the_next_check() -> None:
    before = signal.getsignal(signal.SIGINT)
    with Interrupts() as interrupts:
        interrupts.check()
        with suppress(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            interrupts.check()
    assert signal.getsignal(signal.SIGINT) is before


def test_an_error_that_came_of_what_was_dropped_is_ctrl_c() -> None:
    """PySpark's handler cancels all jobs before it raises: a prediction whose job was cancelled so was interrupted."""
    with pytest.raises(KeyboardInterrupt), Interrupts():
        with suppress(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        raise ElephasError("the job was cancelled")
    with pytest.raises(ElephasError), Interrupts():
        raise ElephasError("the disk is full")


def test_a_handler_that_does_not_raise_decides() -> None:
    seen: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, frame: seen.append(number))
    try:
        with Interrupts() as interrupts:
            signal.raise_signal(signal.SIGINT)
            interrupts.check()
    finally:
        signal.signal(signal.SIGINT, before)
    assert seen == [signal.SIGINT]


def test_signals_that_are_ignored_and_other_threads_are_left_alone() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with Interrupts():
            assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)
    found: list[object] = []

    def in_a_thread() -> None:
        with Interrupts():
            found.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=in_a_thread)
    thread.start()
    thread.join()
    assert found == [before]


@pytest.mark.parametrize("mode", ["synchronous", "asynchronous"])
def test_a_fit_ends_with_the_next_round(mode: str) -> None:
    class Drops(keras.callbacks.Callback):
        epochs = 0

        def on_epoch_begin(self, epoch: int, logs: dict | None = None) -> None:
            self.epochs += 1
            if epoch == 1:
                with suppress(KeyboardInterrupt):  # as a destructor does that runs when the signal comes
                    signal.raise_signal(signal.SIGINT)

    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    drops, x = Drops(), np.ones((8, 2), "float32")
    fitted = SparkModel(model, 2, engine="in_process", mode=mode, batch_size=2)
    with pytest.raises(KeyboardInterrupt):
        fitted.fit(x, x[:, :1], epochs=5, verbose=0, callbacks=[drops])
    assert drops.epochs == 2
    fitted.fit(x, x[:, :1], epochs=1, verbose=0)
