"""A member of an ensemble is trained as Keras would train it, whoever was trained by this process before."""

from __future__ import annotations

from pathlib import Path

import cloudpickle
import keras
import numpy as np
import pytest

from elephas_like.ensembles.members import MemberFit, fit_member
from elephas_like.trainer.building import build
from elephas_like.trainer.spec import ModelSpec
from elephas_like.trainer.state import Variables
from tests.trainer.small import config, mlp, rows, shard


def spec_of(model: keras.Model) -> ModelSpec:
    x, y = rows(1)
    build(model, (x, y))
    return ModelSpec.from_model(model)


class StopsAfterOne(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        self.model.stop_training = True


def test_a_member_is_what_keras_makes_of_the_same_batches(tmp_path: Path) -> None:
    x, y = rows(21)
    ours, theirs = mlp("adam"), mlp("adam")
    spec = spec_of(ours)
    result = fit_member(MemberFit(0, Variables(ours).read(), config(epochs=3)), spec, shard(tmp_path, x, y))
    history = theirs.fit(x, y, batch_size=4, epochs=3, shuffle=False, verbose=0)
    Variables(ours).write(result.state)
    for mine, other in zip(ours.get_weights(), theirs.get_weights(), strict=True):
        np.testing.assert_allclose(mine, other, atol=1e-6)
    np.testing.assert_allclose(result.history["loss"], history.history["loss"], rtol=1e-5)


def test_members_of_one_architecture_do_not_see_each_other(tmp_path: Path) -> None:
    x, y = rows(16)
    first, second = mlp(seed=1), mlp(seed=2)
    spec, ref = spec_of(first), shard(tmp_path, x, y)
    build(second, (x[:1], y[:1]))
    tasks = [MemberFit(number, Variables(model).read(), config()) for number, model in enumerate((first, second))]
    forwards = [fit_member(task, spec, ref).state.weights for task in tasks]
    backwards = [fit_member(task, spec, ref).state.weights for task in reversed(tasks)]
    np.testing.assert_array_equal(forwards, backwards[::-1])
    assert not np.array_equal(forwards[0], forwards[1])


def test_rows_apart_are_scored_after_each_epoch(tmp_path: Path) -> None:
    x, y = rows(12)
    model = mlp()
    held = shard(tmp_path, x[:5], y[:5], name="held")
    result = fit_member(MemberFit(0, state_of(model), config(epochs=2)), spec_of(model), shard(tmp_path, x, y), held)
    Variables(model).write(result.state)
    assert len(result.history["val_loss"]) == 2
    np.testing.assert_allclose(result.history["val_loss"][-1], model.evaluate(x[:5], y[:5], verbose=0), rtol=1e-5)


class Freezing(keras.callbacks.Callback):
    def on_train_begin(self, logs=None):
        self.model.layers[0].trainable = False


def test_what_a_members_callbacks_freeze_stays_and_reaches_no_other_member(tmp_path: Path) -> None:
    x, y = rows(16)
    model = mlp("adam")
    spec, ref, start = spec_of(model), shard(tmp_path, x, y), Variables(model).read()
    first = model.layers[0].get_weights()[0].copy()
    moved = []
    for callbacks in (cloudpickle.dumps([Freezing()]), b""):
        result = fit_member(MemberFit(0, start, config(epochs=2), callbacks), spec, ref)
        Variables(model).write(result.state)
        moved.append(bool((model.layers[0].get_weights()[0] != first).any()))
    assert moved == [False, True]


def test_a_members_own_callbacks_may_end_its_training(tmp_path: Path) -> None:
    model = mlp()
    task = MemberFit(0, state_of(model), config(epochs=5), cloudpickle.dumps([StopsAfterOne()]))
    assert len(fit_member(task, spec_of(model), shard(tmp_path, *rows(8))).history["loss"]) == 1


def test_a_member_without_rows_is_named(tmp_path: Path) -> None:
    x, y = rows(4)
    model = mlp()
    none, some = shard(tmp_path, x[:0], y[:0]), shard(tmp_path, x, y, name="some")
    task = MemberFit(7, state_of(model), config())
    with pytest.raises(ValueError, match="member 7 has no rows to train on"):
        fit_member(task, spec_of(model), none)
    with pytest.raises(ValueError, match="validation_data has no rows"):
        fit_member(task, spec_of(model), some, none)


def state_of(model: keras.Model):
    x, y = rows(1)
    build(model, (x, y))
    return Variables(model).read()
