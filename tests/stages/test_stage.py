"""What both stages check: one model, and a DataFrame."""

from __future__ import annotations

from collections.abc import Callable

import keras
import numpy as np
import pytest
from frame_data import mlp
from stable_ids import named

from elephas_like import ElephasEstimator, ElephasTransformer, SparkModel, register_keras_udf


def test_a_model_is_given_once() -> None:
    model = mlp(2, 1, None, "mse")
    for kind in (ElephasEstimator, ElephasTransformer):
        with pytest.raises(ValueError, match="give a model or keras_model_config, not both"):
            kind(model, keras_model_config=model.to_json())
    with pytest.raises(ValueError, match="weights= goes with keras_model_config"):
        ElephasTransformer(model, weights=model.get_weights())


def test_data_of_another_kind_is_named() -> None:
    model = mlp(2, 1, None, "mse")
    for use in (ElephasEstimator(model).fit, ElephasTransformer(model).transform):
        with pytest.raises(TypeError, match=r"expected a Spark DataFrame, got numpy\.ndarray; spark\.createDataFrame"):
            use(np.zeros((2, 2)))


@pytest.fixture(scope="module")
def columns(spark):
    return spark.createDataFrame(
        [(float(i), 3.0, 10.0 * i + 3.0, 1.0) for i in range(4)], ["wide", "deep", "price", "one"]
    )


def test_a_validation_column_may_be_called_anything(columns) -> None:
    stage = ElephasEstimator(mlp(1, 1, None, "mse"), validation_col="held `out`")
    rows = columns.selectExpr("*", "wide > 1 AS `held ``out```")
    kept, held, _ = stage.split(rows)
    assert (kept.count(), held.count()) == (2, 2)


def of_dicts(*names: str) -> keras.Model:
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


def test_a_column_that_spark_takes_for_the_probability_stays(columns) -> None:
    model = mlp(2, 1, "sigmoid", "binary_crossentropy")
    stage = ElephasTransformer(model, features_col=["wide", "deep"])
    found = stage.transform(columns.withColumnRenamed("one", "Probability"))
    assert found.columns == ["wide", "deep", "price", "Probability", "prediction", "rawPrediction"]
    assert [row.Probability for row in found.collect()] == [1.0] * 4


@pytest.mark.filterwarnings("ignore:When providing `inputs` as a dict")
def test_prediction_columns_are_called_after_the_keys(columns) -> None:
    made = of_dicts("price", "amount")
    found = ElephasTransformer(made, features_col=["wide", "deep"]).transform(columns)
    assert set(found.columns) - set(columns.columns) == {"prediction_price", "prediction_amount"}
    assert [row.prediction_price for row in found.collect()] == [[row.price] for row in columns.collect()]
    lazy = SparkModel(made).predict(columns, features_col=["wide", "deep"], collect=False)
    assert set(lazy.columns) - set(columns.columns) == {"prediction_price", "prediction_amount"}


@pytest.mark.filterwarnings("ignore:When providing `inputs` as a dict")
def test_arguments_of_a_sql_function_go_to_the_inputs_in_the_order_of_the_dict(spark, columns) -> None:
    function = register_keras_udf(spark, "of_dict", of_dicts("price"))
    assert [row.p for row in columns.select(function("wide", "deep").alias("p")).collect()] == [3.0, 13.0, 23.0, 33.0]


@pytest.mark.filterwarnings("ignore:When providing `inputs` as a dict")
def test_each_output_is_compared_with_its_column(columns) -> None:
    fitted = SparkModel(of_dicts("price", "amount"), 1)
    same = columns.withColumn("amount", columns.price + 2)
    for labels in (["price", "amount"], ["amount", "price"], {"amount": "amount", "price": "price"}):
        found = fitted.evaluate(same, features_col=["wide", "deep"], label_col=labels, return_dict=True)
        assert (found["price_loss"], found["amount_loss"]) == (0.0, 4.0)


X = np.random.default_rng(0).normal(size=(6, 4)).astype("float32")


@pytest.fixture(scope="module")
def features(spark):
    return spark.createDataFrame([(x.tolist(),) for x in X], ["features"])


def operation(x: keras.KerasTensor) -> keras.KerasTensor:
    return keras.ops.softmax(keras.layers.Dense(3)(x))


def mean_of_two(x: keras.KerasTensor) -> keras.KerasTensor:
    return keras.layers.Average()([keras.layers.Dense(3, "softmax")(x) for _ in range(2)])


@pytest.mark.parametrize("end", [operation, mean_of_two], ids=named)
def test_probabilities_are_what_the_model_puts_out(spark, features, end: Callable) -> None:
    keras.utils.set_random_seed(1)
    x = keras.Input((4,))
    model = keras.Model(x, end(x))
    model.compile("sgd", "sparse_categorical_crossentropy")
    expected = model.predict(X, verbose=0)
    rows = ElephasTransformer(model).transform(features).collect()
    np.testing.assert_allclose([row.probability.toArray() for row in rows], expected, rtol=1e-4)
    np.testing.assert_allclose([row.rawPrediction.toArray() for row in rows], np.log(expected), rtol=1e-3, atol=1e-4)
    function = register_keras_udf(spark, "probabilities", model, output="probability")
    np.testing.assert_allclose([row[0] for row in features.select(function("features")).collect()], expected, rtol=1e-4)


def test_a_loss_in_a_list_or_dict_makes_the_same_columns(features) -> None:
    loss = keras.losses.BinaryCrossentropy(from_logits=True)
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1, name="out")])
    found = []
    for given in (loss, [loss], {"out": loss}):
        model.compile("sgd", given)
        found.append(ElephasTransformer(model).transform(features).collect())
    assert found[0][0].probability.size == 2
    assert found[0] == found[1] == found[2]
