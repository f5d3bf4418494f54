"""Ensembles over Spark: one pass over the rows for all members, predictions in their order, and BatchNorm recalibrated."""

from __future__ import annotations

from pathlib import Path

import keras
import numpy as np
import pytest
from bagged import X, Y, build, three
from small import line, points, rows

import elephas_like
from elephas_like import SparkModel, VotingModel, recalibrate_batch_norm
from elephas_like.core.errors import ElephasWarning

layers = keras.layers


@pytest.fixture
def here() -> VotingModel:
    """Three bagged members, trained in this process."""
    return three()


def test_predictions_of_an_rdd_are_those_of_arrays_in_its_order(sc, here: VotingModel) -> None:
    parts = sc.parallelize(list(X[:150]), 1).union(sc.parallelize([], 1)).union(sc.parallelize(list(X[150:300]), 2))
    hard, soft = (VotingModel(here.models, voting, weights=[1, 2, 1]) for voting in ("hard", "soft"))
    expected = hard.predict(X[:300])
    found = hard.predict(parts, 16)
    assert found.dtype == np.int64
    np.testing.assert_array_equal(found, expected)
    np.testing.assert_allclose(soft.predict_proba(parts, 16), soft.predict_proba(X[:300]), atol=1e-6)
    one_by_one = soft.predict(parts, collect=False).glom().collect()
    assert [len(part) for part in one_by_one] == [150, 0, 75, 75]
    np.testing.assert_array_equal([label for part in one_by_one for label in part], soft.predict(X[:300]))
    assert hard.predict(sc.parallelize([], 2)).shape == (0,)


def test_one_pass_over_the_rows_for_all_members(sc, here: VotingModel) -> None:
    seen = sc.accumulator(0)

    def count(row):
        seen.add(1)
        return row

    VotingModel([*here.models, *here.models], "soft").predict(sc.parallelize(list(X[:100]), 2).map(count))
    assert seen.value == 100


def test_regression_over_an_rdd(sc) -> None:
    models = [line(seed=seed) for seed in (1, 2)]
    features = [x for x, _ in points(30)]
    found = VotingModel(models, "mean").predict(sc.parallelize(features, 2))
    expected = np.mean([model.predict(np.array(features, "float32"), verbose=0) for model in models], axis=0)
    assert found.shape == (30, 1)
    np.testing.assert_allclose(found, expected, atol=1e-6)


def test_metrics_that_do_not_add_up_are_named_where_rows_are_evaluated_apart(sc) -> None:
    class Peak(keras.metrics.Metric):
        def __init__(self, name: str = "peak") -> None:
            super().__init__(name=name)
            self.kept = self.add_weight(shape=(), initializer="zeros", name="kept")

        def update_state(self, y_true, y_pred, sample_weight=None) -> None:
            self.kept.assign(keras.ops.maximum(self.kept, keras.ops.max(keras.ops.cast(y_true, "float32"))))

        def result(self):
            return self.kept

    models = [line(seed=seed) for seed in (1, 2)]
    models[0].compile("sgd", "mse", metrics=[Peak(), "mae"])
    with pytest.warns(ElephasWarning, match=r"the metrics 'peak' do not add up") as caught:
        VotingModel(models, "mean").evaluate(sc.parallelize(points(30), 2))
    assert len([one for one in caught if issubclass(one.category, ElephasWarning)]) == 1


def test_batch_norm_is_recalibrated_on_executors(sc, scratch: Path) -> None:
    model = build()
    rdd = sc.parallelize(rows(X, Y), 3)
    SparkModel(model, 2, seed=1).fit(sc.parallelize(rows(X, Y), 2), epochs=1, verbose=0)
    norm = model.layers[1]
    seen = model.layers[0](X).numpy()
    recalibrate_batch_norm(SparkModel(model), rdd, batch_size=50)
    np.testing.assert_allclose(norm.moving_mean, seen.mean(0), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(norm.moving_variance, seen.var(0), rtol=1e-5, atol=1e-6)
    norm.moving_mean.assign(np.zeros(16))
    with elephas_like.shard(rdd, 2) as dataset:
        recalibrate_batch_norm(model, dataset)
        for file in scratch.rglob(f"elephas_like-{dataset.dataset}/worker-1/*"):
            file.unlink()
        recalibrate_batch_norm(model, dataset)  # lost files are written again
        np.testing.assert_allclose(norm.moving_mean, model.layers[0](X).numpy().mean(0), rtol=1e-5, atol=1e-5)
        SparkModel(model, 2).fit(dataset, epochs=1, verbose=0)  # its shards are still there
    with pytest.raises(ValueError, match="no rows"):
        recalibrate_batch_norm(model, sc.parallelize([], 2))


def test_batch_norm_of_a_model_without_targets(sc) -> None:
    model = keras.Sequential([keras.Input((64,)), layers.BatchNormalization()])
    recalibrate_batch_norm(model, sc.parallelize(list(X), 2))
    np.testing.assert_allclose(model.layers[0].moving_mean, X.mean(0), atol=1e-5)
