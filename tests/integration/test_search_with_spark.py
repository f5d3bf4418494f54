"""Searches on Spark's slots: data shipped once, reports over the exchange, lost processes, Ctrl-C, drivers that die."""

from __future__ import annotations

import json
import os
import signal
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import keras
import numpy as np
import pytest
from scripts import Script
from small import digits, rows

from elephas_like import HyperParamModel, search, shard
from elephas_like.core.errors import ConnectionLostError
from elephas_like.core.objective import Objective
from elephas_like.tuning.runner import PruningMonitor
from elephas_like.tuning.trial_runs import opened

SPACE = {"units": [8, 16], "rate": ("loguniform", -8, -3)}
COUNT = 300


def build(params: dict) -> keras.Model:
    model = keras.Sequential(
        [keras.Input((64,)), keras.layers.Dense(params["units"], "relu"), keras.layers.Dense(10, "softmax")]
    )
    model.compile(keras.optimizers.Adam(params["rate"]), "sparse_categorical_crossentropy", metrics=["accuracy"])
    return model


def some() -> tuple[np.ndarray, np.ndarray]:
    x, y = digits()
    return x[:COUNT], y[:COUNT]


def small(data: object, **arguments: object):
    given = {"max_evals": 2, "epochs": 1, "validation_split": 0.2, "seed": 1, "verbose": 0, "algo": "random"}
    return search(arguments.pop("build", build), SPACE, data, **(given | arguments))  # type: ignore[arg-type]


def plain(found) -> list:
    return found.trials.drop(columns=["seconds"]).to_dict("records")


@pytest.fixture(scope="module")
def two(sc):
    """A search of arrays whose two trials run at the same time."""
    return small(some())


def test_trials_do_not_depend_on_how_many_run_or_on_what_the_rows_came_in(sc, two) -> None:
    x, y = some()
    assert set(two.trials["status"]) == {"ok"}
    assert plain(small((x, y), parallelism=1)) == plain(two)
    assert plain(small(sc.parallelize(rows(x, y), 3))) == plain(two)
    with shard(sc.parallelize(rows(x, y), 2), 2) as dataset:
        assert plain(small(dataset)) == plain(two)
    held = np.sort(np.random.default_rng([1, 0, 0x5917]).permutation(COUNT)[: COUNT // 5])
    loss, _ = two.best_model.evaluate(x[held], y[held], verbose=0)
    assert loss == pytest.approx(two.best_value, rel=1e-5)


def test_bad_trials_stop_while_they_run(sc) -> None:
    """Trials from the third on stop after their first epoch: by the answer to a report, on the executor."""
    found = small(some(), max_evals=4, epochs=6, pruning=lambda losses, others: len(others) >= 2, parallelism=1)
    assert list(found.trials["status"]) == ["ok", "ok", "pruned", "pruned"]
    assert list(found.trials["epochs"]) == [6, 6, 1, 1]
    assert found.epochs_saved == 10


@pytest.mark.fault("The Python process of a trial dies", "the trial is run again, and counted once", "one trial")
def test_a_trial_whose_python_worker_is_killed_is_counted_once(sc, two, tmp_path: Path) -> None:
    mark = tmp_path / "killed"

    def kills(params: dict) -> keras.Model:
        if os.getpid() != driver:
            with suppress(FileExistsError):
                mark.touch(exist_ok=False)  # one of the two that run at the same time
                os.kill(os.getpid(), signal.SIGKILL)
        return build(params)

    driver = os.getpid()
    found = small(some(), build=kills)
    assert mark.exists()
    assert plain(found) == plain(two)


def test_a_trial_may_be_a_fit_of_several_workers(sc) -> None:
    x, y = some()
    found = small(
        sc.parallelize(rows(x, y), 2),
        trial_workers=2,
        max_evals=3,
        epochs=3,
        pruning=lambda losses, others: len(others) >= 2,
    )
    assert list(found.trials["status"]) == ["ok", "ok", "pruned"]
    assert list(found.trials["epochs"]) == [3, 3, 1]
    assert set(found.trials["host"]) == {"2 workers"}
    assert all("val_accuracy" in history for history in found.trials["history"])
    assert found.best_model.evaluate(x, y, verbose=0)[0] < 2.3
    with pytest.raises(ValueError, match="not among the metrics: 'loss', 'accuracy', 'val_loss', 'val_accuracy'"):
        small(sc.parallelize(rows(x, y), 2), trial_workers=2, objective="val_auc")
    with pytest.raises(ValueError, match="trial_workers=3, and Spark has 2 slots"):
        small((x, y), trial_workers=3)


def test_trials_of_several_workers_do_not_learn_from_each_other(sc) -> None:
    base = keras.Sequential([keras.Input((64,)), keras.layers.Dense(8)])

    def build(params: dict) -> keras.Model:
        model = keras.Sequential([keras.Input((64,)), base, keras.layers.Dense(10, "softmax")])
        model.compile(keras.optimizers.SGD(params["rate"]), "sparse_categorical_crossentropy")
        return model

    start, told = base.get_weights(), {"build": build, "epochs": 2, "objective": "val_loss"}
    wide, plain = (small(some(), trial_workers=workers, **told) for workers in (1, None))
    assert wide.trials["history"].map(len).tolist() == [2, 2]
    np.testing.assert_allclose(wide.trials["val_loss"], plain.trials["val_loss"], rtol=1e-5)
    for weight, before in zip(base.get_weights(), start, strict=True):
        np.testing.assert_array_equal(weight, before)


def test_two_fits_of_one_worker_run_together(sc) -> None:
    def judged(params: dict) -> keras.Model:
        model = build(params)
        score = keras.metrics.MeanIoU(10, sparse_y_pred=False)  # without a name: Keras numbers it by process
        model.compile(model.optimizer, model.loss, metrics=[score])
        return model

    given = {"build": judged, "trial_workers": 1, "objective": "val_mean_io_u"}
    one, other = small(some(), **given), small(some(), **given, parallelism=1)
    assert plain(one) == plain(other)
    assert all(set(one) == {"loss", "mean_io_u", "val_loss", "val_mean_io_u"} for one in other.trials["history"])


def test_data_that_cannot_be_searched_on_is_refused(spark) -> None:
    with pytest.raises(TypeError, match=r"data must be .* a DataFrame or a ShardedDataset; got ndarray"):
        small(np.zeros((3, 2)))
    with pytest.raises(ValueError, match="features_col: there is no column 'features'; the DataFrame has 'x', 'y'"):
        small(spark.createDataFrame([(1.0, 2.0)], ["x", "y"]))


def templated(x, y):
    model = keras.Sequential([keras.Input((64,)), keras.layers.Dense({{choice([8, 16])}}, "relu")])  # type: ignore  # noqa: F821
    model.add(keras.layers.Dense(10, "softmax"))
    model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
    model.fit(x, y, epochs=1, verbose=0)
    return {"loss": -model.evaluate(x, y, verbose=0)[1], "status": "ok", "model": model}


def data():
    """Read on the executors, which have no module of these tests: a cached function would be looked for there."""
    from sklearn.datasets import load_digits

    x, y = load_digits(return_X_y=True)
    return (x[:300] / 16).astype("float32"), y[:300].astype("int64")


def test_elephas_searches_run_on_slots(sc) -> None:
    elephas = HyperParamModel(sc, num_workers=4, seed=0, verbose=0)
    one, other = elephas.best_models(2, templated, data, max_evals=2)
    x, y = some()
    first, second = ((model.predict(x, verbose=0).argmax(1) == y).mean() for model in (one, other))
    assert first >= second


def test_a_trial_that_cannot_reach_the_driver_says_what_a_search_can_do(sc) -> None:
    monitor = PruningMonitor(Objective("loss"), None, 1, None)
    with opened(sc, len, (), monitor, parallelism=1, reports=True, name="unreached") as slots:  # type: ignore[arg-type]
        settings = replace(slots.runs._lines, retries=0)
        assert settings.connect(0, 0).progress(0, {"loss": 1.0})
    with pytest.raises(
        ConnectionLostError, match=rf"cannot reach .* 127\.0\.0\.1:{settings.port} after 1 tries"
    ) as caught:
        settings.connect(0, 0).progress(0, {"loss": 1.0})
    assert "Set spark.driver.host" in str(caught.value)
    assert "pruning=None and no timeout" in str(caught.value)
    assert "SparkModel" not in str(caught.value)


@pytest.fixture
def lines(tmp_path: Path) -> Path:
    return tmp_path / "search" / "trials.jsonl"


@pytest.mark.fault(
    "The driver of a search is killed", "`resume` goes on with the trials that are finished", "the trials that ran"
)
@pytest.mark.slow
def test_a_search_goes_on_after_its_driver_was_killed(tmp_path: Path, lines: Path) -> None:
    arguments = ("run_search.py", "6", str(tmp_path / "search"))
    with Script(*arguments, scratch=tmp_path) as script:
        for _ in range(3):
            assert script.answer()["built"]
    written = [json.loads(line) for line in lines.read_bytes().splitlines(keepends=True) if line.endswith(b"\n")]
    assert 1 <= len(written) < 6
    with Script(*arguments, scratch=tmp_path, anew=True) as script:
        answer = script.answer()
        while "trials" not in answer:
            answer = script.answer()
    assert answer["trials"] == list(range(6))
    assert answer["status"] == ["ok"] * 6
    by_number = {trial["trial"]: trial for trial in map(json.loads, lines.read_text().splitlines())}
    assert len(lines.read_text().splitlines()) == 6
    assert all(by_number[trial["trial"]] == trial for trial in written)  # what was finished was not tried again
    assert answer["models"] == 6


@pytest.mark.slow
def test_ctrl_c_returns_what_is_finished(tmp_path: Path, lines: Path) -> None:
    with Script("run_search.py", "10000", str(tmp_path / "search"), scratch=tmp_path) as script:
        for _ in range(4):
            assert script.answer()["built"]
        script.process.send_signal(signal.SIGINT)
        answer = script.answer()
        while "trials" not in answer:
            answer = script.answer()
        assert script.ended() == 0
    assert answer["interrupted"]
    assert answer["status"].count("ok") == len(lines.read_text().splitlines()) >= 1
    assert set(answer["status"]) <= {"ok", "interrupted"}
    assert answer["threads"] == []
    assert answer["evaluated"] > 0


def test_any_function_is_searched_on_slots_and_pruned_while_it_runs(sc) -> None:
    most = sc.broadcast({"x": 0.9})  # as one shares a data set with all trials

    def learns(params: dict, trial) -> dict | None:
        if params["x"] > most.value["x"]:
            raise ValueError("too large")
        for _ in range(4):
            if not trial.report(params["x"]):
                return None
        return {"loss": params["x"], "process": os.getpid()}

    def judged(losses: tuple, others: tuple) -> bool:
        return len(losses) == 2 and losses[0] > 0.5

    given = {"max_evals": 12, "algo": "random", "seed": 0, "pruning": judged, "verbose": 0}
    found = search(learns, {"x": ("uniform", 0, 1)}, **given)
    for row in found.trials.to_dict("records"):
        x = row["params"]["x"]
        expected = ("failed", 0) if x > 0.9 else ("pruned", 2) if x > 0.5 else ("ok", 4)
        assert (row["status"], row["epochs"]) == expected
        assert row["notes"].get("process") != os.getpid()  # it was an executor's
    assert {"ok", "pruned"} < set(found.trials["status"])
    assert found.best_value == found.best_params["x"] == found.trials["loss"].min()


@pytest.mark.parametrize("kind", ["DataFrame", "RDD"])
def test_a_function_that_uses_spark_is_searched_on_the_driver(
    sc, spark, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    frame, rdd = spark.range(8), sc.parallelize(range(8))

    def of_frame(params: dict) -> int:
        return frame.filter(frame.id >= params["least"]).count()

    def of_rdd(params: dict) -> int:
        return rdd.filter(lambda number: number >= params["least"]).count()

    count = of_rdd if kind == "RDD" else of_frame

    def counts(params: dict, trial) -> dict:
        found = count(params)
        return {"loss": -found, "process": os.getpid(), "seen": trial.report(-found)}

    with caplog.at_level("WARNING", "elephas_like"):
        found = search(counts, {"least": [2, 5]}, max_evals=3, algo="random", seed=0, timeout=300, verbose=0)
    assert "counts refers to Spark" in caplog.text
    assert {row["process"] for row in found.trials["notes"]} == {os.getpid()}
    assert list(found.trials["loss"]) == [params["least"] - 8 for params in found.trials["params"]]
