"""Searches and ensembles on DataFrames: the same as on the rows themselves, and what does not fit is said before a job."""

from __future__ import annotations

import keras
import numpy as np
import pytest
from frame_data import breast_cancer, diabetes, frame, mlp
from pyspark.sql import functions

from elephas_like import DataError, SparkModel, VotingModel, search, shard, train_ensemble

layers = keras.layers
X, Y = (part[:240] for part in breast_cancer())


def build(params: object = None) -> keras.Model:
    model = keras.Sequential([keras.Input((30,)), layers.Dense(8, "relu"), layers.Dense(1, "sigmoid")])
    rate = params["rate"] if isinstance(params, dict) else 0.01
    model.compile(keras.optimizers.Adam(rate), "binary_crossentropy", metrics=["accuracy", "auc"])
    return model


@pytest.fixture(scope="module")
def df(spark):
    return frame(spark, X, Y).withColumn("w", functions.expr("1.0D + id % 3")).cache()


@pytest.fixture(scope="module")
def two() -> list[keras.Model]:
    """Two models that differ, and are a little trained."""
    options = {"epochs": 1, "seed": 3, "engine": "in_process", "verbose": 0}
    return train_ensemble(build, (X.astype("float32"), Y), 2, **options).models


def same(one: VotingModel, other: VotingModel) -> None:
    for a, b in zip(one.models, other.models, strict=True):
        for left, right in zip(a.get_weights(), b.get_weights(), strict=True):
            np.testing.assert_allclose(left, right, atol=1e-6)


def plain(found) -> list:
    return found.trials.drop(columns=["seconds"]).to_dict("records")


def test_an_ensemble_of_a_frame_is_that_of_its_rows(df) -> None:
    given = {"epochs": 1, "seed": 5, "batch_size": 16, "verbose": 0, "weights": [1, 3]}
    weights = 1.0 + np.arange(240) % 3
    rows, held = (X[:200], Y[:200], weights[:200]), (X[200:], Y[200:], weights[200:])
    here = train_ensemble(build, rows, 2, validation_data=held, engine="in_process", **given)
    of_frame = train_ensemble(
        build, df.filter("id < 200"), 2, validation_data=df.filter("id >= 200"), sample_weight_col="w", **given
    )
    same(of_frame, here)
    assert of_frame.weights == (0.25, 0.75)
    for history, expected in zip(of_frame.histories, here.histories, strict=True):
        np.testing.assert_allclose(history["val_loss"], expected["val_loss"], rtol=1e-5)


@pytest.mark.slow
def test_members_of_several_workers(df) -> None:
    wide = train_ensemble(
        build, df.coalesce(1), 1, workers_per_member=2, validation_data=df, epochs=1, seed=2, verbose=0
    )
    assert "val_auc" in wide.histories[0]


def test_members_of_partitions(df) -> None:
    given = {"epochs": 1, "seed": 2, "verbose": 0}
    apart = train_ensemble(build, df, 2, bagging="partition", batch_size=12, engine="in_process", **given)
    assert [int(model.optimizer.iterations.numpy()) for model in apart.models] == [10, 10]
    with pytest.raises(ValueError, match=r"num_members is 3, and the data has 2\. Call repartition\(3\)"):
        train_ensemble(build, df, 3, bagging="partition", **given)


SEARCH = {"max_evals": 1, "epochs": 1, "seed": 1, "verbose": 0, "algo": "random"}
RATES = {"rate": ("loguniform", -6, -3)}


def test_a_search_on_a_frame_is_that_of_its_rows(df) -> None:
    of_arrays = search(build, RATES, (X[:200], Y[:200]), validation_data=(X[200:], Y[200:]), **SEARCH)
    of_frame = search(build, RATES, df.filter("id < 200"), validation_data=df.filter("id >= 200"), **SEARCH)
    assert plain(of_frame) == plain(of_arrays)


@pytest.mark.slow
def test_a_search_on_a_frame_with_several_workers_a_trial(df) -> None:
    train, held = df.filter("id < 200"), df.filter("id >= 200")
    wide = search(build, RATES, train, validation_data=held, trial_workers=2, **SEARCH)
    assert set(wide.trials["status"]) == {"ok"}
    assert wide.best_model.evaluate(X, Y, verbose=0)[0] < 1
    assert wide.best_ensemble(1).predict(df).shape == (240,)


@pytest.mark.slow
def test_columns_of_all_kinds_for_several_inputs_and_outputs(df) -> None:
    both = df.selectExpr("id", "struct(features AS many, id * 0.01 AS one) AS inputs", "label AS a", "label AS b")

    def of_struct(names: tuple[str, ...]) -> keras.Model:
        many, one = keras.Input((30,), name="many"), keras.Input((1,), name="one")
        joined = layers.Concatenate()([many, one])
        outputs = [layers.Dense(1, "sigmoid", name=name)(joined) for name in names]
        model = keras.Model({"many": many, "one": one}, outputs)
        model.compile("adam", "binary_crossentropy" if len(names) == 1 else ["binary_crossentropy"] * len(names))
        return model

    def two(params: dict) -> keras.Model:
        return of_struct(("a", "b"))

    found = search(
        two, {"rate": [0.1, 0.2]}, both.filter("id < 200"), max_evals=1, epochs=1, validation_data=both,
        features_col="inputs", label_col=["a", "b"], trial_workers=2, verbose=0,
    )  # fmt: skip
    assert {"val_a_loss", "val_b_loss"} <= set(found.trials["history"][0])

    members = train_ensemble(
        lambda: of_struct(("a",)), both, 2, features_col="inputs", label_col="a", seed=1, verbose=0
    )
    inputs = {"many": X, "one": np.arange(240)[:, None] * 0.01}
    found = members.predict_proba(both, features_col="inputs")
    np.testing.assert_allclose(found, members.predict_proba(inputs), atol=1e-6)


@pytest.mark.parametrize("voting", [pytest.param("hard", marks=pytest.mark.slow), "soft"])
def test_a_frame_is_predicted_and_evaluated_as_its_rows_are(df, two, voting: str) -> None:
    ensemble = VotingModel(two, voting, weights=[1, 2])
    classes, probabilities = ensemble.predict(X), ensemble.predict_proba(X)
    np.testing.assert_array_equal(ensemble.predict(df), classes)
    np.testing.assert_allclose(ensemble.predict_proba(df, 16), probabilities, atol=1e-6)
    rows = ensemble.transform(df, probability_col="p", raw_prediction_col="raw").collect()
    assert [row.id for row in rows] == list(range(240))
    assert [row.prediction for row in rows] == classes.tolist()
    np.testing.assert_allclose([row.p for row in rows], probabilities, atol=1e-6)
    np.testing.assert_allclose([row.raw for row in rows], probabilities, atol=1e-6)
    weights = 1.0 + np.arange(240) % 3
    expected = ensemble.evaluate(X, Y, sample_weight=weights, return_dict=True)
    assert ensemble.evaluate(df, sample_weight_col="w", return_dict=True) == pytest.approx(expected, rel=1e-4)
    rdd = df.rdd.map(lambda row: (row.features.toArray(), row.label, row.w))
    assert ensemble.evaluate(rdd, return_dict=True, batch_size=50) == pytest.approx(expected, rel=1e-4)


@pytest.fixture(scope="module")
def counted(df, sc):
    """The frame, and how many of its rows were read so far."""
    seen = sc.accumulator(0)

    def count(row):
        seen.add(1)
        return row

    return df.rdd.map(count).toDF(df.schema), seen


def test_one_pass_over_a_frame_for_all_members(counted, two) -> None:
    again, seen = counted
    ensemble = VotingModel(two, "soft")
    for act in (ensemble.predict, ensemble.evaluate, lambda given: ensemble.transform(given).collect()):
        before = seen.value
        act(again)
        assert seen.value - before == 240


def test_a_mean_over_a_frame(spark) -> None:
    x, y = (part[:90] for part in diabetes())
    df = frame(spark, x, y)
    ensemble = VotingModel([mlp(10, 1, None, "mse"), mlp(10, 1, None, "mse")], "mean")
    expected = ensemble.predict(x)
    np.testing.assert_allclose(ensemble.predict(df), expected, rtol=1e-4, atol=1e-6)
    added = ensemble.predict(df, collect=False)
    assert added.columns == ["id", "features", "label", "prediction"]
    np.testing.assert_allclose([row.prediction for row in added.collect()], expected[:, 0], rtol=1e-4, atol=1e-6)
    assert ensemble.evaluate(df) == pytest.approx(ensemble.evaluate(x, y), rel=1e-4)
    with pytest.raises(ValueError, match="voting='mean' has no classes"):
        ensemble.transform(df, probability_col="p")
    with pytest.raises(ValueError, match="already"):
        ensemble.transform(added)


def test_a_frame_is_sharded_once_for_many_fits(df) -> None:
    one, other = build(), build()
    other.set_weights(one.get_weights())
    with shard(df, 2, model=one) as dataset:
        SparkModel(one, seed=1).fit(dataset, epochs=1, verbose=0)
        SparkModel(other, 2, seed=1).fit(df, epochs=1, verbose=0)
        once = one.get_weights()
        for mine, theirs in zip(once, other.get_weights(), strict=True):
            np.testing.assert_array_equal(mine, theirs)
        again = SparkModel(one, seed=1).fit(dataset, epochs=1, verbose=0)
    assert sum(record.samples for record in again.rounds) == 240
    assert any(not np.array_equal(before, after) for before, after in zip(once, one.get_weights(), strict=True))


@pytest.mark.slow
def test_a_frame_is_sharded_with_weights_in_any_order_and_for_one_hot_labels(df) -> None:
    with shard(df.coalesce(1), 2, label_col="label", sample_weight_col="w", shuffle=True, seed=4) as dataset:
        history = SparkModel(build()).fit(dataset, epochs=1, verbose=0)
        counts = {record.worker: record.samples for record in history.rounds[0].workers}
        assert sum(record.samples for record in history.rounds) == 240
        assert len(counts) == 2
    wanted = mlp(30, 2, "softmax", "categorical_crossentropy")
    with shard(df, 2, model=wanted) as dataset:  # labels become one-hot, as by fit
        assert SparkModel(wanted).fit(dataset, verbose=0).history["loss"][0] > 0


@pytest.mark.parametrize(
    ("call", "kind", "match"),
    [
        (
            lambda df: train_ensemble(build, df, 2, features_col="feature"),
            ValueError,
            r"no column 'feature'.*Did you mean",
        ),
        (lambda df: train_ensemble(build, df.drop("label"), 2), ValueError, "label_col: there is no column 'label'"),
        (
            lambda df: train_ensemble(build, (X, Y), 2, label_col="y"),
            ValueError,
            "label_col= names columns of a DataFrame",
        ),
        (lambda df: train_ensemble(build, (X, Y), 2, validation_data=df), TypeError, "goes with data that has columns"),
        (lambda df: train_ensemble(build, df, 2, weights=[1]), ValueError, "expected 2, got 1"),
        (
            lambda df: train_ensemble(lambda seed: mlp(30, 1 + seed % 7, None, "mse"), df, 3, voting="mean", seed=1),
            ValueError,
            "equal outputs: model 0 has shape",
        ),
        (lambda df: search(build, {"rate": [0.1]}, df.drop("label"), max_evals=1), ValueError, "val_loss' needs rows"),
        (
            lambda df: search(build, {"rate": [0.1]}, df, max_evals=1, validation_split=0.1, label_col="lable"),
            ValueError,
            "no column 'lable'",
        ),
        (
            lambda df: search(lambda params: params["no"], {"rate": [0.1]}, df, max_evals=1, validation_split=0.1),
            ValueError,
            "build.params. failed at all of 20 points.*KeyError: 'no'",
        ),
        (lambda df: VotingModel([build()]).predict(df, features_col="id"), ValueError, "holds 1 numbers a row"),
        (lambda df: VotingModel([build()]).evaluate(df, label_col="y"), ValueError, "no column 'y'"),
        (lambda df: VotingModel([build()]).transform(X), TypeError, "transform takes a DataFrame; got ndarray"),
        (lambda df: shard((X, Y), 2, model=build()), ValueError, "model= says how columns"),
        (lambda df: shard(df, 2, Y), ValueError, "name their columns"),
    ],
)
def test_what_does_not_fit_is_said_before_a_job(counted, call, kind: type, match: str) -> None:
    again, seen = counted
    before = seen.value
    with pytest.raises(kind, match=match):
        call(again)
    assert seen.value == before


def test_a_row_that_does_not_fit_is_named(df, spark) -> None:
    rows = df.select("features", functions.when(functions.col("id") != 7, functions.col("label")).alias("label"))
    for act in (
        lambda: train_ensemble(build, rows, 2, verbose=0),
        lambda: search(build, {"rate": [0.1]}, rows, max_evals=1, validation_split=0.2, verbose=0),
        lambda: VotingModel([build()]).evaluate(rows),
    ):
        with pytest.raises(DataError, match=r"column 'label', partition 0, row 7: .*null"):
            act()
