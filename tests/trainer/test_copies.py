from __future__ import annotations

from inspect import signature

import keras
import numpy as np
import pytest

from elephas_like.trainer.copies import fresh_copy, give_own_optimizer, reinitialized, reset_optimizer
from elephas_like.trainer.state import Variables

layers = keras.layers
X = np.random.default_rng(0).normal(size=(30, 3)).astype("float32")


def trained() -> keras.Model:
    keras.utils.set_random_seed(1)
    adapted = layers.Normalization()
    adapted.adapt(X)
    frozen = layers.Dense(4, trainable=False)
    model = keras.Sequential([keras.Input((3,)), adapted, frozen, layers.BatchNormalization(), layers.Dense(1)])
    model.compile(keras.optimizers.Adam(0.02), "mse", metrics=["mae"])
    model.fit(X, X.sum(1), verbose=0)
    return model


def test_a_model_is_begun_anew_but_keeps_what_was_not_trained() -> None:
    model = trained()
    before = model.get_weights()
    one, again, other = reinitialized(model, 1), reinitialized(model, 1), reinitialized(model, 2)
    for kept, weight in zip(before, model.get_weights(), strict=True):
        np.testing.assert_array_equal(kept, weight)
    for left, right in zip(one.get_weights(), again.get_weights(), strict=True):
        np.testing.assert_array_equal(left, right)
    assert np.abs(one.layers[3].get_weights()[0] - other.layers[3].get_weights()[0]).max() > 0.01
    np.testing.assert_array_equal(one.layers[0].get_weights()[0], model.layers[0].get_weights()[0])  # adapted
    np.testing.assert_array_equal(one.layers[1].get_weights()[0], model.layers[1].get_weights()[0])  # frozen
    np.testing.assert_array_equal(one.layers[2].moving_mean, np.zeros(4))
    np.testing.assert_array_equal(one.layers[2].moving_variance, np.ones(4))
    assert one.optimizer.iterations == 0
    one.fit(X, X.sum(1), verbose=0)


@pytest.mark.skipif("renorm" not in signature(layers.BatchNormalization).parameters, reason="an old Keras")
def test_statistics_of_batch_renormalization_begin_anew() -> None:
    model = keras.Sequential([keras.Input((3,)), layers.BatchNormalization(renorm=True), layers.Dense(1)])
    begun = [variable.numpy() for variable in model.layers[0].non_trainable_variables]
    model.compile("sgd", "mse")
    model.fit(X + 5, X.sum(1), verbose=0)
    for found, start in zip(reinitialized(model, 1).layers[0].non_trainable_variables, begun, strict=True):
        np.testing.assert_array_equal(found, start)


def seed_states(model: keras.Model) -> list[list[int]]:
    state = Variables(model).read()
    return np.asarray(state.seeds).reshape(-1, 2).tolist()


def test_layers_that_draw_begin_anew_by_the_seed_unless_they_were_given_their_own() -> None:
    keras.utils.set_random_seed(1)
    inner = keras.Sequential([keras.Input((3,)), layers.GaussianNoise(0.1), layers.Dropout(0.5, seed=7)])
    model = keras.Sequential([keras.Input((3,)), layers.Dropout(0.5), inner, layers.Dense(1)])
    model.compile("sgd", "mse")
    model.fit(X, X.sum(1), verbose=0)
    before = seed_states(model)
    one, again, other = (seed_states(reinitialized(model, seed)) for seed in (1, 1, 2))
    assert one == again
    assert seed_states(model) == before
    drawn = [place for place, (mine, others) in enumerate(zip(one, other, strict=True)) if mine != others]
    assert len(before) == 3
    assert len(drawn) == 2
    assert all(one[place] != before[place] and one[place][1] == 0 for place in drawn)
    (own,) = {0, 1, 2} - set(drawn)
    assert one[own] == other[own] == before[own]
    assert before[own][0] == 7


def test_users_own_weights_come_from_the_seed_alone() -> None:
    model = trained()
    state = np.random.get_state()[1].copy()
    reinitialized(model, 3)
    np.testing.assert_array_equal(np.random.get_state()[1], state)


def test_a_model_that_cannot_be_made_again_wants_a_function() -> None:
    with pytest.raises(ValueError, match="is not built"):
        unbuilt = keras.Sequential([layers.Dense(1)])
        unbuilt.compile("sgd", "mse")
        reinitialized(unbuilt, 0)


def test_an_optimizer_is_reset_to_what_a_new_one_is() -> None:
    model = trained()
    for optimizer in (keras.optimizers.Nadam(), keras.optimizers.Adagrad(0.1), keras.optimizers.SGD(momentum=0.9)):
        model.compile(optimizer, "mse")
        optimizer.build(model.trainable_variables)
        expected = [np.array(variable) for variable in optimizer.variables]
        model.fit(X, X.sum(1), verbose=0)
        optimizer.learning_rate = 0.5
        reset_optimizer(model)
        for value, variable in zip(expected, optimizer.variables, strict=True):
            if variable.name != "learning_rate":
                np.testing.assert_array_equal(value, variable)
        assert float(optimizer.learning_rate) == 0.5


def test_each_of_several_optimizers_is_reset_on_its_own_variables() -> None:
    model = trained()
    model.second = keras.optimizers.Adam()
    head = model.layers[-1].trainable_variables
    model.second.build(head)
    model.second.apply([keras.ops.ones(variable.shape) for variable in head])
    copy = fresh_copy(model)
    assert (copy.second.iterations, model.second.iterations, copy.optimizer.iterations) == (0, 1, 0)
    assert not any(np.any(variable) for variable in copy.second.variables[2:])
    assert len(copy.second.variables) == len(model.second.variables)


class OneOwn(keras.optimizers.SGD):
    def __init__(self, by: float) -> None:
        super().__init__(0.1 / by)


def test_an_optimizer_that_keras_cannot_make_again_is_named() -> None:
    model = trained()
    model.compile(OneOwn(by=2.0), "mse")
    with pytest.raises(ValueError, match=r"the optimizer OneOwn of the model .* cannot be begun anew.*\n.*get_config"):
        fresh_copy(model)
    outer = keras.Sequential([model, layers.Dense(1)])  # whose steps do not use it
    outer.compile("sgd", "mse")
    outer.fit(X, X.sum(1), verbose=0)
    assert fresh_copy(outer).optimizer.iterations == 0


def test_an_optimizer_without_variables_is_reset() -> None:
    """As Keras builds that of a base with frozen weights."""
    model = trained()
    model.second = keras.optimizers.Adam()
    model.second.build([])
    assert fresh_copy(model).second.variables[0] == 0


def test_a_fresh_copy_computes_the_same() -> None:
    model = trained()
    copy = fresh_copy(model)
    np.testing.assert_array_equal(copy.predict(X, verbose=0), model.predict(X, verbose=0))
    assert (copy.optimizer.iterations, model.optimizer.iterations) == (0, 1)


@pytest.mark.parametrize("kind", ["adam", "scaled", "mixed precision"])
def test_a_model_whose_optimizer_was_built_for_another_gets_its_own(kind: str) -> None:
    """A function may compile all its models with one optimizer."""
    optimizer: keras.optimizers.Optimizer = keras.optimizers.Adam(0.03)
    if kind == "scaled":
        optimizer = keras.optimizers.LossScaleOptimizer(optimizer)

    def built() -> keras.Model:
        model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
        if kind == "mixed precision":  # what Keras does with that policy: a scale of its own around the given optimizer
            model.compile(keras.optimizers.LossScaleOptimizer(optimizer), "mse")
        else:
            model.compile(optimizer, "mse")
        return model

    first, second = built(), built()
    own, other = first.optimizer, second.optimizer
    give_own_optimizer(first)
    assert first.optimizer is own  # not built yet
    own.build(first.trainable_variables)
    for model in (first, second):
        give_own_optimizer(model)
    assert first.optimizer is own
    assert second.optimizer is not other
    assert type(second.optimizer) is type(other)
    assert float(second.optimizer.learning_rate) == pytest.approx(0.03)
    for model in (first, second):
        model.fit(np.ones((4, 2)), np.ones(4), verbose=0)
