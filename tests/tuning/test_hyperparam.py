"""Searches without Spark, on real data: arguments, results, resume, and Elephas' HyperParamModel."""

from __future__ import annotations

import sys
from functools import cache, partial
from pathlib import Path

import keras
import numpy as np
import pandas as pd
import pytest

from elephas_like import HyperParamModel, MedianRule, VotingModel, search
from elephas_like.core.errors import WorkerError
from elephas_like.tuning.hyperas import _objects_of

# ruff: noqa: F821  templates name distributions that nobody imports

SPACE = {"units": [4, 8], "rate": ("loguniform", -7, -3)}


@cache
def cancer() -> tuple[np.ndarray, np.ndarray]:
    """(569, 30) float32 of mean 0 and variance 1, and labels."""
    from sklearn.datasets import load_breast_cancer

    x, y = load_breast_cancer(return_X_y=True)
    return ((x - x.mean(0)) / x.std(0)).astype("float32"), y.astype("int64")


def build(params: dict) -> keras.Model:
    """Runs eagerly: a trial's few steps cost less than a graph of them. tests/integration/test_search.py has graphs."""
    model = keras.Sequential(
        [keras.Input((30,)), keras.layers.Dense(params["units"], "relu"), keras.layers.Dense(1, "sigmoid")]
    )
    optimizer = keras.optimizers.Adam(params["rate"])
    model.compile(optimizer, "binary_crossentropy", metrics=["accuracy"], run_eagerly=True)
    return model


@pytest.fixture(autouse=True)
def no_session(monkeypatch: pytest.MonkeyPatch) -> None:
    """These searches run in this process, also where other tests have left a Spark session (tests/integration has those on it)."""
    monkeypatch.setattr("elephas_like.tuning.search.active_context", lambda engine: None)


def small(**arguments: object):
    """A search of a few short trials."""
    given = {"max_evals": 3, "epochs": 2, "batch_size": 64, "validation_split": 0.3, "seed": 1, "verbose": 0}
    return search(arguments.pop("build", build), SPACE, cancer(), **(given | arguments))  # type: ignore[arg-type]


def plain(table: pd.DataFrame) -> list:
    return table.drop(columns=["seconds"]).to_dict("records")


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
    found.best_model.fit(x, y, epochs=1, verbose=0)  # compiled, and an optimizer that goes on


@pytest.mark.parametrize("algo", ["random", "tpe"])
def test_a_seed_repeats_a_search_exactly(algo: str) -> None:
    one, again = (small(algo=algo, epochs=1) for _ in range(2))
    assert plain(one.trials) == plain(again.trials)


def test_a_search_that_is_resumed_is_the_one_it_would_have_been(tmp_path: Path) -> None:
    whole = small(max_evals=4, algo="random")
    small(max_evals=2, algo="random", checkpoint_dir=tmp_path / "search")
    rates = tmp_path / "rates"

    def watched(params: dict) -> keras.Model:
        with rates.open("a") as file:  # this function is copied for each trial
            file.write(f"{params['rate']}\n")
        return build(params)

    tmp_path /= "search"
    again = small(max_evals=4, algo="random", checkpoint_dir=tmp_path, resume="auto", build=watched, seed=None)
    assert plain(again.trials) == plain(whole.trials)
    tried = rates.read_text().split()[1:]  # the first one is the driver's look
    assert tried == [str(rate) for rate in whole.trials["param_rate"][2:]]
    for one, other in zip(again.best_models(2), whole.best_models(2), strict=True):
        for left, right in zip(one.get_weights(), other.get_weights(), strict=True):
            np.testing.assert_array_equal(left, right)
    kept = keras.saving.load_model(tmp_path / "models" / f"trial-{whole.best_trial:05d}.keras")
    np.testing.assert_array_equal(kept.get_weights()[0], whole.best_model.get_weights()[0])
    assert len(small(max_evals=4, algo="random", checkpoint_dir=tmp_path, resume="auto").trials) == 4  # nothing to do
    with pytest.raises(FileExistsError, match="resume='auto'"):
        small(checkpoint_dir=tmp_path)
    with pytest.raises(ValueError, match="its epochs is 2, and this one's 7"):
        small(checkpoint_dir=tmp_path, resume="auto", algo="random", epochs=7)


def test_sizes_of_batches_may_be_searched_and_rows_be_given_apart() -> None:
    x, y = cancer()
    sizes: list[int] = []

    class Steps(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs):
            logs["steps"] = float(self.params["steps"])

    def size(params: dict) -> int:
        sizes.append(8 * params["units"])
        return sizes[-1]

    found = search(
        build,
        SPACE,
        (x[:400], y[:400], np.ones(400, "float32")),
        max_evals=4,
        epochs=1,
        batch_size=size,
        validation_data=(x[400:], y[400:]),
        callbacks=[Steps()],
        seed=0,
        verbose=0,
    )
    assert set(sizes) == {32, 64}
    assert [history["steps"] for history in found.trials["history"]] == [[-(-400 // s)] for s in sizes]
    assert found.best_model.evaluate(x[400:], y[400:], verbose=0)[0] == pytest.approx(found.best_value, rel=1e-5)


def test_a_failing_trial_is_recorded_and_all_failing_raises() -> None:
    def no_fours(params: dict) -> keras.Model:
        if params["units"] == 4:
            raise ValueError("four units are not enough")
        return build(params)

    found = small(max_evals=6, build=no_fours)
    failed = found.trials[found.trials["status"] == "failed"]
    assert len(failed)
    assert set(failed["param_units"]) == {4}
    assert set(failed["error"]) == {"ValueError: four units are not enough"}

    def never(params: dict) -> keras.Model:
        raise ValueError("never")

    with pytest.raises(WorkerError, match="all 3 trials failed") as raised:
        small(build=never)
    assert isinstance(raised.value, ValueError)


@pytest.mark.parametrize(
    ("arguments", "error", "said"),
    [
        ({"max_evals": 0}, ValueError, "max_evals must be a whole number of at least 1"),
        ({"algo": "grid"}, ValueError, "algo must be one of 'tpe', 'random', 'anneal'"),
        (
            {"objective": "val_acuracy", "direction": "max"},
            ValueError,
            "not among the metrics: 'loss', 'accuracy', 'val_loss'",
        ),
        ({"objective": "val_happiness"}, ValueError, "give direction='min' or direction='max'"),
        ({"direction": "up"}, ValueError, "direction must be one of"),
        ({"validation_split": 0.0}, ValueError, "objective='val_loss' needs rows to validate on"),
        ({"validation_data": (1, 2)}, ValueError, "validation_split or validation_data, not both"),
        ({"parallelism": 3}, ValueError, "parallelism=3 needs Spark"),
        ({"trial_workers": 2}, ValueError, "trial_workers needs Spark"),
        ({"pruning": "mean"}, ValueError, "pruning must be 'median', None, or a function"),
        ({"resume": "auto"}, ValueError, "needs a checkpoint_dir"),
        ({"resume": "yes"}, ValueError, "resume must be"),
        ({"timeout": 0}, ValueError, "timeout must be a time in seconds"),
        ({"callbacks": [3]}, TypeError, "callbacks must be"),
        ({"verbose": 7}, ValueError, "verbose must be"),
        ({"build": 3}, TypeError, "build must be a function"),
        ({"build": lambda params: 3}, TypeError, "must return a compiled keras.Model; got int"),
    ],
)
def test_bad_arguments_are_refused_before_anything_runs(arguments: dict, error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said):
        small(**arguments)


def test_an_objective_is_checked_beside_keras_own_callbacks_and_left_to_those_that_may_add_it() -> None:
    keras_own = [keras.callbacks.ReduceLROnPlateau()]
    with pytest.raises(ValueError, match="not among the metrics: 'loss', 'accuracy'"):
        small(callbacks=keras_own, objective="val_f1_score")
    small(callbacks=keras_own, objective="learning_rate", direction="min", max_evals=1, epochs=1)

    adds = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: logs.update(val_f1_score=0.25))
    assert small(callbacks=adds, objective="val_f1_score", max_evals=1, epochs=1).best_value == 0.25

    class Adds(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs):
            logs["val_f1_score"] = 0.5

    assert small(callbacks=[Adds()], objective="val_f1_score", max_evals=1, epochs=1).best_value == 0.5


def test_metrics_without_a_name_are_called_alike_in_every_trial() -> None:
    keras.metrics.AUC()  # somebody else's, in this process

    def judged(params: dict) -> keras.Model:
        model = build(params)
        model.compile(
            model.optimizer, model.loss, metrics=[keras.metrics.AUC(), keras.metrics.AUC(curve="PR")], run_eagerly=True
        )
        return model

    stops = keras.callbacks.EarlyStopping("val_auc", mode="max", patience=0, min_delta=1.0)
    found = small(build=judged, objective="val_auc_1", callbacks=[stops], epochs=3)
    assert list(found.trials["status"]) == ["ok"] * 3
    expected = {"loss", "auc", "auc_1", "val_loss", "val_auc", "val_auc_1"}
    assert all(set(history) == expected for history in found.trials["history"])
    assert list(found.trials["epochs"]) == [2] * 3  # the trials' callbacks see these names too
    x, y = cancer()
    held = np.sort(np.random.default_rng([1, 0, 0x5917]).permutation(len(x))[: int(len(x) * 0.3)])
    best = found.best_model.evaluate(x[held], y[held], verbose=0)
    assert best[2] == pytest.approx(found.best_value, abs=1e-4)  # the second one, PR
    with pytest.raises(ValueError, match="'val_loss', 'val_auc', 'val_auc_1'"):
        small(build=judged, objective="val_auc_2")


@pytest.mark.parametrize(
    ("data", "error", "said"),
    [
        (np.ones(3), TypeError, "data must be"),
        ((), ValueError, "data must be"),
        ((np.ones((0, 30)), np.ones(0)), ValueError, "no rows"),
        ((np.ones((3, 30)), np.ones(2)), ValueError, "same number of rows"),
        (pd.DataFrame({"x": [1]}), TypeError, "data must be"),
    ],
)
def test_bad_data_is_refused(data: object, error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said):
        search(build, SPACE, data, max_evals=1, epochs=1, objective="loss", verbose=0)


def test_verbosity(capfd: pytest.CaptureFixture[str]) -> None:
    small(verbose=0, max_evals=1, epochs=1)
    assert capfd.readouterr() == ("", "")
    small(verbose=1, max_evals=1, epochs=1)
    shown = capfd.readouterr()
    assert "1/1" in shown.err
    assert "best val_loss: 0." in shown.err
    small(verbose=2, max_evals=1, epochs=1)
    assert capfd.readouterr().out.startswith("trial 0: ok, val_loss 0.")


def test_a_picture_shows_every_parameter(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("matplotlib")
    found = small(epochs=1)
    axes = found.plot().axes
    assert [a.get_xlabel() for a in axes] == ["trial", "", "rate", "units"]
    assert len(axes[1].get_lines()) == 3 + 3  # three trials, three axes
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ImportError, match=r"plot\(\) needs matplotlib: pip install"):
        found.plot()


def test_models_beyond_those_kept_are_not_promised() -> None:
    found = small(keep_models=1, epochs=1)
    with pytest.raises(
        ValueError, match=r"2 models are asked for, and 1 were kept of 3 trials that finished.*keep_models=2"
    ):
        found.best_models(2)


def test_a_rule_of_ones_own_and_medians() -> None:
    found = small(max_evals=3, epochs=5, pruning=lambda losses, others: len(others) > 0 and len(losses) == 2)
    assert list(found.trials["status"]) == ["ok", "pruned", "pruned"]
    assert [found.epochs_trained, found.epochs_saved] == [9, 6]
    assert found.best_trial == 0
    assert small(pruning=MedianRule(min_trials=1)).trials["status"].isin(["ok", "pruned"]).all()


def test_the_best_make_an_ensemble() -> None:
    assert isinstance(small().best_ensemble(2, voting="soft"), VotingModel)


# Elephas' names.


def data():
    x, y = cancer()
    return x[:400], y[:400], x[400:], y[400:]


def templated(x_train, y_train, x_test, y_test):
    model = keras.Sequential([keras.Input((30,)), keras.layers.Dense({{choice([4, 8])}}, "relu")])  # type: ignore
    model.add(keras.layers.Dropout({{uniform(0, 0.5)}}))  # type: ignore
    model.add(keras.layers.Dense(1, "sigmoid"))
    model.compile({{choice(["adam", "rmsprop"])}}, "binary_crossentropy", metrics=["accuracy"])  # type: ignore
    model.fit(x_train, y_train, batch_size={{choice([32, 64])}}, epochs=2, verbose=0)  # type: ignore
    accuracy = model.evaluate(x_test, y_test, verbose=0)[1]
    return {"loss": -accuracy, "status": "ok", "model": model, "seen": len(x_train)}


def accuracy_of(model: keras.Model) -> float:
    _, _, x, y = data()
    return float(((model.predict(x, verbose=0)[:, 0] > 0.5) == y).mean())


def test_hyperas_functions_run_as_in_elephas() -> None:
    elephas = HyperParamModel(None, num_workers=2, seed=3, verbose=0)
    (trials,) = elephas.compute_trials(templated, data, max_evals=3, notebook_name="any")
    assert sorted(trials.trials[0]["misc"]["vals"]) == ["Dense", "Dropout", "batch_size", "compile"]
    losses = sorted(trials.losses())
    assert all(result["seen"] == 400 for result in trials.results)
    rebuilt = keras.models.model_from_json(trials.best_trial["result"]["model"])
    rebuilt.set_weights(trials.best_trial["result"]["weights"])
    assert accuracy_of(rebuilt) == pytest.approx(-losses[0])

    models = elephas.best_models(2, templated, data, max_evals=3)
    assert [accuracy_of(model) for model in models] == pytest.approx([-losses[0], -losses[1]])
    assert accuracy_of(elephas.minimize(templated, data, max_evals=3)) == pytest.approx(-losses[0])
    with pytest.raises(ValueError, match="nb_models=4 of max_evals=3"):
        elephas.best_models(4, templated, data, max_evals=3)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"voting": "sof"}, "Did you mean 'soft'"),
        ({"weights": [1]}, "weights must be one number per model: expected 2, got 1"),
        ({"nb_ensemble_models": 4}, "nb_models=4 of max_evals=3"),
        ({"nb_ensemble_models": 0}, "nb_ensemble_models must be a whole number"),
    ],
)
def test_bad_ensembles_are_refused_before_anything_runs(arguments: dict, said: str) -> None:
    def never(*rows: object) -> float:
        raise AssertionError("it ran")

    given = {"nb_ensemble_models": 2, "model": never, "data": never, "max_evals": 3, "space": {"x": [1, 2]}}
    with pytest.raises(ValueError, match=said):
        HyperParamModel(None, verbose=0).best_ensemble(**(given | arguments))


def test_plain_functions_bring_their_space() -> None:
    def square(params, x):
        return (params["x"] - x) ** 2

    elephas = HyperParamModel(None, algo="random", seed=0, verbose=0)
    (trials,) = elephas.compute_trials(square, lambda: (0.25,), 10, space={"x": ("uniform", 0, 1)})
    assert len(trials.trials) == 10
    assert trials.losses() == pytest.approx([(x - 0.25) ** 2 for x in trials.vals["x"]])
    with pytest.raises(ValueError, match="0 trials returned one"):
        elephas.minimize(square, lambda: (0.25,), 2, space={"x": ("uniform", 0, 1)})
    with pytest.raises(ValueError, match="square has no templates"):
        elephas.minimize(square, data, 2)
    with pytest.raises(ValueError, match="not both"):
        elephas.minimize(templated, data, 2, space={"x": [1]})
    with pytest.raises(TypeError, match="data must be a function"):
        elephas.minimize(square, 3, 2, space={"x": [1]})


def doubled(x):
    return 2 * x


def fitted(activation, weight, loss):
    model = keras.Sequential([keras.Input((30,)), keras.layers.Dense(1, activation)])
    model.set_weights([np.full((30, 1), weight), np.zeros(1)])
    return {"loss": loss, "model": model}


def fits(scale, params, *rows):
    return fitted(doubled, scale * params["x"], params["x"])


class Fits:
    def __call__(self, params, *rows):
        return fitted(doubled, 2.0 * params["x"], params["x"])


@pytest.mark.parametrize("function", [partial(partial(fits), 2.0), Fits(), Fits().__call__])
def test_models_come_back_from_whatever_can_be_called(function) -> None:
    elephas = HyperParamModel(None, algo="random", seed=0, verbose=0)
    model = elephas.minimize(function, data, 2, space={"x": ("uniform", 0, 1)})
    (trials,) = elephas.compute_trials(function, data, 2, space={"x": ("uniform", 0, 1)})
    np.testing.assert_allclose(model.get_weights()[0], 2.0 * min(trials.losses()), rtol=1e-6)


def test_what_a_function_refers_to_is_found_where_there_is_code_to_read() -> None:
    assert _objects_of(partial(partial(fits), 2.0)) == {"doubled": doubled, "fitted": fitted}
    assert _objects_of(partial(max, 1)) == {}


def test_data_of_the_wrong_kind_is_refused_before_a_model_is_built() -> None:
    def never(params: dict) -> keras.Model:
        raise AssertionError("a model was built")

    with pytest.raises(TypeError, match="generators and iterators live on one machine"):
        search(never, SPACE, (row for row in ()), max_evals=1, verbose=0, objective="loss")
    with pytest.raises(TypeError, match="validation_data must be"):
        search(never, SPACE, cancer(), max_evals=1, verbose=0, validation_data=3)
