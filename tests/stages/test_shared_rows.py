"""Fits of a grid that share their rows: read once, trained as each would be alone."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import pytest
from frame_data import breast_cancer, frame, mlp
from leftovers import ours
from pyspark.ml.evaluation import MulticlassClassificationEvaluator
from pyspark.ml.tuning import TrainValidationSplit

from elephas_like import ElephasEstimator
from elephas_like.stages.shared_rows import column_arguments, shared_rows

X, Y = (part[:120] for part in breast_cancer())


@pytest.fixture(scope="module")
def counted(spark, sc):
    """A frame, and how many of its rows were read so far."""
    df, seen = frame(spark, X, Y), sc.accumulator(0)

    def count(row):
        seen.add(1)
        return row

    return df.rdd.map(count).toDF(df.schema), seen


def estimator(**options: object) -> ElephasEstimator:
    model = mlp(30, 1, "sigmoid", "binary_crossentropy", run_eagerly=True)  # few steps: a graph costs more
    model.optimizer.build(model.trainable_variables)
    return ElephasEstimator(model, **{"epochs": 1, "num_workers": 2, "seed": 1, "validation_split": 0.0} | options)


def same(one: list[np.ndarray], other: list[np.ndarray]) -> bool:
    return all(np.array_equal(left, right) for left, right in zip(one, other, strict=True))


def test_rows_are_written_once_for_all_maps_and_trained_as_for_each(counted, scratch: Path) -> None:
    df, seen = counted
    given = estimator(engine="server")
    maps = [{given.epochs: 1}, {given.epochs: 2, given.batch_size: 16, given.optimizerConfig: "sgd"}]
    before = seen.value, ours(scratch)
    fitted = dict(given.fitMultiple(df, maps))
    assert seen.value - before[0] == len(X)
    assert ours(scratch) == before[1]
    alone = [given.fit(df, one) for one in maps]
    assert seen.value - before[0] == 3 * len(X)
    for index, expected in enumerate(alone):
        assert same(fitted[index].weights, expected.weights)
        assert len(fitted[index].history[0]["loss"]) == len(expected.history[0]["loss"])
    assert not same(fitted[0].weights, fitted[1].weights)


def test_maps_that_read_other_rows_read_them_themselves(counted) -> None:
    df, seen = counted
    given = estimator(engine="jobs")
    maps = [{given.epochs: 1}, {given.numWorkers: 1}, {given.epochs: 2}]
    before = seen.value
    assert len(list(given.fitMultiple(df, maps))) == 3
    assert seen.value - before == 2 * len(X)  # the first and the third share


def test_a_fit_that_fails_does_not_fail_the_others(counted, scratch: Path) -> None:
    df, _ = counted
    given = estimator(engine="jobs")
    maps = [{given.epochs: 1}, {given.maxStaleness: 2}, {given.epochs: 1}]
    before = ours(scratch)
    fits = given.fitMultiple(df, maps)
    _, first = next(fits)
    with pytest.raises(ValueError, match="max_staleness is for mode"):
        next(fits)
    assert ours(scratch) == before
    _, last = next(fits)
    alone = given.fit(df, maps[0])
    assert same(first.weights, alone.weights)
    assert same(last.weights, alone.weights)


@pytest.mark.classic
def test_rows_that_do_not_fit_are_an_error_of_each_fit(spark) -> None:
    df = spark.createDataFrame(
        [([1.0] * 30, 1.0), ([1.0] * 30, None)], "features array<double>, label double"
    ).coalesce(1)
    given = estimator(engine="jobs", num_workers=1)
    fits = given.fitMultiple(df, [{given.epochs: 1}, {given.epochs: 2}])
    for _ in range(2):
        with pytest.raises(Exception, match="column 'label', partition 0, row 1"):
            next(fits)


def test_validation_rows_are_those_of_each_fit_alone(counted) -> None:
    df = counted[0].selectExpr("*", "id >= 90 AS held")
    given = estimator(engine="jobs", validation_col="held")
    maps = [{given.epochs: 1}, {given.epochs: 2}]
    shared = dict(given.fitMultiple(df, maps))
    (expected,) = given.fit(df, maps[1]).history
    for index in range(2):  # the one epoch of the first is the other's first
        (found,) = shared[index].history
        assert found.keys() == expected.keys() >= {"val_loss"}
        assert found["val_loss"] == pytest.approx(expected["val_loss"][: index + 1], rel=1e-5)


def test_a_search_of_spark_s_shares_rows_among_threads(counted) -> None:
    df, _ = counted
    given = estimator()
    grid = [{given.epochs: 1, given.batchSize: 64}, {given.epochs: 4, given.batchSize: 16}]
    search = TrainValidationSplit(
        estimator=given,
        estimatorParamMaps=grid,
        evaluator=MulticlassClassificationEvaluator(metricName="logLoss"),
        parallelism=2,
        seed=3,
    )
    found = search.fit(df)
    of_few_steps, of_many = found.validationMetrics
    assert of_many < of_few_steps
    assert found.bestModel.transform(df).count() == len(X)


def test_which_fits_share() -> None:
    given = estimator()
    losses = [{given.loss: "hinge"}, {given.epochs: 2}, {given.loss: "hinge", given.epochs: 3}]
    contexts = shared_rows([given.copy(one) for one in losses], None)
    with contexts[0] as first, contexts[1] as alone, contexts[2] as third:
        assert first is third is not None
        assert alone is None
    for one in ({given.numWorkers: 1}, {given.handleInvalid: "skip"}):
        read = shared_rows([given.copy({given.epochs: 2}), given.copy(one), given.copy({given.epochs: 3})], None)
        with read[0] as first, read[1] as alone, read[2] as third:
            assert first is third is not None
            assert alone is None
    local = [given.copy({given.engine: "in_process", given.epochs: epochs}) for epochs in (1, 2)]
    for context in shared_rows(local, None):
        with context as rows:
            assert rows is None


def test_fits_of_several_threads_write_once(counted) -> None:
    df, seen = counted
    given = estimator(engine="jobs")
    before, found = seen.value, []
    fits = given.fitMultiple(df, [{given.epochs: 1}, {given.epochs: 1}])
    threads = [threading.Thread(target=lambda: found.append(next(fits))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen.value - before == len(X)
    assert same(found[0][1].weights, found[1][1].weights)


def test_param_maps_do_not_share_checkpoints(counted, tmp_path: Path) -> None:
    """A fit would go on from another map's checkpoint, with its weights and its learning rate."""
    df, seen = counted
    given = estimator(engine="jobs", checkpoint_dir=str(tmp_path))
    before = seen.value
    with pytest.raises(ValueError, match="leave checkpointDir out of a search"):
        given.fitMultiple(df, [{given.epochs: 1}, {given.epochs: 2}])
    own = [{given.checkpointDir: str(tmp_path / name)} for name in "ab"]
    assert seen.value == before
    assert len(dict(given.fitMultiple(df, own))) == 2


def test_a_column_of_labels_is_named_if_its_param_is_set() -> None:
    assert column_arguments(estimator())["label_col"] is None
    assert column_arguments(estimator(label_col="label"))["label_col"] == "label"
