"""Rows as users give them in memory, all of which mean the same."""

from __future__ import annotations

from decimal import Decimal

import keras
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from pyspark.sql import DataFrame

from elephas_like import SparkModel, VotingModel
from elephas_like.core.errors import DataError
from elephas_like.model.given_rows import Given

X = np.linspace(-1, 1, 40, dtype="float32").reshape(20, 2)
Y = np.arange(20) % 3
W = np.ones(20, "float32")
FRAME = pd.DataFrame({"a": X[:, 0], "b": X[:, 1], "label": Y, "w": W})
LEVELS = pd.MultiIndex.from_tuples([("x", "a"), ("x", "b"), ("y", ""), ("w", "")])


def model(loss: str | None = "sparse_categorical_crossentropy", inputs: int = 1) -> keras.Model:
    keras.utils.set_random_seed(5)
    tensors = [keras.Input((2,)) for _ in range(inputs)]
    joined = tensors[0] if inputs == 1 else keras.layers.Concatenate()(tensors)
    made = keras.Model(tensors[0] if inputs == 1 else tensors, keras.layers.Dense(3, "softmax")(joined))
    made.compile("sgd", loss, metrics=["accuracy"])
    return made


def same(found: object, expected: object) -> bool:
    return keras.tree.flatten(keras.tree.map_structure(lambda a, b: np.array_equal(a, b), found, expected)) != [False]


def trained(*data: object, **named: object) -> tuple[list[float], list[float]]:
    """The losses of a fit, and scores after it. Nothing is compiled: there are two steps."""
    made = model()
    made.run_eagerly = True
    fitted = SparkModel(made, 2, engine="in_process", seed=1)
    history = fitted.fit(*data, verbose=0, shuffle=False, **named).history["loss"]
    return history, fitted.evaluate(*data, **named)


@pytest.fixture(scope="module")
def of_x_and_y() -> tuple[list[float], list[float]]:
    return trained(X, Y)


@pytest.mark.parametrize(
    ("given", "names"),
    [
        ((X, Y), {}),
        ((X, Y, W), {}),
        (list(zip(X, Y, strict=True)), {}),
        (FRAME, {"features_col": ["a", "b"]}),
        (FRAME, {"features_col": FRAME.columns[:2]}),
        (FRAME, {"features_col": np.array(["a", "b"])}),
        (FRAME, {"features_col": (["a", "b"],)}),
        (FRAME.rename(columns={"label": "kind"}), {"features_col": ["a", "b"], "label_col": "kind", "sample_weight_col": "w"}),
        (pd.DataFrame({"features": list(X), "label": Y}), {"label_col": "label"}),
        (pd.DataFrame(np.c_[X, Y]), {"features_col": [0, 1], "label_col": 2}),
        (FRAME.set_axis(LEVELS, axis=1), {"features_col": [("x", "a"), ("x", "b")], "label_col": ("y", "")}),
        (pa.Table.from_pandas(FRAME), {"features_col": ["a", "b"]}),
    ],
    ids=["pair", "triple", "list of pairs", "pandas", "an Index", "an array of names", "a tuple of lists", "pandas with weights", "arrays in cells", "numbered", "levels", "Arrow"],
)  # fmt: skip
def test_every_form_trains_and_scores_as_x_and_y_do(
    of_x_and_y: tuple[list[float], list[float]], given: object, names: dict[str, object]
) -> None:
    found = trained(given, **names)
    np.testing.assert_allclose(found[0], of_x_and_y[0], rtol=1e-6)
    np.testing.assert_allclose(found[1], of_x_and_y[1], rtol=1e-6)


def test_labels_are_left_out_of_predictions() -> None:
    own = model()
    expected = own.predict(X, verbose=0)
    for form in ((X, Y), list(zip(X, Y, strict=True))):
        np.testing.assert_allclose(SparkModel(own).predict(form), expected, rtol=1e-6)
    np.testing.assert_allclose(SparkModel(own).predict(FRAME, features_col=["a", "b"]), expected, rtol=1e-6)
    votes = VotingModel([own], "soft")
    np.testing.assert_array_equal(votes.predict((X, Y)), expected.argmax(axis=-1))
    np.testing.assert_array_equal(votes.predict(FRAME, features_col=["a", "b"]), expected.argmax(axis=-1))
    assert votes.evaluate((X, Y)) == votes.evaluate(X, Y)


def test_rows_of_two_numbers_are_features_of_two_numbers() -> None:
    rows = [(1.0, 2.0), (3.0, 4.0), (5.0, 6.0)]
    predictor = SparkModel(model(), engine="in_process")
    np.testing.assert_array_equal(predictor.predict(rows), predictor.predict(np.array(rows)))


def test_arrays_of_several_inputs_and_outputs_for_validation_are_no_rows() -> None:
    """[(x1, x2), (y1, y2)], as Keras takes it; pairs of rows still are rows."""
    tensors = [keras.Input((2,)), keras.Input((2,))]
    outputs = [keras.layers.Dense(1, name=name)(keras.layers.Concatenate()(tensors)) for name in ("one", "two")]
    both = keras.Model(tensors, outputs)
    both.compile("sgd", ["mse", "mse"])
    x, y = (X, X + 1), (W[:, None], 2 * W[:, None])
    losses = []
    for held in ([x, y], (x, y), [((X[i], X[i] + 1), ([1.0], [2.0])) for i in range(20)]):
        again = keras.models.clone_model(both)
        again.set_weights(both.get_weights())
        again.compile("sgd", ["mse", "mse"])
        fitted = SparkModel(again, 2, engine="in_process", seed=1)
        losses.append(fitted.fit(x, y, validation_data=held, verbose=0).history["val_loss"])
    assert losses[0] == losses[1] == losses[2]


def test_an_rdds_pairs_are_predicted_too(sc) -> None:
    own = model()
    found = SparkModel(own).predict(sc.parallelize(list(zip(X, Y, strict=True)), 2))
    np.testing.assert_allclose(found, own.predict(X, verbose=0), atol=1e-6)


def test_a_tuple_for_several_inputs_is_their_arrays() -> None:
    two = model(inputs=2)
    assert Given.of((X, X), model=two, target=False).x == (X, X)
    found = Given.of(((X, X), Y), model=two)
    assert same(found.x, (X, X))
    assert same(found.y, Y)
    with pytest.raises(ValueError, match="the labels are missing"):
        Given.of((X, X), model=two)


def test_one_hot_labels_are_made_where_the_loss_needs_them() -> None:
    found = Given.of(FRAME, model=model("categorical_crossentropy"), features_col=["a", "b"])
    assert found.y.tolist() == np.eye(3)[Y].tolist()


def test_validation_data_has_the_columns_of_the_data() -> None:
    given = Given.of(FRAME, model=model(), features_col=["a", "b"], label_col="label")
    x, y = given.validation(FRAME[:5], model())
    assert x.shape == (5, 2)
    assert y.tolist() == Y[:5].tolist()


def named_model() -> keras.Model:
    """Outputs that tell inputs apart: y = a + 100 b, and z = -y."""
    tensors = [keras.Input((1,), name=name) for name in "ab"]
    joined = keras.layers.Concatenate()(tensors)
    layers = [keras.layers.Dense(1, use_bias=False, name=name) for name in "yz"]
    made = keras.Model(tensors, [layer(joined) for layer in layers])
    for sign, layer in zip((1, -1), layers, strict=True):
        layer.set_weights([sign * np.array([[1.0], [100.0]])])
    made.compile("sgd", ["mse", "mse"])
    return made


NAMED = pd.DataFrame({"a": [1.0, 2.0], "b": [3.0, 4.0], "y": [301.0, 402.0], "z": [-301.0, -402.0]})
BY_NAME = {"features_col": ["b", "a"], "label_col": ["z", "y"]}


def test_columns_go_to_inputs_and_outputs_by_name_and_otherwise_in_order() -> None:
    """As those of Spark's DataFrames and of Parquet files do."""
    fitted = SparkModel(named_model(), engine="in_process")
    for frame, names in (
        (NAMED, ["a", "b"]),
        (NAMED, ["b", "a"]),
        (NAMED.rename(columns={"a": "c"}), ["c", "b"]),
        (NAMED.rename(columns={"a": "b", "b": "c"}), ["b", "c"]),
    ):
        assert fitted.predict(frame, features_col=names)[0].ravel().tolist() == [301.0, 402.0]
    assert fitted.evaluate(NAMED, **BY_NAME)[0] == 0
    history = fitted.fit(NAMED, epochs=1, validation_data=NAMED, verbose=0, **BY_NAME).history
    assert history["loss"] == history["val_loss"] == [0.0]


def test_columns_go_by_name_where_the_model_is_made_later() -> None:
    made = named_model()
    given = Given.of(NAMED, **BY_NAME)
    assert given.x.tolist() == [[3.0, 1.0], [4.0, 2.0]]
    known = given.for_model(made)
    assert [part.tolist() for part in known.x] == [[[1.0], [2.0]], [[3.0], [4.0]]]
    assert known.y.tolist() == known.validation(NAMED, made)[1].tolist() == [[301.0, -301.0], [402.0, -402.0]]
    pair = Given.of((X, Y))
    assert pair.for_model(model()) is pair


def test_columns_of_unequal_widths_stay_whole_where_the_model_is_made_later() -> None:
    """Two inputs of open length: nothing says where both together were to be cut."""
    question, answer = keras.Input((None,), name="question"), keras.Input((None,), name="answer")
    totals = [keras.ops.sum(each, axis=1, keepdims=True) for each in (question, answer)]
    towers = keras.Model([question, answer], totals[0] + 100 * totals[1])
    towers.compile("sgd", "mse")
    frame = pd.DataFrame({"question": [[1.0, 2, 3, 4]] * 2, "answer": [[5.0, 6]] * 2, "y": [1110.0] * 2})
    given = Given.of(frame, features_col=["question", "answer"], label_col="y").for_model(towers)
    for found in (given.x, given.validation(frame, towers)[0]):
        assert [part.shape for part in found] == [(2, 4), (2, 2)]
    assert float(towers.evaluate(list(given.x), given.y, verbose=0)) == 0


def test_labels_of_unlike_outputs_are_not_put_together() -> None:
    """A class number and a box of four numbers, as a model that finds things in pictures has."""
    inputs = keras.Input((2,))
    made = keras.Model(inputs, [keras.layers.Dense(3, "softmax")(inputs), keras.layers.Dense(4)(inputs)])
    made.compile("sgd", ["sparse_categorical_crossentropy", "mse"])
    boxes = np.arange(80.0).reshape(20, 4)
    frame = pd.DataFrame({"x": list(X), "kind": Y, "box": list(boxes)})
    fitted = SparkModel(made, engine="in_process")
    for table in (frame, pa.Table.from_pandas(frame)):
        found = fitted.evaluate(table, features_col="x", label_col=["kind", "box"])
        assert found == pytest.approx(made.evaluate(X, [Y[:, None], boxes], verbose=0), rel=1e-5)
    fitted.fit(frame, features_col="x", label_col=["kind", "box"], validation_split=0.5, verbose=0)


def dict_model() -> keras.Model:
    """Dicts of inputs and outputs whose keys are no layers' names: price = 10 wide + deep, amount = -price."""
    tensors = {"wide": keras.Input((1,)), "deep": keras.Input((1,))}
    joined = keras.layers.Concatenate()([tensors["wide"], tensors["deep"]])
    outputs = {"price": keras.layers.Dense(1, use_bias=False), "amount": keras.layers.Dense(1, use_bias=False)}
    made = keras.Model(tensors, {key: layer(joined) for key, layer in outputs.items()})
    for sign, layer in zip((1, -1), outputs.values(), strict=True):
        layer.set_weights([sign * np.array([[10.0], [1.0]])])
    made.compile("sgd", {"price": "mse", "amount": "mse"})
    return made


@pytest.mark.filterwarnings("ignore:When providing `inputs` as a dict")
@pytest.mark.parametrize(
    ("features", "labels"),
    [
        (["deep", "wide"], ["amount", "price"]),
        ({"deep": "deep", "wide": "wide"}, {"amount": "amount", "price": "price"}),
        (["w", "d"], ["p", "a"]),
    ],
    ids=["by name", "by dict", "in order"],
)
def test_columns_for_dicts_go_by_their_keys_and_otherwise_in_their_order(features: object, labels: object) -> None:
    frame = pd.DataFrame({"wide": [1.0, 2.0], "deep": [3.0, 4.0], "price": [13.0, 24.0], "amount": [-13.0, -24.0]})
    frame = frame.assign(w=frame.wide, d=frame.deep, p=frame.price, a=frame.amount)
    names = {"features_col": features, "label_col": labels}
    made = dict_model()
    fitted = SparkModel(made, engine="in_process")
    found = fitted.predict(frame, features_col=features)
    assert {key: part.ravel().tolist() for key, part in found.items()} == {"price": [13, 24], "amount": [-13, -24]}
    assert fitted.evaluate(frame, **names)[0] == 0
    history = fitted.fit(frame, epochs=1, validation_data=frame, verbose=0, **names).history
    assert history["loss"] == history["val_loss"] == [0.0]
    given = Given.of(frame, model=made, **names).for_model(made)  # told of the model twice
    assert SparkModel(made, engine="in_process").evaluate(*given.pair)[0] == 0


LISTS = np.array([[1.0, 2.0], [3.0]], dtype=object)


@pytest.mark.parametrize(
    ("call", "kind", "expected"),
    [
        (lambda fitted: fitted.fit(X), ValueError, r"labels are missing.*Give x and y, or \(x, y\)"),
        (lambda fitted: fitted.evaluate(X), ValueError, "labels are missing"),
        (lambda fitted: fitted.fit(X, Y, validation_data=(X,)), ValueError, "validation_data has no labels"),
        (lambda fitted: fitted.fit(X, Y, validation_data=(LISTS, Y[:2])), DataError, "^validation rows, partition 0, rows from 0: .*list"),
        (lambda fitted: fitted.predict(X, Y), TypeError, r"predict takes features alone.*evaluate\(x, y\)"),
        (lambda fitted: fitted.fit((X, Y, W), sample_weight=W), ValueError, "sample weights came twice"),
        (lambda fitted: fitted.fit(FRAME, Y, features_col="a"), ValueError, "name their columns"),
        (lambda fitted: fitted.fit(FRAME, features_col=["a", "bb"]), ValueError, "no column 'bb'; it has 'a', 'b'.*mean 'b'"),
        (lambda fitted: fitted.fit(FRAME.rename(columns={"b": "a"}), features_col="a"), ValueError, "one column 'a'.* has 2 of"),
        (lambda fitted: fitted.fit(FRAME, features_col="a", handle_invalid="skip"), ValueError, "DataFrames of Spark"),
        (lambda fitted: fitted.fit(FRAME, features_col=[0, 1]), ValueError, "no column 0; it has 'a', 'b'"),
        (lambda fitted: fitted.fit(FRAME.set_axis(LEVELS, axis=1), features_col=["x"]), ValueError, r"2 below that name, such as \('x', 'a'\)"),
        (lambda fitted: fitted.fit(X.astype(str), Y), DataError, "takes numbers, and the rows have text, such as '-1.0'"),
        (lambda fitted: fitted.predict(X.astype(str)), DataError, "takes numbers, and the rows have text, such as '-1.0'"),
        (lambda fitted: fitted.evaluate(X[:, :1], Y), DataError, r"takes features of shape \(2,\), and the rows' are \(1,\)"),
        (lambda fitted: fitted.fit(list(X), Y), DataError, "takes one array of features, of shape .* tuple of 20 values"),
        (lambda fitted: fitted.fit([(X[0], 1), (X[0],)]), ValueError, "labels are missing|put together alike"),
        (lambda fitted: fitted.fit([(X[0], 1), (X[0, :1], 1)]), ValueError, "rows of a list must have one shape"),
        (lambda fitted: fitted.fit([(X[0], 1), (X[0], 1, 1)]), ValueError, "row 1 differs from row 0"),
    ],
    ids=["fit", "evaluate", "validation", "validation rows", "predict", "weights", "pandas and y", "column", "two columns", "invalid", "number", "level", "text", "text to predict", "width", "list of arrays", "odd row", "shapes", "parts"],
)  # fmt: skip
def test_what_cannot_be_meant_is_said_in_a_sentence(call, kind: type[Exception], expected: str) -> None:
    with pytest.raises(kind, match=expected):
        call(SparkModel(model(), engine="in_process"))


def column(*values: object, dtype: str = "object") -> pd.DataFrame:
    return pd.DataFrame(
        {"t": pd.Series(list(values), dtype=dtype), "n": [0.5] * len(values), "label": [0] * len(values)}
    )


@pytest.mark.parametrize(
    ("given", "columns"),
    [
        (column(np.nan, "a", "b"), "t"),
        (column("a", np.nan, "b"), "t"),
        (column(5, "a"), "t"),
        (column(True, "a"), "t"),
        (column([5, "a"], ["a", "b"]), "t"),
        (column(["a", "b"], ["a", "b"]), ["t", "n"]),
        ([(["a"], 1), ([np.nan], 0)], None),
        ([(["a", "b"], 1), (["a", 2], 0)], None),
        (([["a"], [np.nan]], [0, 1]), None),
    ],
    ids=["first", "second", "number", "boolean", "list", "columns", "rows", "rows of lists", "x"],
)
def test_numbers_and_missing_values_beside_text_are_refused(given: object, columns: object) -> None:
    """They became text: an empty cell of a CSV file was the word "nan"."""
    text = keras.Sequential(
        [keras.Input((None,), dtype="string"), keras.layers.StringLookup(vocabulary=["a", "nan", "5"])]
    )
    text.add(keras.layers.Embedding(5, 3))
    text.add(keras.layers.GlobalAveragePooling1D())
    text.compile("sgd", "sparse_categorical_crossentropy")
    with pytest.raises(
        DataError,
        match=r"feature 'x.*' expected integers, floats, booleans or text of one kind .* got (float|int|bool)",
    ):
        SparkModel(text, engine="in_process").fit(given, features_col=columns, verbose=0)
    assert Given.of([("a", 1), (np.nan, 2)]).x.dtype == object
    rows = [("a", "b"), ("b", np.nan)]
    assert Given.of(rows, model=model(), target=False).x.dtype == object


@pytest.mark.parametrize(
    ("values", "row"),
    [
        (pa.array([16_777_217, 2, None]), 2),
        (pa.chunked_array([[1.5], [2.5, None]]), 2),
        (pa.array(["a", None, "c"]), 1),
        (pa.array([[16_777_217, 1], [2, None], [3, 4]]), 1),
        (pa.array([[[1], [2]], [[3], [4]], [[5], [None]]]), 2),
        (pa.array([None, [1], [2]], pa.list_(pa.int64(), 1)), 0),
        (pa.array(["a", "b", None]).dictionary_encode(), 2),
    ],
    ids=["numbers", "chunks", "text", "lists", "nested lists", "fixed lists", "dictionary"],
)
def test_nulls_of_an_arrow_table_are_refused_where_they_are_read(values: pa.Array, row: int) -> None:
    """PyArrow makes floats of whole numbers beside a null, in which the number of one customer is that of the next."""
    table = pa.table({"t": values, "n": [0.5, 1.5, 2.5], "label": [0, 1, 2]})
    said = rf"^column 't' of type .* has missing values, the first in row {row}: fill them"
    for each in (table, *table.combine_chunks().to_batches()):
        for features, label in (("t", "label"), (["n", "t"], "label"), ({"n": "n", "t": "t"}, "label"), ("n", "t")):
            with pytest.raises(ValueError, match=said):
                Given.of(each, features_col=features, label_col=label)
        with pytest.raises(ValueError, match=said):
            Given.of(each, features_col="n", sample_weight_col="t")
        assert Given.of(each, features_col="n", label_col="label").x.tolist() == [[0.5], [1.5], [2.5]]
        assert Given.of(each, features_col="n", label_col="t", target=False).y is None


def test_decimals_of_an_arrow_table_are_read_as_parquets() -> None:
    """Those without a fraction are whole numbers."""
    ids = [Decimal(16_777_217), Decimal(16_777_216)]
    prices = [Decimal("1.25"), Decimal("2.50")]
    table = pa.table({"id": pa.array(ids, pa.decimal128(9, 0)), "label": prices, "ids": [[each] for each in ids]})
    given = Given.of(table, features_col="id")
    assert (given.x.dtype, given.x.tolist()) == (np.int64, [[16_777_217], [16_777_216]])
    assert (given.y.dtype, given.y.tolist()) == (np.float64, [1.25, 2.5])
    assert Given.of(table, features_col="ids").x.dtype == np.int64
    assert given.validation(table, None)[0].dtype == np.int64


@pytest.mark.parametrize(
    ("named", "kind", "said"),
    [
        ({"sample_weight_col": ["a", "label"]}, TypeError, r"sample_weight_col=\['a', 'label'\] must be one column"),
        ({"sample_weight_col": "text"}, TypeError, "sample_weight_col='text' must hold numbers; it holds text"),
        (
            {"column_shapes": {"pairs": (2,)}},
            ValueError,
            "column_shapes names 'pairs', which is not read; read are 'a', 'label'",
        ),
        (
            {"column_shapes": {"pair": (2,)}},
            ValueError,
            "column_shapes names 'pair', which is not read; read are 'a', 'label'",
        ),
        (
            {"features_col": []},
            ValueError,
            r"expected the name of a column, or a list of names; got \[\], which names none",
        ),
        (
            {"features_col": "long"},
            ValueError,
            r"column 'long', row 1: expected values of shape \(2,\), .* got values of shape \(1,\)",
        ),
        (
            {"features_col": "null"},
            ValueError,
            r"column 'null', row 1: expected values of shape \(2,\), as in other rows, got None",
        ),
        (
            {"features_col": "first"},
            ValueError,
            r"column 'first', row 0: expected values of shape \(2,\), as in other rows, got nan",
        ),
        (
            {"features_col": "nested"},
            ValueError,
            r"column 'nested', row 1: expected lists of one length, got \[\[1\], \[2, 3\]\]",
        ),
    ],
    ids=["weights", "text", "no column", "not read", "none", "lengths", "null", "first", "nested"],
)
def test_columns_of_pandas_are_refused_where_sparks_are(
    named: dict[str, object], kind: type[Exception], said: str
) -> None:
    pairs = {"pair": [[1, 2], [3, 4]], "text": ["1", "2"], "long": [[1, 2], [3]], "null": [[1, 2], None]}
    others = {"first": [np.nan, [1, 2]], "nested": [[[1], [2]], [[1], [2, 3]]]}
    frame = pd.DataFrame({"a": [0.5, 1.5], "label": [0, 1], **pairs, **others})
    with pytest.raises(kind, match=f"^{said}"):
        Given.of(frame, **{"features_col": "a", **named})


def test_weights_and_shapes_of_columns_that_are_read_are_taken() -> None:
    frame = pd.DataFrame({"a": [[1, 2], [3, 4]], "label": [0, 1], "w": [Decimal("0.5"), Decimal(2)]})
    for weights in ("w", ["w"], {"one": "w", "two": "w"}):
        given = Given.of(frame, features_col="a", sample_weight_col=weights, column_shapes={"a": (1, 2)})
        assert given.x.shape == (2, 1, 2)
        assert {float(each) for part in keras.tree.flatten(given.sample_weight) for each in part.ravel()} == {0.5, 2}


def test_weights_of_steps_are_arrays_in_cells() -> None:
    frame = pd.DataFrame({"a": [[1, 2], [3, 4]], "label": [[0, 1], [1, 0]], "w": [[0.5, 1], [2, 0]]})
    given = Given.of(frame, features_col="a", sample_weight_col="w")
    assert given.sample_weight.tolist() == [[0.5, 1], [2, 0]]


def test_names_may_come_from_an_iterator_and_arguments_from_a_fit() -> None:
    frame = pd.DataFrame({"a": [1.0, 2.0], "b": [3, 4], "label": [0, 1]})
    given = Given.of(frame, features_col=(name for name in frame.columns if name != "label"), label_col="label")
    assert given.x.tolist() == [[1, 3], [2, 4]]
    shapes = {"a": (1,), "label": ()}
    assert Given.of(frame, target=False, features_col="a", column_shapes=shapes).x.shape == (2, 1)


def test_one_model_is_no_list() -> None:
    with pytest.raises(TypeError, match=r"VotingModel\(\[model\]\); got Functional"):
        VotingModel(model())


@pytest.mark.filterwarnings("ignore:'PYARROW_IGNORE_TIMEZONE':UserWarning")  # Spark 3.5, whose context runs already
def test_tables_of_pandas_on_spark_are_spark_s(spark) -> None:
    table = spark.createDataFrame([(1.0, 2.0)], ["a", "label"]).pandas_api()
    given = Given.of(table, features_col="a", label_col="label")
    assert isinstance(given.x, DataFrame)
    assert given.x.columns == ["a", "label"]
    assert given.validation(table, None).columns == ["a", "label"]
