"""SearchResult: what a search found, as a table, models, an ensemble and a picture."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import keras
import numpy as np
import pandas as pd

from elephas_like.core.checks import positive_int
from elephas_like.core.objective import Objective
from elephas_like.core.trials import TrialStatus
from elephas_like.ensembles.voting_model import VotingModel
from elephas_like.tuning.log import ModelStore
from elephas_like.tuning.runner import TrialRecord
from elephas_like.tuning.space import Trials


class SearchResult:
    """What a search found.

    best_params, best_value, best_trial: of the trial with the best objective; pruned and failed trials do not count.
    hyperopt_trials: the same as hyperopt's Trials, for its own tools.
    interrupted: whether Ctrl-C ended the search.
    """

    def __init__(
        self,
        records: Mapping[int, TrialRecord],
        objective: Objective,
        epochs: int,
        store: ModelStore,
        restore: Callable[[Any, bytes, str], keras.Model],
        hyperopt_trials: Trials,
        interrupted: bool = False,
    ) -> None:
        self._records = [records[number] for number in sorted(records)]
        self._objective, self._epochs, self._store, self._restore = objective, epochs, store, restore
        self._models: dict[int, keras.Model] = {}
        self.hyperopt_trials = hyperopt_trials
        self.interrupted = interrupted
        counting = [record for record in self._records if record.result.counts]
        self._ranked = sorted(counting, key=lambda record: (record.result.loss, record.result.number))
        best = self._ranked[0]
        assert best.result.loss is not None
        self.best_trial: int = best.result.number
        self.best_params: Any = best.params
        self.best_value: float = objective.value(best.result.loss)

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
        parameter, history (each metric's list over the epochs), error.
        """
        labels = sorted({label for record in self._records for label in record.point})
        table = pd.DataFrame([self._row(record, labels) for record in self._records])
        return table.astype({"best_epoch": "Int64"})  # a failed trial has none

    def _row(self, record: TrialRecord, labels: list[str]) -> dict[str, Any]:
        result = record.result
        metrics = sorted({name for logs in result.history for name in logs})
        failure = result.failure
        return {
            "trial": result.number,
            "status": result.status.value,
            self.objective: np.nan if result.loss is None else self._objective.value(result.loss),
            "best_epoch": result.best_epoch,
            "epochs": len(result.history),
            "seconds": result.seconds,
            "host": result.host,
            "params": record.params,
            **{f"param_{label}": self._shown(record, label) for label in labels},
            "history": {name: [logs.get(name, np.nan) for logs in result.history] for name in metrics},
            "error": None if failure is None else f"{failure.type_name}: {failure.message}",
        }

    def _shown(self, record: TrialRecord, label: str) -> Any:
        """A parameter's value: what the function got under that name, or its place in the space."""
        found = record.params
        for name in label.split("."):
            found = found.get(name, None) if isinstance(found, dict) else None
        return record.point.get(label) if found is None or isinstance(found, dict) else found

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
        """
        return self._model(self.best_trial)

    def best_models(self, n: int) -> list[keras.Model]:
        """The trained models of the `n` best trials, the best first. The same objects at every call.

        Raises:
            ValueError: there are fewer.
        """
        positive_int("n", n)
        numbers = self._store.numbers
        if n > len(numbers):
            raise ValueError(
                f"{n} models are asked for, and {len(numbers)} were kept of {len(self._ranked)} trials that finished. "
                f"Search with keep_models={n} or more, and enough max_evals."
            )
        return [self._model(number) for number in numbers[:n]]

    def best_ensemble(self, n: int, voting: str = "soft", weights: Any = None) -> Any:
        """A VotingModel of the `n` best trials' models."""
        return VotingModel(self.best_models(n), voting=voting, weights=weights)

    def _model(self, number: int) -> keras.Model:
        if number not in self._models:
            params = next(record.params for record in self._records if record.result.number == number)
            self._models[number] = self._restore(params, *self._store.read(number))
        return self._models[number]

    def plot(self) -> Any:
        """A matplotlib figure: objective over trials, parallel coordinates, and each parameter against the objective.

        Raises:
            ImportError: matplotlib is not installed.
        """
        from elephas_like.tuning.plots import figure

        return figure(self.trials, self.objective, self.maximize)

    def __len__(self) -> int:
        """The number of trials."""
        return len(self._records)

    def __repr__(self) -> str:
        """The outcome in a line."""
        statuses = [record.result.status.value for record in self._records]
        counts = ", ".join(f"{statuses.count(status)} {status}" for status in TrialStatus if status in statuses)
        return (
            f"SearchResult({counts}; best {self.objective} {self.best_value:.4g} in trial {self.best_trial} with "
            f"{self.best_params}; {self.epochs_saved} of {self.epochs_trained + self.epochs_saved} epochs saved)"
        )
