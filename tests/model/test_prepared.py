"""Models of keras-hub with their preprocessor over Spark: rows as they were given, weights and metrics as by keras-hub's own fit."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pandas as pd
import pytest
from hub_models import LABELS, TEXTS, classifier, image_classifier, images, language_model
from trainer.small import mlp

from elephas_like import ElephasError, ElephasEstimator, SparkModel, WorkerError, shard
from elephas_like.core.errors import DataError
from elephas_like.model.prepared import as_read
from elephas_like.model.sources import source_of

FIT: dict[str, Any] = {"batch_size": 8, "epochs": 2, "shuffle": False, "verbose": 0}
PAIRS = [(str(text), int(label)) for text, label in zip(TEXTS, LABELS, strict=True)]


def trained_as(model: keras.Model, expected: keras.Model) -> None:
    for weights, as_keras in zip(model.get_weights(), expected.get_weights(), strict=True):
        np.testing.assert_allclose(weights, as_keras, rtol=1e-5, atol=1e-6)


@functools.cache
def by_kerashub() -> tuple[keras.Model, dict[str, list[float]]]:
    """The classifier as KerasHub's own fit trains it, and its history; none of the tests changes it."""
    model = classifier()
    return model, model.fit(TEXTS, LABELS, **FIT).history


def alone(model: keras.Model, **options: object) -> SparkModel:
    return SparkModel(model, **({"num_workers": 1, "seed": 1} | options))


@pytest.mark.parametrize("engine", ["in_process", "server", "jobs"])
def test_text_is_trained_on_as_by_kerashub(sc, engine: str) -> None:
    (expected, history), model = by_kerashub(), classifier()
    data = (TEXTS, LABELS) if engine == "in_process" else (sc.parallelize(PAIRS, 1),)
    found = alone(model, engine=engine).fit(*data, **FIT).history
    trained_as(model, expected)
    for name, values in history.items():
        assert found[name] == pytest.approx(values, rel=1e-5)


def test_a_text_column_trains_a_language_model_without_labels(spark) -> None:
    """The preprocessor makes the labels."""
    expected, model = language_model(), language_model()
    expected.fit(TEXTS, **FIT)
    df = spark.createDataFrame([(text,) for text, _ in PAIRS], ["features"]).coalesce(1)
    alone(model).fit(df, **FIT)
    trained_as(model, expected)


def test_files_of_text_are_trained_on_evaluated_and_predicted(spark, tmp_path: Path) -> None:
    (expected, _), model = by_kerashub(), classifier()
    df = spark.createDataFrame(PAIRS, ["features", "label"]).coalesce(1)
    df.write.parquet(str(tmp_path / "rows"))
    fitted = alone(model)
    fitted.fit(str(tmp_path / "rows"), **FIT)
    trained_as(model, expected)
    scores = expected.evaluate(TEXTS, LABELS, batch_size=8, verbose=0)
    assert fitted.evaluate(df, batch_size=8) == pytest.approx(scores, rel=1e-5)
    found, outputs = fitted.predict(str(tmp_path / "rows")), expected.predict(TEXTS, verbose=0)
    np.testing.assert_allclose(found, outputs, rtol=1e-4, atol=1e-6)


def test_several_workers_and_validation_rows(sc) -> None:
    """Validation rows are prepared, too, and held out ones are of those that are."""
    model = classifier()
    fitted = SparkModel(model, num_workers=2, seed=1)
    rdd = sc.parallelize(PAIRS, 2)
    history = fitted.fit(rdd, validation_data=(TEXTS[:6], LABELS[:6]), batch_size=4, verbose=0).history
    assert history["val_loss"] == pytest.approx([model.evaluate(TEXTS[:6], LABELS[:6], verbose=0)[0]], rel=1e-5)
    assert "val_loss" in fitted.fit(rdd, validation_split=0.25, batch_size=4, verbose=0).history
    assert fitted.evaluate(rdd) == pytest.approx(model.evaluate(TEXTS, LABELS, verbose=0), rel=1e-5)


def test_images_are_prepared_as_by_kerashub(sc) -> None:
    expected, model, x = image_classifier(), image_classifier(), images()
    expected.fit(x, LABELS, **FIT)
    fitted = alone(model)
    fitted.fit(sc.parallelize(list(zip(x, LABELS.tolist(), strict=True)), 1), **FIT)
    trained_as(model, expected)
    np.testing.assert_allclose(
        fitted.predict(sc.parallelize(list(x), 2), batch_size=8), expected.predict(x, verbose=0), rtol=1e-5, atol=1e-6
    )


@pytest.mark.parametrize(
    "data",
    [
        ([str(text) for text in TEXTS], LABELS.tolist()),
        (PAIRS,),
        (pd.DataFrame({"text": TEXTS, "label": LABELS}),),
    ],
    ids=["lists", "pairs", "pandas"],
)
def test_rows_in_memory(data: tuple[Any, ...]) -> None:
    (expected, _), model = by_kerashub(), classifier()
    columns = {"features_col": "text", "label_col": "label"} if isinstance(data[0], pd.DataFrame) else {}
    fitted = alone(model, engine="in_process")
    fitted.fit(*data, **FIT, **columns)
    trained_as(model, expected)
    if columns:
        np.testing.assert_allclose(
            fitted.predict(*data, features_col="text"), expected.predict(TEXTS, verbose=0), rtol=1e-4
        )


def test_two_texts_a_row(sc) -> None:
    """A tuple of texts is packed as two segments."""
    expected, model = classifier(), classifier()
    expected.fit((TEXTS, TEXTS[::-1]), LABELS, **FIT)
    rows = [((text, str(other)), label) for (text, label), other in zip(PAIRS, TEXTS[::-1], strict=True)]
    alone(model).fit(sc.parallelize(rows, 1), **FIT)
    trained_as(model, expected)


def test_what_cannot_be_prepared_is_refused_before_any_job(spark) -> None:
    model = classifier()
    rdd = spark.sparkContext.parallelize(PAIRS, 2)
    with shard(rdd, 2) as dataset, pytest.raises(ElephasError, match="written already: give the rows"):
        SparkModel(model).fit(dataset)
    df = spark.createDataFrame(PAIRS, ["a", "label"]).selectExpr("a", "a b", "label")
    with pytest.raises(ValueError, match=r"features_col=\['a', 'b'\].*Name one column, or those of a dict"):
        SparkModel(model).fit(df, features_col=["a", "b"])
    with pytest.raises(DataError, match="the labels are missing"):
        alone(model, engine="in_process").fit(TEXTS)


def test_rows_that_the_preprocessor_refuses_are_errors_of_their_worker(sc) -> None:
    model = classifier()
    with pytest.raises(DataError, match="labels are missing"):
        SparkModel(model, num_workers=2).fit(sc.parallelize([text for text, _ in PAIRS], 2), verbose=0)
    with pytest.raises(WorkerError, match=r"row 3.*got None"):
        rows = [(None if number == 3 else text, label) for number, (text, label) in enumerate(PAIRS)]
        alone(model).fit(sc.parallelize(rows, 1), verbose=0)


def test_the_preflight_check_reads_a_row_as_the_fit_does(sc) -> None:
    report = SparkModel(classifier(), num_workers=2).check(sc.parallelize(PAIRS, 2), verbose=0)
    assert report.ok
    assert "int32 (8,)" in str(report)  # tokens


def test_the_stages_of_spark_ml_take_text(spark) -> None:
    """Two fits at once, as a CrossValidator's, which then do not share rows that are written; and a transformer."""
    df = spark.createDataFrame(PAIRS, ["text", "label"]).coalesce(1)
    options = {"featuresCol": "text", "labelCol": "label", "validationSplit": 0.0, "numWorkers": 1, "verbose": 0}
    estimator = ElephasEstimator(model=classifier(), **options)
    for fitted in estimator.fit(df, [{estimator.epochs: 1}, {estimator.epochs: 2}]):
        rows = fitted.transform(df).collect()
        expected = fitted.get_model().predict(TEXTS, verbose=0)
        np.testing.assert_allclose([row.rawPrediction.toArray() for row in rows], expected, rtol=1e-4, atol=1e-6)
        assert [row.prediction for row in rows] == expected.argmax(axis=1).tolist()


def test_rows_that_a_preprocessor_takes_later_say_whether_they_have_labels(sc) -> None:
    """A language model needs none, whatever its loss says of other models."""
    texts = sc.parallelize(["red", "blue"], 1)
    with shard(texts, 1) as dataset:
        sources = [as_read(source_of(data), language_model()) for data in (dataset, texts)]
    assert [source.has_target for source in sources] == [None, None]
    assert as_read(source_of(texts), mlp()).has_target is True
