"""Checkpoints over Spark: any engine goes on where another one's driver died, also from a Hadoop filesystem."""

from __future__ import annotations

import signal
from pathlib import Path

import keras
import pytest
from mortal import Killed, Mortal, MortalElastic, bits
from scripts import Script
from small import classifier, digits, rows

from elephas_like import SparkModel


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
        {"codec": "top_k"},
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
    for engine, dies_at in (("server", 1), ("in_process", 2), ("server", 4)):
        with pytest.raises(Killed):
            fit(engine, dies_at=dies_at, **kept)
    assert bits(fit("server", **kept)) == bits(whole)


@pytest.mark.fault(
    "The driver is killed during a fit with `checkpoint_dir`",
    "the same program, run again, goes on from the last checkpoint",
    "what was trained since that checkpoint; the weights are equal to the last bit",
)
@pytest.mark.slow
def test_a_killed_driver_goes_on_with_the_same_bits(tmp_path: Path) -> None:
    def run(folder: str, dies_after: int | None) -> dict:
        with Script("run_checkpointed.py", "server", folder, scratch=tmp_path) as script:
            while True:
                answer = script.answer()
                if "weights" in answer:
                    return answer
                if answer["epoch"] == dies_after:
                    script.process.send_signal(signal.SIGKILL)
                    script.process.wait()
                    return {}
                script.say("go on")

    whole = run("none", None)
    place = str(tmp_path / "checkpoints")
    run(place, 2)
    assert run(place, None) == whole
    assert whole["trained"] == 4 * 600
