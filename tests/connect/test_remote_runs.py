"""Searches and ensembles over Spark Connect: each trial and each member is a task, and what comes of them is what it is without Spark."""

from __future__ import annotations

import os
import shutil
import threading
import time
from functools import partial
from pathlib import Path

import keras
import numpy as np
import pytest
from data import X, Y, classifier

from elephas_like import WorkerError, search, train_ensemble
from elephas_like.engine.remote_runs import RemoteRuns
from elephas_like.rows.shard_files import find_shard, remove_dataset
from elephas_like.rows.spool import spool
from elephas_like.spark.parallel import CancelledError
from elephas_like.spark.session import remote_session
from elephas_like.tuning import search as search_module


def built(params: dict) -> keras.Model:
    model = classifier()
    model.optimizer.learning_rate = params["rate"]
    return model


class Processes(keras.callbacks.Callback):
    """Writes down which processes train."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = str(path)

    def on_train_begin(self, logs=None) -> None:
        with open(self.path, "a") as file:
            file.write(f"{os.getpid()} ")


SPACE = {"rate": [0.003, 0.01, 0.03, 0.1]}


@pytest.fixture
def shard(tmp_path):
    """Rows on the driver's disk."""
    rows = [(np.full(3, number, "float32"), number) for number in range(10)]
    ref = spool(rows, dataset=f"runs-{os.getpid()}", worker=0, base=str(tmp_path), floatx="float32", expect_target=True)
    yield ref
    remove_dataset(ref.dataset)


def test_the_session_of_work_is_that_of_its_rows_or_the_active_one(remote, df) -> None:
    assert remote_session(df) is remote
    assert remote_session((X, Y)) is remote


def test_a_search_finds_what_it_finds_without_spark(df, monkeypatch, tmp_path) -> None:
    asked = {"algo": "random", "seed": 3, "max_evals": 3, "epochs": 2, "validation_split": 0.25, "verbose": 0}
    found = search(built, SPACE, df, callbacks=[Processes(tmp_path / "away")], **asked)
    processes = (tmp_path / "away").read_text().split()
    assert len(processes) == 3
    assert str(os.getpid()) not in processes
    monkeypatch.setattr(search_module, "remote_session", lambda data: None)
    expected = search(built, SPACE, (X, Y), pruning=None, **asked)
    assert found.trials.param_rate.tolist() == expected.trials.param_rate.tolist()
    assert found.trials.status.tolist() == ["ok"] * 3
    np.testing.assert_allclose(found.trials.val_loss, expected.trials.val_loss, rtol=1e-4)
    best = found.best_model
    np.testing.assert_allclose(best.predict(X, verbose=0), expected.best_model.predict(X, verbose=0), atol=1e-4)


def test_trials_of_a_function_run_elsewhere_and_their_errors_are_theirs(remote, tmp_path) -> None:
    processes = tmp_path / "processes"

    def tried(params):
        with processes.open("a") as file:
            file.write(f"{os.getpid()} ")
        if params["x"] == 2:
            raise LookupError("not this one")
        return params["x"]

    found = search(tried, {"x": [1, 2, 3]}, algo="random", seed=0, max_evals=8, verbose=0)
    assert found.best_params == {"x": 1}
    assert set(zip(found.trials.param_x, found.trials.status, strict=True)) == {(1, "ok"), (2, "failed"), (3, "ok")}
    assert str(os.getpid()) not in processes.read_text().split()
    assert len(processes.read_text().split()) == 8
    with pytest.raises(WorkerError, match="all 1 trials failed"):
        search(tried, {"x": [2]}, max_evals=1, verbose=0)


def test_trials_of_a_function_that_refers_to_the_session_run_here(df, caplog) -> None:
    def counts(params):
        return {"loss": -df.where(df.label >= params["least"]).count(), "process": os.getpid()}

    found = search(counts, {"least": [2, 5]}, max_evals=3, algo="random", seed=0, verbose=0)
    assert "counts refers to Spark" in caplog.text
    assert set(found.trials.status) == {"ok"}
    assert {row["process"] for row in found.trials["notes"]} == {os.getpid()}


def test_an_ensemble_is_that_of_this_process(df, tmp_path) -> None:
    asked = {"num_members": 3, "seed": 5, "epochs": 2, "batch_size": 16, "verbose": 0}
    away, here = tmp_path / "away", tmp_path / "here"
    found = train_ensemble(classifier, df, validation_data=df, callbacks=[Processes(away)], **asked)
    asked |= {"engine": "in_process", "callbacks": [Processes(here)]}
    expected = train_ensemble(classifier, df, validation_data=df, **asked)
    assert str(os.getpid()) not in away.read_text().split()
    assert here.read_text().split() == [str(os.getpid())] * 3
    assert found.histories == expected.histories
    for one, other in zip(found.models, expected.models, strict=True):
        for a, b in zip(one.get_weights(), other.get_weights(), strict=True):
            np.testing.assert_array_equal(a, b)
    assert len({member.get_weights()[0].tobytes() for member in found.models}) == 3


def test_a_member_that_fails_is_said_with_its_number(df) -> None:
    class Fails(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None) -> None:
            raise LookupError("no second epoch")

    with pytest.raises(WorkerError, match="no second epoch") as error:
        train_ensemble(classifier, df, 2, callbacks=[Fails()], verbose=0)
    assert "of the ensemble that failed" in "".join(error.value.__notes__)
    assert isinstance(error.value, LookupError)


def test_rows_travel_where_the_drivers_files_are_not_seen_and_are_deleted_at_the_end(remote, shard) -> None:
    def rows_and_place(order, shards, report):
        (ref,) = shards
        labels = np.fromfile(ref.columns[1].path, ref.columns[1].dtype)
        return order, labels.tolist(), ref.directory

    with RemoteRuns(remote, rows_and_place, [shard], at_once=2, name="test") as runs:
        assert runs.result(0, "seen", "one") == ("seen", list(range(10)), shard.directory)
        runs.rows()
        shutil.rmtree(shard.directory)
        calls = [partial(runs.result, number, number, "one") for number in range(3)]
        found = dict(runs.outcomes(calls))
        assert {number: (order, rows) for number, (order, rows, _) in found.items()} == {
            number: (number, list(range(10))) for number in range(3)
        }
        (place,) = {directory for _, _, directory in found.values()}
        assert place != shard.directory
        assert Path(place).exists()
    assert not Path(place).exists()
    assert find_shard(shard.dataset, 0) is None


def test_shards_without_rows_travel_too(remote, tmp_path) -> None:
    ref = spool([], dataset=f"empty-{os.getpid()}", worker=0, base=str(tmp_path), floatx="float32", expect_target=True)
    with RemoteRuns(remote, lambda order, shards, report: shards[0].rows, [ref], at_once=1, name="test") as runs:
        runs.rows()
        shutil.rmtree(ref.directory)
        assert runs.result(0, None, "one") == 0


def test_runs_are_cancelled_and_the_session_goes_on(remote, tmp_path) -> None:
    begun = tmp_path / "begun"

    def waits(order, shards, report):
        begun.touch()
        threading.Event().wait(600)

    runs = RemoteRuns(remote, waits, [], at_once=1, name="test", patience=60)
    with runs:
        runs.start(0, partial(runs.result, 0, None, "waits"))
        deadline = time.monotonic() + 120
        while not begun.exists() and time.monotonic() < deadline:
            threading.Event().wait(0.05)
        runs.cancel()
        number, outcome = runs.finished(60)
    assert number == 0
    assert isinstance(outcome, CancelledError)
    assert remote.range(3).count() == 3


def test_runs_bear_the_tags_of_their_user(remote, tmp_path) -> None:
    begun = tmp_path / "begun"

    def waits(order, shards, report):
        begun.touch()
        threading.Event().wait(600)

    remote.addTag("nightly")
    try:
        with RemoteRuns(remote, waits, [], at_once=1, name="test", patience=60) as runs:
            runs.start(0, partial(runs.result, 0, None, "waits"))
            deadline = time.monotonic() + 120
            while not begun.exists() and time.monotonic() < deadline:
                threading.Event().wait(0.05)
            remote.interruptTag("nightly")
            _, outcome = runs.finished(60)
    finally:
        remote.removeTag("nightly")
    assert isinstance(outcome, CancelledError)


def test_a_job_that_somebody_cancels_is_not_made_again(remote, tmp_path) -> None:
    begun = tmp_path / "begun"

    def waits(order, shards, report):
        begun.open("a").write("once ")
        threading.Event().wait(600)

    with RemoteRuns(remote, waits, [], at_once=1, name="test", patience=60) as runs:
        runs.start(0, partial(runs.result, 0, None, "waits"))
        deadline = time.monotonic() + 120
        while not begun.exists() and time.monotonic() < deadline:
            threading.Event().wait(0.05)
        remote.interruptAll()
        _, outcome = runs.finished(60)
    assert isinstance(outcome, CancelledError)
    assert begun.read_text() == "once "


def test_what_needs_a_classic_session_is_said_before_anything_runs(remote, df) -> None:
    asked = {"max_evals": 1, "validation_split": 0.2}
    for refused, ask in (
        ("pruning='asha'", lambda: search(built, SPACE, df, pruning="asha", **asked)),
        ("pruning='asha'", lambda: search(lambda params: 1.0, SPACE, max_evals=1, pruning="asha")),
        ("trial_workers=2", lambda: search(built, SPACE, df, trial_workers=2, **asked)),
        ("workers_per_member=2", lambda: train_ensemble(classifier, df, 2, workers_per_member=2)),
        ("bagging='partition'", lambda: train_ensemble(classifier, df, 2, bagging="partition")),
    ):
        with pytest.raises(ValueError, match=f"{refused} needs a classic session"):
            ask()


def test_a_search_ends_with_its_time(remote) -> None:
    found = search(
        lambda params: threading.Event().wait(1.5) or 1.0, SPACE, max_evals=50, timeout=1, parallelism=2, verbose=0
    )
    assert 1 <= len(found.trials) <= 6
    assert set(found.trials.status) == {"ok"}


def test_a_run_whose_process_dies_is_made_again(remote, tmp_path, caplog) -> None:
    begun = tmp_path / "begun"

    def dies_once(order, shards, report):
        if not begun.exists():
            begun.touch()
            os._exit(1)
        return order

    with RemoteRuns(remote, dies_once, [], at_once=1, name="test") as runs:
        assert runs.result(0, "done", "a run") == "done"
    assert "a run was lost and is run again" in caplog.text
