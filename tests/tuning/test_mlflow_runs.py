"""MLflow's own callback on the driver, models in its format, and a search as nested runs: with a real SQLite store."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import keras
import numpy as np
import pytest
from small_search import small

from elephas_like import SparkModel
from elephas_like.core.errors import MissingExtraError

pytestmark = pytest.mark.filterwarnings(
    "ignore:::mlflow", "ignore:::pydantic", "ignore:::sqlalchemy", "ignore:::alembic"
)
X = np.arange(80, dtype=np.float32).reshape(40, 2) / 80
Y = X.sum(axis=1, keepdims=True)


@pytest.fixture
def client(tmp_path: Path) -> Iterator[object]:
    """A client of a store in a folder of the test."""
    mlflow = pytest.importorskip("mlflow")
    before = mlflow.get_tracking_uri()
    mlflow.set_tracking_uri(f"sqlite:///{tmp_path}/runs.db")
    mlflow.set_experiment(experiment_id=mlflow.create_experiment("here", str(tmp_path / "artifacts")))
    yield mlflow.MlflowClient()
    while mlflow.active_run():
        mlflow.end_run()
    mlflow.set_tracking_uri(before)


def line() -> keras.Model:
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(0.25), "mse", metrics=["mae"])
    return model


def values(client, run_id: str, metric: str) -> list[float]:
    return [each.value for each in sorted(client.get_metric_history(run_id, metric), key=lambda each: each.step)]


@pytest.mark.slow
def test_the_callback_of_mlflow_sees_global_metrics_and_the_model_is_logged_as_its_own(client) -> None:
    import mlflow
    from mlflow.keras import MlflowCallback

    spark_model = SparkModel(line(), 2, engine="in_process", seed=0)
    with mlflow.start_run() as run:
        history = spark_model.fit(
            X, Y, epochs=3, batch_size=4, validation_split=0.2, callbacks=[MlflowCallback()], verbose=0
        )
        logged = mlflow.keras.log_model(spark_model.master_network, name="model")
    mlflow.flush_async_logging()
    for metric in ("loss", "mae", "val_loss"):
        assert values(client, run.info.run_id, metric) == pytest.approx(history.history[metric])
    assert client.get_run(run.info.run_id).data.params["optimizer_learning_rate"] == "0.25"
    loaded = mlflow.keras.load_model(logged.model_uri)
    np.testing.assert_array_equal(loaded.predict(X, verbose=0), spark_model.master_network.predict(X, verbose=0))


def test_a_callback_that_counts_batches_is_refused() -> None:
    callback = pytest.importorskip("mlflow.keras").MlflowCallback(log_every_epoch=False, log_every_n_steps=5)
    with pytest.raises(
        ValueError, match=r"MlflowCallback\(log_every_n_steps=...\) counts batches; use log_every_epoch=True"
    ):
        SparkModel(line(), 2, engine="in_process").fit(X, Y, callbacks=[callback])


@pytest.mark.slow
@pytest.mark.spark
def test_a_search_becomes_nested_runs(client, tmp_path: Path) -> None:
    import mlflow

    found = small(max_evals=3, epochs=2)
    run_id = found.log_to_mlflow("small")
    parent = client.get_run(run_id)
    assert parent.info.run_name == "small"
    assert parent.data.metrics == {f"best_{found.objective}": pytest.approx(found.best_value)}
    assert parent.data.params == {f"best_{name}": str(value) for name, value in found.best_params.items()}
    children = client.search_runs([parent.info.experiment_id], f"tags.mlflow.parentRunId = '{run_id}'")
    table = found.trials.set_index("trial")
    assert {run.info.run_name for run in children} == {f"trial {number}" for number in table.index}
    for run in children:
        row = table.loc[int(run.data.tags["trial"])]
        assert run.info.status == "FINISHED"
        assert run.data.params == {"units": str(row["param_units"]), "rate": str(row["param_rate"])}
        for name, expected in row["history"].items():
            assert values(client, run.info.run_id, name) == pytest.approx(expected)
    assert {each.path for each in client.list_artifacts(run_id)} >= {"trials.csv", "search.png", "search.html"}
    (logged,) = client.search_logged_models([parent.info.experiment_id])
    best = mlflow.keras.load_model(logged.model_uri)
    for one, other in zip(best.get_weights(), found.best_model.get_weights(), strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.slow
def test_failed_and_pruned_trials_have_their_status_and_the_active_run_is_taken(client) -> None:
    import mlflow
    import pandas as pd

    from elephas_like.tuning.mlflow_runs import log_search
    from elephas_like.tuning.result import TrialHistory

    trials = pd.DataFrame(
        {
            "trial": [0, 1, 2, 3],
            "status": ["ok", "pruned", "failed", "interrupted"],
            "loss": [0.5, 0.7, np.nan, np.nan],
            "seconds": [1.0] * 4,
            "host": ["node"] * 4,
            "param_kind": ["relu", None, "tanh", "tanh"],
            "error": [None, None, "ValueError: no", None],
            "history": [TrialHistory({"loss": [0.5, float("nan")]})] * 4,
        }
    )
    with mlflow.start_run() as run:
        assert log_search(trials, "loss", False, 0, None, None, "page", "unused") == run.info.run_id
    children = client.search_runs([run.info.experiment_id], f"tags.mlflow.parentRunId = '{run.info.run_id}'")
    by_trial = {int(child.data.tags["trial"]): child for child in children}
    assert [by_trial[number].info.status for number in range(4)] == ["FINISHED", "KILLED", "FAILED", "KILLED"]
    assert [by_trial[number].data.params for number in (0, 1)] == [{"kind": "relu"}, {}]
    assert by_trial[2].data.tags["error"] == "ValueError: no"
    assert values(client, by_trial[0].info.run_id, "loss") == [0.5]  # NaN is no point of a curve


def test_without_mlflow_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    from elephas_like.tuning.mlflow_runs import log_search

    monkeypatch.setitem(sys.modules, "mlflow", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'elephas-like\[mlflow\]'"):
        log_search(None, "loss", False, 0, None, None, "page", "x")
