"""What may be given as data, and how it is told apart."""

from __future__ import annotations

import keras
import numpy as np
import pandas as pd
import pytest

from elephas_like import SparkModel
from elephas_like.model.sources import Source, arrays


def test_pandas_tensors_and_lists_become_arrays_and_trees_stay_trees() -> None:
    frame = pd.DataFrame({"a": [1.0, 2.0], "b": [3.0, 4.0]})
    assert arrays(frame).tolist() == [[1.0, 3.0], [2.0, 4.0]]
    assert arrays([1, 2]).tolist() == [1, 2]
    tree = arrays({"x": frame["a"], "y": (np.ones(2), [np.zeros(2), np.ones(2)])})
    assert tree["x"].tolist() == [[1.0], [2.0]]  # a column, as in Keras
    assert isinstance(tree["y"][1], tuple)


def test_arrays_say_whether_there_is_a_target() -> None:
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    assert Source.of(np.zeros((2, 1)), np.zeros(2), None).with_target(model).has_target
    assert not Source.of(np.zeros((2, 1)), None, None).with_target(model).has_target


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
    cut = Source.of(x, y, None).for_model(ours).columns
    assert cut is not None
    np.testing.assert_array_equal(cut[1], y)


def test_the_sample_is_the_first_row_as_workers_will_see_it() -> None:
    x, y = np.array([[1.5], [2.5]]), np.array([7, 8])
    sample = Source.of(x, y, np.array([0.5, 1.0])).sample("float32")
    assert [(part.dtype.name, part.tolist()) for part in sample] == [
        ("float32", [[1.5]]),
        ("int64", [7]),
        ("float32", [0.5]),
    ]


def test_no_rows_are_said() -> None:
    with pytest.raises(ValueError, match="there are no rows"):
        Source.of(np.zeros((0, 2)), np.zeros(0), None).sample("float32")


def test_validation_data_of_another_kind_is_refused() -> None:
    with pytest.raises(TypeError, match="validation_data must be"):
        Source.validation("rows.csv")
    assert Source.validation([np.zeros((1, 1)), np.zeros(1)]).columns is not None


def test_dataframes_get_a_sentence(spark) -> None:
    with pytest.raises(TypeError, match=r"pass df\.rdd\.map"):
        Source.of(spark.createDataFrame([(1, 2)], "a int, b int"), None, None)


def test_spark_connect_gets_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    frame = type("DataFrame", (), {"__module__": "pyspark.sql.connect.dataframe"})()
    with pytest.raises(TypeError, match="use a classic session"):
        Source.of(frame, None, None)
    monkeypatch.setenv("SPARK_REMOTE", "sc://localhost")
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    with pytest.raises(TypeError, match="Spark Connect is not supported yet"):
        SparkModel(model).fit(np.zeros((2, 1)), np.zeros(2), verbose=0)
