"""A worker to which faults happen: which steps it trains before, and how it ends."""

from __future__ import annotations

import multiprocessing
import pickle
import signal
import threading
from dataclasses import replace

import numpy as np
import pytest
from leftovers import eventually

from elephas_like.core import rounds
from elephas_like.core.fault_plan import Fault, FaultPlan, delay, fail, hang, kill
from elephas_like.core.types import Evaluation, Joined, Order, Recollection, Span, Update
from elephas_like.engine.faulty_worker import FaultyWorker

STEPS = 10
EMPTY = np.zeros(0, np.float32)


class Notes:
    """A worker of ten steps an epoch that notes which ones it trains."""

    def __init__(self) -> None:
        self.trained: list[tuple[int, int]] = []
        self.said: list[str] = []

    def joined(self, attempt: int, host: str) -> Joined:
        return Joined(0, attempt, host, STEPS, 0, "")

    def steps_of(self, span: Span) -> int:
        begin, end = rounds.steps_of(span, STEPS)
        return (end - begin) * span.epochs

    def train(self, order: Order) -> Update:
        span = order.span
        assert span is not None
        epochs = range(span.epoch, span.epoch + span.epochs)
        self.trained += [(epoch, step) for epoch in epochs for step in range(*rounds.steps_of(span, STEPS))]
        steps = self.steps_of(span)
        whole = np.zeros(0, np.int64)
        return Update(
            0, order.number, order.version, steps, steps, EMPTY, EMPTY, EMPTY, whole, EMPTY, whole, np.ones(1)
        )

    def evaluate(self, order: Order) -> Evaluation:
        return Evaluation(0, order.number, 3, np.ones(1))

    def recall(self, order: Order) -> Recollection:
        return Recollection(0, order.number, {"steps": np.array(self.trained)})

    def remind(self, order: Order) -> Recollection:
        self.said.append("remind")
        return Recollection(0, order.number)

    def progress(self) -> int:
        return len(self.trained)

    def save(self, path: str) -> None:
        self.said.append(f"save {path}")

    def restore(self, path: str) -> None:
        self.said.append(f"restore {path}")

    def close(self) -> None:
        self.said.append("close")


def faulty(*faults: Fault, happens: bool = True) -> tuple[FaultyWorker, Notes]:
    notes = Notes()
    errors = pickle.dumps([fault.error for fault in faults])
    return FaultyWorker(notes, 0, FaultPlan(faults, True, lambda *_: happens, errors)), notes


def order(version: int = 0, span: Span | None = None) -> Order:
    return Order("train", version, version, span or Span(0, 1, 2, 2))


def test_all_else_is_the_workers_own() -> None:
    worker, notes = faulty(fail(0, 1))
    assert worker.joined(4, "h") == notes.joined(4, "h")
    assert worker.steps_of(Span(0, 0, 1, 2)) == 5
    assert worker.train(order()).steps == 5
    assert worker.evaluate(order(1)).samples == 3
    assert worker.progress() == 5
    assert worker.recall(Order("recall", 2)).memory["steps"].tolist() == [[0, step] for step in range(5, 10)]
    worker.remind(Order("remind", 3))
    worker.save("a")
    worker.restore("b")
    worker.close()
    assert notes.said == ["remind", "save a", "restore b", "close"]


@pytest.mark.parametrize(
    ("span", "step", "trained"),
    [
        (Span(0, 1, 2, 2), 0, []),
        (Span(0, 1, 2, 2), 3, [(0, 5), (0, 6), (0, 7)]),
        (Span(2, 1, 2, 3), 2, [(2, 3), (2, 4)]),
        (Span(0, 1, 2, 2), 9, [(0, 5), (0, 6), (0, 7), (0, 8), (0, 9)]),
        (Span(0, epochs=2), 4, [(0, 0), (0, 1), (0, 2), (0, 3)]),
    ],
)
def test_a_failure_comes_after_so_many_steps_of_the_round(span: Span, step: int, trained: list) -> None:
    worker, notes = faulty(fail(0, 0, step=step, error=KeyError("gone")))
    with pytest.raises(KeyError, match="gone"):
        worker.train(order(0, span))
    assert notes.trained == trained


def test_what_the_driver_says_no_to_does_not_happen() -> None:
    worker, notes = faulty(fail(0, 0), happens=False)
    assert worker.train(order()).steps == len(notes.trained) == 5


def test_a_delay_comes_after_the_training_and_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    worker, notes = faulty(delay(0, 0, seconds=0.25))
    waited = []
    monkeypatch.setattr(threading.Event, "wait", lambda self, seconds: waited.append((seconds, len(notes.trained))))
    assert worker.train(order()).samples == 5
    assert waited == [(0.25, 5)]


def run_and_report(fault: Fault, path: str) -> None:
    """In a process of its own: train, and say so."""
    worker, _ = faulty(fault)
    with open(path, "w") as file:
        print("begun", file=file, flush=True)
        worker.train(order())
        print("answered", file=file, flush=True)


@pytest.mark.parametrize("which", [signal.SIGKILL, signal.SIGTERM])
def test_a_signal_ends_the_process(which: int, tmp_path) -> None:
    process = multiprocessing.get_context("spawn").Process(
        target=run_and_report, args=(replace(kill(0, 0), signal=which), str(tmp_path / "said"))
    )
    process.start()
    process.join(60)
    assert process.exitcode == -which
    assert (tmp_path / "said").read_text() == "begun\n"


def test_a_worker_that_hangs_never_answers() -> None:
    worker, notes = faulty(hang(0, 0, step=2))
    thread = threading.Thread(target=worker.train, args=(order(),), daemon=True)
    thread.start()
    assert eventually(lambda: len(notes.trained) == 2, 20)
    thread.join(0.1)
    assert thread.is_alive()
