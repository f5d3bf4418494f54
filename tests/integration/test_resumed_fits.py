"""Checkpoints over Spark: any engine goes on where another one's driver died, also from a Hadoop filesystem."""

from __future__ import annotations

import json
import signal
import warnings
from pathlib import Path

import keras
import numpy as np
import pytest
from mortal import Killed, Mortal, MortalElastic, bits
from scripts import Script
from small import classifier, digits, rows

from elephas_like import SparkModel
from elephas_like.core.errors import ElephasWarning


def test_any_engine_goes_on_where_another_one_died(sc, tmp_path: Path) -> None:
    x, y = digits()
    data = sc.parallelize(rows(x[:320], y[:320]), 2)
    place = (tmp_path / "checkpoints").as_uri()  # through Spark, by Hadoop's rules

    def fit(engine: str, *, dies_at: int | None = None, **given: object) -> keras.Model:
        Mortal.dies_at = dies_at
        model = classifier()
        SparkModel(model, 2, engine=engine, strategy=Mortal(), seed=1, batch_size=16, frequency=5).fit(
            data, epochs=3, verbose=0, **given
        )
        return model

    whole = fit("server")
    kept = {"checkpoint_dir": place, "checkpoint_freq": 1e-9}
    for engine, dies_at in (("server", 1), ("in_process", 2), ("jobs", 4)):
        with pytest.raises(Killed):
            fit(engine, dies_at=dies_at, **kept)
    assert bits(fit("server", **kept)) == bits(whole)
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == []


@pytest.mark.parametrize(
    "options",
    [
        {"strategy": MortalElastic(), "optimizer_state": "per_worker"},
        {"codec": "one_bit", "optimizer_state": "per_worker"},
        {"codec": "top_k", "optimizer_state_every": 4},
    ],
    ids=str,
)
def test_what_workers_remember_goes_on_with_any_engine(sc, tmp_path: Path, options: dict) -> None:
    x, y = digits()
    data = sc.parallelize(rows(x[:320], y[:320]), 2)

    def fit(engine: str, *, dies_at: int | None = None, **given: object) -> keras.Model:
        Mortal.dies_at = dies_at
        model = classifier()
        chosen = {"strategy": Mortal()} | options
        SparkModel(model, 2, engine=engine, seed=1, batch_size=16, frequency=5, **chosen).fit(
            data, epochs=3, verbose=0, **given
        )
        return model

    whole = fit("server")
    kept = {"checkpoint_dir": tmp_path, "checkpoint_freq": 1e-9}
    for engine, dies_at in (("server", 1), ("in_process", 2)):
        with pytest.raises(Killed):
            fit(engine, dies_at=dies_at, **kept)
    assert bits(fit("server", **kept)) == bits(whole)


def test_workers_that_were_suspended_still_know_what_a_checkpoint_has(sc, tmp_path: Path) -> None:
    """A callback needs the workers' slots before a checkpoint is written: their tasks end, and new ones are asked."""
    x, y = digits()
    data = sc.parallelize(rows(x[:320], y[:320]), 2)

    counted: list[tuple[str, int]] = []

    class Counts(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            if counted:  # the fit goes on
                counted.append(("begin", sc.parallelize(range(10), 2).count()))

        def on_epoch_end(self, epoch, logs=None):
            if epoch == 1:
                counted.append(("end", sc.parallelize(range(10), 2).count()))

    def fit(*callbacks: keras.callbacks.Callback, dies_at: int | None = None, **given: object) -> keras.Model:
        Mortal.dies_at = dies_at
        model = classifier()
        SparkModel(
            model, 2, engine="server", seed=1, batch_size=16, frequency=5, strategy=Mortal(), codec="one_bit"
        ).fit(data, epochs=3, verbose=0, callbacks=callbacks, **given)
        return model

    whole = fit()
    with pytest.raises(Killed):
        fit(Counts(), dies_at=4, checkpoint_dir=tmp_path)
    assert bits(fit(Counts(), checkpoint_dir=tmp_path)) == bits(whole)
    assert counted == [("end", 10), ("begin", 10), ("begin", 10)]


@pytest.mark.parametrize("options", [{"mode": "asynchronous"}, {"quorum": 1}], ids=str)
def test_workers_that_are_ahead_give_what_belongs_to_the_checkpoint(sc, tmp_path: Path, options: dict) -> None:
    x, y = digits()
    data = sc.parallelize(rows(x[:320], y[:320]), 2)
    options = options | {"codec": "top_k", "optimizer_state": "per_worker", "engine": "server", "frequency": 2}

    class Dies(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            if epoch == 2:
                raise Killed

    def fit(*callbacks: keras.callbacks.Callback) -> keras.callbacks.History:
        spark_model = SparkModel(classifier(), 2, seed=1, batch_size=16, **options)
        return spark_model.fit(data, epochs=4, verbose=0, checkpoint_dir=tmp_path, callbacks=callbacks)

    with pytest.raises(Killed):
        fit(Dies())
    newest = max(tmp_path.glob("*.json"), key=lambda path: json.loads(path.read_text())["number"])
    with np.load(newest.with_suffix(".npz")) as file:
        assert file["recalled"].tolist() == [0, 1]
        slots = [file[f"memory.{worker}.slots"] for worker in (0, 1) if f"memory.{worker}.slots" in file.files]
        assert slots  # a straggler may have answered nothing yet
        assert all(part.size == file["state.slots"].size for part in slots)
    with warnings.catch_warnings():
        warnings.simplefilter("error", ElephasWarning)
        assert fit().epoch == [0, 1, 2, 3]


@pytest.mark.fault(
    "The driver is killed during a fit with `checkpoint_dir`",
    "the same program, run again, goes on from the last checkpoint",
    "what was trained since that checkpoint; the weights are equal to the last bit",
)
@pytest.mark.slow
@pytest.mark.long
def test_a_killed_driver_goes_on_with_the_same_bits(tmp_path: Path) -> None:
    """Two kinds of fit are killed, each with its process. A new one goes on with both, and trains both without a break."""
    killed = {
        str(tmp_path / "one"): json.dumps({}),
        str(tmp_path / "other"): json.dumps({"codec": "one_bit", "optimizer_state": "per_worker"}),
    }
    for place, options in killed.items():
        with Script("run_checkpointed.py", "server", place, options, scratch=tmp_path) as script:
            while script.answer()["epoch"] != 2:
                script.say("go on")
            script.process.send_signal(signal.SIGKILL)
            script.process.wait()
    fits = [part for place, options in killed.items() for part in (place, options, "none", options)]
    with Script("run_checkpointed.py", "server", *fits, scratch=tmp_path, anew=True) as script:
        for begins in (2, 0) * len(killed):
            for epoch in range(begins, 4):
                assert script.answer() == {"epoch": epoch}
                script.say("go on")
            if begins:
                resumed = script.answer()
            else:
                assert script.answer() == resumed
                assert resumed["trained"] == 4 * 600
        assert script.ended() == 0
