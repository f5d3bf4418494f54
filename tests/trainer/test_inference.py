"""Predictor: the outputs of Keras' predict, batch after batch, from a model that is kept."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf

from elephas_like.core.errors import DataError
from elephas_like.core.strategies import Average
from elephas_like.core.structure import unflatten
from elephas_like.core.types import Order
from elephas_like.trainer import inference
from elephas_like.trainer.building import build
from elephas_like.trainer.factories import TrainerFactory
from elephas_like.trainer.inference import EnsemblePredictor, KeptModels, MetricSums, Predictor
from elephas_like.trainer.programs import PROGRAMS
from elephas_like.trainer.spec import ModelSpec
from elephas_like.trainer.state import Variables
from trainer.small import config, mlp, rows, shard

X, Y = rows(10)


def predictor(model: keras.Model, batch_size: int = 4) -> Predictor:
    return Predictor.of(model, batch_size)


def predicted(model: keras.Model, base: Path, features: object) -> object:
    chunks = list(predictor(model)([shard(base, features)]))
    assert [len(arrays[0]) for arrays, _ in chunks] == [4, 4, 2]
    return unflatten(
        chunks[0][1], [np.concatenate(arrays) for arrays in zip(*(part[0] for part in chunks), strict=True)]
    )


def test_predictions_are_those_of_keras_in_the_order_of_the_rows(tmp_path: Path) -> None:
    model = mlp()
    np.testing.assert_allclose(predicted(model, tmp_path, X), model.predict(X, verbose=0), atol=1e-6)


def test_several_inputs_and_outputs_keep_their_structure(tmp_path: Path) -> None:
    one, two = keras.Input((4,), name="one"), keras.Input((1,), name="two")
    both = keras.layers.Concatenate()([one, two])
    outputs = {"a": keras.layers.Dense(1)(both), "b": keras.layers.Dense(2)(both)}
    model = keras.Model({"one": one, "two": two}, outputs)
    model.compile("sgd", "mse")
    features = {"one": X, "two": Y}
    found, expected = predicted(model, tmp_path, features), model.predict(features, verbose=0)
    assert found.keys() == {"a", "b"}
    for name in found:
        np.testing.assert_allclose(found[name], expected[name], atol=1e-6)


def test_a_list_of_outputs_is_a_branch(tmp_path: Path) -> None:
    inputs = keras.Input((4,))
    model = keras.Model(inputs, [keras.layers.Dense(1)(inputs), keras.layers.Dense(2)(inputs)])
    model.compile("sgd", "mse")
    found = predicted(model, tmp_path, X)
    assert [array.shape for array in found] == [(10, 1), (10, 2)]


def test_text_is_predicted(tmp_path: Path) -> None:
    words = np.array([["red"], ["blue"]] * 5)
    lookup = keras.layers.StringLookup(vocabulary=["red", "blue"], output_mode="one_hot")
    model = keras.Sequential([keras.Input((1,), dtype="string"), lookup, keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    expected = model.predict(tf.constant(words), verbose=0)
    np.testing.assert_allclose(predicted(model, tmp_path, words), expected, atol=1e-6)


class Centred(keras.Model):
    """Its predict step takes x as Keras' predict hands it over: itself, and within a tuple where it is one."""

    def predict_step(self, data):
        x = data[0] if isinstance(self.input, list | tuple) else data
        first = keras.tree.flatten(x)[0]
        return self(x, training=False) / keras.ops.cast(keras.ops.shape(first)[0], "float32") - keras.ops.mean(first)


@pytest.mark.parametrize("eagerly", [False, True])
@pytest.mark.parametrize("kind", ["array", "tuple", "dict"])
def test_a_predict_step_gets_what_keras_hands_it(tmp_path: Path, kind: str, eagerly: bool) -> None:
    """A tuple around x made other numbers of it, and errors of dicts."""
    one, two = keras.Input((4,), name="one"), keras.Input((4,), name="two")
    inputs = {"array": one, "tuple": (one, two), "dict": {"one": one, "two": two}}[kind]
    model = Centred(inputs, keras.layers.Dense(1)(one if kind == "array" else one + two))
    model.compile("sgd", "mse", run_eagerly=eagerly)
    x = np.concatenate([X, X + 1])
    features = {"array": x, "tuple": (x, 2 * x), "dict": {"one": x, "two": 2 * x}}[kind]
    expected = model.predict(features, batch_size=4, verbose=0)
    chunks = [arrays[0] for arrays, _ in predictor(model)([shard(tmp_path, features)])]
    assert len(chunks) < 5 or eagerly  # many batches in one call
    np.testing.assert_allclose(np.concatenate(chunks), expected, atol=1e-6)


class OwnStep(keras.Model):
    """A predict step of the user's own."""

    def __init__(self) -> None:
        super().__init__()
        self.dense = keras.layers.Dense(2)

    def call(self, x):
        return self.dense(x)

    def predict_step(self, data):
        return 2 * super().predict_step(data)


class OwnBatch(OwnStep):
    """Keras' predict calls it for no row, but a worker must."""

    def predict_on_batch(self, x):
        return 2 * super().predict_on_batch(x)


class NeedsRows(keras.layers.Layer):
    """Asks for the number of rows when it is traced."""

    def call(self, x):
        assert x.shape[0] is not None
        return keras.ops.reshape(x, (x.shape[0], 2, 2))


class Longest(keras.layers.Layer):
    """Outputs as wide as the largest value of a batch: no two batches need be alike."""

    def call(self, x):
        return tf.zeros((tf.shape(x)[0], tf.cast(tf.reduce_max(x), tf.int32)))

    def compute_output_shape(self, shape):
        return (shape[0], None)


def compiled(model: keras.Model, **options: object) -> keras.Model:
    model.compile("sgd", "mse", **options)
    return model


def sequential(*layers: keras.layers.Layer, **options: object) -> keras.Model:
    return compiled(keras.Sequential([keras.Input((4,)), *layers]), **options)


def own(kind: type[keras.Model]) -> keras.Model:
    model = compiled(kind())
    model(X)
    return model


@pytest.mark.parametrize(
    ("make", "lengths"),
    [
        (lambda: sequential(keras.layers.Dense(3), keras.layers.BatchNormalization()), [2, 8, 1]),
        (lambda: sequential(keras.layers.Dense(3), jit_compile=True), [2, 8, 1]),
        (lambda: sequential(keras.layers.Dense(3), run_eagerly=True), [2, 2, 2, 2, 2, 1]),
        (lambda: own(OwnStep), [2, 8, 1]),
        (lambda: compiled(keras.Sequential([keras.Input(batch_shape=(2, 4)), NeedsRows()])), [2, 8]),
    ],
    ids=["plain", "XLA", "eager", "own step", "rows are known"],
)
def test_many_batches_in_one_call_are_those_of_keras(make, lengths: list[int], tmp_path: Path) -> None:
    features = np.concatenate([X, X])[: sum(lengths)]
    model = make()
    expected = model.predict(features, batch_size=2, verbose=0)
    chunks = list(predictor(model, 2)([shard(tmp_path, features)]))
    assert [len(arrays[0]) for arrays, _ in chunks] == lengths
    np.testing.assert_allclose(np.concatenate([arrays[0] for arrays, _ in chunks]), expected, rtol=0, atol=1e-6)


def test_a_model_that_predicts_batches_in_a_way_of_its_own_is_asked_for_each() -> None:
    model = own(OwnBatch)
    chunks = [arrays[0] for arrays, _ in predictor(model, 2).of_arrays(X, 10)]
    assert [len(chunk) for chunk in chunks] == [2] * 5
    np.testing.assert_allclose(np.concatenate(chunks), 2 * model.predict(X, verbose=0), rtol=0, atol=1e-6)


def test_batches_with_outputs_of_other_shapes_go_one_by_one() -> None:
    features = np.ones((10, 4), "float32")
    features[4:6] = 3
    chunks = [arrays[0] for arrays, _ in predictor(sequential(Longest()), 2).of_arrays(features, 10)]
    assert [chunk.shape for chunk in chunks] == [(2, 1), (2, 1), (2, 3), (2, 1), (2, 1)]


class Noise(keras.layers.Layer):
    """Adds what it draws to a number that counts its calls."""

    def __init__(self) -> None:
        super().__init__()
        self.seeds = keras.random.SeedGenerator(3)
        self.calls = self.add_weight(shape=(), initializer="zeros", trainable=False)

    def call(self, x):
        self.calls.assign_add(1.0)
        return x + self.calls + keras.random.normal(keras.ops.shape(x), seed=self.seeds)


def test_batches_before_one_with_outputs_of_another_shape_count_once() -> None:
    features = np.ones((14, 4), "float32")
    features[8:10] = 3
    inputs = keras.Input((4,))
    model = compiled(keras.Model(inputs, [Noise()(inputs), Longest()(inputs)]))
    chunks = [arrays[0] for arrays, _ in predictor(model, 2).of_arrays(features, 14)]
    expected = [model.predict_on_batch(features[row : row + 2])[0] for row in range(0, 14, 2)]
    assert [len(chunk) for chunk in chunks] == [2] * 7
    np.testing.assert_allclose(np.concatenate(chunks), np.concatenate(expected), rtol=0, atol=1e-6)


def test_what_layers_draw_differs_from_batch_to_batch() -> None:
    expected = sequential(Noise()).predict(np.zeros((10, 4)), batch_size=2, verbose=0)
    chunks = predictor(sequential(Noise()), 2).of_arrays(np.zeros((10, 4), "float32"), 10)
    np.testing.assert_allclose(np.concatenate([arrays[0] for arrays, _ in chunks]), expected, rtol=0, atol=1e-6)


def test_outputs_are_computed_a_few_at_a_time_where_they_are_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inference, "_OUTPUT_BYTES", 3 * 2 * 3 * 4)  # three batches
    chunks = predictor(sequential(keras.layers.Dense(3)), 2).of_arrays(X, 10)
    assert [len(arrays[0]) for arrays, _ in chunks] == [2, 6, 2]


def test_rows_that_do_not_fit_are_refused_in_a_sentence() -> None:
    with pytest.raises(DataError, match=r"of shape \(4,\)"):
        list(predictor(mlp()).of_arrays(X[:, :1], 10))


def test_no_rows_give_no_batches(tmp_path: Path) -> None:
    assert list(predictor(mlp())([shard(tmp_path, X[:0])])) == []


def test_the_key_is_the_model_with_its_weights() -> None:
    model = mlp()
    before = predictor(model).key
    assert predictor(model).key == before
    model.set_weights([array + 1 for array in model.get_weights()])
    assert predictor(model).key != before


def used(models: KeptModels, *predictors: Predictor) -> keras.Model:
    with models.used(predictors) as kept:
        return kept[0].model


def trained_on(model: keras.Model) -> keras.Model:
    model.set_weights([array + 1 for array in model.get_weights()])
    return model


def test_a_model_that_was_trained_on_predicts_with_what_was_compiled_before() -> None:
    model, models = mlp(), KeptModels()
    first = used(models, predictor(model))
    for _ in range(3):
        again = used(models, predictor(trained_on(model)))
        assert again is first
        np.testing.assert_array_equal(again.predict_on_batch(X), model.predict_on_batch(X))
    assert len(models._kept) == 1
    model.layers[0].trainable = False  # another kind of model
    assert used(models, predictor(model)) is not first


def test_models_that_are_asked_for_in_turn_are_both_kept() -> None:
    models, predictors = KeptModels(), [predictor(mlp(seed=seed)) for seed in range(3)]
    one, two, three = predictors
    first = used(models, one)
    assert used(models, two) is first
    second = used(models, one)
    assert second is not first
    assert [used(models, each) for each in (two, one, two)] == [first, second, first]
    assert [used(models, each) for each in (three, two)] == [
        second,
        first,
    ]  # of three, in the place of the one used longest ago
    assert used(models, one) is second  # no room for a third one
    np.testing.assert_array_equal(second.get_weights()[0], mlp(seed=0).get_weights()[0])


def test_values_of_a_model_that_is_in_use_are_not_exchanged() -> None:
    """As where a lazy RDD of predictions is predicted from: both models work in turns, in one process."""
    one, two = mlp(seed=0), mlp(seed=1)
    chunks = zip(*(predictor(model, 2).of_arrays(X, 10) for model in (one, two)), strict=True)
    found = [[np.concatenate(part[0]) for part in both] for both in chunks]
    for number, model in enumerate((one, two)):
        np.testing.assert_array_equal(
            np.concatenate([both[number] for both in found]), model.predict(X, batch_size=2, verbose=0)
        )


def test_models_that_leave_something_behind_are_not_given_other_values() -> None:
    class Remembers(keras.layers.Layer):
        def build(self, shape) -> None:
            self.last = tf.Variable("nothing", trainable=False)
            self.kernel = self.add_weight(shape=(4, 1))

        def call(self, x):
            self.last.assign("something")
            return x @ self.kernel

    for layer, eagerly in ((Remembers(), False), (keras.layers.Dense(1), True)):
        model, models = keras.Sequential([keras.Input((4,)), layer]), KeptModels()
        model.compile("sgd", "mse", run_eagerly=eagerly)
        first = used(models, predictor(model))
        first.predict_on_batch(X)
        assert used(models, predictor(model)) is first
        assert used(models, predictor(trained_on(model))) is not first


def test_values_have_all_their_digits(tmp_path: Path) -> None:
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2, dtype="float64")])
    model.compile("sgd", "mse")
    np.testing.assert_array_equal(predicted(model, tmp_path, X), model.predict(X, batch_size=4, verbose=0))


def test_a_metric_that_the_model_reads_is_as_on_the_driver(tmp_path: Path) -> None:
    class Shifts(keras.layers.Layer):
        def build(self, shape) -> None:
            self.seen = keras.metrics.Mean(name="seen")

        def call(self, x):
            return x + self.seen.result()

    model = keras.Sequential([keras.Input((4,)), Shifts()])
    model.compile("sgd", "mse")
    model.layers[0].seen.update_state([2.0, 4.0])
    np.testing.assert_array_equal(predicted(model, tmp_path, X), X + 3)


class Counts(keras.layers.Layer):
    """Adds the number of calls so far, in a weight and in a variable that no layer tracks."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = self.add_weight(shape=(), initializer="zeros", trainable=False)
        self.beside = tf.Variable(10, trainable=False)

    def call(self, x):
        self.calls.assign_add(1.0)
        self.beside.assign_add(10)
        return x + self.calls + tf.cast(self.beside, x.dtype)


def counting() -> keras.Model:
    model = keras.Sequential([keras.Input((4,)), Counts()])
    model.compile("sgd", "mse")
    return model


def stateful() -> keras.Model:
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input(batch_shape=(5, 4, 1)), keras.layers.LSTM(3, stateful=True)])
    model.compile("sgd", "mse")
    return model


def test_every_prediction_starts_from_the_state_that_was_shipped(tmp_path: Path) -> None:
    model = stateful()
    expected = model.predict(X[..., None], batch_size=5, verbose=0)  # the second batch goes on from the first
    model.layers[0].reset_states()
    assert np.abs(expected - np.concatenate([model.predict(X[5:, :, None], verbose=0)] * 2)).max() > 0.01
    model.layers[0].reset_states()
    each, ref = predictor(model, 5), shard(tmp_path, X[..., None])
    for chunks in (each.of_arrays(X[..., None], 10), each.of_arrays(X[..., None], 10), each([ref]), each([ref])):
        np.testing.assert_allclose(np.concatenate([arrays[0] for arrays, _ in chunks]), expected, atol=1e-6)


def test_members_start_from_the_state_that_was_shipped() -> None:
    model = counting()
    model.layers[0].trainable = False  # what frozen layers count is no constant either
    members = EnsemblePredictor((predictor(model), predictor(counting())), sum, 1)
    for _ in range(3):
        ((outputs,), _) = next(members.of_arrays(np.zeros((3, 4), "float32"), 3))
        assert outputs[:, 0].tolist() == [2 * 21, 2 * 32, 2 * 43]


def test_weights_are_not_written_again_for_a_prediction(monkeypatch: pytest.MonkeyPatch) -> None:
    written = []
    monkeypatch.setattr(inference, "assign", lambda variable, value: written.append(variable.shape))
    inputs = keras.Input((4,))
    model = keras.Sequential(
        [inputs, keras.layers.Dense(3), keras.layers.BatchNormalization(), keras.layers.Dropout(0.5)]
    )
    model.layers[0].trainable = False
    model.compile(keras.optimizers.SGD(0.1, momentum=0.9), "mse")
    list(predictor(model).of_arrays(X, 10))
    assert written == [(3,), (3,)]  # moving mean and variance


@pytest.mark.parametrize(
    ("bounds", "kept"),
    [
        ({}, [False, True, True]),
        ({"count": 3}, [True, True, True]),
        ({"nbytes": 2 * 4 * 33}, [False, True, True]),
        ({"nbytes": 2 * 4 * 33 - 1}, [False, False, True]),
        ({"count": 3, "nbytes": 1}, [False, False, True]),
    ],
)
def test_models_that_were_used_longest_ago_go_where_they_are_too_many_or_too_large(
    bounds: dict, kept: list[bool]
) -> None:
    """SGD of 4 -> 5 -> 1: 31 weights, an iteration and a learning rate."""
    models = KeptModels(**bounds)
    predictors = [predictor(mlp(loss=loss)) for loss in ("mse", "mae", "mape")]  # none takes the place of another
    made = [used(models, each) for each in predictors]
    for each, model, there in list(zip(predictors, made, kept, strict=True))[::-1]:
        assert (used(models, each) is model) == there


def test_a_kept_model_is_not_waited_for_while_another_one_is_built(monkeypatch: pytest.MonkeyPatch) -> None:
    models, one, two = KeptModels(), predictor(mlp()), predictor(mlp(loss="mae"))
    kept = used(models, one)
    building, waited = threading.Event(), threading.Event()
    build = ModelSpec.build

    def slowly(spec: ModelSpec) -> keras.Model:
        building.set()
        assert waited.wait(60)
        return build(spec)

    monkeypatch.setattr(ModelSpec, "build", slowly)
    with ThreadPoolExecutor(2) as pool:
        both = [pool.submit(used, models, two) for _ in range(2)]
        assert building.wait(60)
        asked = threading.Thread(target=lambda: used(models, one) is kept and waited.set(), daemon=True)
        asked.start()
        first, second = (each.result() for each in both)
    assert first is second  # built once for both


def test_a_model_is_given_back_also_where_an_evaluation_fails(tmp_path: Path) -> None:
    model = mlp(loss="mape")
    build(model, (X[:1], Y[:1]))
    spec, state = ModelSpec.from_model(model), Variables(model).read()
    sums = MetricSums(
        TrainerFactory(spec, config(), Average(), ""), Order.to_evaluate(state.but(weights=state.weights[:3]))
    )
    with pytest.raises(ValueError, match="reshape"):
        sums(shard(tmp_path, X, Y))
    assert any(spec.key in key for key in PROGRAMS._free)
