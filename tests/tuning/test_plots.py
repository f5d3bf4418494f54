"""Pictures of searches: every kind of parameter, and searches of which little is known."""

from __future__ import annotations

import io

import numpy as np
import pandas as pd
import pytest

pytest.importorskip("matplotlib")

from elephas_like.tuning.plots import figure


def table(**columns: list) -> pd.DataFrame:
    count = len(next(iter(columns.values())))
    return pd.DataFrame({"trial": range(count), "status": ["ok"] * count, **columns})


@pytest.mark.parametrize("maximize", [True, False])
def test_numbers_words_and_missing_values_are_drawn(maximize: bool) -> None:
    trials = table(
        acc=[0.5, np.nan, 0.9, 0.7],
        param_rate=[1e-5, 1e-3, 1e-1, 1e-2],
        param_kind=["relu", None, "tanh", "relu"],
        param_depth=[1.0, 2.0, np.nan, 3.0],
        param_always=[7, 7, 7, 7],
    )
    trials["status"] = ["ok", "failed", "ok", "pruned"]
    made = figure(trials, "acc", maximize)
    over, parallel, rate, kind, *_ = made.axes
    best = next(line for line in over.get_lines() if line.get_label() == "best so far")
    assert list(best.get_ydata()) == ([0.5, 0.9] if maximize else [0.5, 0.5])
    assert rate.get_xscale() == "log"
    assert [label.get_text() for label in kind.get_xticklabels()] == ["relu", "tanh"]
    assert len([line for line in parallel.get_lines() if len(line.get_xdata()) == 5]) == 3  # the failed one has no line
    made.savefig(io.BytesIO())


def test_a_parameter_of_failed_trials_alone_is_left_out() -> None:
    trials = table(loss=[0.5, np.nan, 0.7], param_x=[1.0, 2.0, 3.0], param_deep=[np.nan, 4.0, np.nan])
    trials["param_kind"] = pd.Series([None, "relu", None], dtype=object)
    trials["status"] = ["ok", "failed", "ok"]
    made = figure(trials, "loss", False)
    assert [axes.get_xlabel() for axes in made.axes] == ["trial", "", "x"]
    made.savefig(io.BytesIO())


def test_one_trial_is_enough() -> None:
    made = figure(table(loss=[0.5], param_x=[1.0]), "loss", False)
    made.savefig(io.BytesIO())
    best = next(line for line in made.axes[0].get_lines() if line.get_label() == "best so far")
    assert list(best.get_ydata()) == [0.5]
