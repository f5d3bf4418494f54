"""Models made anew: copies, other compile arguments, archives."""

from __future__ import annotations

import keras
import numpy as np
import pytest

from elephas_like.trainer.recipe import archive, compile_as, copy_of, from_archive, from_json


def compiled() -> keras.Model:
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile(keras.optimizers.Adam(0.3), "mse", metrics=["mae"])
    model.fit(np.ones((4, 2)), np.ones(4), verbose=0)
    return model


def test_a_copy_shares_nothing() -> None:
    model = compiled()
    copied = copy_of(model)
    before = model.get_weights()[0].copy()
    assert copied.optimizer.iterations.numpy() == 1
    copied.fit(np.ones((4, 2)), np.ones(4), verbose=0)
    np.testing.assert_array_equal(model.get_weights()[0], before)
    assert model.optimizer.iterations.numpy() == 1


def test_compiling_otherwise_keeps_the_rest() -> None:
    model = compiled()
    compile_as(model, optimizer="sgd")
    assert isinstance(model.optimizer, keras.optimizers.SGD)
    assert model.loss == "mse"
    assert set(model.evaluate(np.ones((4, 2)), np.ones(4), verbose=0, return_dict=True)) == {"loss", "mae"}
    given = keras.optimizers.Adam(0.5)
    compile_as(model, optimizer=given, loss="mae", metrics=["mse"])
    assert model.optimizer is not given
    assert model.optimizer.learning_rate.numpy() == pytest.approx(0.5)
    assert set(model.evaluate(np.ones((4, 2)), np.ones(4), verbose=0, return_dict=True)) == {"loss", "mse"}


def test_models_that_were_compiled_with_one_metric_have_a_state_each() -> None:
    given = [keras.metrics.MeanAbsoluteError(name="apart"), "mse"]
    one, other = compiled(), compiled()
    for model in (one, other):
        compile_as(model, metrics=given)
    assert one.evaluate(np.ones((4, 2)), np.zeros(4), verbose=0, return_dict=True)["apart"] > 0
    assert float(given[0].result()) == 0.0  # neither model counts in it


def test_architectures_with_and_without_what_they_were_compiled_with() -> None:
    text = compiled().to_json()
    assert from_json(text).compiled
    plain = from_json(text, compiled=False)
    assert not plain.compiled
    with pytest.raises(ValueError, match="is not compiled: give a loss too"):
        compile_as(plain, optimizer="sgd")
    compile_as(plain, loss="mse")
    assert plain.compiled


def test_an_archive_holds_the_optimizer() -> None:
    model = compiled()
    again = from_archive(archive(model))
    assert again.optimizer.iterations.numpy() == 1
    for first, second in zip(model.optimizer.variables, again.optimizer.variables, strict=True):
        np.testing.assert_array_equal(first.numpy(), second.numpy())


def test_a_lambda_is_refused() -> None:
    model = keras.Sequential([keras.Input((1,)), keras.layers.Lambda(lambda x: x)])
    with pytest.raises(ValueError, match="holds a lambda, which cannot be saved"):
        archive(model)
