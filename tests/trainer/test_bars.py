"""What a user sees of a fit's progress: a bar that fits the terminal, and a line an epoch with all metrics."""

from __future__ import annotations

import fcntl
import io
import os
import select
import struct
import sys
import termios
from collections.abc import Callable, Iterator

import pytest

from elephas_like.trainer.bars import Bar, EpochBar, epoch_line, has_terminal, number_text, terminal_width


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[int], Callable[[], str]]]:
    """Makes standard error a terminal of so many columns; what is called then returns what it shows."""
    master, slave = os.openpty()
    monkeypatch.delenv("COLUMNS", raising=False)
    stream = os.fdopen(slave, "w")

    def opened(columns: int) -> Callable[[], str]:
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        monkeypatch.setattr(sys, "stderr", stream)
        monkeypatch.setattr(sys, "__stderr__", stream)
        return read

    def read() -> str:
        stream.flush()
        shown = b""
        while select.select([master], [], [], 0.1)[0]:
            shown += os.read(master, 65536)
        return shown.decode()

    yield opened
    stream.close()
    os.close(master)


@pytest.mark.parametrize(("columns", "widest"), [(40, 40), (80, 80), (0, 80)])
def test_a_bar_fits_the_terminal(terminal, columns: int, widest: int) -> None:
    shown = terminal(columns)
    assert has_terminal()
    bar = EpochBar("Epoch 1/10", 60_000)
    for _ in range(4):
        bar.update(15_000, 1.6721)
    bar.close()
    states = shown().replace("\n", "").split("\r")
    assert any("Epoch 1/10" in state for state in states)
    assert max(map(len, states)) <= widest
    assert states[-1].strip() == ""  # nothing of it stays


def test_the_width_that_a_user_sets_comes_first(terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    terminal(100)
    assert terminal_width() == 100
    monkeypatch.setenv("COLUMNS", "55")
    assert terminal_width() == 55
    monkeypatch.setenv("COLUMNS", "0")
    assert terminal_width() == 100


def test_a_file_has_no_bar(capsys: pytest.CaptureFixture[str]) -> None:
    bar = EpochBar("Epoch 1/10", 10)
    bar.update(10, 1.0)
    bar.close()
    assert not "".join(capsys.readouterr())


def test_a_program_without_a_console_has_no_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", None)
    for stream in (None, object()):  # some loggers' streams cannot say whether they are a terminal
        monkeypatch.setattr(sys, "stderr", stream)
        assert not has_terminal()
        bar = EpochBar("Epoch 1/1", 10)
        bar.update(10, 0.5)
        bar.close()
        Bar.write("nobody reads this")


def test_letters_that_the_output_has_not_are_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stdout", stream)
    Bar.write("précision: 0.5")
    stream.seek(0)
    assert stream.read() == "pr?cision: 0.5\n"


def test_a_terminal_that_is_gone_costs_no_training(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    stream.close()
    monkeypatch.setattr(sys, "stdout", stream)
    Bar.write("trial 3: 0.5")
    assert sys.stdout is stream
    assert stream.closed


def test_the_line_of_an_epoch_has_all_metrics() -> None:
    logs = {"loss": 1.67214, "accuracy": 0.5, "val_loss": 2.0, "val_accuracy": 0.25, "confusion": [[1]]}
    assert epoch_line("Epoch 3/10", 2.0, 60_000, logs) == (
        "Epoch 3/10 - 2.0s - 30,000 samples/s - loss: 1.6721 - accuracy: 0.5000 - val_loss: 2.0000 - val_accuracy: 0.2500"
    )


def test_times_that_say_nothing_are_left_out() -> None:
    assert epoch_line("Epoch 2/2", 0.0, 200, {"loss": 1.0}) == "Epoch 2/2 - loss: 1.0000"
    assert epoch_line("Epoch 2/2", 0.01, 2000, {}) == "Epoch 2/2"


def test_numbers_as_keras_shows_them() -> None:
    shown = [number_text(value) for value in (0.0, 0.12345, -2.0, 1e-5, 3e30, float("nan"))]
    assert shown == ["0.0000", "0.1235", "-2.0000", "1.0000e-05", "3.0000e+30", "nan"]
