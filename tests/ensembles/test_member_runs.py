"""Members trained as Spark jobs, as partitions and as fits of several workers: the same as in one process."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import keras
import numpy as np
import pytest
from bagged import X, Y, build, same, three
from scripts import Script
from small import classifier, line, points, rows

import elephas_like
from elephas_like import VotingModel, WorkerError, train_ensemble
from elephas_like.core.errors import ElephasError
from elephas_like.spark.session import settings_of

layers = keras.layers


def eager() -> keras.Model:
    """For members of few steps: a graph for each costs more."""
    model = build()
    model.run_eagerly = True
    return model


@pytest.fixture
def here() -> VotingModel:
    """Three bagged members, trained in this process."""
    return three()


def test_three_members_on_two_slots_are_those_of_one_process(sc, here: VotingModel) -> None:
    options = {"epochs": 3, "seed": 5, "validation_data": (X[500:], Y[500:]), "verbose": 0}
    of_arrays = train_ensemble(build, (X[:500], Y[:500]), 3, **options)
    of_rows = train_ensemble(build, sc.parallelize(rows(X[:500], Y[:500]), 3), 3, **options)
    same(of_arrays, here)
    same(of_rows, here)
    assert len(of_rows.histories) == 3
    for history, expected in zip(of_rows.histories, here.histories, strict=True):
        assert list(history) == ["accuracy", "loss", "val_accuracy", "val_loss"]
        np.testing.assert_allclose(history["val_loss"], expected["val_loss"], rtol=1e-4)


def test_members_that_spark_would_not_bring_back_are_refused_before_they_are_trained(sc, monkeypatch) -> None:
    monkeypatch.setitem(settings_of(sc), "spark.driver.maxResultSize", "1k")
    with pytest.raises(
        ElephasError, match=r"a member with its optimizer's state, .* is more than spark.driver.maxResultSize"
    ):
        train_ensemble(build, sc.parallelize(rows(X[:40], Y[:40]), 2), 2, verbose=0, epochs=1, max_failures=1)


def test_members_of_a_host_share_one_shard(sc) -> None:
    class Where(keras.callbacks.Callback):
        """Puts into the history how many shards the host of a member has."""

        def on_epoch_end(self, epoch: int, logs: dict) -> None:
            import glob
            import tempfile

            pattern = os.path.join(tempfile.gettempdir(), "**", "elephas_like-*", "worker-0")
            logs["shards"] = float(len(glob.glob(pattern, recursive=True)))

    found = train_ensemble(
        eager, sc.parallelize(rows(X[:100], Y[:100]), 4), 3, seed=1, callbacks=[Where()], verbose=0, epochs=1
    )
    assert {history["shards"][0] for history in found.histories} == {1.0}


def test_a_member_per_partition(sc, scratch: Path) -> None:
    sizes = [100, 150]
    parts = rows(X[:100], Y[:100]), rows(X[100:250], Y[100:250])
    rdd = sc.parallelize(range(2), 2).flatMap(lambda part: parts[part])
    told = {"bagging": "partition", "epochs": 2, "seed": 3, "batch_size": 25, "verbose": 0}
    found = train_ensemble(eager, rdd, 2, **told)
    steps = [int(model.optimizer.iterations.numpy()) for model in found.models]
    assert steps == [2 * size // 25 for size in sizes]
    with elephas_like.shard(rdd, 2) as dataset:
        for _ in range(2):
            same(train_ensemble(eager, dataset, 2, **told), found)
            lost = list(scratch.rglob(f"elephas_like-{dataset.dataset}/worker-1/*"))
            assert lost  # they are written again
            for file in lost:
                file.unlink()
        with pytest.raises(ValueError, match="sharded for 2 members, and num_members is 3"):
            train_ensemble(eager, dataset, 3, **told)


def test_a_sharded_dataset_serves_several_ensembles(sc, here: VotingModel) -> None:
    with elephas_like.shard(sc.parallelize(rows(X[:500], Y[:500]), 2), 2) as dataset:
        for engine in ("auto", "auto", "in_process"):
            found = train_ensemble(build, dataset, 3, epochs=3, seed=5, verbose=0, engine=engine)
            same(found, here)
            assert [len(history["loss"]) for history in found.histories] == [3, 3, 3]


def test_several_workers_per_member(sc) -> None:
    told = {"workers_per_member": 2, "epochs": 2, "seed": 2, "validation_split": 0.2, "verbose": 0}
    found = train_ensemble(eager, (X[:300], Y[:300]), 2, **told)
    assert [len(history["val_loss"]) for history in found.histories] == [2, 2]
    assert all(history["loss"][-1] < history["loss"][0] for history in found.histories)
    again = train_ensemble(eager, (X[:300], Y[:300]), 2, engine="in_process", **told)
    same(again, found, 1e-5)


class Fussy(layers.Layer):
    """A layer that cannot be traced for training by some members."""

    def __init__(self, broken: bool, **options: object) -> None:
        super().__init__(**options)
        self.broken = broken

    def call(self, x, training=None):
        if self.broken and training:
            raise KeyError("no such weight: 'gamma'")
        return x

    def get_config(self):
        return {**super().get_config(), "broken": self.broken}


def fussy(broken_members: int):
    built: list[int] = []

    def make() -> keras.Model:
        built.append(1)
        model = keras.Sequential([keras.Input((2,)), Fussy(len(built) <= broken_members), layers.Dense(1)])
        model.compile("sgd", "mse", run_eagerly=True)
        return model

    return make


def test_a_member_that_fails_raises_with_its_own_error(sc) -> None:
    rdd = sc.parallelize(points(20), 2)
    with pytest.raises(KeyError, match="no such weight: 'gamma'") as caught:
        train_ensemble(fussy(1), rdd, 3, seed=1, verbose=0)
    assert isinstance(caught.value, WorkerError)
    assert caught.value.__notes__ == ["It is member 0 of the ensemble that failed."]


@pytest.mark.fault("The Python process of an ensemble's member dies", "the member is trained again", "one training")
def test_a_member_whose_process_dies_is_trained_again(sc, tmp_path: Path) -> None:
    """In local mode, where Spark retries no task."""

    class Dies(keras.callbacks.Callback):
        def __init__(self, mark: str) -> None:
            super().__init__()
            self.mark = mark

        def on_epoch_end(self, epoch: int, logs: dict) -> None:
            try:
                Path(self.mark).touch(exist_ok=False)
            except FileExistsError:
                return
            os.kill(os.getpid(), signal.SIGKILL)

    def build() -> keras.Model:
        return line(run_eagerly=True)

    rdd = sc.parallelize(points(20), 2)
    for bagging in (True, "partition"):
        options = {"seed": 1, "epochs": 2, "bagging": bagging, "verbose": 0}
        mark = tmp_path / str(bagging)
        found = train_ensemble(build, rdd, 2, callbacks=[Dies(str(mark))], **options)
        assert mark.exists()
        assert found.failures == []
        same(found, train_ensemble(build, rdd, 2, **options))


def test_members_that_may_fail_are_left_out(sc) -> None:
    rdd = sc.parallelize(points(20), 2)
    found = train_ensemble(fussy(1), rdd, 3, seed=1, verbose=0, max_failures=1)
    assert len(found.models) == len(found.histories) == 2
    assert [number for number, _ in found.failures] == [0]
    with pytest.raises(KeyError, match="gamma"):
        train_ensemble(fussy(2), rdd, 2, seed=1, verbose=0, max_failures=2)


def test_rows_that_are_none_are_named(sc) -> None:
    rdd = sc.parallelize([*points(5), ([1.0, 2.0, 3.0], 1.0)], 2)
    with pytest.raises(
        elephas_like.DataError, match=r"partition 1, row 2: feature 'x' expected shape \(2,\), got \(3,\)"
    ):
        train_ensemble(line, rdd, 2, verbose=0)


def test_classifiers_of_a_model_are_begun_anew(sc) -> None:
    model = classifier()
    before = model.get_weights()
    found = train_ensemble(model, (X[:200], Y[:200]), 2, seed=1, verbose=0, bagging=False)
    for weights, kept in zip(model.get_weights(), before, strict=True):
        np.testing.assert_array_equal(weights, kept)
    first, second = (member.get_weights()[0] for member in found.models)
    assert np.abs(first - second).max() > 0.1


@pytest.mark.slow
def test_an_interrupt_ends_all_members_and_leaves_nothing(tmp_path: Path) -> None:
    with Script("run_ensemble_interrupted.py", "spark", scratch=tmp_path) as script:
        assert script.answer() == {"training": 2}
        script.process.send_signal(signal.SIGINT)
        assert script.answer() == {"interrupted": True, "threads": [], "files": [], "trains_again": 2}
