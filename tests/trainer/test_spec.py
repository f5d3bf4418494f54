"""A compiled model is rebuilt in a process that can import nothing of this file, and trains there to the same bits."""

from __future__ import annotations

import linecache
import pickle
import re
import sys
import threading
import types
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf
from forked import run

from elephas_like.core.errors import ElephasError, ElephasWarning
from elephas_like.trainer.building import build
from elephas_like.trainer.metric_results import build_metrics
from elephas_like.trainer.programs import Programs
from elephas_like.trainer.spec import Carry, ModelSpec
from elephas_like.trainer.state import Variables
from trainer import own_ops

RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(8, 3)).astype("float32")
Y = RANDOM.normal(size=(8, 1)).astype("float32")
SLOPE = 0.3


class Scaled(keras.layers.Layer):
    def __init__(self, units: int, factor: float, **kwargs) -> None:
        super().__init__(**kwargs)
        self.units, self.factor = units, factor

    def build(self, shape) -> None:
        self.kernel = self.add_weight(shape=(shape[-1], self.units), initializer="glorot_uniform")

    def call(self, x):
        return self.factor * (x @ self.kernel)

    def get_config(self):
        return super().get_config() | {"units": self.units, "factor": self.factor}


@keras.saving.register_keras_serializable(package="mine")
class Registered(Scaled):
    """Known to Keras here by registration, which no worker has."""


def bent(x):
    return keras.ops.maximum(SLOPE * x, x)


def cubic(y_true, y_pred):
    return keras.ops.mean(keras.ops.abs(y_true - y_pred) ** 3, axis=-1)


class Pinball(keras.losses.Loss):
    def __init__(self, quantile: float = 0.5, name: str = "pinball", **kwargs) -> None:
        super().__init__(name=name, **kwargs)
        self.quantile = quantile

    def call(self, y_true, y_pred):
        error = y_true - y_pred
        return keras.ops.mean(keras.ops.maximum(self.quantile * error, (self.quantile - 1) * error), axis=-1)

    def get_config(self):
        return super().get_config() | {"quantile": self.quantile}


class Bias(keras.metrics.Metric):
    def __init__(self, name: str = "bias", **kwargs) -> None:
        super().__init__(name=name, **kwargs)
        self.total = self.add_weight(name="total", initializer="zeros")

    def update_state(self, y_true, y_pred, sample_weight=None) -> None:
        self.total.assign_add(keras.ops.sum(y_pred - y_true))

    def result(self):
        return self.total


class SlowSGD(keras.optimizers.SGD):
    """Takes half the step."""

    def update_step(self, gradient, variable, learning_rate) -> None:
        super().update_step(gradient, variable, learning_rate / 2)


class Halving(keras.optimizers.schedules.LearningRateSchedule):
    def __init__(self, start: float) -> None:
        self.start = start

    def __call__(self, step):
        return self.start * 0.5 ** keras.ops.cast(step, "float32")

    def get_config(self):
        return {"start": self.start}


class Positive(keras.constraints.Constraint):
    def __call__(self, weights):
        return keras.ops.maximum(weights, 0.0)


class Ridge(keras.regularizers.Regularizer):
    def __call__(self, weights):
        return 0.01 * keras.ops.sum(weights**2)

    def get_config(self):
        return {}


class Sevenths(keras.initializers.Initializer):
    def __call__(self, shape, dtype=None, **kwargs):
        return keras.ops.full(shape, 1 / 7, dtype)


class TwiceModel(keras.Model):
    """A functional model whose train step counts the loss twice."""

    def train_step(self, data):
        import tensorflow as tf

        x, y = data
        with tf.GradientTape() as tape:
            loss = 2 * self.compute_loss(x, y, self(x, training=True))
        self.optimizer.apply(tape.gradient(loss, self.trainable_variables), self.trainable_variables)
        self._loss_tracker.update_state(loss)
        return self.get_metrics_result()


class Autoencoder(keras.Model):
    """Subclassed, unbuilt until it sees rows; no target, and a loss of its own."""

    def __init__(self, width: int = 2, **kwargs) -> None:
        super().__init__(**kwargs)
        self.width = width
        self.encoder = keras.layers.Dense(width, activation=bent)
        self.decoder = keras.layers.Dense(3)
        self.error = keras.metrics.Mean(name="error")

    def call(self, x):
        return self.decoder(self.encoder(x))

    def train_step(self, data):
        import tensorflow as tf

        x = data[0] if isinstance(data, tuple) else data
        with tf.GradientTape() as tape:
            loss = keras.ops.mean((self(x) - x) ** 2)
        self.optimizer.apply(tape.gradient(loss, self.trainable_variables), self.trainable_variables)
        self.error.update_state(loss)
        return {"error": self.error.result()}

    def get_config(self):
        return super().get_config() | {"width": self.width}


class Doubling:
    """Callable with get_config, no Keras class."""

    def __call__(self, x):
        return 2.0 * x

    def get_config(self):
        return {}

    @classmethod
    def from_config(cls, config):
        return cls(**config)


Batch = tuple[object, ...]
CASES: dict[str, Callable[[], tuple[keras.Model, Batch]]] = {}


def case(make: Callable[[], tuple[keras.Model, Batch]]) -> Callable[[], tuple[keras.Model, Batch]]:
    CASES[make.__name__] = make
    return make


def small(*layers: keras.layers.Layer, **compiled: object) -> keras.Model:
    model = keras.Sequential([keras.Input((3,)), *layers])
    model.compile(**({"optimizer": "sgd", "loss": "mse", "run_eagerly": True} | compiled))
    return model


@case
def custom_layer_and_activation():
    return small(Scaled(4, 0.7, activity_regularizer=Ridge()), keras.layers.Dense(1, activation=bent)), (X, Y)


@case
def registered_class():
    return small(Registered(1, 0.7)), (X, Y)


@case
def custom_loss_function():
    return small(keras.layers.Dense(1), loss=cubic), (X, Y)


@case
def custom_loss_class():
    return small(keras.layers.Dense(1), loss=Pinball(0.9)), (X, Y)


@case
def custom_metrics():
    return small(keras.layers.Dense(1), metrics=[Bias(), cubic]), (X, Y)


@case
def custom_optimizer_and_schedule():
    return small(keras.layers.Dense(1), optimizer=SlowSGD(Halving(0.1), momentum=0.5)), (X, Y)


@case
def custom_initializer_constraint_regularizer():
    dense = keras.layers.Dense(
        1, kernel_initializer=Sevenths(), kernel_constraint=Positive(), kernel_regularizer=Ridge()
    )
    return small(dense), (X, Y)


@case
def custom_train_step_functional():
    inputs = keras.Input((3,))
    model = TwiceModel(inputs, keras.layers.Dense(1)(inputs))
    model.compile("adam", "mse", run_eagerly=True)
    return model, (X, Y)


@case
def subclassed_without_target():
    model = Autoencoder(2)
    model.compile("adam", "mse", run_eagerly=True)
    model.train_on_batch(X, X)
    return model, (X, X)


@case
def lambda_layer_that_uses_a_global():
    return small(keras.layers.Lambda(lambda x: keras.ops.abs(x) * SLOPE), keras.layers.Dense(1)), (X, Y)


@case
def two_lambdas():
    first, second = keras.layers.Lambda(lambda x: x + 1), keras.layers.Lambda(lambda x: x * 3)
    return small(first, second, keras.layers.Dense(1)), (X, Y)


@case
def lambda_loss():
    return small(keras.layers.Dense(1), loss=lambda y, p: keras.ops.mean(keras.ops.abs(y - p)) * SLOPE), (X, Y)


@case
def function_of_a_file_beside_it():
    return small(keras.layers.Dense(2, activation=own_ops.sharpen), keras.layers.Dense(1)), (X, Y)


def sharpened_bend(x):
    return own_ops.sharpen(bent(x))


@case
def function_that_calls_a_file_beside_it():
    return small(keras.layers.Dense(2, activation=sharpened_bend), keras.layers.Dense(1)), (X, Y)


class Words(keras.layers.Layer):
    """Puts out text."""

    def call(self, x):
        import tensorflow as tf

        return tf.gather(tf.constant(["no", "yes"]), tf.cast(x[:, 0] > 0, "int32"))

    def compute_output_spec(self, x):
        return keras.KerasTensor((x.shape[0],), "string")


def test_a_model_that_puts_out_text_is_the_same_when_it_is_made_again() -> None:
    model = keras.Sequential([keras.Input((3,)), Words()])
    model.compile("sgd", "mse")
    copy = ModelSpec.from_model(model).build()
    x = np.array([[1.0, 0, 0], [-1, 0, 0]], "float32")
    assert copy(x).numpy().tolist() == [b"yes", b"no"]


@case
def text_vectorization():
    vectorize = keras.layers.TextVectorization(output_mode="multi_hot")
    words = np.array(["red green", "blue", "green blue", "red"])
    vectorize.adapt(words)
    model = keras.Sequential([keras.Input((1,), dtype="string"), vectorize, keras.layers.Dense(1)])
    model.compile("sgd", "mse", run_eagerly=True)
    return model, (keras.ops.convert_to_tensor(words[:, None].tolist(), dtype="string"), Y[:4])


@case
def normalization():
    normalize = keras.layers.Normalization()
    normalize.adapt(5 + 2 * X)
    return small(normalize, keras.layers.Dense(1)), (X, Y)


@case
def two_outputs_with_loss_weights():
    inputs = keras.Input((3,))
    outputs = {"a": keras.layers.Dense(1, name="a")(inputs), "b": keras.layers.Dense(1, name="b")(inputs)}
    model = keras.Model(inputs, outputs)
    model.compile(
        "sgd",
        {"a": "mse", "b": cubic},
        loss_weights={"a": 0.25, "b": 4.0},
        metrics={"a": ["mae"]},
        run_eagerly=True,
    )
    return model, (X, {"a": Y, "b": -Y})


@case
def weighted_metrics():
    model = small(keras.layers.Dense(1), weighted_metrics=["mae"], metrics=["mse"])
    return model, (X, Y, np.arange(8, dtype="float32"))


@case
def mixed_precision_everywhere():
    keras.config.set_dtype_policy("mixed_float16")
    try:
        return small(keras.layers.Dense(4), keras.layers.Dense(1, dtype="float32")), (X, Y)
    finally:
        keras.config.set_dtype_policy("float32")


@case
def dropout_and_batch_normalization():
    return small(
        keras.layers.Dropout(0.5, seed=3), keras.layers.BatchNormalization(), keras.layers.Dense(1), optimizer="adam"
    ), (X, Y)


@case
def compiled_to_xla():
    return small(keras.layers.Dense(1), run_eagerly=False, jit_compile=True), (X, Y)


@case
def trained_before():
    model = small(keras.layers.Dense(1), optimizer="adam")
    for _ in range(3):
        model.train_on_batch(X, Y)
    return model, (X, Y)


@pytest.fixture(scope="module")
def rebuilt(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[dict, dict]]:
    """(what the model here does, what the rebuilt one does in another process), by the name of the case."""
    folder = tmp_path_factory.mktemp("specs")
    specs, here = {}, {}
    for name, make in CASES.items():
        keras.utils.set_random_seed(7)
        model, batch = make()
        build(model, tuple(keras.tree.map_structure(lambda array: array[:1], part) for part in batch))
        specs[name] = (ModelSpec.from_model(model), batch, Variables(model).read())
        predicted = keras.tree.map_structure(np.asarray, model.predict_on_batch(batch[0]))
        model.fit(*batch[:2], sample_weight=batch[2] if len(batch) > 2 else None, epochs=2, shuffle=False, verbose=0)
        here[name] = {
            "predicted": predicted,
            "state": Variables(model).read().parts(),
            "logs": {key: np.asarray(value) for key, value in model.get_metrics_result().items()},
            "flags": (bool(model.run_eagerly), model.jit_compile, type(model.optimizer).__name__),
        }
    (folder / "specs").write_bytes(pickle.dumps(specs))
    script = Path(__file__).with_name("rebuild.py").read_text()
    done = run(["-c", script, folder / "specs", folder / "results"], folder=folder, timeout=120)
    assert done.returncode == 0, done.stderr
    there = pickle.loads((folder / "results").read_bytes())  # noqa: S301  our own file
    return {name: (here[name], there[name]) for name in CASES}


@pytest.mark.parametrize("name", CASES)
def test_a_rebuilt_model_predicts_and_trains_to_the_same_bits(rebuilt, name: str) -> None:
    here, there = rebuilt[name]
    assert "error" not in there, there["error"]
    assert there["importable"] == []
    assert there["flags"] == here["flags"]
    for one, other in zip(keras.tree.flatten(here["predicted"]), keras.tree.flatten(there["predicted"]), strict=True):
        np.testing.assert_array_equal(one, other)
    for role, part in here["state"].items():
        np.testing.assert_array_equal(there["state"][role], part, err_msg=role)
    assert there["logs"].keys() == here["logs"].keys()
    for metric, value in here["logs"].items():
        np.testing.assert_array_equal(there["logs"][metric], value, err_msg=metric)


def test_the_key_stays_when_weights_change_so_that_a_traced_model_is_used_again() -> None:
    model = small(keras.layers.Dense(1), optimizer="adam")
    build(model, (X[:1], Y[:1]))
    before = ModelSpec.from_model(model).key
    model.train_on_batch(X, Y)
    assert ModelSpec.from_model(model).key == before


def with_attention() -> keras.Model:
    inputs = keras.Input((3, 1))
    model = keras.Model(inputs, keras.layers.MultiHeadAttention(1, 2, dropout=0.2)(inputs, inputs))
    model.compile("sgd", "mse")
    return model


@pytest.mark.parametrize(
    "make",
    [
        lambda: small(keras.layers.Reshape((3, 1)), keras.layers.LSTM(2, recurrent_dropout=0.2)),
        lambda: small(keras.layers.Reshape((3, 1)), keras.layers.GRU(2, recurrent_dropout=0.2)),
        lambda: small(keras.layers.Reshape((3, 1)), keras.layers.SimpleRNN(2, recurrent_dropout=0.2)),
        with_attention,
    ],
    ids=["LSTM", "GRU", "SimpleRNN", "attention"],
)
def test_the_key_stays_when_a_model_has_been_called(make: Callable[[], keras.Model]) -> None:
    """Keras leaves places for masks in the cells of RNNs, on TensorFlow the name of one more for each call, and paths in layers of attention."""
    model, x = make(), X.reshape(-1, *make().input_shape[1:])
    before = ModelSpec.from_model(model).key
    for _ in range(2):
        model(x, training=True)
        assert ModelSpec.from_model(model).key == before
    copy = ModelSpec.from_model(model).build()
    np.testing.assert_array_equal(copy(x), model(x))


def test_attributes_called_like_keras_own_are_the_users() -> None:
    class Ported(keras.layers.Layer):
        def __init__(self, training: bool) -> None:
            super().__init__()
            self._dropout_mask, self._modules, self.training = None, {}, training

        def call(self, x):
            assert self._dropout_mask is None
            return 2 * x if self.training else x

    doubling, plain = (ModelSpec.from_model(small(Ported(training))) for training in (True, False))
    assert doubling.key != plain.key
    np.testing.assert_array_equal(doubling.build()(X), 2 * X)


def test_the_key_stays_when_a_callback_lowers_the_learning_rate() -> None:
    model = small(keras.layers.Dense(1), optimizer="adam")
    before = ModelSpec.from_model(model).key
    model.optimizer.learning_rate = 0.125
    after = ModelSpec.from_model(model)
    assert after.key == before
    assert float(after.build().optimizer.learning_rate) == 0.125


def test_a_model_whose_metrics_the_driver_has_built_is_served_by_the_program_of_before() -> None:
    """From rows of the kind that workers saw: "accuracy" is another metric for vectors than for a column of 0 and 1."""
    model = small(keras.layers.Dense(2), optimizer="adam", metrics=["accuracy"], run_eagerly=False)
    model.optimizer.build(model.trainable_variables)
    one_hot, column = (X, np.eye(2)[np.arange(8) % 2]), (X, np.arange(8)[:, None] % 2)
    first = ModelSpec.from_model(model, Carry.NOTHING)
    build_metrics(model, one_hot)
    second = ModelSpec.from_model(model, Carry.NOTHING)
    assert second.key != first.key
    assert second.key_for(one_hot) == first.key_for(one_hot)
    assert second.key_for(column) != first.key_for(column)
    programs = Programs()
    program = programs.borrow(first, one_hot, 0)
    programs.give_back(program)
    assert programs.borrow(replace(second), one_hot, 0) is program
    # one that is compiled anew has metrics that are not built
    model.compile("adam", "mse", metrics=["accuracy"])
    model.optimizer.build(model.trainable_variables)
    assert ModelSpec.from_model(model, Carry.NOTHING).key_for(column) == first.key_for(column)


def test_what_is_built_of_a_model_that_cannot_be_sent_is_no_error() -> None:
    model = small(keras.layers.Dense(1), optimizer="adam")
    build(model, (X[:1], Y[:1]))
    model.lock = threading.Lock()
    with pytest.raises(ElephasError, match="cannot be sent"):
        ModelSpec.from_model(model)
    model.compile("adam", "mse", metrics=["mae"])
    build_metrics(model, (X, Y))
    assert model.metrics_names == ["loss", "compile_metrics"]


def numbered_anew(make: Callable[[], keras.Model]) -> str:
    """The key of a model whose names, which are part of the architecture, are numbered from the beginning."""
    keras.utils.clear_session()
    return ModelSpec.from_model(make()).key


@pytest.fixture(scope="module")
def plain() -> str:
    """The key that all of these differ from."""
    one, other = (numbered_anew(lambda: small(keras.layers.Dense(1, name="d"))) for _ in range(2))
    assert one == other
    return one


@pytest.mark.parametrize(
    "other",
    [
        lambda: small(keras.layers.Dense(1, activation="relu", name="d")),
        lambda: small(keras.layers.Dense(1, name="d"), loss="mae"),
        lambda: small(keras.layers.Dense(1, name="d"), optimizer="adam"),
        lambda: small(keras.layers.Dense(1, name="d"), metrics=["mae"]),
        lambda: small(keras.layers.Dense(1, name="d", trainable=False)),
        lambda: small(keras.layers.Dense(1, name="d"), run_eagerly=False),
        lambda: small(keras.layers.Dense(1, name="d"), optimizer=keras.optimizers.SGD(momentum=0.5)),
        lambda: small(keras.layers.Dense(1, name="d"), optimizer=keras.optimizers.SGD(clipnorm=1.0)),
        lambda: small(keras.layers.Dense(1, name="d"), loss=lambda y, p: keras.ops.mean(y - p)),
    ],
)
def test_the_key_differs_with_architecture_and_compile_arguments(other: Callable[[], keras.Model], plain: str) -> None:
    assert numbered_anew(other) != plain


def test_the_key_differs_with_the_code_of_a_lambda() -> None:
    def spec(function: Callable[[object], object]) -> str:
        keras.utils.clear_session()
        model = small(keras.layers.Lambda(function, name="l"), keras.layers.Dense(1, name="d"))
        return ModelSpec.from_model(model).key

    assert spec(lambda x: x + 1) != spec(lambda x: x + 2)


class Normalized(keras.Model):
    """A model that says nothing of its inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.normalize, self.head = keras.layers.Normalization(name="n"), keras.layers.Dense(1)
        self.normalize.build((None, 3))

    def call(self, x):
        return self.head(self.normalize(x))


@pytest.mark.parametrize("kind", ["sequential", "subclass"])
@pytest.mark.parametrize("dtype", ["float32", "mixed_float16"])
def test_a_normalization_that_computes_with_other_values_than_its_weights_is_refused(kind: str, dtype: str) -> None:
    """Keras' layer keeps what it had before `set_weights`: workers, who get the weights, would train another model."""
    keras.config.set_dtype_policy(dtype)
    try:
        models = []
        for _ in range(2):
            normalize = keras.layers.Normalization(name="n")
            made = keras.Sequential([normalize, keras.layers.Dense(1)]) if kind == "sequential" else Normalized()
            made(np.zeros((1, 3), "float32"))
            made.compile("sgd", "mse")
            models.append(made)
    finally:
        keras.config.set_dtype_policy("float32")
    rows = 1e5 * np.random.default_rng(0).random((9, 3))  # whose variance half precision has not
    models[0].get_layer("n").adapt(rows)
    models[1].set_weights(models[0].get_weights())
    ModelSpec.from_model(models[0], Carry.NOTHING)
    with pytest.raises(
        ElephasError, match=r"the layer 'n' of .* computes with another mean and variance than its weights"
    ):
        ModelSpec.from_model(models[1], Carry.NOTHING)
    models[1].get_layer("n").finalize_state()
    ModelSpec.from_model(models[1], Carry.NOTHING)


def test_the_key_differs_with_what_preprocessing_layers_have_seen() -> None:
    """Normalization holds its mean as a constant beside the variable: a program traced before would keep the old one."""

    def spec(rows: np.ndarray) -> str:
        keras.utils.clear_session()
        normalize = keras.layers.Normalization(name="n")
        normalize.adapt(rows)
        model = small(normalize, keras.layers.Dense(1, name="d"))
        return ModelSpec.from_model(model).key

    assert spec(X) == spec(X)
    assert spec(X) != spec(X + 1)


@pytest.mark.filterwarnings("ignore:You are saving your model as an HDF5 file")
def test_a_model_that_was_saved_as_h5_keeps_its_optimizer(tmp_path: Path) -> None:
    """Keras takes the optimizer out of what the model was compiled with, and puts RMSprop in its place."""
    model = small(keras.layers.Dense(1), optimizer="adam")
    before = ModelSpec.from_model(model).key
    model.save(tmp_path / "model.h5")
    spec = ModelSpec.from_model(model)
    assert type(spec.build().optimizer) is keras.optimizers.Adam
    assert spec.key == before


def test_another_backend_is_refused() -> None:
    spec = ModelSpec.from_model(small(keras.layers.Dense(1)))
    other = replace(spec, backend="jax")
    with pytest.raises(ElephasError, match="KERAS_BACKEND"):
        other.build()


def test_from_model_leaves_the_user_s_model_as_it_was() -> None:
    double = lambda x: 2 * x  # noqa: E731
    model = small(keras.layers.Lambda(double), keras.layers.Dense(1))
    before = [array.copy() for array in model.get_weights()]
    ModelSpec.from_model(model)
    assert double.__name__ == "<lambda>"
    for one, other in zip(before, model.get_weights(), strict=True):
        np.testing.assert_array_equal(one, other)


class Keeps(keras.losses.Loss):
    def __init__(self, handle: object) -> None:
        super().__init__()
        self.model = [handle]

    def call(self, y_true, y_pred):
        return keras.ops.mean(y_true - y_pred, axis=-1)


class SavedModelLayer(keras.layers.Layer):
    def __init__(self, path: str) -> None:
        super().__init__()
        self.loaded = tf.saved_model.load(path)

    def call(self, x):
        return self.loaded.serve(x)


def test_what_cannot_travel_is_named_with_its_place() -> None:
    with Path(__file__).open() as file:
        model = small(keras.layers.Dense(1), loss=Keeps(file))
        with pytest.raises(
            ElephasError, match=r"its loss\.model\[0\] is a _io\.TextIOWrapper.*open file.*__getstate__"
        ):
            ModelSpec.from_model(model)


@pytest.mark.parametrize("load", [lambda path: keras.layers.TFSMLayer(path, call_endpoint="serve"), SavedModelLayer])
def test_a_saved_model_that_was_loaded_is_said_to_be_one(
    tmp_path: Path, load: Callable[[str], keras.layers.Layer]
) -> None:
    small(keras.layers.Dense(2)).export(str(tmp_path), verbose=False)
    model = small(load(str(tmp_path)))
    with pytest.raises(
        ElephasError, match=r"its _layers\[1\].*belongs to a SavedModel that was loaded.*before the fit"
    ):
        ModelSpec.from_model(model)


class Twofold(keras.layers.Layer):
    """Is another one when it is made again: what `__setstate__` and the like can do."""

    def __reduce__(self):
        return keras.layers.Dense, (2,)

    def call(self, x):
        return x


def test_another_model_than_the_driver_s_is_refused_before_any_work() -> None:
    model = small(Twofold(), keras.layers.Dense(1))
    with pytest.raises(ElephasError, match="cannot be sent to workers"):
        ModelSpec.from_model(model)


class Stubborn(keras.layers.Layer):
    """Leaves something out of pickles, and forgets what it was."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def __getstate__(self):
        return {name: value for name, value in vars(self).items() if name != "factor"}

    def __setstate__(self, state):
        vars(self).update(state | {"factor": 1.0})

    def call(self, x):
        return self.factor * x + 1.0


def test_a_copy_that_computes_something_else_is_refused() -> None:
    model = small(keras.layers.Dense(1, bias_initializer="ones"), Stubborn(5.0))
    with pytest.raises(ElephasError, match=r"expected the output .*6\..* found .*2\."):
        ModelSpec.from_model(model)


class KerasNoise(keras.layers.Layer):
    """Noise whenever it is called, as a sampling layer of a variational autoencoder has it, without a seed."""

    def call(self, x):
        return x + keras.random.normal(keras.ops.shape(x))


class NumpyNoise(keras.layers.Layer):
    """The same from another generator."""

    def call(self, x):
        return x + np.random.normal(size=x.shape[1:])


@pytest.mark.parametrize("noise", [KerasNoise, NumpyNoise])
def test_a_model_that_computes_something_else_at_each_call_can_be_sent(noise: type[keras.layers.Layer]) -> None:
    model = keras.Sequential([keras.Input((2,)), noise(), keras.layers.Dense(3)])
    model.compile("sgd", "mse")
    assert not np.array_equal(model(np.zeros((1, 2))), model(np.zeros((1, 2))))
    copy = ModelSpec.from_model(model, carry=Carry.ALL).build()
    for mine, theirs in zip(model.get_weights(), copy.get_weights(), strict=True):
        np.testing.assert_array_equal(mine, theirs)


def test_values_are_carried_as_asked() -> None:
    model = small(keras.layers.Dense(1), optimizer="adam")
    build(model, (X[:1], Y[:1]))
    model.train_on_batch(X, Y)
    everything, nothing, structure = (ModelSpec.from_model(model, carry) for carry in Carry)
    assert everything.key == nothing.key == structure.key
    kernel = model.layers[0].kernel.numpy()
    for spec, kept, counted in ((everything, True, True), (nothing, False, True), (structure, False, False)):
        copy = spec.build()
        np.testing.assert_array_equal(copy.layers[0].kernel.numpy(), kernel if kept else 0 * kernel)
        assert int(copy.optimizer.iterations) == kept
        assert float(copy.metrics[0].count) == counted * len(X)


def test_the_content_key_is_the_model_with_its_values() -> None:
    model = small(keras.layers.Dense(1))
    before = ModelSpec.from_model(model).content_key()
    assert ModelSpec.from_model(model).content_key() == before
    model.layers[0].bias.assign([1.0])
    assert ModelSpec.from_model(model).content_key() != before


class Offset(keras.layers.Layer):
    def build(self, shape) -> None:
        self.offset = self.add_weight(shape=(), initializer="zeros")

    def call(self, x):
        return x + self.offset


def test_the_content_key_sees_a_scalar_too() -> None:
    model = small(Offset(), keras.layers.Dense(1))
    before = ModelSpec.from_model(model).content_key()
    model.layers[0].offset.assign(2.0)
    assert ModelSpec.from_model(model).content_key() != before


def test_the_key_differs_with_what_code_closes_over_and_objects_hold() -> None:
    def weighted(weight: float) -> Callable[[object, object], object]:
        return lambda y, p: weight * keras.ops.mean(y - p, axis=-1)

    def key(loss: object) -> str:
        return ModelSpec.from_model(small(keras.layers.Dense(1), loss=loss)).key

    keys = [key(weighted(1.0)), key(weighted(2.0)), key(Pinball(0.25)), key(Pinball(0.5))]
    assert len(set(keys)) == 4
    assert key(weighted(2.0)) == keys[1]
    assert key(Pinball(0.5)) == keys[3]


def penalty(model: keras.Model) -> object:
    found = [variable for variable in model.trainable_variables if re.search(r"dense_\d/kernel", variable.path)]
    return sum(keras.ops.sum(variable**2) for variable in found)


class Penalized(keras.Model):
    """Adds to its loss the weights of layers that a function finds by their paths."""

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        return super().compute_loss(x, y, y_pred, sample_weight) + penalty(self)


class Inheriting(Penalized):
    pass


class ByName(keras.Model):
    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        found = [layer.kernel for layer in self.layers if layer.name.startswith("dense_")]
        return super().compute_loss(x, y, y_pred, sample_weight) + sum(keras.ops.sum(kernel**2) for kernel in found)


class OfTheGuide(keras.Model):
    """Its train step returns its metrics by their names, as that of Keras' own guide."""

    def train_step(self, data):
        super().train_step(data)
        return {metric.name: metric.result() for metric in self.metrics}


def three_keys(kind: type[keras.Model], optimizer: Callable[[], keras.optimizers.Optimizer]) -> list[str]:
    """Those of equal models, the first of its kind left out."""
    keys = []
    for _ in range(4):
        inputs = keras.Input((3,))
        model = kind(inputs, keras.layers.Dense(1)(keras.layers.Dense(2)(inputs)))
        model.compile(optimizer(), "mse")
        build(model, (np.zeros((1, 3), "float32"), np.zeros((1, 1), "float32")))
        keys.append([ModelSpec.from_model(model, Carry.NOTHING).key for _ in range(2)])
    assert all(one == again for one, again in keys)  # of one model
    return [one for one, _ in keys[1:]]


@pytest.mark.parametrize(
    ("kind", "own"), [(Penalized, True), (Inheriting, True), (ByName, True), (OfTheGuide, False), (keras.Model, False)]
)
def test_equal_models_have_keys_of_their_own_where_code_goes_by_numbered_names(kind: type, own: bool) -> None:
    """A pattern means other variables in the model that is built next."""
    assert len(set(three_keys(kind, keras.optimizers.SGD))) == (3 if own else 1)


@pytest.mark.parametrize(("pattern", "keys"), [("bias", 1), (r"dense_\d*[02468]/", 1), (r"dense_\d*[048]/", 2)])
def test_models_of_which_a_pattern_excludes_the_same_weights_from_weight_decay_have_one_key(
    pattern: str, keys: int
) -> None:
    """The layers are numbered on by twos."""

    def optimizer() -> keras.optimizers.Optimizer:
        made = keras.optimizers.AdamW(0.1)
        made.exclude_from_weight_decay(var_names=[pattern])
        return made

    keras.layers.Dense(1)  # the first one of a session has no number
    found = three_keys(keras.Model, optimizer)
    assert len(set(found)) == keys


def test_freshly_built_equal_models_have_one_key_whatever_their_names() -> None:
    def deep() -> keras.Model:
        inputs = keras.Input((3,))
        hidden = keras.layers.Dropout(0.5)(keras.layers.BatchNormalization()(keras.layers.Dense(4)(inputs)))
        hidden = keras.layers.RandomRotation(0.1)(keras.layers.Reshape((2, 2, 1))(hidden))
        model = keras.Model(inputs, keras.layers.Dense(1)(keras.layers.Flatten()(hidden)))
        model.compile(keras.optimizers.Adam(), "mse", metrics=["mae", keras.metrics.AUC()])
        build(model, (X[:2], abs(Y[:2]) > 0.5))
        return model

    keys = {ModelSpec.from_model(deep()).key for _ in range(3)}
    assert len(keys) == 1


def test_names_that_keras_makes_of_other_names_count_by_their_order_too() -> None:
    """Those of what a Bidirectional wraps, and of the variables of a metric that is a function."""

    def halves(y_true: object, y_pred: object) -> object:
        return keras.ops.mean(y_pred) / 2

    def both_ways() -> keras.Model:
        model = keras.Sequential([keras.Input((4, 3)), keras.layers.Bidirectional(keras.layers.GRU(2))])
        model.compile("sgd", "mse", metrics=[halves])
        build(model, (np.zeros((2, 4, 3), "float32"), np.zeros((2, 4), "float32")))
        return model

    assert len({ModelSpec.from_model(both_ways()).key for _ in range(3)}) == 1


def test_equal_models_with_a_table_of_words_have_one_key() -> None:
    """TensorFlow's tables give their entries in an order of their own, another one for each table."""

    def lookup() -> keras.Model:
        inputs = keras.Input((3,), dtype="string")
        hot = keras.layers.StringLookup(vocabulary=list("abcdefgh"), output_mode="multi_hot")(inputs)
        model = keras.Model(inputs, keras.layers.Dense(1)(hot))
        model.compile("sgd", "mse")
        return model

    specs = [ModelSpec.from_model(lookup()) for _ in range(3)]
    assert len({spec.key for spec in specs}) == 1
    words = np.array([["a", "h", "?"], ["c", "c", "b"]])
    expected = lookup().layers[1](words)
    assert np.array_equal(specs[0].build().layers[1](words), expected)


def test_the_matrix_of_a_constant_initializer_goes_with_files_and_copies_only() -> None:
    matrix = np.ones((100, 50), np.float32)
    embedding = keras.layers.Embedding(100, 50, embeddings_initializer=keras.initializers.Constant(matrix))
    model = keras.Sequential([keras.Input((2,)), embedding, keras.layers.Flatten(), keras.layers.Dense(1)])
    model.compile("sgd", "mse", run_eagerly=True)
    build(model, (np.zeros((1, 2), "int64"), Y[:1]))
    whole, *others = [
        sum(value.nbytes for value in ModelSpec.from_model(model, carry).values if isinstance(value, np.ndarray))
        for carry in Carry
    ]
    assert (
        whole == 2 * matrix.nbytes + 4 * 101 + 12 + others[0]
    )  # the weights themselves, and the optimizer's iteration and learning rate
    assert max(others) < 1000
    np.testing.assert_array_equal(ModelSpec.from_model(model).build().layers[0].embeddings_initializer.value, matrix)


class Seeded(keras.layers.Layer):
    """Draws by a number of its own, and has a generator beside it."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.seed, self.generator = seed, keras.random.SeedGenerator(1)

    def call(self, x):
        return x + keras.random.normal((3,), seed=self.seed)


def test_a_number_that_is_called_seed_in_a_user_s_layer_counts() -> None:
    keys = [ModelSpec.from_model(small(Seeded(seed), keras.layers.Dense(1))).key for seed in (1, 2, 1)]
    assert keys[0] == keys[2] != keys[1]


class Listed(keras.initializers.Initializer):
    def __init__(self, value: np.ndarray) -> None:
        self.value = value

    def __call__(self, shape, dtype=None):
        return keras.ops.convert_to_tensor(self.value, dtype)


class Adds(keras.layers.Layer):
    """Asks its initializer at each call."""

    def __init__(self, initializer: Listed) -> None:
        super().__init__()
        self.initializer = initializer

    def call(self, x):
        return x + keras.ops.mean(self.initializer(None, "float32"))


def test_a_large_value_of_a_user_s_initializer_travels() -> None:
    model = small(Adds(Listed(np.full(3000, 2.0, np.float32))), keras.layers.Dense(1))
    copy = ModelSpec.from_model(model, Carry.STRUCTURE).build()
    copy.set_weights(model.get_weights())
    np.testing.assert_array_equal(copy.predict_on_batch(X), model.predict_on_batch(X))


def test_an_attribute_that_is_called_history_travels_and_what_a_fit_left_does_not() -> None:
    model = small(keras.layers.Dense(1))
    model.fit(X, Y, verbose=0)
    assert not hasattr(ModelSpec.from_model(model).build(), "history")
    model.history = {"kept": [1]}
    assert ModelSpec.from_model(model).build().history == {"kept": [1]}


def test_looking_at_a_model_leaves_its_numbers_as_they_were() -> None:
    """A state holds float32: what is written back to a model of more digits must not have passed through one."""
    model = small(keras.layers.Dense(1, dtype="float64"))
    weights = [np.full(weight.shape, 1 / 3) for weight in model.get_weights()]
    model.set_weights(weights)
    ModelSpec.from_model(model, Carry.STRUCTURE)
    assert model.get_weights()[0][0, 0] == 1 / 3


TRACKER = keras.metrics.Mean(name="loss_of_the_script")


class CountsInItsClass(keras.layers.Layer):
    calls = keras.Variable(0.0, trainable=False, name="calls_of_all")

    def call(self, x):
        self.calls.assign_add(1.0)
        return x


class CountsInTheScript(keras.Sequential):
    @property
    def metrics(self):
        return [TRACKER]


def test_variables_that_no_state_can_bring_back_are_named_once(caplog: pytest.LogCaptureFixture) -> None:
    model = CountsInTheScript([keras.Input((3,)), CountsInItsClass(), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    ModelSpec.from_model(model, Carry.STRUCTURE)  # nothing is trained
    assert "calls_of_all" not in caplog.text
    for _ in range(2):
        ModelSpec.from_model(model, Carry.NOTHING)
    (said,) = [line for line in caplog.messages if "calls_of_all" in line]
    assert "Keep them in attributes of a layer or of the model." in said
    assert TRACKER.name not in said  # metrics are summed


def test_a_tf_function_is_what_was_imported_whatever_its_file_says_now(tmp_path: Path, monkeypatch) -> None:
    """AutoGraph reads source: a worker's file may be an older one, or be edited while the program runs."""
    text = (
        "import keras\nimport tensorflow as tf\n@tf.function\ndef scaled(x):\n    if tf.reduce_sum(x) > -1e9:\n        return x * 2.0\n"
        "    return x\nclass Scale(keras.layers.Layer):\n    def call(self, x):\n        return scaled(x)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "edited_layers.py").write_text(text)
    import edited_layers

    model = small(edited_layers.Scale(), keras.layers.Dense(1, kernel_initializer="ones"))
    spec = ModelSpec.from_model(model)
    monkeypatch.setitem(sys.modules, "pyspark.worker", types.ModuleType("pyspark.worker"))
    spec.build().predict(X, verbose=0)
    (tmp_path / "edited_layers.py").write_text(text.replace("2.0", "5.25"))
    copy = spec.build()
    np.testing.assert_allclose(copy.predict(X, verbose=0), 2 * X.sum(axis=1, keepdims=True), rtol=1e-5)
    monkeypatch.delitem(sys.modules, "pyspark.worker")
    linecache.clearcache()
    with pytest.warns(ElephasWarning, match="edited_layers.py was edited after it was imported"):
        ModelSpec.from_model(model)
    linecache.clearcache()
