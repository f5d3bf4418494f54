"""Factories: workers that share a model, and what travels to other processes."""

from __future__ import annotations

import importlib
import sys
from contextlib import nullcontext
from pathlib import Path

import cloudpickle
import keras
import numpy as np
import pytest

from elephas_like.core.errors import DataError
from elephas_like.core.strategies import Average, Clipped, Context
from elephas_like.core.types import Order, Span, TrainState, Update
from elephas_like.trainer.building import build
from elephas_like.trainer.factories import SharingFactory, TrainerFactory
from elephas_like.trainer.spec import ModelSpec
from elephas_like.trainer.state import Variables
from elephas_like.trainer.worker import LocalTrainer
from trainer.small import config, mlp, rows, shard

X, Y = rows(22)


def prepared() -> keras.Model:
    model = mlp("adam")
    build(model, (X[:1], Y[:1]))
    return model


def train(trainer: LocalTrainer, state: TrainState) -> Update:
    return trainer.train(Order("train", 0, 0, Span(0), state))


def test_workers_that_share_a_model_train_as_workers_that_do_not(tmp_path: Path) -> None:
    model = prepared()
    start = Variables(model).read()
    refs = [shard(tmp_path, X[part::3], Y[part::3], worker=part) for part in range(3)]
    factory = TrainerFactory(ModelSpec.from_model(model), config(num_workers=3), Average(), "")
    alone = []
    for ref in refs:
        trainer = factory(ref.worker, ref, None)
        alone.append(train(trainer, start))
        trainer.close()
    with SharingFactory(factory) as sharing:
        workers = [sharing(ref.worker, ref, None) for ref in refs]
        assert len({id(trainer._program) for trainer in workers}) == 1
        for trainer, expected in zip(workers, alone, strict=True):
            update = train(trainer, start)
            for name, array in expected.arrays().items():
                np.testing.assert_array_equal(update.arrays()[name], array, err_msg=name)


@pytest.mark.parametrize("shared", [True, False])
def test_validation_rows_that_do_not_fit_are_found_before_any_training(tmp_path: Path, shared: bool) -> None:
    """Of other lengths they may be, where the model takes any."""
    factory = TrainerFactory(ModelSpec.from_model(prepared()), config(num_workers=1), Average(), "")
    inputs = keras.Input((None, 4))
    model = keras.Model(inputs, keras.layers.Dense(1)(keras.layers.GlobalAveragePooling1D()(inputs)))
    model.compile("sgd", "mse")
    any_length = TrainerFactory(ModelSpec.from_model(model), config(num_workers=1), Average(), "")
    refs = [
        shard(tmp_path / str(number), x, y, worker=0)
        for number, (x, y) in enumerate([(X, Y), (X[:, :2], Y), (X[:, None], Y), (np.stack([X, X], 1), Y)])
    ]
    with SharingFactory(factory) if shared else nullcontext(factory) as workers:
        with pytest.raises(
            DataError,
            match=r"validation rows do not fit .*float32 of shape \(4,\) and float32 of shape \(2,\).*Keras says: \w+",
        ):
            workers(0, refs[0], refs[1])
    with SharingFactory(any_length) if shared else nullcontext(any_length) as workers:
        workers(0, refs[2], refs[3])


class Clips(keras.callbacks.Callback):
    def on_train_begin(self, logs: object = None) -> None:
        self.model.optimizer.clipnorm = 1e-9  # Adam's first step is shorter for so small a gradient


@pytest.mark.parametrize("shared", [True, False])
def test_what_worker_callbacks_change_in_a_model_reaches_no_other_fit(tmp_path: Path, shared: bool) -> None:
    model, ref = prepared(), shard(tmp_path, X, Y)
    spec, start, updates = ModelSpec.from_model(model), Variables(model).read(), []
    for callbacks in ([], [Clips()], []):
        factory = TrainerFactory(spec, config(), Average(), "", cloudpickle.dumps(callbacks) if callbacks else b"")
        with SharingFactory(factory) if shared else nullcontext(factory) as workers:
            trainer = workers(0, ref, None)
            updates.append(train(trainer, start))
            trainer.close()
    first, clipped, after = (update.delta for update in updates)
    assert not np.allclose(first, clipped)
    np.testing.assert_array_equal(after, first)


def test_a_smaller_last_batch_is_the_same_with_worker_callbacks(tmp_path: Path) -> None:
    """JAX has arrays of few sizes: 21 rows are padded to 22."""
    model, ref, updates = prepared(), shard(tmp_path, *rows(53)), []
    spec, start = ModelSpec.from_model(model), Variables(model).read()
    for callbacks in (b"", cloudpickle.dumps([keras.callbacks.Callback()])):
        trainer = TrainerFactory(spec, config(batch_size=32), Average(), "", callbacks)(0, ref, None)
        updates.append(train(trainer, start))
        trainer.close()
    np.testing.assert_array_equal(updates[0].delta, updates[1].delta)


def test_what_is_the_user_s_own_reaches_workers_without_its_module(tmp_path: Path, monkeypatch: object) -> None:
    (tmp_path / "parts_of_mine.py").write_text(
        "from dataclasses import dataclass\n"
        "from elephas_like.core.strategies import Float16, Reduce\n"
        "@dataclass(frozen=True)\n"
        "class First(Reduce):\n"
        "    def combine(self, deltas, weights, context):\n"
        "        return deltas[0]\n"
        "@dataclass(frozen=True)\n"
        "class Half(Float16):\n"
        "    pass\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    mine = importlib.import_module("parts_of_mine")
    strategy = Average(reduce=Clipped(1.0, then=mine.First()))
    factory = TrainerFactory(ModelSpec.from_model(prepared()), config(), strategy, "", codec=mine.Half())
    raw = cloudpickle.dumps(factory)
    monkeypatch.undo()
    del sys.modules["parts_of_mine"]
    back = cloudpickle.loads(raw)
    reduction = back.strategy.reduction(Context(0, 2))
    for delta in ([0.5, 0], [0, 0.25]):
        reduction.add(np.array(delta, np.float32), 1.0)
    assert reduction.result().tolist() == [0.5, 0]
    assert back.codec.nbytes(10) == 20
