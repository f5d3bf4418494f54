"""Searches over plain functions, without Spark: trials, pruning, arguments, resume."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import cloudpickle
import optuna
import pytest

from elephas_like import search
from elephas_like.core.errors import WorkerError
from elephas_like.core.objective import Objective
from elephas_like.core.trials import TrialOrder
from elephas_like.engine.function_settings import FunctionSettings
from elephas_like.engine.function_trials import ObjectiveTrial
from elephas_like.trainer.code import pickle_by_value
from elephas_like.trainer.keras_settings import KerasSettings

SPACE = {"x": ("uniform", -1, 1), "shift": [0, 2]}


@pytest.fixture(autouse=True)
def no_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("elephas_like.tuning.function_search.context_for", lambda data, engine: None)


def square(params: dict) -> float:
    return params["x"] ** 2 + params["shift"]


def learns(params: dict, trial) -> None:
    """A curve that falls to the square."""
    for step in range(1, 10):
        if not trial.report(square(params) + 1 / step):
            return


def small(function: Callable = square, **arguments: object):
    return search(function, SPACE, **({"max_evals": 12, "seed": 0, "verbose": 0} | arguments))  # type: ignore[arg-type]


@pytest.mark.parametrize("algo", ["tpe", "optuna"])
def test_any_function_is_searched(algo: str) -> None:
    found = small(algo=algo, max_evals=40)
    assert found.objective == "loss"
    assert found.best_value == square(found.best_params) == found.trials["loss"].min() < 0.05
    assert set(found.trials["status"]) == {"ok"}
    assert set(found.importances()) == {"x", "shift"}
    for asked in (lambda: found.best_model, lambda: found.best_models(1), lambda: found.best_ensemble(1)):
        with pytest.raises(ValueError, match="a search over a function keeps no models"):
            asked()


def test_a_function_of_trials_in_this_process_may_hold_what_cannot_be_pickled() -> None:
    lock = threading.Lock()

    def alone(params: dict) -> float:
        with lock:
            return square(params)

    assert small(alone).best_value == small().best_value


def test_reports_are_judged_and_bad_trials_stop() -> None:
    found = small(learns, pruning=lambda losses, others: len(losses) == 3 and len(others) >= 2)
    assert list(found.trials["status"]) == ["ok", "ok", *["pruned"] * 10]
    assert list(found.trials["epochs"]) == [9, 9, *[3] * 10]
    assert found.epochs_saved == 60
    assert small(learns, pruning=None).epochs_trained == 12 * 9
    asha = small(learns, pruning="asha")
    assert asha.epochs_saved > 0
    assert asha.best_value == pytest.approx(square(asha.best_params) + 1 / 9)


def test_more_of_a_named_objective_may_be_better() -> None:
    found = small(lambda params: {"accuracy": 1 - square(params), "name": f"{params['shift']}"}, objective="accuracy")
    assert found.maximize
    assert found.best_value == found.trials["accuracy"].max()
    assert list(found.trials["notes"]) == [{"name": str(params["shift"])} for params in found.trials["params"]]


def test_errors_are_recorded_and_all_failing_raises() -> None:
    def no_zeros(params: dict) -> float:
        if params["shift"] == 0:
            raise ValueError("no zeros")
        return square(params)

    found = small(no_zeros)
    failed = found.trials[found.trials["status"] == "failed"]
    assert set(failed["param_shift"]) == {0}
    assert set(failed["error"]) == {"ValueError: no zeros"}
    with pytest.raises(WorkerError, match=r"all 12 trials failed.*search\(build, space, data"):
        small(lambda params: object())


@pytest.mark.parametrize("algo", ["random", "optuna"])
def test_a_search_is_resumed_as_it_would_have_gone_on(algo: str, tmp_path: Path) -> None:
    def shown(found) -> list:
        return found.trials.drop(columns=["seconds"]).to_dict("records")

    given = {"algo": algo, "first_points": [{"x": 0.5, "shift": 2}]}
    small(max_evals=5, checkpoint_dir=tmp_path, **given)
    again = small(max_evals=15, checkpoint_dir=tmp_path, resume="auto", **given)
    assert shown(again) == shown(small(max_evals=15, **given))
    assert again.trials["loss"][0] == 2.25
    with pytest.raises(ValueError, match="its objective is"):
        small(checkpoint_dir=tmp_path, resume="auto", objective="accuracy", **given)
    for changed, said in (
        ({"x": ("uniform", -1, 3)}, r"its space is '... x: 1 ...', and this one's '... x: 3 ...'\. Give the same"),
        (
            {"z": ("uniform", -1, 1)},
            r"its space is '... shift: x = float hyperopt_param ...', and this one's '... shift: z =",
        ),
    ):
        with pytest.raises(ValueError, match=said):
            search(square, {"shift": [0, 2]} | changed, max_evals=9, algo=algo, checkpoint_dir=tmp_path, resume="auto")


@pytest.mark.filterwarnings("ignore::optuna.exceptions.ExperimentalWarning")
@pytest.mark.parametrize("evals", [3, 6])
@pytest.mark.parametrize("algo", ["GridSampler", "BruteForceSampler"])
def test_a_search_ends_with_the_last_point_of_a_grid_also_when_resumed(algo: str, evals: int, tmp_path: Path) -> None:
    def tried(evals: int) -> list[int]:
        grid = ({"n": [0, 1, 2]},) if algo == "GridSampler" else ()
        given = {"max_evals": evals, "seed": 0, "verbose": 0, "checkpoint_dir": tmp_path, "resume": "auto"}
        sampler = getattr(optuna.samplers, algo)(*grid)
        return list(
            search(lambda params: float(params["n"]), {"n": [4, 5, 6]}, algo=sampler, **given).trials["param_n"]
        )

    first = tried(2)
    assert len(set(first)) == 2
    assert sorted(tried(evals)) == [4, 5, 6]
    assert tried(evals)[:2] == first
    assert len(tried(evals)) == 3


@pytest.mark.parametrize(
    ("arguments", "error", "said"),
    [
        ({"batch_size": 16}, ValueError, "batch_size is for Keras models and their data, and search was given no data"),
        ({"validation_data": ([1], [2])}, ValueError, "validation_data is for Keras models"),
        ({"trial_workers": 2}, ValueError, "trial_workers is for Keras models"),
        ({"function": 3}, TypeError, "without data, search needs a function"),
        ({"objective": "happiness"}, ValueError, "give direction='min' or direction='max'"),
        ({"pruning": "hyperband"}, ValueError, "pruning='hyperband' needs epochs="),
        ({"epochs": 0}, ValueError, "epochs must be"),
        ({"parallelism": 3}, ValueError, "parallelism=3 needs Spark"),
        ({"algo": "grid"}, ValueError, "algo must be one of 'tpe', 'random', 'anneal', 'optuna'"),
    ],
)
def test_bad_arguments_are_refused_before_anything_runs(arguments: dict, error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said):
        small(**arguments)


def test_several_objectives_have_a_front_of_compromises(tmp_path: Path) -> None:
    def costs(params: dict) -> dict:
        return {"miss": params["x"] ** 2, "size": (params["x"] - 1) ** 2, "kept": "yes"}

    given = {"objective": ["miss", "size"], "direction": "min", "algo": "optuna"}
    found = search(costs, {"x": ("uniform", -1, 2)}, max_evals=40, seed=0, verbose=0, **given)
    front = found.pareto_front
    assert len(front) >= 3
    assert front["miss"].is_monotonic_increasing
    assert front["size"].is_monotonic_decreasing
    assert all(0 <= params["x"] <= 1 for params in front["params"][1:-1])  # between the two least points
    assert found.best_value == found.trials["miss"].min() == front["miss"][0]
    assert len(found.optuna_study.best_trials) == len(front)
    assert [axes.get_ylabel() for axes in found.plot().axes][-1] == "size"
    few = {"max_evals": 3, "seed": 0, "verbose": 0, "checkpoint_dir": tmp_path}
    search(costs, {"x": ("uniform", -1, 2)}, **few, **given)
    again = search(costs, {"x": ("uniform", -1, 2)}, **(few | {"max_evals": 12}), **given, resume="auto")
    assert list(again.trials["size"]) == list(found.trials["size"][:12])
    with pytest.raises(ValueError, match="its more_objectives is"):
        search(costs, {"x": ("uniform", -1, 2)}, **few, **(given | {"objective": "miss"}), resume="auto")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"algo": "tpe"}, "several objectives need algo='optuna'"),
        ({"algo": "optuna", "pruning": "median"}, "several objectives have no order to prune trials by"),
    ],
)
def test_what_several_objectives_cannot_have_is_refused(arguments: dict, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        small(objective=["loss", "mse"], **arguments)


@pytest.mark.filterwarnings("ignore:`constraints_func` has been deprecated:FutureWarning")
@pytest.mark.filterwarnings("ignore::optuna.exceptions.ExperimentalWarning")
def test_trials_that_do_not_meet_a_samplers_constraints_are_not_the_best(tmp_path: Path) -> None:
    def both(params: dict) -> dict:
        return {"loss": params["x"] ** 2, "other": (params["x"] - 1) ** 2, "size": 1 + params["x"]}

    def sampler() -> optuna.samplers.BaseSampler:
        return optuna.samplers.TPESampler(
            seed=3, n_startup_trials=2, constraints_func=lambda trial: (1.5 - trial.user_attrs["size"],)
        )

    given = {"objective": ["loss", "other"], "direction": ["min", "min"], "checkpoint_dir": tmp_path}
    for evals in (6, 12):  # the second time from the log
        found = small(both, algo=sampler(), max_evals=evals, resume="auto", **given)
        met = found.trials[[notes["size"] >= 1.5 for notes in found.trials["notes"]]]
        assert 0 < len(met) < evals
        assert found.best_value == met["loss"].min() > found.trials["loss"].min()
        assert set(found.pareto_front["trial"]) <= set(met["trial"])
        assert found._report()["best"][0] == found.best_trial
        (star,) = [line for line in found.plot().axes[0].lines if line.get_marker() == "*"]
        assert star.get_ydata() == [found.best_value]
        if not optuna.__version__.startswith("3."):  # which leaves it to its samplers
            best = {trial.user_attrs["trial"] for trial in found.optuna_study.best_trials}
            assert best == set(found.pareto_front["trial"])
    none = small(both, algo=optuna.samplers.TPESampler(constraints_func=lambda trial: (1,)), max_evals=2)
    assert none.best_params is None
    assert none._report()["best"] is None
    assert not [line for line in none.plot().axes[0].lines if line.get_marker() == "*"]
    assert "2 ok; no trial meets the constraints of the sampler" in repr(none)


@pytest.mark.parametrize("floatx", ["float32", "float64"])
def test_a_function_that_uses_keras_has_the_settings_of_whoever_searches(floatx: str) -> None:
    import keras

    def seen(params: dict) -> dict:
        return {"loss": 0.0, "seen": keras.config.floatx(), "policy": keras.config.dtype_policy().name}

    before = keras.config.floatx()
    keras.config.set_floatx(floatx)
    try:
        settings = KerasSettings.current()
        trial = ObjectiveTrial(
            pickle_by_value([seen]),
            Objective("loss"),
            0,
            False,
            FunctionSettings(cloudpickle.dumps(settings.applied), settings.plain),
        )
        keras.config.set_floatx("float16")  # what runs in a process before it
        notes = trial(TrialOrder(0, {}), (), lambda epoch, logs: True).notes
        assert keras.config.floatx() == "float16"
    finally:
        keras.config.set_floatx(before)
    assert settings.plain is (floatx == "float32")
    assert notes == {"seen": floatx, "policy": "float32"}


def test_a_search_with_functions_among_its_first_points_goes_on(tmp_path: Path) -> None:
    def made():  # as another process makes it: the same function at another address
        def bent(x):
            return x

        return bent

    for function in (kept := [made(), made()]):
        found = search(
            lambda params: 1.0,
            {"act": [function, "tanh"]},
            max_evals=2,
            first_points=[{"act": function}],
            seed=0,
            checkpoint_dir=tmp_path,
            resume="auto",
            verbose=0,
        )
        assert len(found.trials) == 2
    assert len(kept) == 2
