"""Constraints hold for averages and outer steps, not only for the steps of an optimizer."""

from __future__ import annotations

import cloudpickle
import keras
import numpy as np
import pytest

from elephas_like import SparkModel
from elephas_like.trainer.building import build
from elephas_like.trainer.constraints import WeightConstraints
from elephas_like.trainer.state import Variables

X = np.random.default_rng(0).normal(size=(96, 8)).astype("float32")
Y = (X @ np.linspace(-1, 1, 8, dtype="float32"))[:, None]


def halved(kernel: object) -> object:
    return kernel / 2


def model(constraint: object, rate: float = 0.05) -> keras.Model:
    keras.utils.set_random_seed(1)
    layers = [
        keras.Input((8,)),
        keras.layers.Dense(6, "relu", kernel_constraint=constraint),
        keras.layers.Dense(1),
    ]
    found = keras.Sequential(layers)
    found.compile(keras.optimizers.Adam(rate), "mse")
    return found


def built(constraint: object) -> keras.Model:
    found = model(constraint)
    build(found, (X[:1], Y[:1]))
    return found


def test_what_is_constrained_moves_and_all_else_stays() -> None:
    weights = np.linspace(-3, 3, 8 * 6 + 6 + 6 + 1, dtype="float32")
    found = WeightConstraints(built(keras.constraints.NonNeg()))(weights)
    assert found[:48].tolist() == np.maximum(weights[:48], 0).tolist()
    assert found[48:].tolist() == weights[48:].tolist()
    assert weights[0] == -3  # the argument is not changed


def test_nothing_is_copied_where_nothing_is_constrained() -> None:
    weights = Variables(built(None)).read().weights
    assert WeightConstraints(built(None))(weights) is weights


@pytest.mark.skipif(keras.__version__.startswith("3.8."), reason="Keras 3.8 takes no functions for constraints")
def test_constraints_travel_by_value() -> None:
    weights = np.full(61, 2, np.float32)
    constrain = cloudpickle.loads(cloudpickle.dumps(WeightConstraints(built(halved))))
    assert constrain(weights).tolist() == [1.0] * 48 + [2.0] * 13


HOW = {
    "nesterov": {},
    "average": {"strategy": "average"},
    "int8": {"codec": "int8"},
    "easgd": {"strategy": "easgd"},
    "asynchronous": {"mode": "asynchronous"},
    "hogwild": {"mode": "hogwild"},
}


@pytest.mark.parametrize("how", HOW)
def test_a_trained_model_obeys_its_constraints(how: str) -> None:
    trained = model("non_neg")
    SparkModel(trained, 3, engine="in_process", seed=1, **HOW[how]).fit(X, Y, epochs=3, batch_size=8, verbose=0)
    kernel = trained.layers[0].kernel.numpy()
    assert kernel.min() == 0.0
    assert kernel.max() > 0.1


def test_a_mean_of_unit_vectors_has_unit_length() -> None:
    trained = model("unit_norm", rate=0.2)
    SparkModel(trained, 3, engine="in_process", strategy="average", seed=1).fit(X, Y, epochs=2, batch_size=8, verbose=0)
    np.testing.assert_allclose(np.linalg.norm(trained.layers[0].kernel.numpy(), axis=0), 1.0, rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    "constraint", ["unit_norm", keras.constraints.MinMaxNorm(0.9, 1.0, rate=0.5)], ids=["unit_norm", "half_way"]
)
def test_one_worker_ends_with_the_weights_of_keras(constraint: object) -> None:
    """A constraint with a rate goes half of the way each time: it must not be applied more often than in Keras."""
    alone = model(constraint)
    alone.fit(X, Y, epochs=2, batch_size=8, shuffle=False, verbose=0)
    for mode in ("synchronous", "asynchronous", "hogwild"):
        ours = model(constraint)
        SparkModel(ours, 1, mode=mode, engine="in_process").fit(X, Y, epochs=2, batch_size=8, shuffle=False, verbose=0)
        for expected, found in zip(alone.get_weights(), ours.get_weights(), strict=True):
            np.testing.assert_allclose(found, expected, rtol=0, atol=1e-6, err_msg=mode)


def test_what_a_codec_makes_of_one_workers_update_is_constrained() -> None:
    trained = model("non_neg")
    SparkModel(trained, 1, engine="in_process", codec="int4", seed=1).fit(X, Y, epochs=3, batch_size=8, verbose=0)
    assert trained.layers[0].kernel.numpy().min() == 0.0
