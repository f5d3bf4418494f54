"""The request of a fit: what is taken, what is refused before anything starts."""

from __future__ import annotations

import warnings
from dataclasses import MISSING, fields

import keras
import numpy as np
import pytest

from elephas_like.core.types import OptimizerState
from elephas_like.trainer.request import FitRequest, FitSeeds, as_tuple, check_optimizer_state, split_batch

GIVEN: dict[str, object] = {
    "epochs": 3,
    "initial_epoch": 0,
    "batch_size": None,
    "global_batch_size": None,
    "verbose": "auto",
    "validation_split": 0.0,
    "validation_freq": 1,
    "callbacks": None,
    "worker_callbacks": None,
    "class_weight": None,
    "shuffle": True,
    "checkpoint_dir": None,
    "checkpoint_freq": "epoch",
    "resume": "auto",
    "monitor": False,
    "has_validation_data": False,
}


@pytest.fixture(scope="module")
def model() -> keras.Model:
    return keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])


def config(request: FitRequest, workers: int):
    return request.config(workers, 32, seeds=FitSeeds(1, 2), optimizer_state=OptimizerState.AVERAGE)


def test_every_argument_of_a_request_must_be_given():
    assert {each.default for each in fields(FitRequest)} == {MISSING}  # the defaults are those of SparkModel.fit
    assert {each.name for each in fields(FitRequest)} == set(GIVEN) - {"has_validation_data"}


def test_the_models_batch_size_is_taken_where_the_fit_names_none(model):
    assert config(FitRequest.checked(model, **GIVEN), 4).batch_size == 32
    assert config(FitRequest.checked(model, **GIVEN | {"batch_size": 5}), 4).batch_size == 5


@pytest.mark.skipif(not hasattr(keras.config, "set_max_epochs"), reason="this Keras has no limit of epochs")
def test_keras_limit_of_epochs_holds(model):
    keras.config.set_max_epochs(2)
    try:
        with pytest.warns(UserWarning, match=r"epochs=3 is limited to 2, by keras.config.set_max_epochs"):
            assert config(FitRequest.checked(model, **GIVEN), 1).epochs == 2
        assert config(FitRequest.checked(model, **GIVEN | {"epochs": 2}), 1).epochs == 2
    finally:
        keras.config.set_max_epochs(None)


@pytest.mark.skipif(not hasattr(keras.config, "set_max_steps_per_epoch"), reason="this Keras has no limit of steps")
def test_keras_limit_of_steps_is_refused(model):
    keras.config.set_max_steps_per_epoch(2)
    try:
        with pytest.raises(ValueError, match=r"epochs of 2 steps, as keras.config.set_max_steps_per_epoch"):
            FitRequest.checked(model, **GIVEN)
    finally:
        keras.config.set_max_steps_per_epoch(None)


def test_a_global_batch_is_split_to_the_last_row(model):
    told = config(FitRequest.checked(model, **GIVEN | {"global_batch_size": 11}), 4)
    assert [told.batch_size_of(worker) for worker in range(4)] == [3, 3, 3, 2]


def test_a_global_batch_below_a_row_a_worker_warns():
    with pytest.warns(UserWarning, match="effective global batch of 4"):
        assert split_batch(3, 4) == (1, 0)


@pytest.mark.parametrize(("given", "shown"), [("auto", 1), (True, 1), (1, 1), (0, 0), (False, 0), (None, 0), (2, 2)])
def test_verbosity(model, given, shown):
    assert FitRequest.checked(model, **GIVEN | {"verbose": given}).verbose == shown


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"verbose": 3}, "verbose must be 0, 1, 2 or 'auto'; got 3"),
        ({"validation_split": 0.1, "has_validation_data": True}, "not both"),
        ({"batch_size": 1, "global_batch_size": 1}, "not both"),
        ({"resume": True}, "resume=True needs the checkpoint_dir"),
        ({"batch_size": 0}, "batch_size must be a whole number"),
        ({"initial_epoch": -1}, "initial_epoch must be a whole number"),
        ({"validation_freq": 0}, "validation_freq must be a whole number"),
        ({"validation_freq": ["2"]}, "an epoch of validation_freq must be a whole number of at least 1; got '2'"),
        ({"validation_freq": (2, 0)}, "an epoch of validation_freq must be a whole number of at least 1; got 0"),
        ({"worker_callbacks": keras.callbacks.EarlyStopping()}, "ends a training, which all workers share"),
    ],
)
def test_what_makes_no_sense_is_refused(model, given, message):
    with pytest.raises(ValueError, match=message):
        FitRequest.checked(model, **GIVEN | given)


def test_shuffle_is_true_or_false(model):
    with pytest.raises(TypeError, match="shuffle must be True or False; got 'no'"):
        FitRequest.checked(model, **GIVEN | {"shuffle": "no"})


def test_the_epochs_to_validate_after_may_be_listed(model):
    assert FitRequest.checked(model, **GIVEN | {"validation_freq": [1, np.int64(3)]}).validation_freq == (1, 3)


def test_callbacks_come_alone_in_lists_or_not_at_all():
    one = keras.callbacks.CSVLogger("log.csv")
    assert as_tuple(None) == ()
    assert as_tuple(one) == (one,)
    assert as_tuple([one, one]) == (one, one)
    held = keras.callbacks.CallbackList([one])
    assert as_tuple(held) == (one,)  # whose batch hooks are checked as any
    assert as_tuple([one, keras.callbacks.CallbackList([held])]) == (
        one,
        one,
    )  # a checkpoint has their states, as of any


def test_weights_of_classes_become_plain_numbers(model):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert FitRequest.checked(model, **GIVEN | {"class_weight": {"1": 2}}).class_weight == {1: 2.0}


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({0.9: 2.0}, r"got the class 0\.9"),
        ({"cat": 2.0}, "got the class 'cat'"),
        ({-1: 2.0}, "got the class -1"),
        ({0: -1.0}, r"class 0 has -1\.0"),
        ({0: float("nan")}, "class 0 has nan"),
        ({0: "heavy"}, "class 0 has 'heavy'"),
        ([1, 2, 3], "got list"),
    ],
)
def test_weights_of_classes_that_are_none_are_refused(model, wrong, said):
    with pytest.raises((TypeError, ValueError), match=f"class_weight must be a dict.*{said}"):
        FitRequest.checked(model, **GIVEN | {"class_weight": wrong})


@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize("treatment", OptimizerState)
def test_averaged_weights_of_an_optimizer_need_its_slots(scaled, treatment):
    """Slots that do not come back would be zeros on the driver, and so the weights at the end."""
    ema, plain = keras.optimizers.SGD(use_ema=True), keras.optimizers.SGD()
    models = [keras.Sequential([keras.layers.Dense(1)]) for _ in range(2)]
    for model, optimizer in zip(models, (ema, plain), strict=True):
        model.compile(keras.optimizers.LossScaleOptimizer(optimizer) if scaled else optimizer, "mse")
    check_optimizer_state(models[1], treatment)
    if treatment is OptimizerState.AVERAGE:
        check_optimizer_state(models[0], treatment)
    else:
        with pytest.raises(ValueError, match=rf"use_ema=True.*got '{treatment.value}'.*optimizer_state='average'"):
            check_optimizer_state(models[0], treatment)
