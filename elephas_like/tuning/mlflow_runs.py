"""A search as nested runs of MLflow: the one file that imports it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import keras
import numpy as np
import pandas as pd

from elephas_like.core.errors import MissingExtraError
from elephas_like.core.findings import one_line
from elephas_like.core.trials import TrialStatus

_ENDED = {
    TrialStatus.OK.value: "FINISHED",
    TrialStatus.TIMEOUT.value: "FINISHED",
    TrialStatus.PRUNED.value: "KILLED",
    TrialStatus.FAILED.value: "FAILED",
}
"""MLflow's status of a trial's run. Any other trial was interrupted."""
MOST_LETTERS = 500
"""Of a parameter's value: what every tracking server takes."""
_A_BATCH = 1000
"""Metrics that a tracking server takes at once."""


def log_search(
    trials: pd.DataFrame,
    objective: str,
    maximize: bool,
    best: int | None,
    model: keras.Model | None,
    picture: Any,
    page: str,
    name: str,
) -> str:
    """Write a search to MLflow's tracking server. Return the id of the run that has a run for each trial in it.

    Args:
        trials: `SearchResult.trials`. best: the number of the best trial; None if none has finished.
        model: the best one, which becomes a model of the run. picture: a matplotlib figure, or None.
        page: the search's report in HTML.
        name: of the run, if none is active; otherwise the active run is taken.

    Raises:
        MissingExtraError: MLflow is not installed.
    """
    try:
        import mlflow
    except ModuleNotFoundError as cause:
        raise MissingExtraError("runs of MLflow need it: pip install 'elephas-like[mlflow]'.", name="mlflow") from cause
    labels = [column for column in trials.columns if column.startswith("param_")]
    with _parent(name) as run_id:
        for _, trial in trials.iterrows():
            with mlflow.start_run(run_name=f"trial {trial['trial']}", nested=True) as run:
                _log_trial(run.info.run_id, trial, labels, objective)
            mlflow.MlflowClient().set_terminated(run.info.run_id, _ENDED.get(trial["status"], "KILLED"))
        if best is not None:
            row = trials[trials["trial"] == best].iloc[0]
            mlflow.log_params({f"best_{label[6:]}": _text(row[label]) for label in labels if _known(row[label])})
            mlflow.log_metric(f"best_{objective}", float(row[objective]))
            mlflow.set_tag("best_trial", str(best))
        mlflow.set_tag("goal", f"{'most' if maximize else 'least'} {objective}")
        mlflow.log_text(trials.drop(columns=["history"]).to_csv(index=False), "trials.csv")
        if picture is not None:
            mlflow.log_figure(picture, "search.png")
        mlflow.log_text(page, "search.html")
        if model is not None:
            mlflow.keras.log_model(model, name="model")
    return run_id


@contextmanager
def _parent(name: str) -> Iterator[str]:
    """Have a run that trials are nested in: the active one, or a new one."""
    import mlflow

    active = mlflow.active_run()
    if active is not None:
        yield str(active.info.run_id)
        return
    with mlflow.start_run(run_name=name) as run:
        yield str(run.info.run_id)


def _log_trial(run_id: str, trial: pd.Series, labels: list[str], objective: str) -> None:
    """Log parameters, metrics by epoch, and what became of a trial."""
    import mlflow
    from mlflow.entities import Metric, Param, RunTag

    now = int(time.time() * 1000)
    metrics = [
        Metric(metric, float(value), now, epoch)
        for metric, values in trial["history"].items()
        for epoch, value in enumerate(values)
        if np.isfinite(value)
    ]
    metrics.append(Metric("seconds", float(trial["seconds"]), now, 0))
    if np.isfinite(trial[objective]):
        metrics.append(Metric(f"best_{objective}", float(trial[objective]), now, 0))
    tags = {"trial": trial["trial"], "status": trial["status"], "host": trial["host"], "error": trial["error"]}
    client = mlflow.MlflowClient()
    client.log_batch(
        run_id,
        params=[Param(label[6:], _text(trial[label])) for label in labels if _known(trial[label])],
        tags=[RunTag(key, one_line(value)) for key, value in tags.items() if _known(value)],
    )
    for start in range(0, len(metrics), _A_BATCH):
        client.log_batch(run_id, metrics=metrics[start : start + _A_BATCH])


def _known(value: object) -> bool:
    """Return whether a trial has a value: a conditional parameter may have none."""
    return value is not None and not (isinstance(value, float) and np.isnan(value))


def _text(value: object) -> str:
    return one_line(value, MOST_LETTERS)
