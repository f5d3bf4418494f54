"""What a search found: a table, models, an ensemble, a picture."""

from __future__ import annotations

import pickle
import sys
from contextlib import nullcontext
from dataclasses import replace
from functools import cache
from pathlib import Path

import keras
import numpy as np
import pandas as pd
import pytest
from small_search import cancer, small

from elephas_like import VotingModel
from elephas_like.core.errors import Failure
from elephas_like.core.objective import Objective
from elephas_like.core.trials import TrialResult, TrialStatus
from elephas_like.tuning.log import ModelStore
from elephas_like.tuning.result import SearchResult
from elephas_like.tuning.runner import TrialRecord
from elephas_like.tuning.space import Sampler, Space

NO_CONSTRAINTS = Sampler(Space({"x": [1, 2]}), "random", 0)


@cache
def three() -> SearchResult:
    """A search of three trials. No test may change it."""
    return small(epochs=1)


def test_a_search_finds_and_returns_the_best_model() -> None:
    found = small(max_evals=3, epochs=3, objective="val_accuracy")
    table = found.trials
    assert list(table["trial"]) == [0, 1, 2]
    assert set(table["status"]) == {"ok"}
    assert found.best_value == table["val_accuracy"].max()
    best = table.loc[table["val_accuracy"].idxmax()]
    assert found.best_trial == best["trial"]
    assert found.best_params == best["params"] == {"units": best["param_units"], "rate": best["param_rate"]}
    assert set(best["history"]) == {"loss", "accuracy", "val_loss", "val_accuracy"}
    assert best["history"]["val_accuracy"][best["best_epoch"]] == found.best_value
    assert all(len(values) == 3 for values in best["history"].values())
    # the rows held out are those of every trial: a seeded 30 % of all rows
    x, y = cancer()
    held = np.sort(np.random.default_rng([1, 0, 0x5917]).permutation(len(x))[: int(len(x) * 0.3)])
    assert found.best_model.evaluate(x[held], y[held], verbose=0)[1] == pytest.approx(found.best_value, abs=1e-6)
    assert found.best_model is found.best_models(2)[0]
    assert [len(found), found.epochs_trained, found.epochs_saved] == [3, 9, 0]
    assert "3 ok; best val_accuracy" in repr(found)
    kept = pickle.loads(pickle.dumps(found))  # noqa: S301  # our own
    assert kept.best_params == found.best_params
    for one, other in zip(kept.best_models(2)[1].get_weights(), found.best_models(2)[1].get_weights(), strict=True):
        np.testing.assert_array_equal(one, other)
    found.best_model.fit(x, y, epochs=1, verbose=0)  # compiled, and an optimizer that goes on


def test_a_picture_shows_every_parameter(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("matplotlib")
    found = three()
    axes = found.plot().axes
    assert [a.get_xlabel() for a in axes] == ["trial", "", "rate", "units"]
    assert len(axes[1].get_lines()) == 3 + 3  # three trials, three axes
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ImportError, match=r"pictures need matplotlib: pip install"):
        found.plot()


def test_models_beyond_those_kept_are_not_promised() -> None:
    found = small(keep_models=1, epochs=1)
    with pytest.raises(
        ValueError, match=r"2 models are asked for, and 1 were kept of 3 trials that finished.*keep_models=2"
    ):
        found.best_models(2)


def test_models_that_an_earlier_session_dropped_are_not_replaced_by_worse_ones(tmp_path: Path) -> None:
    goal, store = Objective("loss"), ModelStore(1, tmp_path)
    losses = [4.0, 1.0, 3.0, 6.0, 2.0, 5.0]
    results = [TrialResult(number, TrialStatus.OK, ({"loss": loss},), 0, loss) for number, loss in enumerate(losses)]
    for result in results[:4]:
        store.offer(replace(result, model=b"m"))
        store.settle()
    store = ModelStore(3, tmp_path)
    for result in results[:4]:
        store.recall(result)
    for result in results[4:]:
        store.offer(replace(result, model=b"m"))
        store.settle()
    records = {result.number: TrialRecord(result, {"x": 1.0}, {"x": 1.0}, {"x": 1.0}) for result in results}
    found = SearchResult(records, goal, 1, store, lambda number, params, content, suffix: params, NO_CONSTRAINTS)
    assert store.numbers == [1, 4, 5]  # and trials 0 and 2 were better than 5
    assert len(found.best_models(2)) == 2
    with pytest.raises(
        ValueError, match=r"3 models are asked for, and 3 were kept of 6.*not that of trial 2, .*keep_models=3"
    ):
        found.best_models(3)


def test_the_best_make_an_ensemble() -> None:
    assert isinstance(three().best_ensemble(2, voting="soft"), VotingModel)


def test_a_table_of_trials_can_be_read() -> None:
    found = three()
    assert list(found.trials.columns)[-2:] == ["error", "history"]
    lines = found.trials.to_string().splitlines()
    assert len(lines) == 1 + 3
    assert max(map(len, lines)) < 260
    assert "<" not in found._repr_html_().split("</code>")[0].removeprefix("<p><code>")
    rows = found._repr_html_().split("<tr>")[2:]
    assert len(rows) == 3
    assert f"<td>{found.best_trial}</td>" in rows[-1]


def test_a_table_keeps_none_beside_text() -> None:
    """Also where pandas has a type of its own for text, as pandas 3: `if row.error` was true of trials without one."""
    failure = Failure.of(0, ValueError("too large"))
    results = [TrialResult(0, TrialStatus.FAILED, failure=failure), TrialResult(1, TrialStatus.OK, loss=1.0)]
    records = {
        each.number: TrialRecord(each, {"act": value}, {"act": value}, {"act": value})
        for each, value in zip(results, ("relu", None), strict=True)
    }
    with pd.option_context("future.infer_string", True) if "2.3" <= pd.__version__ < "3" else nullcontext():
        table = SearchResult(records, Objective("loss"), 1, ModelStore(1), None, NO_CONSTRAINTS).trials
    assert list(table["error"]) == ["ValueError: too large", None]
    assert list(table["param_act"]) == ["relu", None]


def test_a_search_that_ended_before_its_first_trial_is_an_empty_result() -> None:
    cut = TrialRecord(TrialResult(0, TrialStatus.INTERRUPTED), {"x": 1.0}, {"x": 1.0}, {"x": 1.0})
    for records in ({}, {0: cut}):
        found = SearchResult(records, Objective("loss"), 3, ModelStore(1), None, NO_CONSTRAINTS, interrupted=True)
        assert (found.best_trial, found.best_params, found.best_value) == (None, None, None)
        assert len(found.trials) == len(records)
        assert list(found.trials)[:3] == ["trial", "status", "loss"]
        assert "interrupted before any trial had finished" in repr(found)
        assert "interrupted before any trial" in found._repr_html_()
        found.plot()
        assert len(found.pareto_front) == 0
        with pytest.raises(ValueError, match="no best model: the search was interrupted"):
            found.best_model  # noqa: B018


def test_the_best_model_is_made_under_the_settings_of_the_search() -> None:
    """Also when they have changed since: mixed precision is part of the model that was scored."""
    keras.config.set_dtype_policy("mixed_bfloat16")
    try:
        found = small(max_evals=1, epochs=1)
    finally:
        keras.config.set_dtype_policy("float32")
    assert found.best_model.layers[0].compute_dtype == "bfloat16"
    assert keras.config.dtype_policy().name == "float32"
