from __future__ import annotations

import threading

import keras
import numpy as np
import pandas as pd
import pytest
from problems import breast_cancer, diabetes, digits, mlp

from elephas_like.core.errors import ElephasError
from elephas_like.core.voting import member_seeds
from elephas_like.ensembles.train import train_ensemble
from elephas_like.ensembles.voting_model import VotingModel
from elephas_like.trainer.recipe import copy_of
from elephas_like.trainer.seeds import seeded

layers = keras.layers


@pytest.mark.parametrize("problem", [breast_cancer, diabetes])
def test_bagged_members_together_beat_their_mean(problem) -> None:
    build, (x, y, x_test, y_test) = problem()
    found = train_ensemble(build, (x, y), 3, epochs=4, seed=0, engine="in_process", verbose=0)
    assert found.voting == ("mean" if problem is diabetes else "soft")
    for model in found.models:
        model.run_eagerly = True  # trained by graphs; one more for each would cost more than their answers
    alone = [
        model.evaluate(x_test, y_test, batch_size=len(x_test), verbose=0, return_dict=True) for model in found.models
    ]
    together = found.evaluate(x_test, y_test, return_dict=True)
    # Convex losses (Jensen): of the mean never above the mean of the losses. Accuracy is no law.
    assert together["loss"] < np.mean([one["loss"] for one in alone])
    if problem is not diabetes:
        assert together["accuracy"] >= np.mean([one["accuracy"] for one in alone])
        assert together["accuracy"] == pytest.approx((found.predict(x_test) == y_test).mean(), abs=1e-6)


def test_without_bagging_and_shuffling_a_member_is_keras() -> None:
    build, (x, y, x_test, y_test) = digits()
    found = train_ensemble(
        build, (x, y), 1, bagging=False, shuffle=False, epochs=2, seed=3, engine="in_process",
        validation_data=(x_test, y_test), verbose=0,
    )  # fmt: skip
    with seeded(member_seeds(3, 1)[0]):
        model = build()
    history = model.fit(x, y, epochs=2, shuffle=False, validation_data=(x_test, y_test), verbose=0)
    for ours, theirs in zip(found.models[0].get_weights(), model.get_weights(), strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-5)
    assert found.histories[0].keys() == history.history.keys()
    np.testing.assert_allclose(found.histories[0]["val_loss"], history.history["val_loss"], rtol=1e-4)


def test_columns_of_pandas_go_to_inputs_by_name() -> None:
    def build() -> keras.Model:
        """Predicts a + 100 b, so that columns in their places have no loss."""
        both, dense = [keras.Input((1,), name=name) for name in "ab"], layers.Dense(1, use_bias=False)
        model = keras.Model(both, dense(layers.Concatenate()(both)))
        dense.set_weights([np.array([[1.0], [100.0]])])
        model.compile("sgd", "mse")
        return model

    frame = pd.DataFrame({"a": [1.0, 2.0], "b": [3.0, 4.0], "y": [301.0, 402.0]})
    told = {"epochs": 1, "validation_data": frame, "engine": "in_process", "verbose": 0}
    found = train_ensemble(build, frame, 1, features_col=["b", "a"], label_col="y", **told)
    assert found.histories[0] == {"loss": [0.0], "val_loss": [0.0]}


def test_a_single_array_is_cut_for_models_of_several_inputs_as_by_a_fit() -> None:
    def build() -> keras.Model:
        both = [keras.Input((5,)), keras.Input((5,))]
        model = keras.Model(both, layers.Dense(1)(layers.Concatenate()(both)))
        model.compile("sgd", "mse", run_eagerly=True)
        return model

    _, (x, y, x_test, y_test) = diabetes()
    told = {"epochs": 1, "seed": 1, "engine": "in_process", "verbose": 0}
    whole = train_ensemble(build, (x, y), 2, **told)
    apart = train_ensemble(build, ((x[:, :5], x[:, 5:]), y), 2, **told)
    expected = apart.predict((x_test[:, :5], x_test[:, 5:]))
    np.testing.assert_array_equal(whole.predict(x_test), expected)
    assert whole.evaluate(x_test, y_test) == apart.evaluate((x_test[:, :5], x_test[:, 5:]), y_test)


def test_seeds_repeat_and_members_differ() -> None:
    build, (x, y, *_) = diabetes()
    state = np.random.get_state()[1].copy()
    one, other = (train_ensemble(build, (x, y), 2, seed=4, engine="in_process", verbose=0) for _ in range(2))
    for a, b in zip(one.models, other.models, strict=True):
        for left, right in zip(a.get_weights(), b.get_weights(), strict=True):
            np.testing.assert_array_equal(left, right)
    assert np.abs(one.models[0].get_weights()[0] - one.models[1].get_weights()[0]).max() > 0.01
    np.testing.assert_array_equal(np.random.get_state()[1], state)


def test_members_begin_with_their_own_weights_while_others_make_models() -> None:
    """As the fits of a grid search do, side by side: initial weights come from generators of the whole process."""
    _, (x, y, *_) = diabetes()
    inside, made = threading.Event(), threading.Event()

    def build() -> keras.Model:
        inside.set()
        made.wait(0.5)  # nobody else's model comes in between
        model = keras.Sequential([keras.Input((10,)), layers.Dense(1)])
        model.compile(keras.optimizers.SGD(0.0), "mse")
        return model

    def copies() -> None:
        inside.wait(60)
        copy_of(other)
        made.set()

    other = mlp(10, 1, None, "mse", "mae")()
    beside = threading.Thread(target=copies)
    beside.start()
    found = train_ensemble(build, (x, y), 1, seed=4, engine="in_process", verbose=0)
    beside.join(60)
    with seeded(member_seeds(4, 1)[0]):
        alone = build()
    np.testing.assert_array_equal(found.models[0].get_weights()[0], alone.get_weights()[0])


@pytest.mark.parametrize("members", [1, 2])
def test_members_that_a_function_builds_on_one_base_share_what_is_frozen_alone(members: int) -> None:
    """Each member had the base of the last one; the first one's went on being the function's."""
    x = np.random.default_rng(1).normal(size=(60, 5)).astype("float32")
    y = (x[:, :1] > 0).astype("float32")
    trained, frozen = keras.layers.Dense(4), keras.layers.Dense(4, trainable=False)
    trained.build((None, 4))
    start = trained.kernel.numpy()

    def build() -> keras.Model:
        inputs = keras.Input(x.shape[1:])
        model = keras.Model(inputs, keras.layers.Dense(1, "sigmoid")(trained(frozen(inputs))))
        model.compile("sgd", "binary_crossentropy", run_eagerly=True)
        return model

    ensemble = train_ensemble(build, x, members, y=y, seed=1, engine="in_process", validation_data=(x, y), verbose=0)
    kernels = [model.layers[2].kernel.numpy() for model in ensemble.models]
    assert not np.array_equal(kernels[0], kernels[-1] if members > 1 else start)
    np.testing.assert_array_equal(trained.kernel.numpy(), start)
    for model, history in zip(ensemble.models, ensemble.histories, strict=True):
        assert model.evaluate(x, y, verbose=0) == pytest.approx(history["val_loss"][-1], rel=1e-4)


def test_members_that_a_function_compiles_with_one_optimizer_have_one_each() -> None:
    x, optimizer = np.ones((8, 2), "float32"), keras.optimizers.SGD(0.01, momentum=0.9)

    def build() -> keras.Model:
        model = keras.Sequential([keras.Input((2,)), layers.Dense(1)])
        model.compile(optimizer, "mse", run_eagerly=True)
        return model

    found = train_ensemble(build, (x, x[:, :1]), 2, batch_size=4, seed=1, engine="in_process", verbose=0)
    assert [int(model.optimizer.iterations) for model in found.models] == [2, 2]
    for model in found.models:
        model.fit(x, x[:, :1], verbose=0)


def test_a_build_function_may_ask_for_the_seed() -> None:
    _, (x, y, *_) = diabetes()
    asked: list[int] = []

    def build(seed: int, width: int = 4) -> keras.Model:
        asked.append(seed)
        return mlp(10, 1, None, "mse", "mae")()

    train_ensemble(build, (x, y), 2, seed=1, engine="in_process", verbose=0)
    assert len(set(asked)) == 2


def test_held_out_rows_are_the_same_for_all_members() -> None:
    def build() -> keras.Model:
        model = keras.Sequential([keras.Input((1,)), layers.Dense(1, kernel_initializer="zeros")])
        model.compile(keras.optimizers.SGD(0.0), "mse")
        return model

    y = np.arange(50, dtype="float32")
    found = train_ensemble(build, (y[:, None], y), 2, validation_split=0.2, seed=1, engine="in_process", verbose=0)
    # The models predict 0, so the loss is the mean square of the held-out targets.
    assert len({history["val_loss"][0] for history in found.histories}) == 1
    assert len({history["loss"][0] for history in found.histories}) == 2  # their own rows


def test_early_stopping_of_each_member_by_itself() -> None:
    build, (x, y, x_test, y_test) = diabetes()
    stop = keras.callbacks.EarlyStopping(monitor="val_loss", patience=1, restore_best_weights=True)
    found = train_ensemble(
        build, (x, y), 2, epochs=60, seed=1, validation_data=(x_test, y_test), callbacks=[stop], engine="in_process",
        verbose=0,
    )  # fmt: skip
    for model, history in zip(found.models, found.histories, strict=True):
        assert len(history["loss"]) < 60
        model.run_eagerly = True
        assert model.evaluate(x_test, y_test, verbose=0)[0] == pytest.approx(min(history["val_loss"]), rel=1e-4)


@pytest.mark.parametrize(
    ("options", "kind", "match"),
    [
        ({"bagging": "some"}, ValueError, "bagging must be True"),
        ({"num_members": 0}, ValueError, "num_members must be a whole number"),
        ({"workers_per_member": 2, "bagging": "partition"}, ValueError, "one partition, which one worker trains"),
        ({"engine": "server"}, ValueError, "workers_per_member > 1"),
        ({"voting": "loud"}, ValueError, "voting must be one of 'hard', 'soft', 'mean'"),
        ({"validation_split": 0.1, "validation_data": ([0], [0])}, ValueError, "not both"),
        ({"build_or_model": 5}, TypeError, "build_or_model must be a function"),
        ({"build_or_model": lambda: keras.Sequential([keras.Input((1,))])}, ValueError, "not compiled"),
        ({"callbacks": [3]}, TypeError, "callbacks must be"),
        (
            {"callbacks": keras.callbacks.BackupAndRestore("x")},
            ValueError,
            "a member would go on from the weights of another",
        ),
    ],
)
def test_arguments_that_make_no_sense(options: dict, kind: type, match: str) -> None:
    build, (x, y, *_) = diabetes()
    given = {"build_or_model": build, "data": (x, y), "num_members": 2, "engine": "in_process", "verbose": 0} | options
    with pytest.raises(kind, match=match):
        train_ensemble(**given)


def test_members_whose_jobs_the_caller_has_cancelled_are_no_failures_to_do_without(tmp_path) -> None:
    build, (x, y, *_) = digits()

    class Cancelled(keras.callbacks.Callback):
        def on_train_begin(self, logs=None):
            if not (tmp_path / "once").exists():
                (tmp_path / "once").touch()
                raise ElephasError(
                    "the Spark job was cancelled. Spark says: Job 3 cancelled part of cancelled job tag mine"
                )

    with pytest.raises(ElephasError, match="cancelled job tag mine"):
        train_ensemble(
            build, (x[:50], y[:50]), 2, engine="in_process", verbose=0, max_failures=1, callbacks=[Cancelled()]
        )


@pytest.mark.skipif(not hasattr(keras.config, "set_max_steps_per_epoch"), reason="this Keras has no limit of steps")
def test_keras_limits_of_epochs_count() -> None:
    keras.config.set_max_steps_per_epoch(2)
    try:
        with pytest.raises(ValueError, match="epochs of 2 steps"):
            train_ensemble(*diabetes(), 2, epochs=2)
    finally:
        keras.config.set_max_steps_per_epoch(None)


def apart(y, prediction):
    """A loss whose name says nothing."""
    return keras.ops.abs(y - prediction)


def test_a_loss_that_does_not_say_how_to_vote() -> None:
    _, (x, y, *_) = diabetes()

    def build() -> keras.Model:
        model = keras.Sequential([keras.Input((10,)), layers.Dense(1)])
        model.compile("sgd", apart)
        return model

    with pytest.raises(ValueError, match="voting='auto' knows crossentropies"):
        train_ensemble(build, (x, y), 2, engine="in_process", verbose=0)
    assert isinstance(train_ensemble(build, (x, y), 2, voting="mean", engine="in_process", verbose=0), VotingModel)


def test_votes_for_classes_by_a_regression_are_refused_before_any_training() -> None:
    _, (x, y, *_) = diabetes()
    model = keras.Sequential([keras.Input((10,)), layers.Dense(1)])
    model.compile("sgd", "mse")
    with pytest.raises(ValueError, match="voting='hard' is for classes"):
        train_ensemble(model, (x, y), 2, voting="hard", engine="in_process", verbose=0)
