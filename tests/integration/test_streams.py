"""Streaming DataFrames: predicted as they are, and trained on batch by batch."""

from __future__ import annotations

import threading

import keras
import numpy as np
import pytest
from pyspark.java_gateway import ensure_callback_server_started
from small import digits

from elephas_like import ElephasTransformer, SparkModel
from elephas_like.core.errors import ElephasError

X, Y = (part[:240] for part in digits())
SCHEMA = "features array<double>, label long"


def classifier() -> keras.Model:
    keras.utils.set_random_seed(3)
    model = keras.Sequential([keras.Input((64,)), keras.layers.Dense(10, "softmax")])
    model.compile(keras.optimizers.Adam(0.01), "sparse_categorical_crossentropy")
    return model


@pytest.fixture(scope="module", autouse=True)
def callbacks(sc) -> None:
    """Spark's own port for calls from Java to Python, which foreachBatch opens once: it is not left by a test."""
    ensure_callback_server_started(sc._gateway)


@pytest.fixture(scope="module")
def source(spark, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Three files of 80 rows."""
    source = str(tmp_path_factory.mktemp("stream") / "rows")
    for begin in range(0, 240, 80):
        part = slice(begin, begin + 80)
        rows = [(row, int(label)) for row, label in zip(X[part].tolist(), Y[part], strict=True)]
        spark.createDataFrame(rows, SCHEMA).coalesce(1).write.mode("append").parquet(source)
    return source


@pytest.fixture
def stream(spark, source: str):
    """A stream of these files, one in each batch."""
    return spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).parquet(source)


def test_a_stream_is_predicted_row_by_row(spark, stream) -> None:
    model = classifier()
    scored = ElephasTransformer(model).transform(stream).select("label", "prediction")
    query = scored.writeStream.format("memory").queryName("scored").trigger(availableNow=True).start()
    assert query.awaitTermination(120)
    found = sorted((row.label, int(row.prediction)) for row in spark.table("scored").collect())
    assert found == sorted(zip(Y.tolist(), model.predict(X, verbose=0).argmax(axis=1).tolist(), strict=True))


def test_each_batch_of_a_stream_goes_on_training(stream) -> None:
    spark_model = SparkModel(classifier(), 2, seed=1, batch_size=16)
    untrained = spark_model.evaluate(X, Y)
    samples = []

    def train(batch, number: int) -> None:
        history = spark_model.fit(batch, epochs=2, verbose=0)
        samples.append(sum(record.samples for record in history.rounds))

    query = stream.writeStream.foreachBatch(train).trigger(availableNow=True).start()
    assert query.awaitTermination(240)
    assert query.exception() is None
    assert samples == [2 * 80] * 3
    assert spark_model.evaluate(X, Y) < untrained


def test_a_query_that_is_stopped_stops_the_fit_of_its_batch(sc, stream) -> None:
    begun, raised = threading.Event(), []
    spark_model = SparkModel(classifier(), 2, batch_size=16)
    begin = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: begun.set())

    def train(batch, number: int) -> None:
        try:
            spark_model.fit(batch, epochs=1_000_000, verbose=0, callbacks=[begin])
        except BaseException as error:
            raised.append(error)
            raise

    query = stream.writeStream.foreachBatch(train).start()
    assert begun.wait(240)
    stopping = threading.Thread(target=query.stop)
    stopping.start()
    stopping.join(240)
    assert not stopping.is_alive()
    assert not query.isActive
    assert isinstance(raised[0], ElephasError)
    assert "cancelled" in str(raised[0])
    assert not sc.statusTracker().getActiveJobsIds()


def test_a_stream_has_no_end_to_train_to(stream) -> None:
    with pytest.raises(TypeError, match="what foreachBatch hands over"):
        SparkModel(classifier(), 2).fit(stream)
    with pytest.raises(TypeError, match="what foreachBatch hands over"):
        SparkModel(classifier(), 2).predict(stream)
    columns = SparkModel(classifier(), 2).predict(stream, collect=False)
    assert columns.isStreaming
    assert np.isin(["prediction"], columns.columns).all()
