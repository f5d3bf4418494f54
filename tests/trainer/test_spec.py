"""A compiled model is rebuilt in a process that can import nothing of this file, and trains there to the same bits."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import keras
import numpy as np
import pytest

from elephas_like.core.errors import ElephasError
from elephas_like.trainer.spec import ModelSpec, custom_objects_of, repair_compile
from elephas_like.trainer.state import Variables, build
from trainer import own_ops

RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(8, 3)).astype("float32")
Y = RANDOM.normal(size=(8, 1)).astype("float32")
LABELS = RANDOM.integers(0, 2, (8, 1))
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
def discretization():
    bins = keras.layers.Discretization(num_bins=3, output_mode="one_hot")
    bins.adapt(X[:, :1])
    model = keras.Sequential([keras.Input((1,)), bins, keras.layers.Dense(1)])
    model.compile("sgd", "mse", run_eagerly=True)
    return model, (X[:, :1], Y)


@case
def schedule_of_keras():
    schedule = keras.optimizers.schedules.ExponentialDecay(0.1, 1, 0.5)
    return small(keras.layers.Dense(1), optimizer=keras.optimizers.Adam(schedule)), (X, Y)


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
def mixed_precision_with_loss_scale():
    dense = keras.layers.Dense(4, dtype="mixed_float16")
    optimizer = keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam(0.01), initial_scale=64.0)
    return small(dense, keras.layers.Dense(1), optimizer=optimizer), (X, Y)


@case
def mixed_precision_everywhere():
    keras.config.set_dtype_policy("mixed_float16")
    try:
        return small(keras.layers.Dense(4), keras.layers.Dense(1, dtype="float32")), (X, Y)
    finally:
        keras.config.set_dtype_policy("float32")


@case
def gradient_accumulation():
    return small(keras.layers.Dense(1), optimizer=keras.optimizers.Adam(gradient_accumulation_steps=2)), (X, Y)


@case
def moving_average_of_weights():
    return small(keras.layers.Dense(1), optimizer=keras.optimizers.SGD(0.1, use_ema=True, ema_momentum=0.5)), (X, Y)


@case
def frozen_layers():
    frozen = keras.layers.Dense(4, trainable=False)
    return small(frozen, keras.layers.BatchNormalization(trainable=False), keras.layers.Dense(1)), (X, Y)


@case
def dropout_and_batch_normalization():
    return small(
        keras.layers.Dropout(0.5, seed=3), keras.layers.BatchNormalization(), keras.layers.Dense(1), optimizer="adam"
    ), (X, Y)


@case
def binary_with_auc():
    dense = keras.layers.Dense(1, activation="sigmoid")
    return small(dense, loss="binary_crossentropy", metrics=["acc", keras.metrics.AUC(num_thresholds=7)]), (X, LABELS)


@case
def lstm():
    model = keras.Sequential([keras.Input((3, 1)), keras.layers.LSTM(2, dropout=0.2), keras.layers.Dense(1)])
    model.compile("rmsprop", "mse", run_eagerly=True)
    return model, (X[:, :, None], Y)


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
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    script = Path(__file__).with_name("rebuild.py").read_text()
    subprocess.run(
        [sys.executable, "-c", script, str(folder / "specs"), str(folder / "results")],
        cwd=folder,
        env=environment,
        check=True,
        timeout=120,
    )
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
    before = ModelSpec.from_model(model).key
    model.train_on_batch(X, Y)
    assert ModelSpec.from_model(model).key == before


def test_the_key_stays_when_a_callback_lowers_the_learning_rate() -> None:
    model = small(keras.layers.Dense(1), optimizer="adam")
    before = ModelSpec.from_model(model).key
    model.optimizer.learning_rate = 0.125
    after = ModelSpec.from_model(model)
    assert after.key == before
    assert float(after.build().optimizer.learning_rate) == 0.125


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
def test_the_key_differs_with_architecture_and_compile_arguments(other: Callable[[], keras.Model]) -> None:
    def key(make: Callable[[], keras.Model]) -> str:
        keras.utils.clear_session()  # it numbers names, which are part of the architecture
        return ModelSpec.from_model(make()).key

    def plain() -> keras.Model:
        return small(keras.layers.Dense(1, name="d"))

    assert key(plain) == key(plain)
    assert key(other) != key(plain)


def test_the_key_differs_with_the_code_of_a_lambda() -> None:
    def spec(function: Callable[[object], object]) -> str:
        keras.utils.clear_session()
        model = small(keras.layers.Lambda(function, name="l"), keras.layers.Dense(1, name="d"))
        return ModelSpec.from_model(model).key

    assert spec(lambda x: x + 1) != spec(lambda x: x + 2)


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


def test_custom_objects_given_by_name_are_used_where_nothing_refers_to_them() -> None:
    model = small(keras.layers.Dense(1))
    assert custom_objects_of(model) == {}
    spec = ModelSpec.from_model(model, {"spare": bent})
    assert spec.key != ModelSpec.from_model(model).key


def test_a_layer_without_get_config_is_refused_with_what_to_do() -> None:
    class Silent(keras.layers.Layer):
        def __init__(self, factor: object) -> None:
            super().__init__()
            self.factor = factor

        def call(self, x):
            return x

    with pytest.raises(ElephasError, match="get_config"):
        ModelSpec.from_model(small(Silent(object()), keras.layers.Dense(1)))


def test_a_model_with_its_own_compile_is_refused_with_what_to_do() -> None:
    """Keras does not compile it on loading: it says so in a warning, and the worker's model would have no optimizer."""

    class Own(keras.Sequential):
        def compile(self, optimizer, distance) -> None:
            super().compile(optimizer=optimizer, loss=distance)

    model = Own([keras.Input((3,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    with pytest.raises(ElephasError, match="compile_from_config"):
        ModelSpec.from_model(model)


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
    other = ModelSpec(spec.archive, spec.objects, {**spec.runtime, "backend": "jax"}, spec.key)
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


def test_metrics_in_the_place_of_loss_weights_are_taken_as_meant() -> None:
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1, activation="sigmoid")])
    optimizer = keras.optimizers.SGD(0.5)
    model.compile(optimizer, "binary_crossentropy", ["acc"])
    with pytest.warns(UserWarning, match=r"\['acc'\].*loss_weights.*metrics="):
        assert repair_compile(model)
    assert model.optimizer is optimizer
    assert set(model.train_on_batch(X, LABELS, return_dict=True)) == {"loss", "acc"}
    assert not repair_compile(model)


def test_metrics_in_the_place_of_loss_weights_come_beside_those_that_were_given_by_name() -> None:
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1, "sigmoid")])
    weighted = [keras.metrics.MeanSquaredError(name="weighted")]
    model.compile("sgd", "binary_crossentropy", ["acc"], metrics=["mae"], weighted_metrics=weighted)
    with pytest.warns(UserWarning, match="is taken as metrics"):
        assert repair_compile(model)
    logs = model.test_on_batch(X, LABELS, np.arange(8.0), return_dict=True)
    assert set(logs) == {"loss", "acc", "mae", "weighted"}
    assert logs["weighted"] == pytest.approx(
        np.average((model.predict(X, verbose=0) - LABELS)[:, 0] ** 2, weights=np.arange(8.0))
    )


@pytest.mark.parametrize("metrics", [{"out": ["mae"]}, [["mae"]]])
def test_metrics_by_two_ways_that_cannot_be_put_together_are_refused(metrics: object) -> None:
    model = small(keras.layers.Dense(1, name="out"), loss_weights=["acc"], metrics=metrics)
    with pytest.raises(ValueError, match=r"names metrics twice.*Give all of them as metrics="):
        repair_compile(model)


def test_loss_weights_that_are_numbers_are_left_alone() -> None:
    assert not repair_compile(small(keras.layers.Dense(1), loss_weights=[0.5]))
