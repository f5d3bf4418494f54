"""ElephasEstimator and ElephasTransformer on real tables, with Spark's own evaluators."""

from __future__ import annotations

import inspect

import keras
import numpy as np
import pytest
from frame_data import breast_cancer, diabetes, frame, mlp, wine
from pyspark.ml.evaluation import (
    BinaryClassificationEvaluator,
    MulticlassClassificationEvaluator,
    RegressionEvaluator,
)

from elephas_like import ElephasEstimator, ElephasTransformer, SparkModel, register_keras_udf
from elephas_like.stages import estimator as ml_model
from elephas_like.stages.param_table import FITTING
from elephas_like.stages.params import snake
from elephas_like.stages.shared_rows import COLUMN_ARGUMENTS


@pytest.fixture(scope="module")
def cancer(spark):
    return frame(spark, *breast_cancer()).cache()


@pytest.fixture(scope="module")
def wines(spark):
    return frame(spark, *wine()).cache()


@pytest.fixture(scope="module")
def fitted(cancer) -> ElephasTransformer:
    model = mlp(30, 1, "sigmoid", "binary_crossentropy", metrics=["accuracy"])
    return ElephasEstimator(model, epochs=6, num_workers=2, seed=1).fit(cancer)


def test_binary_classes_for_all_evaluators_unchanged(fitted, cancer) -> None:
    found = fitted.transform(cancer)
    assert found.columns == ["id", "features", "label", "prediction", "probability", "rawPrediction"]
    assert found.schema["prediction"].dataType.simpleString() == "double"
    assert MulticlassClassificationEvaluator().evaluate(found) > 0.95
    assert BinaryClassificationEvaluator().evaluate(found) > 0.98
    x, _ = breast_cancer()
    rows = found.collect()
    assert [row.id for row in rows] == list(range(569))
    p = fitted.get_model().predict(x, verbose=0)[:, 0]
    np.testing.assert_allclose([row.probability[1] for row in rows], p, rtol=1e-4, atol=1e-6)
    assert MulticlassClassificationEvaluator(metricName="logLoss").evaluate(found) < 0.2
    assert [row.prediction for row in rows] == (p > 0.5).astype(float).tolist()


def test_the_history_is_the_fit_s(fitted) -> None:
    (history,) = fitted.history
    assert set(history) == {"loss", "accuracy", "val_loss", "val_accuracy"}
    assert len(history["loss"]) == 6
    assert history["loss"][-1] < history["loss"][0]


def test_three_classes_with_one_hot_labels_where_the_loss_wants_them(wines) -> None:
    model = mlp(13, 3, "softmax", "categorical_crossentropy", metrics=["accuracy"])
    estimator = ElephasEstimator(model, epochs=15, num_workers=2, seed=1)
    found = estimator.fit(wines).transform(wines)
    assert found.columns == ["id", "features", "label", "prediction", "probability", "rawPrediction"]
    assert MulticlassClassificationEvaluator(metricName="accuracy").evaluate(found) > 0.9
    assert MulticlassClassificationEvaluator(metricName="logLoss").evaluate(found) < 0.5
    row = found.filter("id = 7").collect()[0]
    assert sum(row.probability) == pytest.approx(1, abs=1e-5)
    assert row.prediction == int(np.argmax(row.probability))


def test_a_regression_with_sample_weights(spark) -> None:
    df = frame(spark, *diabetes()).selectExpr("*", "1.0 + (id % 2) AS w", "0.1D AS p0")
    model = mlp(10, 1, None, "mse")
    transformer = ElephasEstimator(model, epochs=12, weightCol="w", output_col="progress", validation_split=0.0).fit(df)
    found = transformer.transform(df)
    assert RegressionEvaluator(predictionCol="progress", metricName="r2").evaluate(found) > 0.4
    assert found.columns[-1] == "progress"


def test_the_given_model_stays_as_it_is_and_every_fit_begins_there(wines) -> None:
    model = mlp(13, 3, "softmax", "sparse_categorical_crossentropy")
    before = model.get_weights()
    estimator = ElephasEstimator(model, epochs=1, num_workers=1, seed=2, engine="in_process", validation_split=0.0)
    one, two = estimator.fit(wines), estimator.fit(wines)
    for kept, first, second in zip(before, model.get_weights(), before, strict=True):
        np.testing.assert_array_equal(kept, first)
        np.testing.assert_array_equal(kept, second)
    for first, second in zip(one.weights, two.weights, strict=True):
        np.testing.assert_array_equal(first, second)
    assert any((first != kept).any() for first, kept in zip(one.weights, before, strict=True))


def test_elephas_way_a_configuration_and_losses_by_name(wines) -> None:
    model = mlp(13, 3, "softmax", "mse")
    estimator = ElephasEstimator(
        keras_model_config=model.to_json(),
        optimizer_config=keras.optimizers.serialize(keras.optimizers.Adam(0.02)),
        loss="categorical_crossentropy",
        metrics=["acc"],
        categorical=True,
        nb_classes=3,
        epochs=2,
        batch_size=16,
        num_workers=2,
        featuresCol="features",
        labelCol="label",
    )
    transformer = estimator.fit(wines)
    assert transformer.get_model().optimizer.learning_rate.numpy() == pytest.approx(0.02)
    assert set(transformer.history[0]) == {"loss", "acc", "val_loss", "val_acc"}
    with pytest.raises(ValueError, match="nb_classes=5, and the model has 3 outputs"):
        estimator.copy({estimator.nb_classes: 5}).fit(wines)
    with pytest.raises(ValueError, match="categorical=False, and the loss wants one-hot labels"):
        estimator.copy({estimator.categorical: False}).fit(wines)


def test_fit_honours_callbacks_class_weights_and_a_validation_column(wines) -> None:
    df = wines.selectExpr("*", "id % 5 = 0 AS held")
    model = mlp(13, 3, "softmax", "sparse_categorical_crossentropy", metrics=["accuracy"])
    stopping = keras.callbacks.EarlyStopping("loss", patience=1, min_delta=100.0)
    estimator = ElephasEstimator(
        model, epochs=9, callbacks=[stopping], validation_col="held", class_weight={0: 5.0}, num_workers=1, seed=1
    )
    (history,) = estimator.fit(df).history
    assert len(history["loss"]) == 2  # stopped
    assert "val_accuracy" in history
    (plain,) = estimator.copy({estimator.class_weight: {0: 1.0}}).fit(df).history
    assert history["loss"] != plain["loss"]
    copied = estimator.copy({estimator.epochs: 2})
    assert copied.callbacks[0] is not stopping
    assert estimator.callbacks == [stopping]
    with pytest.raises(TypeError, match="must be boolean"):
        estimator.copy({estimator.validationCol: "label"}).fit(df)
    with pytest.raises(ValueError, match=r"none of .*Did you mean 'held'"):
        estimator.copy({estimator.validationCol: "helt"}).fit(df)


def test_every_argument_of_spark_model_and_its_fit_is_one_of_the_estimator_s() -> None:
    known = {snake(entry.name) for entry in FITTING} | {
        "callbacks",
        "worker_callbacks",
        "validation_data",
        "custom_objects",
    }
    known |= set(COLUMN_ARGUMENTS)
    not_of_frames = {"self", "data", "y", "x", "rdd", "sample_weight", "others"}
    assert set(inspect.signature(SparkModel.fit).parameters) - not_of_frames <= known
    overloads = inspect.getsource(SparkModel).split("def __init__(")[1].split(") -> None")[0]
    named = {line.split(":")[0].strip() for line in overloads.splitlines() if ":" in line}
    assert named - {"self", "model", "**unknown"} <= known


def test_every_param_of_the_estimator_reaches_a_fit(wines) -> None:
    read_otherwise = (
        "weight_col validation_indicator_col validation_split nb_classes categorical optimizer_config loss metrics"
    )
    passed_on = {*ml_model.NAMES, *ml_model._FIT, *read_otherwise.split()}
    assert {snake(entry.name) for entry in FITTING} <= passed_on
    model = mlp(13, 3, "softmax", "sparse_categorical_crossentropy")
    with pytest.raises(ValueError, match="codec 'one_bit' needs workers that keep what their messages lost"):
        ElephasEstimator(model, codec="one_bit", engine="jobs").fit(wines)
    with pytest.raises(ValueError, match="max_staleness is for mode 'asynchronous' or 'hogwild'"):
        ElephasEstimator(model, max_staleness=2).fit(wines)


def test_setters_of_spark_and_of_elephas_work(spark) -> None:
    estimator = ElephasEstimator(mlp(2, 1, None, "mse"))
    for setter, getter in (("setFeaturesCol", "getFeaturesCol"), ("setLabelCol", "getLabelCol")):
        assert getattr(estimator, setter)("a") is estimator
        assert getattr(estimator, getter)() == "a"
    transformer = ElephasTransformer(mlp(2, 1, None, "mse"))
    assert transformer.setOutputCol("p").getPredictionCol() == "p"
    assert transformer.setPredictionCol("q").getOutputCol() == "q" == transformer.get_config()["outputCol"]
    assert transformer.outputCol is transformer.predictionCol
    assert estimator.set_mode("hogwild").get_config()["mode"] == "hogwild"
    for either in (estimator.setParams, estimator.set_params):
        assert either(epochs=3, batchSize=5) is estimator
        assert (estimator.getEpochs(), estimator.getBatchSize()) == (3, 5)
        estimator.setEpochs(1)
    with pytest.raises(ValueError, match="mode must be one of"):
        estimator.set_mode("foobar")
    with pytest.raises(TypeError, match=r"model must be a keras\.Model"):
        ElephasEstimator("model")
    with pytest.raises(ValueError, match="no model: give one"):
        ElephasEstimator().get_model()


def test_a_transformer_of_a_pretrained_model_in_elephas_way(spark, wines) -> None:
    model = mlp(13, 3, "softmax", "sparse_categorical_crossentropy")
    transformer = ElephasTransformer(
        keras_model_config=model.to_json(),
        weights=model.get_weights(),
        model_type="classification",
        predict_classes=False,
    )
    x, _ = wine()
    rows = transformer.transform(wines.repartition(5)).collect()
    expected = model.predict(x, verbose=0)
    for row in rows:
        np.testing.assert_allclose(row.prediction, expected[row.id], rtol=1e-4, atol=1e-6)
    without = ElephasTransformer(keras_model_config=model.to_json())
    with pytest.raises(ValueError, match=r"an architecture only, no weights: set them, transformer\.weights ="):
        without.transform(wines)
    without.weights = model.get_weights()
    assert without.transform(wines).first().prediction == float(expected[0].argmax())


def test_a_sql_function(spark, wines) -> None:
    model = mlp(13, 3, "softmax", "sparse_categorical_crossentropy")
    x, _ = wine()
    expected = model.predict(x, verbose=0)
    register_keras_udf(spark, "wine_kind", model)
    register_keras_udf(spark, "wine_odds", model, output="probability")
    wines.createOrReplaceTempView("wines")
    rows = spark.sql("SELECT id, wine_kind(features) AS kind, wine_odds(features) AS odds FROM wines").collect()
    for row in rows:
        np.testing.assert_allclose(row.odds, expected[row.id], rtol=1e-4, atol=1e-6)
        assert row.kind == expected[row.id].argmax()
    line = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1, use_bias=False, kernel_initializer="ones")])
    register_keras_udf(spark, "added", line)
    assert spark.sql("SELECT added(1.5D, 2) AS total").collect()[0].total == 3.5
    with pytest.raises(ValueError, match="output must be one of"):
        register_keras_udf(spark, "f", model, output="raw")
    with pytest.raises(ValueError, match="model_type must be one of 'classification', 'regression'; got 'ranking'"):
        register_keras_udf(spark, "f", model, model_type="ranking")
    with pytest.raises(TypeError, match=r"model must be a keras\.Model; got str"):
        register_keras_udf(spark, "f", "model")
