"""A model by value is the model as it is: what it holds, what is shared in it, and nothing of this process' addresses."""

from __future__ import annotations

import dataclasses
import functools
import gc
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf

from elephas_like import SparkModel
from elephas_like.trainer import live_pickle
from elephas_like.trainer.building import build
from elephas_like.trainer.graph import path_to
from elephas_like.trainer.state import Variables

RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(8, 3)).astype("float32")
Y = RANDOM.normal(size=(8, 1)).astype("float32")


def small(*layers: keras.layers.Layer, **compiled: object) -> keras.Model:
    model = keras.Sequential([keras.Input((3,)), *layers])
    model.compile(**({"optimizer": "adam", "loss": "mse", "run_eagerly": True} | compiled))
    build(model, (X, Y))
    return model


def copied(model: keras.Model) -> keras.Model:
    pickled = live_pickle.dumps(model)
    return live_pickle.loads(pickled.program, pickled.values)


def trained_alike(model: keras.Model, copy: keras.Model) -> bool:
    for each in (model, copy):
        each.fit(X, Y, epochs=2, shuffle=False, verbose=0)
    states = [Variables(each).read().parts() for each in (model, copy)]
    return all(np.array_equal(part, states[1][role]) for role, part in states[0].items())


def test_a_copy_shares_nothing_with_the_model() -> None:
    model = small(keras.layers.Dense(2), keras.layers.Dense(1))
    copy = copied(model)
    mine = {id(variable) for variable in (*model.variables, *model.optimizer.variables)}
    assert not mine & {id(variable) for variable in (*copy.variables, *copy.optimizer.variables)}
    before = model.get_weights()
    copy.fit(X, Y, verbose=0)
    for one, other in zip(before, model.get_weights(), strict=True):
        np.testing.assert_array_equal(one, other)


def test_a_variable_keeps_all_that_it_has_and_is_one_object_wherever_it_is_held() -> None:
    dense = keras.layers.Dense(1, kernel_regularizer="l2", kernel_constraint="non_neg")
    model = small(dense)
    raw = dense.kernel.value
    model.loss = model._compile_loss = lambda y, p: keras.ops.mean((y - p) ** 2) + tf.reduce_sum(raw)
    copy = copied(model)
    kernel = copy.layers[0].kernel
    assert isinstance(kernel.regularizer, keras.regularizers.L2)
    assert isinstance(kernel.constraint, keras.constraints.NonNeg)
    assert kernel is copy.trainable_variables[0]
    assert kernel is copy.optimizer._trainable_variables[0]
    assert copy.loss.__closure__[0].cell_contents is kernel.value


def test_optimizers_know_their_variables_again() -> None:
    """Keras keys them by a number that TensorFlow gives to each variable of a process."""
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2), keras.layers.Dense(1)])
    optimizer = keras.optimizers.AdamW(0.1, weight_decay=1.0)
    optimizer.exclude_from_weight_decay(var_list=[model.layers[0].kernel])
    model.compile(optimizer, "mse", run_eagerly=True)
    build(model, (X, Y))
    copy = copied(model)
    uses = [copy.optimizer._use_weight_decay(variable) for variable in copy.trainable_variables]
    assert uses == [False, True, True, True]
    assert trained_alike(model, copy)


def test_layers_may_be_added_and_variables_tracked_in_a_copy() -> None:
    """What is tracked is known by its address, so that stale ones would hide a new layer, or track an old one twice."""
    model = small(keras.layers.Dense(2), keras.layers.Dense(1))
    copy = copied(model)
    copy.add(keras.layers.Dense(4))
    assert [len(each.layers) for each in (model, copy)] == [2, 3]
    copy.layers[0].kernel = copy.layers[0].kernel  # set again: still once
    assert len(copy.layers[0].trainable_variables) == 2


def test_a_copied_layer_tracks_what_it_is_given() -> None:
    """Keras' trackers tell layers, metrics, variables and seeds apart by functions, which travel once for each kind."""
    layer = copied(small(keras.layers.Dense(2), keras.layers.Dense(1))).layers[0]
    layer._tracker.unlock()
    layer.inner, layer.gauge = keras.layers.Dense(3), keras.metrics.Mean()
    layer.scale = keras.Variable(1.0)
    layer.still = keras.Variable(1.0, trainable=False)
    layer.draws = keras.random.SeedGenerator(1)
    assert layer._layers == [layer.inner]
    assert layer._metrics == [layer.gauge]
    assert [variable is layer.scale for variable in layer.trainable_variables] == [False, False, True]
    assert [variable is layer.still for variable in layer._non_trainable_variables] == [True]
    assert layer._seed_generators == [layer.draws]


def test_functions_of_one_code_stay_apart_where_they_hold_other_things() -> None:
    def closure(factor: float) -> Callable:
        def function(x):
            return factor * x

        function.__module__ = "keras.made"  # as Keras' own, which are written once where they are the same
        return function

    def default(factor: float) -> Callable:
        def function(x, factor=factor):
            return factor * x

        function.__module__ = "keras.made"
        return function

    functions = [closure(2.0), closure(3.0), default(5.0), default(7.0)]
    model = small(*map(keras.layers.Lambda, functions), keras.layers.Dense(1))
    np.testing.assert_array_equal(copied(model).predict_on_batch(X), model.predict_on_batch(X))


class Table(keras.layers.Layer):
    """Holds a variable of TensorFlow's."""

    def __init__(self) -> None:
        super().__init__()
        self.table = tf.Variable([1.0, 2.0])

    def call(self, x):
        return x * self.table[0]


def test_what_predictions_and_attributes_set_again_leave_behind_does_not_count() -> None:
    tables = [Table(), Table(), Table()]
    tables[2].table = tf.Variable([1.0, 2.0])
    plain, predicted, again = (small(table, keras.layers.Dense(1)) for table in tables)
    predicted.predict(X, verbose=0)
    digests = [live_pickle.dumps(model).digest for model in (plain, predicted, again)]
    assert digests[0] == digests[1] == digests[2]


def test_a_copy_can_be_saved_exported_and_taken_apart(tmp_path: Path) -> None:
    inputs = keras.Input((3,))
    hidden = keras.layers.Dense(2, name="hidden")(inputs)
    model = keras.Model(inputs, keras.layers.Dense(1)(hidden + 1.0))
    model.compile("sgd", "mse")
    copy = copied(model)
    copy.save(tmp_path / "copy.keras")
    again = keras.saving.load_model(tmp_path / "copy.keras")
    part = keras.Model(copy.input, copy.get_layer("hidden").output)
    copy.export(tmp_path / "saved", verbose=False)
    expected = model.predict_on_batch(X)
    np.testing.assert_array_equal(again.predict_on_batch(X), expected)
    np.testing.assert_array_equal(part.predict_on_batch(X), keras.Model(inputs, hidden).predict_on_batch(X))
    exported = tf.saved_model.load(tmp_path / "saved")
    np.testing.assert_allclose(exported.serve(X), expected, rtol=1e-6)


def test_a_functional_model_that_methods_alone_know_comes_along() -> None:
    """A teacher that stands in the script, one that is an attribute of the class, one behind a function."""

    def net(units: int) -> keras.Model:
        inputs = keras.Input((3,))
        return keras.Model(inputs, keras.layers.Dense(1)(keras.layers.Dense(units, "relu")(inputs)))

    teacher, helping = net(5), net(6)

    def helped(x: object) -> object:
        return helping(x)

    class Student(keras.Model):
        aside = net(7)

        def __init__(self) -> None:
            super().__init__()
            self.net = net(2)

        def call(self, x: object) -> object:
            return self.net(x) + helped(x)

        def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
            told = teacher(x) + self.aside(x)
            return super().compute_loss(x, y, y_pred) + keras.ops.mean((told - y_pred) ** 2)

    model = Student()
    model.compile("sgd", "mse")
    build(model, (X, Y))
    copy = copied(model)
    assert copy.evaluate(X, Y, verbose=0) == model.evaluate(X, Y, verbose=0)
    assert trained_alike(model, copy)


def test_a_layer_that_other_models_share_brings_nothing_of_theirs(tmp_path: Path) -> None:
    """A base is given one head after the other, and is cut off below its own last layers."""
    inputs = keras.Input((3,))
    hidden = keras.layers.Dense(4, "relu", name="kept")(inputs)
    cut_off = keras.layers.Dense(50, name="cut_off")(hidden)
    base = keras.Model(inputs, [hidden, keras.layers.Dense(50)(cut_off)])
    step = keras.layers.Dense(4, "tanh", name="step")
    for _ in range(2):
        keras.Model(base.input, step(step(base.get_layer("kept").output)))  # another model's, before ours
    digests = []
    for _ in range(2):
        head = keras.layers.Dense(1)
        model = keras.Model(base.input, head(step(step(base.get_layer("kept").output))))
        model.compile("sgd", "mse")
        pickled = live_pickle.dumps(model)
        assert max(np.size(value) for value in pickled.values) == 16  # of no kernel that is not the model's
        assert b"cut_off" not in pickled.program
        digests.append(pickled.digest)
    assert digests[0] == digests[1]
    copy = live_pickle.loads(pickled.program, pickled.values)
    copy.save(tmp_path / "copy.keras")
    expected = model.predict_on_batch(X)
    for each in (copy, keras.saving.load_model(tmp_path / "copy.keras"), keras.models.clone_model(copy)):
        each.set_weights(model.get_weights())
        np.testing.assert_array_equal(each.predict_on_batch(X), expected)
    np.testing.assert_array_equal(keras.Model(copy.input, copy.output).predict_on_batch(X), expected)


class Taught(keras.Sequential):
    """A Sequential that knows another model, a graph as those are that it had before its last layer was added."""

    def __init__(self, teacher: keras.Model) -> None:
        super().__init__()
        self.teacher = teacher
        for part in (keras.Input((2,)), keras.layers.Dense(2), keras.layers.Dense(1)):
            self.add(part)


class Pupil(keras.layers.Layer):
    """Knows the same model, and makes a layer when it is built."""

    def __init__(self, teacher: keras.Model) -> None:
        super().__init__()
        self.teacher = teacher

    def build(self, shape: object) -> None:
        self.late = keras.layers.Dense(1)
        self.late.build(shape)

    def call(self, x):
        return self.late(x)


class School(keras.Model):
    def __init__(self) -> None:
        super().__init__()
        inputs = keras.Input((2,))
        teacher = keras.Model(inputs, keras.layers.Dense(1)(inputs))
        self.student, self.holder = Taught(teacher), Pupil(teacher)

    def call(self, x):
        return self.student(x) + self.holder(x)


def test_old_graphs_of_a_sequential_stay_out_and_models_that_it_knows_stay_in() -> None:
    """The lists of other layers that know them are one with what Keras adds new layers to."""
    found = copied(School())
    assert found.student.teacher is found.holder.teacher
    graphs = found.student._tracker.config["layers"][1]
    assert [each for each in graphs if isinstance(each, keras.Function)] == [
        found.student.teacher,
        found.student._functional,
    ]
    found(np.ones((1, 2)))
    assert len(found.weights) == 8


def test_garbage_is_collected_again_after_a_model_is_read() -> None:
    pickled = live_pickle.dumps(small(keras.layers.Dense(1)))
    live_pickle.loads(pickled.program, pickled.values)
    assert gc.isenabled()
    with pytest.raises(EOFError):
        live_pickle.loads(b"", ())
    assert gc.isenabled()


def test_a_deep_graph_needs_no_deep_recursion() -> None:
    inputs = keras.Input((3,))
    hidden = inputs
    for _ in range(300):
        hidden = keras.layers.Activation("linear")(hidden) + 0.0
    model = keras.Model(inputs, keras.layers.Dense(1)(hidden))
    model.compile("sgd", "mse")
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(400)
    try:
        pickled = live_pickle.dumps(model)
        copy = live_pickle.loads(pickled.program, pickled.values)
    finally:
        sys.setrecursionlimit(limit)
    np.testing.assert_array_equal(copy.get_weights()[0], model.get_weights()[0])


def test_values_that_stay_out_are_zeros() -> None:
    model = small(keras.layers.Dense(1))
    full, empty = live_pickle.dumps(model), live_pickle.dumps(model, without=list(Variables(model)))
    assert full.digest == empty.digest
    copy = live_pickle.loads(empty.program, empty.values)
    assert not any(weight.any() for weight in copy.get_weights())
    Variables(copy).write(Variables(model).read())
    assert trained_alike(model, copy)


def test_constants_of_built_layers_and_drawn_seeds_are_no_part_of_the_program() -> None:
    def pickled(size: int) -> live_pickle.LivePickle:
        matrix = np.ones((10, size), np.float32)
        layer = keras.layers.Embedding(10, size, embeddings_initializer=keras.initializers.Constant(matrix))
        model = keras.Sequential([keras.Input((2,)), layer, keras.layers.Dropout(0.5), keras.layers.Flatten()])
        model.compile("sgd", "mse")
        return live_pickle.dumps(model)

    small_one, large = pickled(200), pickled(20000)
    assert abs(len(small_one.program) - len(large.program)) < 100  # the numbers of a shape
    keras.utils.clear_session()
    first = pickled(200)
    keras.utils.clear_session()
    assert pickled(200).digest == first.digest


def test_a_layer_with_a_cached_property_travels() -> None:
    class Doubles(keras.layers.Layer):
        @functools.cached_property
        def factor(self) -> float:
            return 2.0

        def call(self, x):
            return self.factor * x

    pickled = live_pickle.dumps(small(Doubles()))
    copy = live_pickle.loads(pickled.program, pickled.values)
    assert copy.layers[0].factor == 2.0


class Holder(keras.layers.Layer):
    def __init__(self, thing: object) -> None:
        super().__init__()
        self.inner = {"things": [thing]}

    def call(self, x):
        return x


@pytest.mark.parametrize(
    "make",
    [threading.Lock, lambda: Path(__file__).open(), lambda: (n for n in ()), lambda: tf.compat.v1.AttrValue().list.i],  # noqa: SIM115
)
def test_what_cannot_be_pickled_is_found(make: Callable[[], object]) -> None:
    thing = make()
    model = small(Holder(thing), keras.layers.Dense(1))
    with pytest.raises(live_pickle.PickleError) as caught:
        live_pickle.dumps(model)
    assert caught.value.culprit is thing
    path = path_to(model, thing)
    assert path is not None
    assert path.endswith(".inner['things'][0]")
    if hasattr(thing, "close"):
        thing.close()


def test_tensorflow_s_own_objects() -> None:
    class Lookup(keras.layers.Layer):
        def __init__(self) -> None:
            super().__init__()
            keys, values = tf.constant(["a", "b"]), tf.constant([1, 2], tf.int64)
            self.fixed = tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer(keys, values), -1)
            self.free = tf.lookup.experimental.MutableHashTable(tf.int64, tf.string, "?")
            self.free.insert(tf.constant([7], tf.int64), tf.constant(["seven"]))
            self.ragged = tf.ragged.constant([[1], [2, 3]])
            self.sparse = tf.sparse.from_dense([[0, 5]])
            self.half = tf.constant([1.5], tf.bfloat16)
            self.module = tf.Module()
            self.module.parts = {"list": [tf.Variable([True, False])], "generator": tf.random.Generator.from_seed(3)}
            self.compiled = tf.function(lambda x: x + 1, jit_compile=True, reduce_retracing=True)
            self.left = None

        def call(self, x):
            self.left = x
            return x

    layer = Lookup()
    model = small(layer, keras.layers.Dense(1), run_eagerly=False)
    model.train_on_batch(X, Y)  # leaves a symbolic tensor in `left`
    copy = copied(model).layers[0]
    assert copy.fixed.lookup(tf.constant(["b", "z"])).numpy().tolist() == [2, -1]
    assert copy.free.lookup(tf.constant([7, 8], tf.int64)).numpy().tolist() == [b"seven", b"?"]
    assert copy.ragged.to_list() == [[1], [2, 3]]
    assert tf.sparse.to_dense(copy.sparse).numpy().tolist() == [[0, 5]]
    assert copy.half.dtype == tf.bfloat16
    assert copy.module.parts["list"][0].numpy().tolist() == [True, False]
    drawn = [each.module.parts["generator"].normal([2]).numpy().tolist() for each in (layer, copy)]
    assert drawn[0] == drawn[1]
    assert float(copy.compiled(tf.constant(1.0))) == 2
    assert copy.compiled._jit_compile is True
    assert copy.left is None


class Held(keras.layers.Layer):
    """Multiplies by what a variable without a place in a state says; counts up in it if asked."""

    def __init__(self, start: object, factor: Callable[[object], object], *, counts: bool = False) -> None:
        super().__init__()
        shape = tf.TensorShape([None]) if isinstance(start, list) else None
        self.held = tf.Variable(start, trainable=False, shape=shape)
        self.factor, self.counts = factor, counts

    def call(self, x):
        if self.counts:
            self.held.assign(self.held + 1)
        return x * tf.cast(self.factor(self.held), x.dtype)


def loss_of_a_fit(model: keras.Model) -> float:
    spark_model = SparkModel(model, num_workers=1, strategy="average", engine="in_process")
    return spark_model.fit(X, Y, epochs=1, shuffle=False, verbose=0).history["loss"][0]


def held(start: object, factor: Callable[[object], object], **how: object) -> keras.Model:
    model = keras.Sequential([keras.Input((3,)), Held(start, factor, **how), keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(0.0), "mse")
    model.layers[1].set_weights([np.ones((3, 1)), np.ones(1)])
    return model


@pytest.mark.parametrize(
    ("start", "later", "factor"),
    [
        (1 + 2j, 3 + 4j, lambda z: tf.math.real(z) + tf.math.imag(z)),
        ("small", "big", lambda text: tf.where(text == "small", 1, 5)),
        ([1.0], [2.0, 3.0], tf.reduce_sum),
    ],
    ids=["complex", "text", "no fixed shape"],
)
def test_a_fit_sees_what_was_assigned_to_variables_that_no_state_carries(
    start: object, later: object, factor: Callable[[object], object]
) -> None:
    model = held(start, factor)
    losses = [loss_of_a_fit(model) for _ in range(2)]
    model.layers[0].held.assign(later)
    losses.append(loss_of_a_fit(model))
    assert losses[0] == losses[1]
    assert losses[2] == pytest.approx(model.evaluate(X, Y, verbose=0), rel=1e-5)
    assert losses[2] != losses[0]


def test_what_training_leaves_in_variables_that_no_state_carries_reaches_no_other_fit() -> None:
    losses = [loss_of_a_fit(held([1.0], tf.reduce_sum, counts=True)) for _ in range(2)]
    assert losses[0] == losses[1]


class Averages(keras.layers.Layer):
    """Multiplies by a weight whose moving average TensorFlow keeps."""

    def __init__(self) -> None:
        super().__init__()
        self.averages = tf.train.ExponentialMovingAverage(0.5)

    def build(self, input_shape: object) -> None:
        self.scale = self.add_weight(shape=(), initializer="ones")
        self.averages.apply([self.scale.value])

    def call(self, x):
        self.averages.apply([self.scale.value])
        return x * self.scale

    def kept(self) -> float:
        return float(self.averages.average(self.scale.value))


@dataclasses.dataclass(slots=True)
class Box:
    calls: keras.Variable


class Boxed(keras.layers.Layer):
    """Counts its calls in an object with slots."""

    def __init__(self) -> None:
        super().__init__()
        self.box = Box(keras.Variable(0.0, trainable=False))

    def call(self, x):
        self.box.calls.assign_add(1.0)
        return x

    def kept(self) -> float:
        return float(self.box.calls)


@pytest.mark.parametrize("layer", [Averages, Boxed])
@pytest.mark.parametrize("workers", [1, 2])
def test_what_tensorflow_and_slots_keep_comes_back_from_a_fit(layer: type, workers: int) -> None:
    def made() -> keras.Model:
        keras.utils.set_random_seed(1)
        model = keras.Sequential([keras.Input((3,)), layer(), keras.layers.Dense(1)])
        model.compile(keras.optimizers.SGD(0.1), "mse")
        return model

    ours, keras_own = made(), made()
    rows = [
        np.repeat(array, workers, axis=0) for array in (X, Y)
    ]  # rows are dealt like cards: each worker gets X and Y
    spark_model = SparkModel(ours, num_workers=workers, batch_size=2, strategy="average", engine="in_process")
    spark_model.fit(*rows, epochs=2, shuffle=False, verbose=0)
    start = keras_own.layers[0].kept()
    keras_own.fit(X, Y, epochs=2, batch_size=2, shuffle=False, verbose=0)
    assert ours.layers[0].kept() == pytest.approx(keras_own.layers[0].kept(), rel=1e-5)
    assert ours.layers[0].kept() != start


def test_a_class_of_a_package_whose_models_are_graphs_is_one_where_none_was_made_yet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Keras gives it another base when the first is made; all of keras-hub's models are of such classes."""
    folder = tmp_path / "site-packages"
    folder.mkdir()
    (folder / "graphs_of_mine.py").write_text(
        "import keras\n\n\nclass Graph(keras.Model):\n    def __init__(self):\n        x = keras.Input((3,))\n"
        "        super().__init__(x, keras.layers.Dense(1)(x))\n"
    )
    monkeypatch.syspath_prepend(folder)
    import graphs_of_mine

    before = graphs_of_mine.Graph.__bases__
    model = graphs_of_mine.Graph()
    model.compile("sgd", "mse")
    expected, pickled = model.predict_on_batch(X), live_pickle.dumps(model)
    graphs_of_mine.Graph.__bases__ = before  # as in a worker
    again = live_pickle.loads(pickled.program, pickled.values)
    np.testing.assert_array_equal(again.predict_on_batch(X), expected)
