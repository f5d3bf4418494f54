"""Searches without Spark, on real data: arguments, results, resume."""

from __future__ import annotations

from pathlib import Path

import keras
import numpy as np
import pandas as pd
import pytest
from small_search import SPACE, build, cancer, plain, small

from elephas_like import MedianRule, search
from elephas_like.core.errors import ElephasWarning, WorkerError


def test_a_seed_repeats_a_search_exactly() -> None:
    one, again = (small(algo="tpe", epochs=1) for _ in range(2))
    assert plain(one.trials) == plain(again.trials)


def test_a_search_that_is_resumed_is_the_one_it_would_have_been(tmp_path: Path) -> None:
    whole = small(max_evals=3, algo="random", epochs=1)
    small(max_evals=1, algo="random", epochs=1, checkpoint_dir=tmp_path / "search")
    rates = tmp_path / "rates"

    def watched(params: dict) -> keras.Model:
        with rates.open("a") as file:  # this function is copied for each trial
            file.write(f"{params['rate']}\n")
        return build(params)

    tmp_path /= "search"
    told = {"max_evals": 3, "algo": "random", "epochs": 1, "checkpoint_dir": tmp_path, "resume": "auto"}
    again = small(**told, build=watched, seed=None)
    assert plain(again.trials) == plain(whole.trials)
    tried = rates.read_text().split()[1:]  # the first one is the driver's look
    assert tried == [str(rate) for rate in whole.trials["param_rate"][1:]]
    for one, other in zip(again.best_models(2), whole.best_models(2), strict=True):
        for left, right in zip(one.get_weights(), other.get_weights(), strict=True):
            np.testing.assert_array_equal(left, right)
    kept = keras.saving.load_model(tmp_path / "models" / f"trial-{whole.best_trial:05d}.keras")
    np.testing.assert_array_equal(kept.get_weights()[0], whole.best_model.get_weights()[0])
    assert len(small(**told).trials) == 3  # nothing to do
    with pytest.raises(FileExistsError, match="resume='auto'"):
        small(checkpoint_dir=tmp_path)
    with pytest.raises(ValueError, match="its epochs is 1, and this one's 7"):
        small(**(told | {"epochs": 7}))


def test_sizes_of_batches_may_be_searched_and_rows_be_given_apart() -> None:
    x, y = cancer()
    sizes: list[int] = []

    class Steps(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs):
            logs["steps"] = float(self.params["steps"])

    def size(params: dict) -> float:
        sizes.append(32 * params["units"])
        return float(sizes[-1])  # as `quniform` draws them

    found = search(
        build,
        SPACE,
        (x[:400], y[:400], np.ones(400, "float32")),
        max_evals=3,
        epochs=1,
        batch_size=size,
        validation_data=(x[400:], y[400:]),
        callbacks=[Steps()],
        seed=6,
        verbose=0,
    )
    assert set(sizes) == {128, 256}
    assert [history["steps"] for history in found.trials["history"]] == [[-(-400 // s)] for s in sizes]
    assert found.best_model.evaluate(x[400:], y[400:], verbose=0)[0] == pytest.approx(found.best_value, rel=1e-5)


@pytest.mark.parametrize("held", [False, True])
def test_each_model_has_copies_of_the_keras_objects_in_the_space_and_of_those_that_the_function_holds(held) -> None:
    x, y = cancer()
    base, adam = keras.layers.Dense(5), keras.optimizers.Adam(0.05)

    def build(params: dict) -> keras.Model:
        base.trainable = params["units"] == 3  # what one trial freezes another one trains
        layers = [keras.Input((30,)), base, keras.layers.Dense(params["units"]), params["act"]]
        model = keras.Sequential([*layers, keras.layers.Dense(1, activation="sigmoid")])
        model.compile(
            adam if held else params["optimizer"], "binary_crossentropy", metrics=["accuracy"], run_eagerly=True
        )
        return model

    goal = "val_accuracy" if held else "val_loss"
    found = search(
        build,
        {"units": [2, 3], "act": [keras.layers.PReLU()], "optimizer": [keras.optimizers.Adam(0.05)]},
        x[:400],
        y[:400],
        max_evals=3,
        objective=goal,
        epochs=1,
        validation_data=(x[400:], y[400:]),
        seed=6,
        verbose=0,
    )
    assert list(found.trials["status"]) == ["ok"] * 3
    assert list(found.trials["param_units"]) == [2, 3, 2]
    scores = []
    for model in found.best_models(3):
        scores.append(model.evaluate(x[400:], y[400:], batch_size=169, verbose=0)[int(held)])
    np.testing.assert_allclose(scores, sorted(found.trials[goal], reverse=held), rtol=1e-5)
    if held:
        return
    build(found.best_params).fit(x[:64], y[:64], verbose=0)  # the objects of the space are as they were given


def test_what_models_are_built_on_stays_as_it_is() -> None:
    x, y = cancer()
    base = keras.Sequential([keras.Input((30,)), keras.layers.Dense(5)])
    start = base.get_weights()

    def build(params: dict) -> keras.Model:
        model = keras.Sequential([keras.Input((30,)), base, keras.layers.Dense(1, activation="sigmoid")])
        model.compile(keras.optimizers.Adam(params["rate"]), "binary_crossentropy", run_eagerly=True)
        return model

    told = {"max_evals": 2, "epochs": 1, "validation_data": (x[400:], y[400:]), "seed": 6, "verbose": 0}
    found = search(build, {"rate": [0.1, 0.01]}, (x[:400], y[:400]), **told)
    assert found.best_model.evaluate(x[400:], y[400:], verbose=0) == pytest.approx(found.best_value, rel=1e-5)
    for weight, before in zip(base.get_weights(), start, strict=True):
        np.testing.assert_array_equal(weight, before)


def test_a_batch_size_that_is_none_is_said() -> None:
    told = {"max_evals": 2, "epochs": 1, "objective": "loss", "verbose": 0}
    with pytest.raises(WorkerError, match=r"(?s)all 2 trials failed.*batch_size must be .*; got 2\.5"):
        search(build, SPACE, cancer(), batch_size=lambda params: 2.5, **told)


def test_columns_of_pandas_go_to_inputs_by_name() -> None:
    def known(params: dict) -> keras.Model:
        """Predicts a + 100 b, so that columns in their places have no loss."""
        both, dense = [keras.Input((1,), name=name) for name in "ab"], keras.layers.Dense(1, use_bias=False)
        model = keras.Model(both, dense(keras.layers.Concatenate()(both)))
        dense.set_weights([np.array([[1.0], [100.0]])])
        model.compile(keras.optimizers.SGD(params["rate"]), "mse", run_eagerly=True)
        return model

    frame = pd.DataFrame({"a": [1.0, 2.0], "b": [3.0, 4.0], "y": [301.0, 402.0]})
    told = {"max_evals": 1, "epochs": 1, "validation_data": frame, "verbose": 0}
    found = search(known, {"rate": [0.1]}, frame, features_col=["b", "a"], label_col="y", **told)
    assert found.trials["history"][0] == {"loss": [0.0], "val_loss": [0.0]}


def test_a_failing_trial_is_recorded_and_all_failing_raises() -> None:
    def no_fours(params: dict) -> keras.Model:
        if params["units"] == 4:
            raise ValueError("four units are not enough")
        return build(params)

    found = small(max_evals=4, epochs=1, build=no_fours)
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
        ({"pruning": "mean"}, ValueError, "pruning must be 'median', 'asha', 'hyperband', None, or a function"),
        ({"resume": "auto"}, ValueError, "needs a checkpoint_dir"),
        ({"resume": "yes"}, ValueError, "resume must be"),
        ({"timeout": 0}, ValueError, "timeout must be a time in seconds"),
        ({"callbacks": [3]}, TypeError, "callbacks must be"),
        (
            {"callbacks": [keras.callbacks.BackupAndRestore("x")]},
            ValueError,
            "a trial would go on from the weights of another",
        ),
        ({"verbose": 7}, ValueError, "verbose must be"),
        ({"build": 3}, TypeError, "build must be a function"),
        ({"build": lambda params: 3}, TypeError, "must return a compiled keras.Model; got int"),
    ],
)
def test_bad_arguments_are_refused_before_anything_runs(arguments: dict, error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said):
        small(**arguments)


@pytest.mark.skipif(not hasattr(keras.config, "set_max_steps_per_epoch"), reason="this Keras has no limit of steps")
def test_keras_limits_of_epochs_count() -> None:
    keras.config.set_max_steps_per_epoch(2)
    try:
        with pytest.raises(ValueError, match="epochs of 2 steps"):
            small()
    finally:
        keras.config.set_max_steps_per_epoch(None)


def test_metrics_without_a_name_are_called_alike_in_every_trial() -> None:
    keras.metrics.AUC()  # somebody else's, in this process

    def judged(params: dict) -> keras.Model:
        model = build(params)
        model.compile(
            model.optimizer, model.loss, metrics=[keras.metrics.AUC(), keras.metrics.AUC(curve="PR")], run_eagerly=True
        )
        return model

    stops = keras.callbacks.EarlyStopping("val_auc", mode="max", patience=0, min_delta=1.0)
    found = small(build=judged, objective="val_auc_1", callbacks=[stops], max_evals=2, epochs=3)
    assert list(found.trials["status"]) == ["ok"] * 2
    expected = {"loss", "auc", "auc_1", "val_loss", "val_auc", "val_auc_1"}
    assert all(set(history) == expected for history in found.trials["history"])
    assert list(found.trials["epochs"]) == [2] * 2  # the trials' callbacks see these names too
    x, y = cancer()
    held = np.sort(np.random.default_rng([1, 0, 0x5917]).permutation(len(x))[: int(len(x) * 0.3)])
    best = found.best_model.evaluate(x[held], y[held], verbose=0)
    assert best[2] == pytest.approx(found.best_value, abs=1e-4)  # the second one, PR
    with pytest.raises(ValueError, match="'val_loss', 'val_auc', 'val_auc_1'"):
        small(build=judged, objective="val_auc_2")


def test_verbosity(capfd: pytest.CaptureFixture[str]) -> None:
    small(verbose=0, max_evals=1, epochs=1)
    assert capfd.readouterr() == ("", "")
    small(verbose=1, max_evals=1, epochs=1)
    shown = capfd.readouterr()
    assert "1/1" in shown.err
    assert "best val_loss: 0." in shown.err
    small(verbose=2, max_evals=1, epochs=1)
    assert capfd.readouterr().out.startswith("trial 0: ok, val_loss 0.")


def test_a_rule_of_ones_own_and_medians() -> None:
    found = small(max_evals=3, epochs=3, pruning=lambda losses, others: len(others) > 0 and len(losses) == 2)
    assert list(found.trials["status"]) == ["ok", "pruned", "pruned"]
    assert [found.epochs_trained, found.epochs_saved] == [7, 2]
    assert found.best_trial == 0
    assert small(pruning=MedianRule(min_trials=1)).trials["status"].isin(["ok", "pruned"]).all()


def test_a_model_that_build_makes_otherwise_by_now_is_said(tmp_path: Path) -> None:
    """Weights of another activation have the same shapes."""

    def changed(params: dict) -> keras.Model:
        model = build(params)
        model.layers[0].activation = keras.activations.sigmoid
        return model

    told = {"algo": "random", "checkpoint_dir": tmp_path}
    assert small(max_evals=1, **told).best_model is not None
    with pytest.warns(ElephasWarning, match=r"^build\(params\) makes another model now than trial 0 has trained"):
        assert small(max_evals=1, resume="auto", build=changed, **told).best_model is not None


def test_a_search_by_optuna_is_resumed_as_it_would_have_gone_on(tmp_path: Path) -> None:
    first = [{"units": 8, "rate": 0.01}]
    given = {"algo": "optuna", "epochs": 1, "first_points": first}
    whole = small(max_evals=3, **given)
    assert whole.trials["params"][0] == first[0]
    small(max_evals=2, **given, checkpoint_dir=tmp_path)
    again = small(max_evals=3, **given, checkpoint_dir=tmp_path, resume="auto", seed=None)
    assert plain(again.trials) == plain(whole.trials)
    assert set(again.importances()) == {"units", "rate"}
    assert again.optuna_study.best_value == again.best_value
    assert again.hyperopt_trials.losses() == list(again.trials["val_loss"])
    with pytest.raises(ValueError, match="its first_points is"):
        small(max_evals=3, algo="optuna", epochs=1, checkpoint_dir=tmp_path, resume="auto")
    with pytest.raises(ValueError, match="its algo is 'optuna', and this one's 'tpe'"):
        small(max_evals=3, **(given | {"algo": "tpe"}), checkpoint_dir=tmp_path, resume="auto")


def test_models_may_have_several_objectives() -> None:
    found = small(algo="optuna", objective=["val_loss", "val_accuracy"], epochs=2)
    best = found.trials.loc[found.trials["val_loss"].idxmin()]
    assert best["val_accuracy"] == best["history"]["val_accuracy"][best["best_epoch"]]
    assert best["trial"] in set(found.pareto_front["trial"])
    with pytest.raises(ValueError, match="objective 'val_auc' is not among the metrics"):
        small(algo="optuna", objective=["val_loss", "val_auc"])


def test_the_best_model_has_what_its_build_drew_that_is_no_weight() -> None:
    """A random part of the columns, say: another one would be another function of the same weights."""
    x, y = cancer()

    def of_some_columns(params):
        chosen = np.random.permutation(30)[:8]
        inputs = keras.Input((30,))
        model = keras.Model(inputs, keras.layers.Dense(1, "sigmoid")(keras.ops.take(inputs, chosen, axis=1)))
        model.compile(keras.optimizers.SGD(params["rate"]), "binary_crossentropy", run_eagerly=True)
        return model

    found = search(
        of_some_columns,
        {"rate": [0.02, 0.05]},
        (x, y),
        max_evals=4,
        epochs=2,
        validation_data=(x, y),
        seed=3,
        verbose=0,
    )
    for number, model in zip(found.trials.sort_values("val_loss")["trial"], found.best_models(4), strict=False):
        reported = found.trials.set_index("trial").loc[number, "val_loss"]
        assert model.evaluate(x, y, verbose=0) == pytest.approx(reported, rel=1e-4)


def test_a_batch_size_that_cannot_be_told_is_its_trials_failure() -> None:
    asked = []

    def size(params: dict) -> int:
        asked.append(params)
        return {1: 150}[len(asked)]

    trials = small(batch_size=size, max_evals=3).trials
    assert trials["status"].tolist() == ["ok", "failed", "failed"]
    assert "KeyError: 2" in trials["error"][1]
