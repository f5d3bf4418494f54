"""Elephas' searches, over functions in hyperas' form."""

from __future__ import annotations

import types
from functools import partial

import keras
import numpy as np
import pytest
from small_search import cancer

from elephas_like import HyperParamModel
from elephas_like.tuning.hyperas import _objects_of

# ruff: noqa: F821  templates name distributions that nobody imports


def data():
    x, y = cancer()
    return x[:400], y[:400], x[400:], y[400:]


def templated(x_train, y_train, x_test, y_test):
    model = keras.Sequential([keras.Input((30,)), keras.layers.Dense({{choice([4, 8])}}, "relu")])  # type: ignore
    model.add(keras.layers.Dropout({{uniform(0, 0.5)}}))  # type: ignore
    model.add(keras.layers.Dense(1, "sigmoid"))
    model.compile({{choice(["adam", "rmsprop"])}}, "binary_crossentropy", metrics=["accuracy"])  # type: ignore
    model.run_eagerly = True  # a few steps cost less than graphs of them
    model.fit(x_train, y_train, batch_size={{choice([100, 200])}}, epochs=2, verbose=0)  # type: ignore
    accuracy = model.evaluate(x_test, y_test, batch_size=len(x_test), verbose=0)[1]
    return {"loss": -accuracy, "status": "ok", "model": model, "seen": len(x_train)}


def accuracy_of(model: keras.Model) -> float:
    _, _, x, y = data()
    return float(((np.asarray(model(x))[:, 0] > 0.5) == y).mean())


def test_hyperas_functions_run_as_in_elephas() -> None:
    elephas = HyperParamModel(None, num_workers=2, seed=3, verbose=0)
    (trials,) = elephas.compute_trials(templated, data, max_evals=2, notebook_name="any")
    assert sorted(trials.trials[0]["misc"]["vals"]) == ["Dense", "Dropout", "batch_size", "compile"]
    losses = sorted(trials.losses())
    assert all(result["seen"] == 400 for result in trials.results)
    rebuilt = keras.models.model_from_json(trials.best_trial["result"]["model"])
    rebuilt.set_weights(trials.best_trial["result"]["weights"])
    assert accuracy_of(rebuilt) == pytest.approx(-losses[0])

    models = elephas.best_models(2, templated, data, max_evals=2)
    assert [accuracy_of(model) for model in models] == pytest.approx([-losses[0], -losses[1]])
    assert accuracy_of(elephas.minimize(templated, data, max_evals=2)) == pytest.approx(-losses[0])
    assert elephas.best_loss == pytest.approx(losses[0])
    assert elephas.best_params
    with pytest.raises(ValueError, match="nb_models=3 of max_evals=2"):
        elephas.best_models(3, templated, data, max_evals=2)


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


class Own(keras.layers.Layer):
    def call(self, x):
        return 2 * x


class Named:
    Own = Own


class Parted(keras.Model):
    def __init__(self, **options):
        super().__init__(**options)
        self.parts = [in_a_helper(2)]

    def call(self, x):
        return self.parts[0](x)

    def get_config(self):
        return {}


def own_loss(y, predicted):
    return keras.ops.mean(keras.ops.abs(y - predicted))


def in_a_helper(units):
    return keras.Sequential([keras.Input((1,)), Own(), keras.layers.Dense(units)])


@pytest.mark.parametrize(
    "made",
    [
        lambda: in_a_helper(1),
        lambda: keras.Sequential([keras.Input((1,)), *[Own() for _ in range(2)]]),
        lambda: keras.Sequential([keras.Input((1,)), Named.Own()]),
        Parted,
    ],
    ids=["in a helper", "in a comprehension", "by an attribute", "in a class"],
)
def test_models_come_back_wherever_their_classes_are_named(made) -> None:
    def compiled(model):
        model.compile("sgd", own_loss)
        return model

    def function(params, x):
        model = compiled(made())
        model(x)
        return {"loss": params["x"], "status": "ok", "model": model}

    elephas = HyperParamModel(None, algo="random", seed=0, verbose=0)
    found = elephas.minimize(function, lambda: (np.ones((3, 1), "float32"),), 1, space={"x": ("uniform", 0, 1)})
    assert found(np.ones((2, 1), "float32")).shape[0] == 2
    assert found.loss is own_loss


def softmax(values):
    return np.exp(values) / np.exp(values).sum()


aliased, scores = softmax, types.ModuleType("scores")
scores.softplus = softmax


def scored(values):
    return softmax(values).max()


def test_a_helper_s_helper_does_not_stand_for_a_function_of_keras() -> None:
    assert _objects_of(lambda params: scored(params["x"])) == {"scored": scored}
    assert _objects_of(lambda params: softmax(params["x"])) == {"softmax": softmax}
    assert _objects_of(lambda params: aliased(params["x"])) == {"aliased": softmax}
    assert _objects_of(lambda params: scores.softplus(params["x"])) == {}


def test_optuna_may_choose_the_points_of_functions_and_their_models_come_back() -> None:
    def function(params, *rows):
        model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(params["units"])])
        return {"loss": params["x"] ** 2, "status": "ok", "model": model}

    elephas = HyperParamModel(None, algo="optuna", seed=0, verbose=0)
    (trials,) = elephas.compute_trials(function, tuple, 3, space={"x": ("uniform", -1, 1), "units": [2]})
    assert trials.losses() == [vals["x"][0] ** 2 for vals in (one["misc"]["vals"] for one in trials.trials)]
    assert len(set(trials.losses())) == 3
    assert trials.best_trial["result"]["weights"][0].shape == (1, 2)
