"""What an earlier version saved is read, and predicts what it predicted then: tests/data/make_saved.py wrote the files."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest

from elephas_like import (
    ElephasEstimator,
    ElephasTransformer,
    EnsembleEstimator,
    EnsembleModel,
    VotingModel,
    load_ml_estimator,
    load_ml_transformer,
    load_spark_model,
    search,
)
from elephas_like.strategies import Nesterov, PostLocal, TrimmedMean

sys.path.insert(0, str(Path(__file__).parent / "data"))
from make_saved import SEARCH, X, Y, for_search

SAVED = Path(__file__).parent / "data" / "saved_by_v1"
EXPECTED = json.loads((SAVED / "expected.json").read_text())


def close(found: object, name: str) -> None:
    np.testing.assert_allclose(np.asarray(found), np.asarray(EXPECTED[name]), rtol=1e-5, atol=1e-6)


@pytest.fixture(scope="module")
def df(spark):
    rows = [(*map(float, x), float(y)) for x, y in zip(X, Y, strict=True)]
    return spark.createDataFrame(rows, "a double, b double, label double").coalesce(1)


def with_features(df):
    from pyspark.ml.feature import VectorAssembler

    return VectorAssembler(inputCols=["a", "b"], outputCol="features").transform(df)


def probabilities(rows) -> list[list[float]]:
    return [row.probability.toArray().tolist() for row in rows.collect()]


@pytest.mark.parametrize("name", ["spark_model.keras", "spark_model.h5"])
def test_a_spark_model(name: str) -> None:
    loaded = load_spark_model(SAVED / name)
    close(loaded.master_network.predict(X, verbose=0), "model")
    assert loaded.strategy == Nesterov(momentum=0.25, reduce=TrimmedMean(0.2))
    assert loaded.frequency == PostLocal(4, after=1)
    assert loaded.master_optimizer.momentum == 0.9
    assert int(loaded.master_optimizer.iterations) == 9


def test_an_ensemble() -> None:
    loaded = VotingModel.load(SAVED / "ensemble.zip")
    assert list(loaded.weights) == pytest.approx([2 / 3, 1 / 3])
    close(loaded.predict_proba(X), "ensemble")


def test_a_search_is_gone_on_with(tmp_path: Path) -> None:
    shutil.copytree(SAVED / "search", tmp_path / "search")
    arguments = {name: value for name, value in SEARCH.items() if name != "space"}
    before = (tmp_path / "search" / "trials.jsonl").read_bytes()
    found = search(for_search, SEARCH["space"], (X, Y), checkpoint_dir=tmp_path / "search", resume="auto", **arguments)
    assert (tmp_path / "search" / "trials.jsonl").read_bytes() == before
    expected = EXPECTED["search"]
    assert len(found) == 3
    assert found.best_value == expected["best_value"]
    assert found.best_params == expected["best_params"]
    np.testing.assert_allclose(found.best_model.predict(X, verbose=0), expected["predictions"], rtol=1e-5, atol=1e-6)


def test_a_fitted_pipeline(spark, df) -> None:
    from pyspark.ml import PipelineModel

    loaded = PipelineModel.load(str(SAVED / "pipeline_model"))
    close(probabilities(loaded.transform(df)), "model")
    assert isinstance(loaded.stages[1], ElephasTransformer)
    assert loaded.stages[1].history == [{"loss": [2.0, 1.0]}]
    alone = ElephasTransformer.load(str(next((SAVED / "pipeline_model" / "stages").glob("1_*"))))
    close(probabilities(alone.transform(with_features(df))), "model")


def test_a_pipeline_that_was_not_fitted(spark, df, tmp_path: Path) -> None:
    from pyspark.ml import Pipeline

    loaded = Pipeline.load(str(SAVED / "pipeline"))
    estimator = loaded.getStages()[1]
    assert isinstance(estimator, ElephasEstimator)
    assert estimator.getOrDefault("epochs") == 2
    assert estimator.getOrDefault("strategy") == Nesterov(momentum=0.25, reduce=TrimmedMean(0.2))
    assert estimator.getOrDefault("frequency") == PostLocal(4, after=1)
    close(estimator.get_model().predict(X, verbose=0), "model")
    again = Pipeline.load(_saved(loaded, tmp_path / "again"))  # and is saved as it was: other versions read it
    assert again.getStages()[1].extractParamMap().keys() == estimator.extractParamMap().keys()
    classes = [json.loads(file.read_text())["class"] for file in _metadata(tmp_path / "again")]
    assert classes == [json.loads(file.read_text())["class"] for file in _metadata(SAVED / "pipeline")]


def _saved(stage, path: Path) -> str:
    stage.write().save(str(path))
    return str(path)


def _metadata(folder: Path) -> list[Path]:
    return sorted(folder.glob("stages/*/metadata/part-*.txt"))


def test_stages_of_an_ensemble(spark, df, tmp_path: Path) -> None:
    estimator = EnsembleEstimator.load(str(SAVED / "ensemble_estimator"))
    assert estimator.getOrDefault("numMembers") == 2
    close(estimator.get_model().predict(X, verbose=0), "model")
    fitted = EnsembleModel.load(str(SAVED / "ensemble_model"))
    close(probabilities(fitted.transform(with_features(df))), "ensemble")
    for stage, name in ((estimator, "ensemble_estimator"), (fitted, "ensemble_model")):
        (was,), (now,) = (
            [json.loads(file.read_text())["class"] for file in folder.glob("metadata/part-*.txt")]
            for folder in (SAVED / name, Path(_saved(stage, tmp_path / name)))
        )
        assert now == was


def test_stages_in_elephas_form() -> None:
    estimator = load_ml_estimator(SAVED / "estimator.h5")
    assert estimator.getOrDefault("strategy") == Nesterov(momentum=0.25, reduce=TrimmedMean(0.2))
    assert estimator.getOrDefault("frequency") == PostLocal(4, after=1)
    close(estimator.get_model().predict(X, verbose=0), "model")
    close(load_ml_transformer(SAVED / "transformer.h5").get_model().predict(X, verbose=0), "model")
