"""State that is not averaged, with two workers: numbers worked out by hand."""

from __future__ import annotations

import keras
import numpy as np
import pytest

from conformance.models import TABLE, Gan, X, Y, small
from elephas_like import SparkModel
from elephas_like.trainer.state import Variables

L = keras.layers
# 24 rows, two workers, batches of 4: three steps an epoch each, one exchange.
FIT = {"epochs": 1, "batch_size": 4, "shuffle": False, "verbose": 0}


def two(model: keras.Model, **options: object) -> SparkModel:
    return SparkModel(model, num_workers=2, engine="in_process", seed=1, **({"frequency": "epoch"} | options))


@pytest.mark.parametrize("mode", ["synchronous", "asynchronous"])
def test_a_loss_scale_grows_as_on_one_worker(mode: str) -> None:
    """It doubles after every third good step, and its counter begins again: nobody makes a step the other has made."""
    optimizer = keras.optimizers.LossScaleOptimizer(
        keras.optimizers.SGD(1e-4), initial_scale=8.0, dynamic_growth_steps=3
    )
    model = small(L.Dense(2), L.Dense(1), optimizer=optimizer)
    trained = two(model, mode=mode)
    for epochs, scale in ((1, 16), (2, 64)):
        trained.fit(X, Y, **(FIT | {"epochs": epochs}))
        assert (float(optimizer.dynamic_scale), int(optimizer.step_counter)) == (scale, 0)


def test_integers_are_those_of_one_worker() -> None:
    model, rows = TABLE["integers_bools_and_raw_variables"]()
    ring = model.layers[1]
    two(model).fit(*rows, **FIT)
    assert int(ring.pointer) == 3  # three steps of each, not six
    assert ring.mask.numpy().tolist() == [True, False, False]
    assert float(ring.rows) == 12  # a float: the mean of 12 and 12
    two(model).fit(*rows, **FIT)
    assert int(ring.pointer) == 1  # 6 mod 5: a maximum with the start would be 3


def test_each_optimizer_is_averaged_by_itself_and_one_at_rest_moves_nothing() -> None:
    keras.utils.set_random_seed(2)
    model = Gan(0.0)
    model.compile()
    model(X[:1])
    before = [weight.numpy() for weight in model.d.weights]
    generator = [weight.numpy() for weight in model.g.weights]
    trained = two(model)
    for _ in range(2):
        trained.fit(X, Y, **FIT)
    for weight, start in zip(model.d.weights, before, strict=True):
        np.testing.assert_array_equal(weight.numpy(), start)
    assert all((weight.numpy() != start).any() for weight, start in zip(model.g.weights, generator, strict=True))
    assert [int(optimizer.iterations) for optimizer in (model.go, model.do)] == [6, 6]


def test_a_second_optimizer_s_state_goes_on_from_fit_to_fit_as_in_keras() -> None:
    states = []
    for by_keras in (True, False):
        keras.utils.set_random_seed(2)
        model = Gan(0.02)
        model.compile()
        model(X[:1])
        for _ in range(2):
            if by_keras:
                model.fit(X, Y, batch_size=8, epochs=1, shuffle=False, verbose=0)
            else:
                alone = SparkModel(model, num_workers=1, engine="in_process", seed=1)
                alone.fit(X, Y, batch_size=8, epochs=1, shuffle=False, verbose=0)
        states.append(Variables(model).read().parts())
    for role, part in states[0].items():
        np.testing.assert_allclose(states[1][role], part, rtol=1e-5, atol=1e-6, err_msg=role)


def test_an_infinite_mask_stays_what_it_is() -> None:
    model, rows = TABLE["infinite_mask"]()
    two(model).fit(*rows, **FIT)
    two(model, mode="asynchronous").fit(*rows, **FIT)
    assert model.layers[1].mask.numpy().tolist() == [0, 0, -np.inf, -np.inf]
    assert all(np.isfinite(weight.numpy()).all() for weight in model.trainable_weights)


@pytest.mark.parametrize("momentum", [0.9, 0.0, 1.0])
def test_moving_averages_are_those_of_one_process_at_the_same_global_batch(momentum: float) -> None:
    """With an exchange a step, whatever the workers' rows: here one has those of 3, the other those of -3."""
    rows = X + np.tile([[3.0], [-3.0]], (len(X) // 2, 1)).astype("float32")
    averages = []
    for by_keras in (True, False):
        layer = L.BatchNormalization(momentum=momentum)
        model = small(layer, L.Dense(1), optimizer=keras.optimizers.SGD(0.0))
        if by_keras:
            model.fit(rows, Y, **(FIT | {"batch_size": 8}))
        else:
            two(model, frequency="batch").fit(rows, Y, **FIT)
        averages.append([layer.moving_mean.numpy(), layer.moving_variance.numpy()])
    np.testing.assert_allclose(averages[1], averages[0], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("callbacks", [None, [keras.callbacks.Callback()]], ids=["alone", "worker_callbacks"])
def test_the_rate_that_steps_set_is_that_of_the_next_round(callbacks: list[keras.callbacks.Callback] | None) -> None:
    """Three steps an epoch, each of which takes 0.9 of it: what worker callbacks make of the rate is their own affair, this is not."""
    model, rows = TABLE["optimizer_that_sets_its_learning_rate"]()
    two(model).fit(*rows, worker_callbacks=callbacks, **(FIT | {"epochs": 2}))
    assert float(model.optimizer.learning_rate) == pytest.approx(0.05 * 0.9**6, rel=1e-5)
