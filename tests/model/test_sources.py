"""What may be given as data, and how it is told apart."""

from __future__ import annotations

import keras
import numpy as np
import pyspark
import pytest

from elephas_like import ElephasError, SparkModel
from elephas_like.model.sources import Arrays, Blocks, Rows, Shards, source_of, validation_source
from elephas_like.rows.shards import ShardedDataset
from elephas_like.rows.spool import Block


def test_arrays_say_whether_there_is_a_target() -> None:
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    assert source_of(np.zeros((2, 1)), np.zeros(2)).for_model(model).has_target
    assert not source_of(np.zeros((2, 1))).for_model(model).has_target


def test_the_models_loss_says_whether_rows_of_an_rdd_have_a_target(sc) -> None:
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    rdd = sc.parallelize([([1.0], 2.0)], 1)
    for given, kind in ((rdd, Rows), (ShardedDataset(rdd, 1, "none"), Shards)):
        source = source_of(given)
        assert isinstance(source, kind)
        assert not source.for_model(model).has_target
    model.compile("sgd", "mse")
    assert source_of(rdd).for_model(model).has_target


def test_each_kind_divides_its_rows_among_workers(sc) -> None:
    """And gives them all, in order, on the driver."""
    x = np.arange(4.0)[:, None]
    rdd = sc.parallelize(list(x), 4)
    blocks = [Block((x[:1],), 1), Block((x[1:],), 3)]
    given = {"arrays": x, "blocks": blocks, "rdd": rdd, "shards": ShardedDataset(rdd, 4, "none")}
    found = {name: source_of(data) for name, data in given.items()}
    assert {name: source.num_workers for name, source in found.items()} == {
        "arrays": None,
        "blocks": 2,
        "rdd": None,
        "shards": 4,
    }
    for name, source in found.items():
        parts = list(source.data(2).partitions())
        assert len(parts) == 2, name
        assert [float(value) for row in source.rows() for value in np.ravel(_values(row))] == [0, 1, 2, 3], name
    assert isinstance(found["blocks"], Blocks)
    assert found["rdd"].data().num_workers == found["shards"].data().num_workers == 4
    assert found["arrays"].data(2).blocks[0].columns[0].tolist() == [[0.0], [2.0]]  # dealt like cards


def _values(row: object) -> object:
    return row.columns[0] if isinstance(row, Block) else row


@pytest.mark.parametrize("losses", [["mse", None], [None, "mse"], {"a": "mse", "b": None}])
def test_one_array_of_targets_is_that_of_the_only_output_with_a_loss(losses: object) -> None:
    """As in Keras, which would train the output on half of the targets if they were cut in two."""

    def made() -> keras.Model:
        keras.utils.set_random_seed(3)
        x = keras.Input((3,))
        shared = keras.layers.Dense(2)(x)
        heads = {name: keras.layers.Activation("tanh", name=name)(shared) for name in "ab"}
        model = keras.Model(x, heads if isinstance(losses, dict) else list(heads.values()))
        model.compile("sgd", losses)
        return model

    ours, theirs = made(), made()
    x, y = np.arange(24.0, dtype="float32").reshape(8, 3) / 24, np.arange(16.0, dtype="float32").reshape(8, 2)
    theirs.fit(x, y, batch_size=4, shuffle=False, verbose=0)
    SparkModel(ours, 1, engine="in_process", strategy="average", batch_size=4).fit(x, y, shuffle=False, verbose=0)
    for ours_now, theirs_now in zip(ours.get_weights(), theirs.get_weights(), strict=True):
        np.testing.assert_allclose(ours_now, theirs_now, atol=1e-6)
    cut = source_of(x, y).for_model(ours)
    assert isinstance(cut, Arrays)
    np.testing.assert_array_equal(cut.columns[1], y)


def test_the_sample_is_the_first_row_as_workers_will_see_it() -> None:
    x, y = np.array([[1.5], [2.5]]), np.array([7, 8])
    sample = source_of(x, y, np.array([0.5, 1.0])).sample("float32")
    assert [(part.dtype.name, part.tolist()) for part in sample] == [
        ("float32", [[1.5]]),
        ("int64", [7]),
        ("float32", [0.5]),
    ]


def test_no_rows_are_said() -> None:
    with pytest.raises(ValueError, match="there are no rows"):
        source_of(np.zeros((0, 2)), np.zeros(0)).sample("float32")


def test_validation_data_of_another_kind_is_refused() -> None:
    with pytest.raises(TypeError, match="validation_data must be"):
        validation_source(7)
    with pytest.raises(
        TypeError, match="validation_data is a path of Parquet files, which goes with data that has columns"
    ):
        validation_source("rows.parquet")
    assert isinstance(validation_source([np.zeros((1, 1)), np.zeros(1)]), Arrays)


def test_dataframes_get_a_sentence(spark) -> None:
    with pytest.raises(TypeError, match=r"pass df\.rdd\.map"):
        source_of(spark.createDataFrame([(1, 2)], "a int, b int"))


def test_spark_connect_of_another_kind_gets_a_sentence() -> None:
    frame = type("DataFrame", (), {"__module__": "pyspark.sql.connect.dataframe"})()
    # Spark Connect of Spark 3.5 is of no use at all.
    error = ElephasError if pyspark.__version__.startswith("3.") else TypeError
    with pytest.raises(error, match="use a classic session"):
        source_of(frame)
