"""Defects of Elephas' Spark ML stages that did not come along, by their numbers."""

from __future__ import annotations

import logging
from pathlib import Path

import keras
import numpy as np
import pytest
from custom_parts import Scale, own_error
from pyspark.ml import Pipeline, PipelineModel
from pyspark.ml.linalg import Vectors

from elephas_like import ElephasEstimator, ElephasTransformer, load_ml_estimator, load_ml_transformer


@pytest.fixture(scope="module")
def df(spark):
    rows = [(Vectors.dense([i / 40, i % 3]), float(i % 3 == 1)) for i in range(40)]
    return spark.createDataFrame(rows, ["features", "label"]).repartition(2).cache()


def custom(loss: object = own_error) -> keras.Model:
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((2,)), Scale(0.5), keras.layers.Dense(1)])
    model.compile(keras.optimizers.Adam(0.07), loss)
    return model


def test_p2_the_estimator_honours_mode_and_frequency(df, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "elephas_like")
    ElephasEstimator(custom(), mode="asynchronous", frequency="epoch", num_workers=2, epochs=1).fit(df)
    assert "2 workers that go on alone" in caplog.text
    with pytest.raises(ValueError, match="hogwild"):
        ElephasEstimator(custom(), mode="hogwild", strategy="nesterov", epochs=1).fit(df)
    with pytest.raises(ValueError, match="frequency"):
        ElephasEstimator(custom(), strategy="one_shot", frequency="batch", num_workers=2, epochs=1).fit(df)


def test_p6_transform_takes_empty_partitions(spark, df) -> None:
    transformer = ElephasTransformer(custom("mse"))
    few = df.limit(1).repartition(4)
    assert len(transformer.transform(few).collect()) == 1
    assert transformer.transform(df.filter("label > 7")).collect() == []


@pytest.fixture(scope="module")
def fitted(df) -> PipelineModel:
    """A pipeline of one stage, whose loss is a function."""
    return Pipeline(stages=[ElephasEstimator(custom(own_error), epochs=1, num_workers=1)]).fit(df)


def test_p19_a_fitted_pipeline_can_be_saved(df, fitted: PipelineModel, tmp_path: Path) -> None:
    fitted.save(str(tmp_path / "model"))
    loaded = PipelineModel.load(str(tmp_path / "model"))
    assert [row.prediction for row in loaded.transform(df).collect()] == [
        row.prediction for row in fitted.transform(df).collect()
    ]


def test_p20_load_ml_estimator_keeps_optimizer_and_custom_objects(spark, tmp_path: Path) -> None:
    estimator = ElephasEstimator(
        keras_model_config=custom().to_json(),
        optimizer_config=keras.optimizers.serialize(keras.optimizers.Adam(0.07)),
        loss=own_error,
        custom_objects={"Scale": Scale},
    )
    estimator.save(str(tmp_path / "estimator.h5"))
    loaded = load_ml_estimator(str(tmp_path / "estimator.h5"))
    assert loaded.get_optimizer_config()["config"]["learning_rate"] == pytest.approx(0.07)
    assert loaded.get_custom_objects() == {"Scale": Scale}
    assert loaded.get_loss() is own_error
    assert loaded.get_model().optimizer.learning_rate.numpy() == pytest.approx(0.07)


def test_p21_load_ml_transformer_keeps_custom_objects_history_and_batch_size(spark, tmp_path: Path) -> None:
    history = [{"loss": [2.0, 1.0]}]
    transformer = ElephasTransformer(
        custom(), history=history, inference_batch_size=7, custom_objects={"Scale": Scale, "own_error": own_error}
    )
    transformer.save(str(tmp_path / "transformer.h5"))
    loaded = load_ml_transformer(str(tmp_path / "transformer.h5"))
    assert loaded.history == history
    assert loaded.get_inference_batch_size() == 7
    assert loaded.get_custom_objects() == {"Scale": Scale, "own_error": own_error}
    np.testing.assert_array_equal(loaded.weights[0], transformer.weights[0])


def test_p28_a_callable_loss_is_no_classification(df, fitted: PipelineModel) -> None:
    found = fitted.transform(df)
    assert found.schema["prediction"].dataType.simpleString() == "double"
    assert found.columns == ["features", "label", "prediction"]
    assert len({row.prediction for row in found.collect()}) > 2  # values, not classes
