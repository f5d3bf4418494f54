"""tuning/trial_runs.py over engine/runs.py: trials as Spark jobs, with plain functions in place of models."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path

import numpy as np
import pytest
from trial_jobs import ended, jobs, shard

from elephas_like.core.columns import open_column
from elephas_like.core.trials import TrialOrder, TrialResult, TrialStatus
from elephas_like.spark.waits import readable_errors
from elephas_like.tuning.trial_runs import as_fits


def test_trials_run_on_slots_and_read_the_shipped_rows(sc, tmp_path: Path) -> None:
    def total(order, shards, report):
        (ref,) = shards
        rows = open_column(ref.columns[0], ref.rows).take(np.arange(ref.rows))
        return TrialResult(order.number, TrialStatus.OK, loss=float(rows.sum()) + order.params)

    with jobs(sc, total, [shard(tmp_path)]) as slots:
        for number in range(4):
            slots.start(TrialOrder(number, number * 100))
        assert {number: result.loss for number, result in ended(slots, 4).items()} == {0: 66, 1: 166, 2: 266, 3: 366}


def test_an_error_is_a_result(sc) -> None:
    def fails(order, shards, report):
        raise KeyError(order.params)

    with jobs(sc, fails) as slots:
        slots.start(TrialOrder(5, "units"))
        result = ended(slots, 1)[5]
    assert result.status is TrialStatus.FAILED
    assert result.failure is not None
    assert (result.failure.type_name, result.failure.message) == ("KeyError", "'units'")


def test_a_lost_python_worker_costs_a_trial_no_result_and_gives_it_no_second_one(sc, tmp_path: Path) -> None:
    marks = tmp_path / "marks"
    marks.mkdir()

    def dies_once(order, shards, report):
        mark = marks / f"{order.number}-{len(list(marks.glob(f'{order.number}-*')))}"
        mark.touch()
        if order.number == 1 and mark.name == "1-0":
            os.kill(os.getpid(), signal.SIGKILL)
        return TrialResult(order.number, TrialStatus.OK, loss=1.0)

    with jobs(sc, dies_once) as slots:
        for number in range(3):
            slots.start(TrialOrder(number, None))
        results = ended(slots, 3)
        assert slots.finished(0.0) is None
    assert {number: result.status for number, result in results.items()} == dict.fromkeys(range(3), TrialStatus.OK)
    assert sorted(path.name for path in marks.iterdir()) == ["0-0", "1-0", "1-1", "2-0"]


def test_a_trial_that_always_kills_its_worker_fails(sc, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("elephas_like.spark.parallel.TRIES", 2)

    def dies(order, shards, report):
        os.kill(os.getpid(), signal.SIGKILL)

    with jobs(sc, dies) as slots:
        slots.start(TrialOrder(0, None))
        result = ended(slots, 1)[0]
    assert result.status is TrialStatus.FAILED
    assert result.failure is not None


def test_cancelled_trials_end_and_are_no_failures(sc, tmp_path: Path) -> None:
    started = tmp_path / "started"

    def waits(order, shards, report):
        started.touch()
        import threading

        threading.Event().wait(600)

    with jobs(sc, waits, parallelism=1) as slots:
        slots.start(TrialOrder(0, None))
        while not started.exists():
            assert slots.finished(0.05) is None
        slots.cancel()
        assert ended(slots, 1)[0].status is TrialStatus.INTERRUPTED


def test_threads_run_trials_of_the_drivers(sc) -> None:
    def reports(order, shards, report):
        epochs = 0
        while epochs < 5 and report(epochs, {"loss": float(order.number)}):
            epochs += 1
        return TrialResult(order.number, TrialStatus.OK, loss=float(epochs))

    slots = as_fits(sc, reports, lambda trial, epoch, logs: epoch < trial, 2)
    for number in range(3):
        slots.start(TrialOrder(number, None))
    assert {number: result.loss for number, result in ended(slots, 3).items()} == {0: 0.0, 1: 1.0, 2: 2.0}
    slots.cancel()


def test_a_fit_whose_jobs_are_cancelled_is_interrupted_and_one_that_fails_has_failed(sc, tmp_path: Path) -> None:
    """Ctrl-C: PySpark cancels all jobs before the search hears of it."""
    started = tmp_path / "started"

    def waits(rows):
        started.touch()
        threading.Event().wait(600)
        return rows

    def fits(order, shards, report):
        with readable_errors(sc):
            sc.parallelize([order.params / 0 if order.number else 1], 1).mapPartitions(waits).count()

    slots = as_fits(sc, fits, lambda trial, epoch, logs: True, 2)
    slots.start(TrialOrder(0, 1.0))
    while not started.exists():
        assert slots.finished(0.05) is None
    sc.cancelAllJobs()
    interrupted = ended(slots, 1)[0]
    assert interrupted.status is TrialStatus.INTERRUPTED
    assert interrupted.failure is not None
    assert "cancelled as part of cancellation of all jobs" in interrupted.failure.message
    slots.start(TrialOrder(1, 1.0))
    assert ended(slots, 1)[1].status is TrialStatus.FAILED
    slots.start(TrialOrder(2, 1.0))  # it fails, in whatever words, and nobody takes note before
    slots.cancel()
    assert ended(slots, 1)[2].status is TrialStatus.INTERRUPTED
