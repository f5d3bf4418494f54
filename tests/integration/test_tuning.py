"""Pipelines and grid searches of Spark ML around an ElephasEstimator, on real tables."""

from __future__ import annotations

from pathlib import Path

import keras
import pytest
from frame_data import mlp
from pyspark.ml import Pipeline, PipelineModel
from pyspark.ml.evaluation import MulticlassClassificationEvaluator
from pyspark.ml.feature import StandardScaler, StringIndexer, VectorAssembler
from pyspark.ml.tuning import CrossValidator, CrossValidatorModel, ParamGridBuilder, TrainValidationSplit

from elephas_like import ElephasEstimator


@pytest.fixture(scope="module")
def iris(spark):
    """150 flowers, raw: four numbers and the name of the kind."""
    from sklearn.datasets import load_iris

    data = load_iris()
    rows = [(*map(float, row), str(data.target_names[kind])) for row, kind in zip(data.data, data.target, strict=True)]
    return spark.createDataFrame(rows, ["a", "b", "c", "d", "species"]).repartition(2, "a").cache()


def stages(estimator: ElephasEstimator) -> Pipeline:
    return Pipeline(
        stages=[
            StringIndexer(inputCol="species", outputCol="label"),
            VectorAssembler(inputCols=["a", "b", "c", "d"], outputCol="raw"),
            StandardScaler(inputCol="raw", outputCol="features", withMean=True),
            estimator,
        ]
    )


def estimator(**params: object) -> ElephasEstimator:
    model = mlp(4, 3, "softmax", "sparse_categorical_crossentropy", metrics=["accuracy"])
    return ElephasEstimator(model, validation_split=0.0, batch_size=8, seed=1, **params)


@pytest.mark.slow
def test_a_cross_validation_in_parallel_chooses_and_is_saved(spark, iris, tmp_path: Path) -> None:
    stage = estimator(num_workers=1)
    slow, fast = keras.optimizers.SGD(1e-6), keras.optimizers.Adam(0.03)
    configs = [keras.optimizers.serialize(optimizer) for optimizer in (slow, fast)]
    grid = ParamGridBuilder().addGrid(stage.optimizer_config, configs).baseOn({stage.epochs: 4}).build()
    search = CrossValidator(
        estimator=stages(stage),
        estimatorParamMaps=grid,
        evaluator=MulticlassClassificationEvaluator(metricName="accuracy"),
        numFolds=2,
        parallelism=2,
        seed=4,
    )
    found = search.fit(iris)
    assert found.avgMetrics[1] > 0.8 > found.avgMetrics[0]
    best = found.bestModel.stages[-1]
    assert isinstance(best.get_model().optimizer, keras.optimizers.Adam)
    found.write().save(str(tmp_path / "search"))
    loaded = CrossValidatorModel.load(str(tmp_path / "search"))
    assert loaded.avgMetrics == found.avgMetrics
    again = [row.prediction for row in loaded.transform(iris).collect()]
    assert again == [row.prediction for row in found.transform(iris).collect()]


@pytest.mark.slow
def test_a_train_validation_split_over_epochs(iris) -> None:
    stage = estimator(num_workers=1, engine="in_process")
    search = TrainValidationSplit(
        estimator=stages(stage),
        estimatorParamMaps=ParamGridBuilder().addGrid(stage.epochs, [1, 10]).build(),
        evaluator=MulticlassClassificationEvaluator(metricName="accuracy"),
        parallelism=1,
        seed=4,
    )
    found = search.fit(iris)
    assert found.validationMetrics[1] > max(0.8, found.validationMetrics[0])
    assert len(found.bestModel.stages[-1].history[0]["loss"]) == 10


@pytest.mark.slow
def test_an_unfitted_and_a_fitted_pipeline_on_a_url(iris, tmp_path: Path) -> None:
    pipeline = stages(estimator(num_workers=2, epochs=6))
    pipeline.save(f"file://{tmp_path}/unfitted")
    fitted = Pipeline.load(f"file://{tmp_path}/unfitted").fit(iris)
    found = fitted.transform(iris)
    assert found.columns[:5] == ["a", "b", "c", "d", "species"]
    assert MulticlassClassificationEvaluator(metricName="accuracy").evaluate(found) > 0.8
    fitted.save(f"file://{tmp_path}/fitted")
    rows = PipelineModel.load(f"file://{tmp_path}/fitted").transform(iris).collect()
    assert [row.prediction for row in rows] == [row.prediction for row in found.collect()]
