"""Rows of an RDD through a model: streamed in batches, in their order, into outputs of any structure."""

from __future__ import annotations

import keras
import numpy as np
import pytest
from small import classifier, digits, line, parts_of

from elephas_like import SparkModel
from elephas_like.core.errors import DataError

layers = keras.layers


def test_predictions_come_in_the_order_of_the_rows(sc) -> None:
    x, _ = digits()
    model = classifier()
    # Partitions without rows, of one row, of more than sixteen batches, in the middle and at both ends.
    rdd = parts_of(sc, list(x[:400]), [0, 1, 150, 0, 0, 248, 1, 0])
    found = SparkModel(model, batch_size=8).predict(rdd)
    np.testing.assert_allclose(found, model.predict(x[:400], verbose=0), atol=1e-6)
    assert found.dtype == np.float32


def test_a_stateful_model_goes_on_through_a_partition_as_in_keras(sc) -> None:
    rows = np.random.default_rng(0).normal(size=(80, 3, 2)).astype("float32")
    model = keras.Sequential([keras.Input(batch_shape=(2, 3, 2)), layers.GRU(3, stateful=True)])
    model.compile("sgd", "mse")
    expected = model.predict(rows, batch_size=2, verbose=0)
    model.layers[0].reset_states()
    found = SparkModel(model, batch_size=2).predict(sc.parallelize(list(rows), 1))  # of more than sixteen batches
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5)


def test_a_row_that_does_not_fit_is_named_by_its_place_in_its_partition(sc) -> None:
    rows = [np.zeros(64, "float32")] * 100
    rows[73] = np.zeros(65, "float32")
    with pytest.raises(DataError, match=r"partition 1, row 73: .*expected shape \(64,\), got \(65,\)"):
        SparkModel(classifier(), batch_size=2).predict(parts_of(sc, [rows[0], *rows], [1, 100]))


def test_rows_that_share_an_array_are_predicted_one_by_one(sc) -> None:
    """What makes the rows may use an array again for the next one."""

    def same_array(numbers):
        buffer = np.zeros(4, "float32")
        for number in numbers:
            buffer[:] = number
            yield buffer

    model = keras.Sequential([keras.Input((4,)), layers.Dense(1, kernel_initializer="ones")])
    model.compile("sgd", "mse")
    found = SparkModel(model, batch_size=2).predict(sc.parallelize(range(90), 2).mapPartitions(same_array))
    np.testing.assert_allclose(found[:, 0], 4 * np.arange(90), rtol=0, atol=1e-4)


def test_predictions_as_an_rdd_run_when_they_are_asked_for(sc) -> None:
    x, _ = digits()
    model = classifier()
    rdd = SparkModel(model).predict(parts_of(sc, list(x[:70]), [30, 0, 40]), collect=False)
    assert rdd.getNumPartitions() == 3
    assert rdd.glom().map(len).collect() == [30, 0, 40]
    np.testing.assert_allclose(np.stack(rdd.collect()), model.predict(x[:70], verbose=0), atol=1e-6)


def test_several_outputs(sc) -> None:
    x, _ = digits()
    given = keras.Input((64,))
    model = keras.Model(given, [layers.Dense(3)(given), layers.Dense(2, name="two")(given)])
    model.compile("sgd", "mse")
    rdd = parts_of(sc, list(x[:40]), [15, 25])
    for found, expected in zip(SparkModel(model).predict(rdd), model.predict(x[:40], verbose=0), strict=True):
        np.testing.assert_allclose(found, expected, atol=1e-6)
    first = SparkModel(model).predict(rdd, collect=False).first()
    assert [part.shape for part in first] == [(3,), (2,)]


def test_outputs_of_unequal_length_are_no_predictions_of_rows(sc) -> None:
    """Rows of the longer output were dropped."""
    given = keras.Input((64,))
    mean = layers.Lambda(lambda x: keras.ops.mean(x, axis=0, keepdims=True))
    model = keras.Model(given, [mean(given), layers.Dense(2)(given)])
    model.compile("sgd", "mse")
    rows = parts_of(sc, [np.zeros(64, "float32")] * 8, [8])
    with pytest.raises(Exception, match=r"the outputs of a batch have \[1, 8\] rows"):
        SparkModel(model).predict(rows, collect=False).collect()


def test_named_outputs_and_named_inputs(sc) -> None:
    x, _ = digits()
    one, other = keras.Input((60,), name="one"), keras.Input((4,), name="other")
    model = keras.Model(
        {"one": one, "other": other}, {"sum": layers.Add(name="sum")([layers.Dense(2)(one), layers.Dense(2)(other)])}
    )
    model.compile("sgd", "mse")
    rdd = parts_of(sc, [{"other": row[60:], "one": row[:60]} for row in x[:20]], [5, 15])
    expected = model.predict({"one": x[:20, :60], "other": x[:20, 60:]}, verbose=0)
    found = SparkModel(model).predict(rdd)
    assert list(found) == ["sum"]
    np.testing.assert_allclose(found["sum"], expected["sum"], atol=1e-6)


def test_text_is_predicted(sc) -> None:
    words = layers.TextVectorization(output_mode="count", max_tokens=8)
    words.adapt(["spark is fast", "keras is simple"])
    model = keras.Sequential([keras.Input((), dtype="string"), words, layers.Dense(1)])
    model.compile("sgd", "mse")
    texts = ["spark is simple", "keras", "fast fast fast", "", "unknown"]
    found = SparkModel(model).predict(parts_of(sc, texts, [2, 0, 3]))
    expected = model.predict(keras.ops.convert_to_tensor(texts, "string"), verbose=0)
    np.testing.assert_allclose(found, expected, atol=1e-6)


def test_no_rows_give_no_predictions(sc) -> None:
    assert len(SparkModel(line()).predict(sc.parallelize([], 3))) == 0
