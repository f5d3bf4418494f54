"""What may be given as data, and how it is told apart."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from inspect import signature

import keras
import numpy as np
import pandas as pd
import pyspark
import pytest
import tensorflow as tf
from pyspark.sql import functions

from elephas_like import ElephasError, SparkModel, shard
from elephas_like.model.data_arguments import column_choice
from elephas_like.model.sources import Arrays, Blocks, Rows, Shards, source_of, validation_source
from elephas_like.rows.shards import ShardedDataset, sweep
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


class Guide(keras.Model):
    """As in Keras' guide to `train_step`: the loss is in the step, and compile has the optimizer alone."""

    def __init__(self) -> None:
        super().__init__()
        self.dense = keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")
        self.tracker = keras.metrics.Mean(name="loss")

    @property
    def metrics(self):
        return [self.tracker]

    def call(self, x):
        return self.dense(x)

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = keras.ops.sum((y - self(x)[:, 0]) ** 2)
        self.optimizer.apply(tape.gradient(loss, self.trainable_weights), self.trainable_weights)
        self.tracker.update_state(loss)
        return {"loss": self.tracker.result()}


@pytest.mark.parametrize("kind", ["arrays", "rdd", "list", "sharded", "dataframe", "parquet", "sharded dataframe"])
def test_a_train_step_of_the_users_own_gets_the_labels_without_a_loss(spark, sc, tmp_path, kind: str) -> None:
    model = Guide()
    model.compile(keras.optimizers.SGD(0.1))
    x, y = np.array([[1.0]], "float32"), np.array([3.0], "float32")
    rows = sc.parallelize([(x[0], y[0])], 1)
    frame = spark.createDataFrame([([1.0], 3.0)], "features array<float>, label float").coalesce(1)
    if kind == "parquet":
        frame.write.parquet(str(tmp_path / "rows"))
    given = {
        "arrays": lambda: (x, y),
        "rdd": lambda: (rows,),
        "list": lambda: ([(x[0], y[0])],),
        "sharded": lambda: (shard(rows, 1),),
        "dataframe": lambda: (frame,),
        "parquet": lambda: (str(tmp_path / "rows"),),
        "sharded dataframe": lambda: (shard(frame, 1, model=model, label_col="label"),),
    }[kind]()
    fitted = SparkModel(model, 1, engine="server" if "sharded" in kind else "in_process", batch_size=1)
    fitted.fit(*given, verbose=0, label_col="label" if kind in ("dataframe", "parquet") else None)
    if "sharded" in kind:
        given[0].release()
    np.testing.assert_allclose(model.dense.kernel.numpy(), [[0.6]], rtol=1e-6)  # 0.1 * 2 * (3 - 0)


def test_metrics_get_the_labels_where_layers_add_the_loss(spark, sc) -> None:
    inputs = keras.Input((1,))
    outputs = keras.layers.Dense(1, kernel_initializer="ones", activity_regularizer="l2")(inputs)
    model = keras.Model(inputs, outputs)
    model.compile(keras.optimizers.SGD(0.0), metrics=["mae"])
    frame = spark.createDataFrame([([1.0], 4.0)], "features array<float>, label float").coalesce(1)
    fitted = SparkModel(model, 1, engine="in_process")
    for given, names in ((sc.parallelize([([1.0], 4.0)], 1), {}), (frame, {"label_col": "label"})):
        assert fitted.fit(given, verbose=0, **names).history["mae"] == [3.0]


@pytest.mark.parametrize("engine", ["in_process", "server"])
def test_models_with_a_loss_and_without_train_on_one_dataset(sc, engine: str) -> None:
    x = np.ones((4, 2), "float32")
    inputs = keras.Input((2,))
    coder = keras.Model(inputs, keras.layers.Dense(2, kernel_initializer="ones", activity_regularizer="l2")(inputs))
    coder.compile(keras.optimizers.SGD(0.0))
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1, kernel_initializer="zeros")])
    model.compile(keras.optimizers.SGD(0.0), "mse")
    theirs = coder.fit(x, verbose=0).history["loss"]
    # 0.01 * (2 ** 2 + 2 ** 2) a row: the mean over rows, or their sum, as Keras had it up to 3.8
    assert theirs in ([pytest.approx(0.08)], [pytest.approx(0.32)])
    with shard((x, 3 * np.ones(4, "float32")), 1) as dataset:
        assert SparkModel(coder, 1, engine=engine).fit(dataset, verbose=0).history["loss"] == pytest.approx(theirs)
        assert SparkModel(model, 1, engine=engine).fit(dataset, verbose=0).history["loss"] == [9.0]


def test_a_model_that_does_not_fit_the_rows_spoils_no_dataset(sc) -> None:
    one, two = keras.Input((2,)), keras.Input((2,))
    other = keras.Model([one, two], keras.layers.Dense(2, activity_regularizer="l2")(one + two))
    other.compile("sgd")
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1, kernel_initializer="zeros")])
    model.compile(keras.optimizers.SGD(0.0), "mse")
    with shard((np.ones((4, 2), "float32"), 3 * np.ones(4, "float32")), 1) as dataset:
        with pytest.raises(Exception, match="expected a Block of"):
            SparkModel(other, 1, engine="server").fit(dataset, verbose=0)
        assert SparkModel(model, 1, engine="server").fit(dataset, verbose=0).history["loss"] == [9.0]


def test_features_alone_stay_features_without_a_loss(spark, sc) -> None:
    """For the same model: rows that are no pairs, and the column that is called label but was not named."""
    model = Guide()
    model.compile("sgd")
    frame = spark.createDataFrame([([1.0], 3.0)], "features array<float>, label float")
    assert not source_of(frame, columns=column_choice(frame), model=model).has_target
    assert source_of(frame, columns=column_choice(frame, label_col="label"), model=model).has_target
    shapes = {
        len(source_of(sc.parallelize([row], 1)).for_model(model).sample("float32"))
        for row in ([1.0], np.ones(1), ((1.0, 2.0),))
    }
    assert shapes == {1}


@pytest.mark.classic
@pytest.mark.parametrize(("partitions", "asked", "plans"), [(2, None, 1), (3, 2, 1), (1, 2, 2)])
def test_spark_plans_a_dataframe_once_for_a_fit(
    spark, monkeypatch: pytest.MonkeyPatch, partitions: int, asked: int | None, plans: int
) -> None:
    """Twice, where rows are dealt as there are fewer partitions than workers."""
    frame = spark.range(0, 8, 1, partitions).selectExpr("array(float(id)) AS features", "float(id) AS label")
    planned = []
    own = type(frame).mapInArrow
    monkeypatch.setattr(
        type(frame), "mapInArrow", lambda df, *given, **named: planned.append(df) or own(df, *given, **named)
    )
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, kernel_initializer="zeros")])
    model.compile(keras.optimizers.SGD(0.0), "mse")
    history = SparkModel(model, asked, engine="server", batch_size=1).fit(frame, verbose=0, label_col="label")
    assert history.history["loss"] == [sum(i * i for i in range(8)) / 8]
    assert len(planned) == plans


class InOrder(keras.Model):
    """Goes by the order of a dict: 1 times its first value and 10 times its second."""

    def __init__(self) -> None:
        super().__init__()
        self.dense = keras.layers.Dense(1, use_bias=False)
        self.dense.build((None, 2))
        self.dense.set_weights([np.array([[1.0], [10.0]])])

    def call(self, x):
        return self.dense(keras.ops.concatenate(list(x.values()), axis=-1))


@pytest.mark.parametrize("kind", ["arrays", "list", "rdd", "jobs", "sharded", "dataframe", "parquet"])
def test_a_dict_of_inputs_keeps_its_order_from_fit_to_predict(spark, sc, tmp_path, kind: str) -> None:
    model = InOrder()
    model.compile(keras.optimizers.SGD(0.1), "mse")
    x, y = {"z": np.array([[1.0], [3.0]]), "a": np.array([[2.0], [4.0]])}, np.array([21.0, 43.0])
    pairs = [({"z": [1.0], "a": [2.0]}, 21.0), ({"z": [3.0], "a": [4.0]}, 43.0)]
    rows, features = sc.parallelize(pairs, 1), sc.parallelize([features for features, _ in pairs], 1)
    frame = spark.createDataFrame([(2.0, 1.0, 21.0), (4.0, 3.0, 43.0)], "a double, z double, label double").coalesce(1)
    path = str(tmp_path / "rows")
    if kind == "parquet":
        frame.write.parquet(path)
    names = {"features_col": {"z": "z", "a": "a"}} if kind in ("dataframe", "parquet") else {}
    given, alone = {
        "arrays": lambda: ((x, y), x),
        "list": lambda: ((pairs,), x),
        "rdd": lambda: ((rows,), features),
        "jobs": lambda: ((rows,), features),
        "sharded": lambda: ((shard(rows, 1),), features),
        "dataframe": lambda: ((frame,), frame),
        "parquet": lambda: ((path,), path),
    }[kind]()
    fitted = SparkModel(model, 1, engine={"jobs": "jobs", "sharded": "server"}.get(kind, "in_process"))
    assert fitted.fit(*given, verbose=0, **names).history["loss"] == [0.0]
    if kind == "jobs":
        return  # evaluates and predicts as any engine does
    assert fitted.evaluate(*given, **names) == 0.0
    assert np.ravel(fitted.predict(alone, **names)).tolist() == [21.0, 43.0]
    if kind == "sharded":
        given[0].release()


def two_heads(named: bool, loss: object = "mse") -> keras.Model:
    """Two outputs, 0 at first. A step on the only row, 1 and 1, makes them what their rows weigh."""
    inputs = keras.Input((1,))
    heads = [keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros", name=name)(inputs) for name in "ab"]
    model = keras.Model(inputs, dict(zip("ab", heads, strict=True)) if named else heads)
    model.compile(keras.optimizers.SGD(0.5), loss)
    return model


ONE = np.ones((1, 1), "float32")
HALF = np.array([0.5], "float32")


@pytest.mark.filterwarnings("ignore:Gradients do not exist")  # for the output without a loss, as in Keras
@pytest.mark.parametrize(
    ("named", "loss", "workers"),
    [(False, ["mse", None], 1), (False, {"a": "mse", "b": None}, 2), (True, {"a": "mse", "b": None}, 1)],
)
def test_an_output_without_a_loss_may_have_no_targets(named: bool, loss: object, workers: int) -> None:
    model, x = two_heads(named, loss), np.ones((2, 1), "float32")
    y = {"a": x, "b": None} if named else [x, None]
    fitted = SparkModel(model, workers, engine="in_process", strategy="average", batch_size=2)
    found = fitted.fit(x, y, validation_data=(x, y), verbose=0).history
    assert (found["loss"], found["val_loss"]) == ([1.0], [0.0])
    assert [float(weight[0, 0]) for weight in model.get_weights()] == [1.0, 0.0]


@pytest.mark.parametrize("loss", ["mse", ["mse", "mae"], {"a": "mse", "b": "mae"}])
def test_none_for_targets_that_a_loss_needs_is_said(loss: object) -> None:
    with pytest.raises(ValueError, match="y has None for the output 'b', which was compiled with a loss"):
        SparkModel(two_heads(False, loss), 1, engine="in_process").fit(ONE, [ONE, None], verbose=0)


@pytest.mark.filterwarnings("ignore:Gradients do not exist")
def test_outputs_of_a_dict_are_those_of_its_keys() -> None:
    x = keras.Input((1,))
    heads = {name: keras.layers.Dense(1, use_bias=False, name=f"layer_{name}") for name in ("price", "amount")}
    model = keras.Model(x, {name: head(x) for name, head in heads.items()})
    model.compile("sgd", {"price": "mse", "amount": None})
    SparkModel(model, 1, engine="in_process").fit(ONE, {"price": ONE, "amount": None}, verbose=0)
    model.compile("sgd", {"price": "mse", "amount": "mse"})
    with pytest.raises(ValueError, match="y has None for the output 'amount'"):
        SparkModel(model, 1, engine="in_process").fit(ONE, {"price": ONE, "amount": None}, verbose=0)


@pytest.mark.parametrize("weights", [{"a": HALF, "b": None}, {"b": None, "a": HALF[:, None]}, [HALF, None]])
def test_an_output_may_have_no_weights(weights: object) -> None:
    named = isinstance(weights, dict)
    model = two_heads(named)
    y = {"a": ONE, "b": ONE} if named else [ONE, ONE]
    SparkModel(model, 1, engine="in_process").fit(ONE, y, sample_weight=weights, verbose=0)
    assert [float(weight[0, 0]) for weight in model.get_weights()] == [0.5, 1.0]


def test_a_list_of_nothing_but_none_is_one_for_each_output() -> None:
    model = two_heads(False)
    SparkModel(model, 1, engine="in_process").fit(ONE, [ONE, ONE], sample_weight=[None, None], verbose=0)
    assert [float(weight[0, 0]) for weight in model.get_weights()] == [1.0, 1.0]


STEPS = np.cos(np.arange(6 * 4 * 2)).reshape(6, 4, 2).astype("float32")
ROW_WEIGHTS = np.linspace(0, 3, 6)


@pytest.mark.parametrize(
    ("weights", "size"),
    [
        (ROW_WEIGHTS[:, None], 4),
        (ROW_WEIGHTS[:, None], 5),
        (pd.Series(ROW_WEIGHTS), 4),
        (pd.DataFrame({"w": ROW_WEIGHTS}), 4),
    ],
    ids=["as many rows as steps", "others", "Series", "DataFrame"],
)
def test_a_column_of_weights_goes_along_the_rows_of_sequences_as_in_keras(weights: object, size: int) -> None:
    """Without its axis of 1 it would go along the steps, where a batch has as many rows."""

    def trained(fit: Callable) -> tuple[dict, list]:
        model = keras.Sequential([keras.Input((4, 2)), keras.layers.Dense(1, kernel_initializer="ones")])
        model.compile("sgd", "mse")
        y = np.sin(np.arange(24)).reshape(6, 4, 1)
        told = {"batch_size": size, "shuffle": False, "validation_data": (STEPS, y, weights), "verbose": 0}
        return fit(model)(STEPS, y, sample_weight=weights, **told).history, model.get_weights()

    expected, kernels = trained(lambda model: model.fit)
    found, ours = trained(lambda model: SparkModel(model, 1, engine="in_process").fit)
    for name in ("loss", "val_loss"):
        np.testing.assert_allclose(found[name], expected[name], rtol=1e-6)
    for mine, keras_own in zip(ours, kernels, strict=True):
        np.testing.assert_allclose(mine, keras_own, rtol=1e-6)


class Added(keras.layers.Layer):
    def call(self, x, y=None):
        return x if y is None else x + y

    def compute_output_spec(self, x, y=None):
        return keras.KerasTensor(x.shape, x.dtype)


@pytest.mark.skipif("optional" not in signature(keras.Input).parameters, reason="an old Keras")
def test_an_optional_input_may_be_none() -> None:
    def made() -> keras.Model:
        a, b = keras.Input((1,), name="a"), keras.Input((1,), name="b", optional=True)
        model = keras.Model({"a": a, "b": b}, keras.layers.Dense(1, kernel_initializer="ones")(Added()(a, b)))
        model.compile("sgd", "mse")
        return model

    given, ours, theirs = {"a": ONE, "b": None}, made(), made()
    try:
        theirs.fit(given, ONE * 2, verbose=0)
    except AttributeError:
        pytest.skip("this Keras cannot: 3.8")
    SparkModel(ours, 1, engine="in_process").fit(given, ONE * 2, verbose=0)
    for mine, keras_own in zip(ours.get_weights(), theirs.get_weights(), strict=True):
        np.testing.assert_allclose(mine, keras_own, rtol=1e-6)


@pytest.mark.parametrize(
    ("named", "weights", "message"),
    [
        (True, {"a": HALF}, "expected a dict with the keys 'a', 'b'; got a dict with the keys 'a'"),
        (True, [HALF, HALF], "expected a dict with the keys 'a', 'b'; got a list of 2"),
        (False, [HALF], "expected a list of 2; got a list of 1"),
        (False, {"a": HALF, "b": HALF}, "expected a list of 2; got a dict with the keys 'a', 'b'"),
    ],
)
def test_weights_that_do_not_go_with_the_targets_are_said(named: bool, weights: object, message: str) -> None:
    y = {"a": ONE, "b": ONE} if named else [ONE, ONE]
    with pytest.raises(ValueError, match=message):
        SparkModel(two_heads(named), 1, engine="in_process").fit(ONE, y, sample_weight=weights, verbose=0)


class TwoInputs(keras.Model):
    def train_step(self, data):
        raise NotImplementedError


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ((1.0, 2.0), ((1.0, 2.0),)),
        ((np.array([1.0, 2.0]),), (np.array([1.0, 2.0]),)),
        (((1.0, 2.0), 3.0), ((1.0, 2.0), 3.0)),
        (({"a": 1.0, "b": 2.0}, 3.0), ({"a": 1.0, "b": 2.0}, 3.0)),
        (((1.0, 2.0), 3.0, 0.5), ((1.0, 2.0), 3.0, 0.5)),
    ],
    ids=["features", "features in a tuple", "pair", "pair of a dict", "triple"],
)
def test_a_tuple_of_as_many_numbers_as_inputs_is_features(sc, row: object, expected: object) -> None:
    inputs = [keras.Input((1,)) for _ in range(2)]
    model = TwoInputs(inputs, keras.layers.Add()(inputs))
    model.compile("sgd")
    keras.tree.map_structure(
        np.testing.assert_array_equal, source_of(sc.parallelize([row], 1)).for_model(model).rdd.first(), expected
    )


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


@pytest.mark.classic
@pytest.mark.parametrize("shuffled", [False, True])
def test_rows_of_a_dataframe_are_computed_once_to_be_written(spark, shuffled: bool) -> None:
    """A DataFrame whose shuffles Spark runs when it is asked for partitions is not planned twice."""
    computed = spark.sparkContext.accumulator(0)

    def count(batches):
        for batch in batches:
            computed.add(batch.num_rows)
            yield batch

    df = spark.range(0, 100, 1, 3).select(functions.col("id").alias("features"), functions.col("id").alias("label"))
    df = df.mapInArrow(count, df.schema)
    df = df.repartition(3) if shuffled else df
    source = source_of(df, columns=column_choice(df, label_col="label"), model=None)
    data = source.data(2)
    assert (data.write is None) == shuffled
    options = source.spool_options()
    with ExitStack() as stack:
        stack.callback(sweep, spark.sparkContext, "computed-once", 2, [options.dataset])
        found = data.references(spark.sparkContext, options, stack).collect()
        assert sum(ref.rows for ref in found) == 100
    assert computed.value == 100
