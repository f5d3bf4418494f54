"""Stages of models whose inputs and outputs are dicts: columns are called after the keys."""

from __future__ import annotations

import keras
import numpy as np
import pytest

from elephas_like import ElephasTransformer, SparkModel, register_keras_udf

pytestmark = pytest.mark.filterwarnings("ignore:When providing `inputs` as a dict")


@pytest.fixture(scope="module")
def df(spark):
    return spark.createDataFrame(
        [(float(i), 3.0, 10.0 * i + 3.0, 1.0) for i in range(4)], ["wide", "deep", "price", "one"]
    )


def model(*names: str) -> keras.Model:
    """10 wide + deep, of each of the names."""
    tensors = {"wide": keras.Input((1,)), "deep": keras.Input((1,))}
    joined = keras.layers.Concatenate()([tensors["wide"], tensors["deep"]])
    layers = [keras.layers.Dense(1, use_bias=False) for _ in names]
    outputs = dict(zip(names, [layer(joined) for layer in layers], strict=True))
    made = keras.Model(tensors, outputs if len(names) > 1 else outputs[names[0]])
    for layer in layers:
        layer.set_weights([np.array([[10.0], [1.0]])])
    made.compile("sgd", "mse")
    return made


def test_prediction_columns_are_called_after_the_keys(df) -> None:
    made = model("price", "amount")
    found = ElephasTransformer(made, features_col=["wide", "deep"]).transform(df)
    assert set(found.columns) - set(df.columns) == {"prediction_price", "prediction_amount"}
    assert [row.prediction_price for row in found.collect()] == [[row.price] for row in df.collect()]
    lazy = SparkModel(made).predict(df, features_col=["wide", "deep"], collect=False)
    assert set(lazy.columns) - set(df.columns) == {"prediction_price", "prediction_amount"}


def test_arguments_of_a_sql_function_go_to_the_inputs_in_the_order_of_the_dict(spark, df) -> None:
    function = register_keras_udf(spark, "of_dict", model("price"))
    assert [row.p for row in df.select(function("wide", "deep").alias("p")).collect()] == [3.0, 13.0, 23.0, 33.0]


def test_each_output_is_compared_with_its_column(df) -> None:
    fitted = SparkModel(model("price", "amount"), 1)
    same = df.withColumn("amount", df.price + 2)
    for labels in (["price", "amount"], ["amount", "price"], {"amount": "amount", "price": "price"}):
        found = fitted.evaluate(same, features_col=["wide", "deep"], label_col=labels, return_dict=True)
        assert (found["price_loss"], found["amount_loss"]) == (0.0, 4.0)
