"""Spark ML's conventions: columns, evaluators, thresholds and invalid rows, compared with Spark's own classifiers."""

from __future__ import annotations

import math

import keras
import numpy as np
import pytest
from frame_data import breast_cancer, diabetes, frame, mlp, wine
from pyspark.ml.classification import LogisticRegression, LogisticRegressionModel
from pyspark.ml.evaluation import (
    BinaryClassificationEvaluator,
    MulticlassClassificationEvaluator,
    RegressionEvaluator,
)
from pyspark.ml.linalg import Vectors

from elephas_like import ElephasEstimator, ElephasTransformer, EnsembleModel, SparkModel, VotingModel

ADDED = ["prediction", "probability", "rawPrediction"]


@pytest.fixture(scope="module")
def cancer(spark):
    return frame(spark, *breast_cancer(), partitions=1).cache()


@pytest.fixture(scope="module")
def wines(spark):
    return frame(spark, *wine(), partitions=1).cache()


@pytest.fixture(scope="module")
def binary(cancer) -> LogisticRegressionModel:
    return LogisticRegression(maxIter=5, regParam=0.01).fit(cancer)


@pytest.fixture(scope="module")
def several(wines) -> LogisticRegressionModel:
    return LogisticRegression(maxIter=5, regParam=0.01, family="multinomial").fit(wines)


def dense(weights: np.ndarray, bias: np.ndarray, activation: str | None, loss: object) -> keras.Model:
    """A model of one layer with these weights."""
    model = keras.Sequential([keras.Input((len(weights),)), keras.layers.Dense(weights.shape[1], activation)])
    model.set_weights([weights, bias])
    model.compile("sgd", loss)
    return model


def like_binary(found: LogisticRegressionModel, *, logits: bool = False) -> keras.Model:
    weights, bias = found.coefficients.toArray()[:, None], np.array([found.intercept])
    loss = keras.losses.BinaryCrossentropy(from_logits=logits)
    return dense(weights, bias, None if logits else "sigmoid", loss)


def like_several(found: LogisticRegressionModel) -> keras.Model:
    weights, bias = found.coefficientMatrix.toArray().T, found.interceptVector.toArray()
    return dense(weights, bias, "softmax", "sparse_categorical_crossentropy")


def column(rows, name: str) -> np.ndarray:
    return np.array([row[name].toArray() if name in ADDED[1:] else row[name] for row in rows])


def test_columns_are_those_of_spark_s_logistic_regression(binary, cancer) -> None:
    theirs = binary.transform(cancer).cache()
    spark_s = theirs.collect()
    for logits in (True, False):
        ours = ElephasTransformer(like_binary(binary, logits=logits)).transform(cancer).cache()
        assert set(ours.columns) == set(theirs.columns)
        assert [ours.schema[name].dataType for name in ADDED] == [theirs.schema[name].dataType for name in ADDED]
        mine = ours.collect()
        for name in ADDED:
            np.testing.assert_allclose(column(mine, name), column(spark_s, name), rtol=1e-3, atol=1e-4)
    # Evaluators see the columns alone, and those of logits are the same.
    for metric in ("areaUnderROC", "areaUnderPR"):
        evaluator = BinaryClassificationEvaluator(metricName=metric)
        assert evaluator.evaluate(ours) == pytest.approx(evaluator.evaluate(theirs), abs=1e-6)
    for metric in ("logLoss", "f1", "accuracy"):
        evaluator = MulticlassClassificationEvaluator(metricName=metric)
        assert evaluator.evaluate(ours) == pytest.approx(evaluator.evaluate(theirs), abs=1e-4)


def test_several_classes_as_in_spark_but_for_a_constant_of_each_row(several, wines) -> None:
    ours, theirs = (stage.transform(wines).collect() for stage in (ElephasTransformer(like_several(several)), several))
    for name in ADDED[:2]:
        np.testing.assert_allclose(column(ours, name), column(theirs, name), rtol=1e-3, atol=1e-5)
    raw = [column(rows, "rawPrediction") for rows in (ours, theirs)]
    np.testing.assert_allclose(*(one - one.mean(axis=1, keepdims=True) for one in raw), atol=1e-3)


@pytest.mark.parametrize("thresholds", [[0.2, 0.9], [0.0, 1.0]])
def test_thresholds_choose_as_spark_s_do(binary, cancer, thresholds: list[float]) -> None:
    ours = ElephasTransformer(like_binary(binary), thresholds=thresholds)
    theirs = binary.copy({binary.thresholds: thresholds})
    mine, spark_s = (column(stage.transform(cancer).collect(), "prediction") for stage in (ours, theirs))
    np.testing.assert_array_equal(mine, spark_s)
    plain = column(binary.transform(cancer).collect(), "prediction")
    assert (mine != plain).any()


def test_thresholds_of_an_ensemble_go_with_its_estimator_s_params(several, wines) -> None:
    thresholds = [0.9, 0.01, 0.9]
    ours = EnsembleModel(VotingModel([like_several(several)] * 2, "soft"), thresholds=thresholds)
    expected = several.copy({several.thresholds: thresholds}).transform(wines).collect()
    found = ours.transform(wines).collect()
    np.testing.assert_array_equal(column(found, "prediction"), column(expected, "prediction"))
    np.testing.assert_allclose(column(found, "rawPrediction"), column(found, "probability"))


def test_thresholds_that_do_not_fit_are_refused_before_any_job(binary, cancer) -> None:
    model = like_binary(binary)
    with pytest.raises(ValueError, match="thresholds must have one number for each of 2 classes; got 3"):
        ElephasTransformer(model, thresholds=[1, 1, 1]).transform(cancer)
    for stage in (
        ElephasTransformer(mlp(30, 1, None, "mse"), thresholds=[1, 1]),
        ElephasTransformer(model, thresholds=[1, 1], predict_classes=False),
    ):
        with pytest.raises(ValueError, match=r"thresholds choose a class, and .* predicts none"):
            stage.transform(cancer)


def test_an_empty_name_leaves_a_column_out(binary, cancer) -> None:
    model = like_binary(binary)

    def added(**names: str) -> list[str]:
        return ElephasTransformer(model, **names).transform(cancer).columns[3:]

    assert added(probability_col="") == ["prediction", "rawPrediction"]
    assert added(rawPredictionCol="", probabilityCol="p") == ["prediction", "p"]
    assert added(prediction_col="") == ["probability", "rawPrediction"]
    assert added(prediction_col="", probability_col="", raw_prediction_col="") == []
    rows = ElephasTransformer(model, prediction_col="").transform(cancer)
    assert BinaryClassificationEvaluator().evaluate(rows) > 0.98


def test_a_regression_has_a_prediction_only(spark) -> None:
    df = frame(spark, *diabetes())
    found = ElephasTransformer(mlp(10, 1, None, "mse")).transform(df)
    assert found.columns[3:] == ["prediction"]
    assert RegressionEvaluator().evaluate(found) > 0
    with pytest.raises(ValueError, match="probability and rawPrediction are of models that classify"):
        ElephasTransformer(mlp(10, 1, None, "mse"), probability_col="p").transform(df)


def test_two_models_of_a_pipeline_need_two_names_of_predictions_only(binary, cancer) -> None:
    first = ElephasTransformer(like_binary(binary), output_col="one").transform(cancer)
    both = ElephasTransformer(like_binary(binary), output_col="two").transform(first)
    assert both.columns[3:] == ["one", "probability", "rawPrediction", "two"]
    with pytest.raises(ValueError, match="has a column 'probability' already"):
        ElephasTransformer(like_binary(binary), output_col="two", probability_col="probability").transform(first)


INVALID = {
    "vector": (
        [Vectors.dense(1, 2), None, Vectors.dense(math.nan, 1), Vectors.dense(1), Vectors.sparse(2, {0: 3.0})],
        "v",
    ),
    "array": ([[1.0, 2.0], None, [math.nan, 1.0], [1.0], [3.0, 0.0]], "v"),
}


@pytest.fixture(params=sorted(INVALID))
def spoilt(request, spark):
    """Rows 0 and 4 are good; 1 is null, 2 has NaN, 3 is too short."""
    values, _ = INVALID[request.param]
    good = [(0, values[0], 1.0), *[(i, value, 0.0) for i, value in enumerate(values) if i]]
    return spark.createDataFrame(good, ["id", "features", "label"]).coalesce(1)


def summing(activation: str | None, loss: str) -> keras.Model:
    return dense(np.ones((2, 1)), np.zeros(1), activation, loss)


def stages(activation: str | None = "sigmoid", loss: str = "binary_crossentropy") -> list:
    model = summing(activation, loss)
    voting = "mean" if activation is None else "soft"
    return [ElephasTransformer(model), EnsembleModel(VotingModel([model], voting))]


def test_rows_that_cannot_be_read(spoilt, request) -> None:
    # How rows are read and what a stage does with them do not depend on each other: two cases of the four.
    stage = stages()["vector" in request.node.name]
    skipped = stage.copy({stage.handleInvalid: "skip"}).transform(spoilt)
    probabilities = {row.id: row.probability[1] for row in skipped.collect()}
    assert probabilities == pytest.approx({0: 1 / (1 + math.exp(-3)), 4: 1 / (1 + math.exp(-3))})
    assert skipped.filter("prediction = 1").count() == 2
    kept = stage.copy({stage.handleInvalid: "keep"}).transform(spoilt).collect()
    assert [row.id for row in kept] == [0, 1, 2, 3, 4]
    assert [row.prediction for row in kept] == [1.0, None, None, None, 1.0]
    assert [row.rawPrediction is None for row in kept] == [row.probability is None for row in kept]
    assert [row.probability is None for row in kept] == [False, True, True, True, False]
    with pytest.raises(Exception, match=r"column 'features', .*row 1.*null.*Or set handle_invalid: 'skip'"):
        stage.transform(spoilt).collect()
    with pytest.raises(Exception, match=r"row 1: expected numbers, got NaN.*Or set handle_invalid: 'skip'"):
        stage.transform(spoilt.filter("id in (0, 2)")).collect()
    with pytest.raises(Exception, match=r"row 1: .*got"):
        stage.transform(spoilt.filter("id in (0, 3)")).collect()


def test_a_regression_with_rows_to_keep_and_a_frame_of_them_alone(spoilt) -> None:
    for stage in stages(None, "mse"):
        kept = stage.copy({stage.handleInvalid: "keep"})
        assert [row.prediction for row in kept.transform(spoilt).collect()] == [3.0, None, None, None, 3.0]
        assert [row.prediction for row in kept.transform(spoilt.filter("id in (1, 3)")).collect()] == [None, None]


def test_a_model_that_knows_nan_is_given_it_with_keep(spark) -> None:
    inputs = keras.Input((2,))
    model = keras.Model(inputs, keras.ops.sum(keras.ops.nan_to_num(inputs), axis=1, keepdims=True))
    df = spark.createDataFrame([(0, [1.0, math.nan]), (1, [1.0, 2.0]), (2, None)], "id int, features array<double>")
    kept = ElephasTransformer(model, handle_invalid="keep").transform(df.coalesce(1)).collect()
    assert [row.prediction for row in kept] == [1.0, 3.0, None]


def test_arrays_of_a_model_with_rows_to_keep(spark) -> None:
    model = dense(np.eye(2), np.zeros(2), None, "mse")
    df = spark.createDataFrame([(0, [1.0, 2.0]), (1, None)], "id int, features array<double>").coalesce(1)
    kept = ElephasTransformer(model, handle_invalid="keep").transform(df).collect()
    assert [row.prediction for row in kept] == [[1.0, 2.0], None]


@pytest.fixture(scope="module")
def labelled(spark):
    """40 rows, of which three cannot be trained on: a null label, a NaN label, and NaN among the features."""
    rows = [(i, [float(i % 5), float(i % 3)], float(i % 2)) for i in range(40)]
    rows[5], rows[11] = (5, [1.0, 1.0], None), (11, [1.0, 1.0], math.nan)
    rows[17] = (17, [math.nan, 1.0], 1.0)
    return spark.createDataFrame(rows, "id int, features array<double>, label double").coalesce(1).cache()


def trained(df, **options: object) -> list[np.ndarray]:
    model = mlp(2, 1, "sigmoid", "binary_crossentropy")
    estimator = ElephasEstimator(
        model, epochs=2, seed=1, num_workers=1, engine="in_process", validation_split=0.0, **options
    )
    return estimator.fit(df).weights


def test_a_fit_skips_rows_without_labels(labelled) -> None:
    found = trained(labelled, handle_invalid="skip")
    expected = trained(labelled.filter("id NOT IN (5, 11, 17)"))
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize(
    ("ids", "match"),
    [
        ((0, 5), r"column 'label', partition 0, row 1: expected a value, got null.*Or set handle_invalid"),
        ((0, 11), r"column 'label', partition 0, row 1: expected numbers, got NaN"),
        ((0, 17), r"column 'features', partition 0, row 1: expected numbers, got NaN"),
    ],
)
def test_a_fit_names_the_row_that_it_cannot_train_on(labelled, ids: tuple[int, int], match: str) -> None:
    with pytest.raises(Exception, match=match):
        trained(labelled.filter(labelled.id.isin(*ids)))


def test_spark_model_trains_on_nan_unless_told_otherwise(labelled) -> None:
    df = labelled.filter("id IN (0, 17)")
    options = {"epochs": 1, "verbose": 0}

    def model() -> SparkModel:
        return SparkModel(
            mlp(2, 1, "sigmoid", "binary_crossentropy"), num_workers=1, engine="in_process", on_nan="drop"
        )

    assert model().fit(df, handle_invalid="skip", **options).history["loss"][0] > 0
    with pytest.raises(Exception, match="row 1: expected numbers, got NaN"):
        model().fit(df, handle_invalid="error", **options)
    with pytest.raises(ValueError, match="handle_invalid must be one of 'error', 'skip', 'keep'; got 'drop'"):
        model().fit(df, handle_invalid="drop", **options)
    with pytest.raises(
        ValueError, match="handle_invalid= is for rows of a DataFrame or of Parquet files; the data is of type ndarray"
    ):
        model().fit(np.ones((2, 2)), np.ones(2), handle_invalid="skip", **options)
