"""SearchResult: what a search found, as a table, models, an ensemble and a picture."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import keras
import numpy as np
import pandas as pd

from elephas_like.core.checks import positive_int
from elephas_like.core.errors import MissingExtraError
from elephas_like.core.html import html_table
from elephas_like.core.monitoring import Snapshot
from elephas_like.core.objective import Objective, pareto_front
from elephas_like.core.report import report_page, write_report
from elephas_like.core.tracebacks import cause
from elephas_like.core.trials import TrialResult, TrialStatus
from elephas_like.ensembles.voting_model import VotingModel
from elephas_like.tuning.log import ModelStore
from elephas_like.tuning.runner import TrialRecord, search_monitor, show_trial
from elephas_like.tuning.samplers import PointSource, is_feasible
from elephas_like.tuning.space import Trials


class TrialHistory(Mapping[str, list[float]]):
    """Each metric's list over the epochs of a trial. In a table it is shown as the metrics' names, not as all its numbers."""

    def __init__(self, values: Mapping[str, list[float]]) -> None:
        self._values = dict(values)

    def __getitem__(self, name: str) -> list[float]:
        """A metric's list."""
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        """The metrics' names."""
        return iter(self._values)

    def __len__(self) -> int:
        """The number of metrics."""
        return len(self._values)

    def __repr__(self) -> str:
        """The metrics' names, and the number of epochs."""
        epochs = max(map(len, self._values.values()), default=0)
        return f"<{', '.join(self._values)}: {epochs} epochs>"


def _column(values: list[Any]) -> pd.Series:
    """Return a column of these very values: pandas 3 would write None beside text as NaN, which is not false."""
    plain = {"dtype": object} if not values or any(isinstance(value, str) for value in values) else {}
    return pd.Series(values, **plain)


def _value_of(objective: Objective, result: TrialResult) -> float:
    """The value of a further objective at a trial's best epoch."""
    if result.best_epoch is None:
        return float("nan")
    return float(result.history[result.best_epoch].get(objective.name, float("nan")))


_NO_MODELS = (
    "a search over a function keeps no models: save a model in the function and return its path in the dict, or make it "
    "again from best_params."
)


class SearchResult:
    """What a search found.

    best_params, best_value, best_trial: of the trial with the best objective; pruned and failed trials do not count. None where
        Ctrl-C came before any trial had finished, or no trial meets the constraints of Optuna's sampler.
    interrupted: whether Ctrl-C ended the search.
    """

    def __init__(
        self,
        records: Mapping[int, TrialRecord],
        objective: Objective,
        epochs: int,
        store: ModelStore,
        restore: Callable[[int, Any, bytes, str], keras.Model] | None,
        sampler: PointSource,
        interrupted: bool = False,
    ) -> None:
        self._records = [records[number] for number in sorted(records)]
        self._objective, self._epochs, self._store, self._restore = objective, epochs, store, restore
        self._models: dict[int, keras.Model] = {}
        self._sampler = sampler
        self.interrupted = interrupted
        counting = [record for record in self._records if self._counts(record.result)]
        self._ranked = sorted(counting, key=lambda record: (record.result.loss, record.result.number))
        best = self._ranked[0] if self._ranked else None
        loss = best.result.loss if best else None
        self.best_trial: Any = best.result.number if best else None
        self.best_params: Any = best.params if best else None
        self.best_value: Any = None if loss is None else objective.value(loss)

    def _counts(self, result: TrialResult) -> bool:
        """Whether a trial may be the best: it has finished, and meets the constraints of the sampler."""
        return result.counts and is_feasible(self._sampler, result.number)

    @property
    def _nothing_counts(self) -> str:
        """Why there is no best trial."""
        if any(record.result.counts for record in self._records):
            return "no trial meets the constraints of the sampler"
        return "the search was interrupted before any trial had finished"

    @property
    def objective(self) -> str:
        """The metric's name."""
        return self._objective.name

    @property
    def maximize(self) -> bool:
        """Whether more of the objective is better."""
        return self._objective.maximize

    @property
    def trials(self) -> pd.DataFrame:
        """All trials, one a row, in the order in which they were begun.

        Columns: trial, status ("ok", "pruned", "timeout", "failed", "interrupted"), the objective under its own name (of
        the best epoch), best_epoch, epochs, seconds, host, params (what the function got), `param_<label>` for each
        parameter, error, notes (the rest of a function's dict), if there are any, history (each metric's list over the epochs).
        """
        labels = sorted({label for record in self._records for label in record.point})
        rows, columns = [self._row(record, labels) for record in self._records], self._columns(labels)
        table = pd.DataFrame({name: _column([row[name] for row in rows]) for name in columns}, columns=columns)
        if any(record.result.notes for record in self._records):
            table.insert(len(table.columns) - 1, "notes", [dict(record.result.notes) for record in self._records])
        return table.astype({"best_epoch": "Int64"})  # a failed trial has none

    def _columns(self, labels: list[str]) -> list[str]:
        """The names of the columns, which are there without trials, too."""
        goals = [one.name for one in self._objective.all]
        parameters = [f"param_{label}" for label in labels]
        before = ["trial", "status", *goals, "best_epoch", "epochs", "seconds", "host", "params"]
        return [*before, *parameters, "error", "history"]

    def _row(self, record: TrialRecord, labels: list[str]) -> dict[str, Any]:
        result = record.result
        metrics = sorted({name for logs in result.history for name in logs})
        failure = result.failure
        return {
            "trial": result.number,
            "status": result.status.value,
            self.objective: np.nan if result.loss is None else self._objective.value(result.loss),
            **{one.name: _value_of(one, result) for one in self._objective.more},
            "best_epoch": result.best_epoch,
            "epochs": len(result.history),
            "seconds": result.seconds,
            "host": result.host,
            "params": record.params,
            **{f"param_{label}": record.values.get(label) for label in labels},
            "error": None if failure is None else f"{failure.type_name}: {cause(failure.message)}",
            "history": TrialHistory({name: [logs.get(name, np.nan) for logs in result.history] for name in metrics}),
        }

    @property
    def pareto_front(self) -> pd.DataFrame:
        """The finished trials that no other one beats: none is as good in all objectives and better in one. Columns as `trials`."""
        goals = self._objective.all
        finished = self.trials[np.array([self._counts(record.result) for record in self._records], bool)]
        known = finished.dropna(subset=[one.name for one in goals])
        losses = [[-value if one.maximize else value for value in known[one.name]] for one in goals]
        front = pareto_front(list(zip(*losses, strict=True)))
        return known.iloc[front].sort_values(goals[0].name).reset_index(drop=True)

    @property
    def epochs_trained(self) -> int:
        """Epochs of all trials together."""
        return sum(len(record.result.history) for record in self._records)

    @property
    def epochs_saved(self) -> int:
        """Epochs that pruned trials did not train."""
        pruned = [record for record in self._records if record.result.status is TrialStatus.PRUNED]
        return sum(self._epochs - len(record.result.history) for record in pruned)

    @property
    def best_model(self) -> keras.Model:
        """The best trial's trained model, compiled, its optimizer's state included.

        Raises:
            FileNotFoundError: its file was deleted from the checkpoint directory.
            ValueError: no trial has finished.
        """
        if self.best_trial is None:
            raise ValueError(f"there is no best model: {self._nothing_counts}.")
        return self._model(self.best_trial)

    def best_models(self, n: int) -> list[keras.Model]:
        """The trained models of the `n` best trials, the best first. The same objects at every call.

        Raises:
            ValueError: there are fewer, or one of them was not kept.
        """
        positive_int("n", n)
        if self._restore is None:
            raise ValueError(_NO_MODELS)
        numbers, kept = [record.result.number for record in self._ranked[:n]], self._store.numbers
        missing = [number for number in numbers if number not in kept]
        if missing or n > len(numbers):
            named = f", but not that of trial {missing[0]}, one of the best" if missing else ""
            raise ValueError(
                f"{n} models are asked for, and {len(kept)} were kept of {len(self._ranked)} trials that finished{named}. "
                f"Search with keep_models={n} or more from the first session on, and enough max_evals."
            )
        return [self._model(number) for number in numbers]

    def best_ensemble(self, n: int, voting: str = "soft", weights: Any = None) -> Any:
        """A VotingModel of the `n` best trials' models."""
        return VotingModel(self.best_models(n), voting=voting, weights=weights)

    def _model(self, number: int) -> keras.Model:
        if self._restore is None:
            raise ValueError(_NO_MODELS)
        if number not in self._models:
            params = next(record.params for record in self._records if record.result.number == number)
            self._models[number] = self._restore(number, params, *self._store.read(number))
        return self._models[number]

    def plot(self) -> Any:
        """A matplotlib figure: objective over trials, parallel coordinates, and each parameter against the objective; the best marked.

        Of several objectives: each further one against the first, with the Pareto front.

        Raises:
            MissingExtraError: matplotlib is not installed.
        """
        from elephas_like.model.plots import plot_search

        more = [one.name for one in self._objective.more]
        front = self.pareto_front if more else None
        candidates = [record.result.number for record in self._ranked]
        return plot_search(self.trials, self.objective, self.maximize, front, more, candidates)

    def log_to_mlflow(self, name: str = "search", *, best_model: bool = True) -> str:
        """Write the search to MLflow: a run for each trial, nested in one with the best parameters, a table, a picture, the page.

        A trial's run has its parameters, its metrics by epoch, and its status: FINISHED, KILLED (pruned, interrupted) or FAILED.

        Args:
            name: of the run around them. If a run is active, that one is taken.
            best_model: whether that run gets the best trial's model, as `mlflow.keras.log_model` writes it. Functions have none.

        Returns:
            The id of the run.

        Raises:
            MissingExtraError: MLflow is not installed.
        """
        from elephas_like.tuning.mlflow_runs import log_search

        try:
            picture = self.plot()
        except MissingExtraError:
            picture = None
        model = self.best_model if best_model and self._restore is not None and self._ranked else None
        page = report_page(self._report())
        return log_search(self.trials, self.objective, self.maximize, self.best_trial, model, picture, page, name)

    def save_report(self, path: str | os.PathLike[str]) -> None:
        """Write the training page of the search to a file: HTML that needs no server and no network."""
        write_report(path, self._report())

    def _report(self) -> Snapshot:
        """Return what the training page shows at the end of the search."""
        seconds = sum(record.result.seconds for record in self._records)
        page = search_monitor(
            self._objective, len(self._records), trials=f"{len(self._records)}, {seconds:,.0f} s together"
        )
        for record in self._records:
            show_trial(page, record, self._objective, self._counts(record.result), earlier=True)
        page.ended("interrupted" if self.interrupted else "finished")
        return page.snapshot() | {"elapsed": None, "began_at": None}  # when it was is not kept

    @property
    def hyperopt_trials(self) -> Trials:
        """The trials as hyperopt's Trials, for its own tools."""
        return self._sampler.trials

    @property
    def optuna_study(self) -> Any:
        """The trials as a study of Optuna's, for its own tools, whichever algorithm chose them. Choices are numbers of options.

        Raises:
            MissingExtraError: Optuna is not installed.
        """
        from elephas_like.tuning.optuna_sampler import study_of

        trials = [(record.result, record.point) for record in self._records]
        return study_of(self._sampler.space, self._objective, trials, self._sampler.constraints)

    def importances(self) -> dict[str, float]:
        """How much of the differences between finished trials is owed to each parameter, by Optuna; their sum is 1.

        Optuna's own default decides: PED-ANOVA, which asks what tells the best trials from the others.

        Raises:
            ValueError: fewer than two trials have finished. MissingExtraError: Optuna is not installed.
        """
        from elephas_like.tuning.optuna_sampler import importances

        return importances(self.optuna_study)

    def _repr_html_(self) -> str:
        """The outcome for a notebook, with a row for each trial, the best one last."""
        table = self.trials.drop(columns=["params", "history", "host"])
        table = table.sort_values(self.objective, ascending=self.maximize, na_position="first")
        return html_table(repr(self), list(table.columns), table.astype(object).to_numpy().tolist())

    def __len__(self) -> int:
        """The number of trials."""
        return len(self._records)

    def __repr__(self) -> str:
        """The outcome in a line."""
        statuses = [record.result.status.value for record in self._records]
        counts = ", ".join(f"{statuses.count(status)} {status}" for status in TrialStatus if status in statuses)
        if self.best_trial is None:
            return f"SearchResult({counts or 'no trials'}; {self._nothing_counts.removeprefix('the search was ')})"
        return (
            f"SearchResult({counts}; best {self.objective} {self.best_value:.4g} in trial {self.best_trial} with "
            f"{self.best_params}; {self.epochs_saved} of {self.epochs_trained + self.epochs_saved} epochs saved)"
        )
