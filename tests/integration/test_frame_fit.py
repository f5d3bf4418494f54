"""SparkModel on DataFrames: the same weights, losses and predictions as on the rows themselves."""

from __future__ import annotations

import keras
import numpy as np
import pytest
from frame_data import breast_cancer, frame, mlp
from keras import layers
from pyspark.sql import Row

from elephas_like import DataError, SparkModel


@pytest.fixture(scope="module")
def rows() -> tuple[np.ndarray, np.ndarray]:
    x, y = breast_cancer()
    return x[:203], y[:203]


@pytest.fixture(scope="module")
def df(spark, rows):
    return frame(spark, *rows).cache()


def binary() -> keras.Model:
    return mlp(30, 1, "sigmoid", "binary_crossentropy", metrics=["accuracy", "AUC"])


@pytest.mark.classic
@pytest.mark.parametrize("engine", ["server", pytest.param("jobs", marks=pytest.mark.slow), "in_process"])
def test_a_frame_trains_as_its_rows_do_to_the_last_bit(spark, df, engine: str) -> None:
    by_frame, by_rows = binary(), binary()
    one = SparkModel(by_frame, 2, engine=engine, seed=3).fit(df, epochs=2, verbose=0)
    rdd = df.rdd.map(lambda row: (row.features.toArray(), row.label))
    two = SparkModel(by_rows, 2, engine=engine, seed=3).fit(rdd, epochs=2, verbose=0)
    for first, second in zip(by_frame.get_weights(), by_rows.get_weights(), strict=True):
        np.testing.assert_array_equal(first, second)
    assert one.history == two.history


@pytest.mark.classic
@pytest.mark.parametrize("partitions", [1, pytest.param(5, marks=pytest.mark.slow)])
def test_fewer_partitions_than_workers_and_more_of_them(df, partitions: int) -> None:
    history = SparkModel(binary(), 2, engine="jobs").fit(df.repartition(partitions), epochs=1, verbose=0)
    assert sum(record.samples for record in history.rounds) == 203
    shares = {record.worker: record.samples for record in history.rounds[0].workers}
    assert len(shares) == 2
    if partitions == 1:
        assert max(shares.values()) - min(shares.values()) <= 8  # a batch of difference within a round


def test_empty_partitions(df) -> None:
    history = SparkModel(binary(), 2).fit(df.filter("id < 20").repartition(6), verbose=0)
    assert sum(record.samples for record in history.rounds) == 20


@pytest.mark.classic
def test_the_first_rows_of_a_frame_and_none_of_them(spark) -> None:
    """A limit at a plan's end has one partition; under a function, and of no rows, Spark makes it none."""
    df = spark.range(0, 60, 1, 3).selectExpr("id", "array_repeat(id / 60D, 30) AS features", "id % 2 AS label")
    spark_model = SparkModel(binary(), 1)
    with pytest.raises(ValueError, match="there are no rows to train on"):
        spark_model.fit(df.filter("id < 0").limit(20), verbose=0)
    history = spark_model.fit(df.limit(20), verbose=0, validation_data=df.filter("id < 0").limit(20).union(df.limit(3)))
    assert sum(record.samples for record in history.rounds) == 20


def test_predict_and_evaluate_are_those_of_keras(df, rows) -> None:
    model = binary()
    spark_model = SparkModel(model)
    x, y = rows
    np.testing.assert_allclose(spark_model.predict(df), model.predict(x, verbose=0), rtol=1e-5)
    expected = model.evaluate(x, y, verbose=0, return_dict=True)
    assert spark_model.evaluate(df, return_dict=True) == pytest.approx(expected, rel=1e-4)
    lazily = spark_model.predict(df, collect=False)
    assert lazily.columns == ["id", "features", "label", "prediction"]
    collected = np.array([row.prediction for row in lazily.collect()])
    np.testing.assert_allclose(collected, model.predict(x, verbose=0), rtol=1e-5)


def test_validation_frames_and_sample_weights(df, rows) -> None:
    x, y = rows
    train, held = df.filter("id < 150"), df.filter("id >= 150")
    weighted = train.withColumn("w", train.label + 0.5)
    by_frame, by_arrays = binary(), binary()
    options = {"engine": "in_process", "seed": 5}
    with pytest.raises(ValueError, match="there is no column 'w'"):
        SparkModel(binary(), 1, **options).fit(weighted, sample_weight_col="w", validation_data=held, verbose=0)
    held = held.withColumn("w", held.label + 0.5)
    one = SparkModel(by_frame, 1, **options).fit(weighted, sample_weight_col="w", validation_data=held, verbose=0)
    two = SparkModel(by_arrays, 1, **options).fit(
        x[:150], y[:150], sample_weight=y[:150] + 0.5, validation_data=(x[150:], y[150:], y[150:] + 0.5), verbose=0
    )
    assert one.history.keys() == two.history.keys()
    assert {"val_loss", "val_accuracy"} <= one.history.keys()
    for name, values in two.history.items():
        assert one.history[name] == pytest.approx(values, rel=1e-5), name


def test_several_inputs_and_outputs_by_columns(spark) -> None:
    keras.utils.set_random_seed(1)
    wide, deep = keras.Input((2,), name="wide"), keras.Input((4, 1), name="deep")
    joined = layers.Concatenate()([wide, layers.LSTM(3)(deep)])
    heads = {"total": layers.Dense(1, name="total")(joined), "kind": layers.Dense(3, "softmax", name="kind")(joined)}
    model = keras.Model({"wide": wide, "deep": deep}, heads)
    model.compile("adam", {"total": "mse", "kind": "sparse_categorical_crossentropy"})
    rows = [Row(a=float(i), b=i % 5, deep=[float(i + t) for t in range(4)], t=float(i), k=i % 3) for i in range(24)]
    df = spark.createDataFrame(rows)
    columns = {"features_col": {"wide": ["a", "b"], "deep": "deep"}, "label_col": {"total": "t", "kind": "k"}}
    spark_model = SparkModel(model, 2)
    assert "kind_loss" in spark_model.fit(df, epochs=1, verbose=0, **columns).history
    x = {"wide": np.array([[r.a, r.b] for r in rows]), "deep": np.array([r.deep for r in rows])[..., None]}
    expected = model.predict(x, verbose=0)
    found = spark_model.predict(df, features_col=columns["features_col"])
    for name in heads:
        np.testing.assert_allclose(found[name], expected[name], rtol=1e-4, atol=1e-6)
    named = spark_model.predict(df, collect=False, features_col=columns["features_col"]).collect()
    np.testing.assert_allclose([row.prediction_kind for row in named], expected["kind"], rtol=1e-4, atol=1e-6)


def test_text_for_a_model_that_takes_text(spark) -> None:
    words = layers.TextVectorization(max_tokens=10, output_sequence_length=2)
    words.adapt(np.array(["good day", "bad day"]))
    model = keras.Sequential([keras.Input((1,), dtype="string"), words, layers.Embedding(10, 2)])
    model.add(layers.GlobalAveragePooling1D())  # Flatten behind words fails in Keras 3.8 itself
    model.add(layers.Dense(1, "sigmoid"))
    model.compile("adam", "binary_crossentropy")
    df = spark.createDataFrame([("good day", 1), ("bad day", 0)] * 4, ["features", "label"])
    SparkModel(model, 2).fit(df, verbose=0)
    assert SparkModel(model).predict(df).shape == (8, 1)


def test_bad_rows_and_columns_are_named(spark, df) -> None:
    holed = spark.createDataFrame([([1.0] * 30, 0)] * 5 + [([1.0] * 30, None)], "features array<double>, label int")
    with pytest.raises(DataError, match="column 'label', partition 0, row 5: expected a value, got null"):
        SparkModel(binary(), 1).fit(holed.coalesce(1), verbose=0)
    with pytest.raises(ValueError, match="features_col= names columns of a DataFrame"):
        SparkModel(binary(), 1).fit(np.zeros((2, 30)), np.zeros(2), features_col="x", verbose=0)
    with pytest.raises(ValueError, match="a DataFrame, or a path, holds y"):
        SparkModel(binary(), 1).fit(df, np.zeros(2), verbose=0)
    with pytest.raises(TypeError, match="validation_data is a DataFrame, which goes with"):
        SparkModel(binary(), 1).fit(np.zeros((2, 30)), np.zeros(2), validation_data=df, verbose=0)
    with pytest.raises(TypeError, match="a streaming DataFrame has no end"):
        SparkModel(binary(), 1).fit(spark.readStream.format("rate").load(), verbose=0)
    with pytest.raises(ValueError, match="there are no rows"):
        SparkModel(binary(), 1).fit(df.filter("id < 0"), verbose=0)
