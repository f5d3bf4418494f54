"""Keras on JAX: variables, pickles, threads, and what is refused. Run by `make test-jax`, without TensorFlow."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import jax
import keras
import numpy as np
import pytest

from elephas_like import SparkModel
from elephas_like.core.errors import ElephasError
from elephas_like.trainer.backends import jax as backend
from elephas_like.trainer.building import build
from elephas_like.trainer.spec import Carry, ModelSpec
from elephas_like.trainer.state import Variables, metric_variables
from trainer.small import mlp, rows

X, Y = rows(22)


@pytest.mark.parametrize(
    ("rows", "padded"), [(0, 0), (1, 1), (16, 16), (17, 18), (33, 36), (36, 36), (1000, 1024), (1025, 1152)]
)
def test_columns_are_padded_to_one_of_few_sizes(rows: int, padded: int) -> None:
    assert backend.padded_rows(rows) == padded
    (column,) = backend.tensors([np.ones((rows, 2), "float32")])
    assert column.shape == (padded, 2)
    assert column.sum() == 2 * rows


def test_a_column_is_copied_once() -> None:
    held = backend.unfilled((1000, 7), np.dtype("float32"))
    held[:] = 1
    if jax.default_backend() == "cpu":
        assert jax.device_put(held).unsafe_buffer_pointer() == held.ctypes.data
    column = np.ones((1024, 7))
    (tensor,) = backend.tensors([column])
    column[:] = 7
    assert (tensor.dtype, tensor.sum()) == (np.float32, 1024 * 7)


class Noting(keras.layers.Layer):
    def __init__(self, calls: list[object]) -> None:
        super().__init__()
        self.calls = calls

    def call(self, x):
        jax.debug.callback(self.calls.append, x.shape[0] or 0)
        return x


def test_what_is_built_by_a_step_is_built_without_running_it() -> None:
    calls: list[object] = []
    model = keras.Sequential([keras.layers.Dense(3), Noting(calls)])
    model.compile("adam", "mse", metrics=["mae"])
    build(model, (X, Y))
    jax.effects_barrier()
    assert not calls
    assert len(metric_variables(model)) == 4
    assert model.optimizer.built


class Calls(keras.layers.Layer):
    """Calls a function, and keeps what came of it, as layers of attention keep their scores."""

    def __init__(self, function: object) -> None:
        super().__init__()
        self.function, self.found = function, None

    def call(self, x):
        self.found = self.function(x)
        return self.found


def calling(function: object, **options: object) -> keras.Model:
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(4), keras.layers.Dense(4), Calls(function)])
    model.compile("sgd", "mse", **options)
    return model


def text_of(model: keras.Model) -> str | None:
    return backend.trace(model, Variables(model), X[:1])


def test_models_that_compute_the_same_have_the_same_text() -> None:
    constant = np.arange(4, dtype="float32")
    text = text_of(calling(lambda x: x * constant))
    assert text is not None
    assert text == text_of(calling(lambda x: x * np.arange(4, dtype="float32")))
    for other in (lambda x: x * (constant + 1e-6), lambda x: x + constant, lambda x: constant):
        assert text_of(calling(other)) != text
    model = calling(lambda x: x * constant)
    swapped = [*model.layers[1].weights, *model.layers[0].weights]
    assert backend.trace(model, swapped, X[:1]) != text  # of the same shapes
    one, other = (keras.layers.Dense(4), keras.layers.Dense(4))
    used = keras.Sequential([keras.Input((4,)), one])
    other.build((None, 4))
    both = [[*one.weights, *other.weights], [*other.weights, *one.weights]]  # the model uses some of them
    assert backend.trace(used, both[0], X[:1]) != backend.trace(used, both[1], X[:1])
    assert text_of(calling(lambda x: x * constant, run_eagerly=True)) is None
    assert backend.trace(model, Variables(model), X[:1, :2]) is None  # which it does not take
    many = np.ones((1, 2**22 + 1), "float32")
    assert text_of(calling(lambda x: x * many.sum())) is not None
    assert text_of(calling(lambda x: x * jax.numpy.asarray(many).sum())) is None


def test_a_model_is_compared_with_its_copy_without_being_run() -> None:
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(17, "tanh"), keras.layers.Dense(19)])
    model.compile("sgd", "mse")
    Variables(model)
    ModelSpec.from_model(mlp())  # what every model compiles
    before = len(jax.devices()[0].client.live_executables())
    ModelSpec.from_model(model)
    made = len(jax.devices()[0].client.live_executables()) - before
    assert made <= 4, "the initializers of two kernels, and zeros of two shapes"


def test_what_a_layer_keeps_of_a_trace_does_no_harm() -> None:
    model = calling(keras.ops.tanh)
    trained = SparkModel(model, num_workers=2, engine="in_process")
    for _ in range(2):
        trained.fit(X, X, epochs=1, batch_size=4, verbose=0)
        np.testing.assert_allclose(trained.predict(X), model.predict(X, verbose=0), rtol=1e-6)


def test_a_variable_does_not_keep_the_array_that_it_is_set_to() -> None:
    variable, array = keras.Variable(np.zeros(64, "float32")), np.ones(64, "float32")
    backend.assign(variable, array)
    array[:] = 7
    assert backend.value_of(variable).sum() == 64
    held = backend.value_of(variable)
    backend.assign(variable, array)
    assert held.sum() == 64


def test_bfloat16_is_read_as_float32() -> None:
    variable = keras.Variable(np.full(3, 1.5), dtype="bfloat16")
    value = backend.value_of(variable)
    assert (value.dtype, value.tolist()) == (np.float32, [1.5, 1.5, 1.5])
    backend.assign(variable, np.full(3, 2.5, "float32"))
    assert (variable.dtype, backend.value_of(variable).tolist()) == ("bfloat16", [2.5] * 3)


def test_a_spec_carries_values_or_leaves_them_out() -> None:
    model = mlp(keras.optimizers.SGD(0.1, momentum=0.9, use_ema=True))
    build(model, (X, Y))
    model.fit(X, Y, epochs=1, verbose=0)
    whole, bare = (ModelSpec.from_model(model, carry).build() for carry in (Carry.ALL, Carry.NOTHING))
    state = Variables(model).read()
    for name, part in Variables(whole).read().parts().items():
        assert part.tobytes() == state.parts()[name].tobytes(), name
    assert not Variables(bare).read().weights.any()


def test_what_a_model_keeps_in_arrays_keys_and_functions_travels() -> None:
    model = mlp()
    model.offsets, model.again = jax.numpy.arange(3.0), jax.checkpoint(lambda x: x + 1)
    model.key, model.other = jax.random.key(5), jax.random.key(5, impl="rbg")
    copy = ModelSpec.from_model(model).build()
    assert copy.offsets.tolist() == [0, 1, 2]
    assert jax.grad(copy.again)(1.0) == 1  # a function of the user's, with JAX's own globals
    assert jax.random.normal(copy.key) == jax.random.normal(jax.random.key(5))
    assert jax.random.normal(copy.other) == jax.random.normal(jax.random.key(5, impl="rbg"))


@pytest.mark.parametrize("kind", ["data", "model"])
def test_a_model_under_a_distribution_trains_as_without(kind: str) -> None:
    fit = {"batch_size": 4, "epochs": 2, "shuffle": False, "verbose": 0}
    expected = mlp("adam")
    expected.fit(X, Y, **fit)
    devices = keras.distribution.list_devices()
    if kind == "data":
        distribution = keras.distribution.DataParallel(devices=devices)
    else:
        layouts = keras.distribution.LayoutMap(
            keras.distribution.DeviceMesh((1, len(devices)), ["batch", "model"], devices)
        )
        layouts[".*kernel"] = (None, "model")
        distribution = keras.distribution.ModelParallel(layout_map=layouts, batch_dim_name="batch")
    with distribution.scope():
        model = mlp("adam")
        assert model.layers[0].kernel._layout is not None
        fitted = SparkModel(model, num_workers=1, engine="in_process")
        fitted.fit(X, Y, **fit)
        found, scores = fitted.predict(X), fitted.evaluate(X, Y)
    for mine, weights in zip(model.get_weights(), expected.get_weights(), strict=True):
        np.testing.assert_allclose(mine, weights, rtol=1e-6, atol=1e-7)
    assert model.layers[0].kernel._layout is not None  # the driver's model is as it was
    np.testing.assert_allclose(found, expected.predict(X, verbose=0), rtol=1e-5, atol=1e-6)
    assert scores == pytest.approx(expected.evaluate(X, Y, verbose=0), rel=1e-5)


def test_the_drivers_devices_keep_their_parts_of_a_model() -> None:
    code = (
        "import keras, numpy as np\n"
        "from elephas_like import SparkModel\n"
        "mesh = keras.distribution.DeviceMesh((1, 2), ['batch', 'model'], keras.distribution.list_devices())\n"
        "layouts = keras.distribution.LayoutMap(mesh)\n"
        "layouts['.*kernel'] = (None, 'model')\n"
        "keras.distribution.set_distribution(keras.distribution.ModelParallel(layout_map=layouts, batch_dim_name='batch'))\n"
        "model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(4)])\n"
        "model.compile('adam', 'mse')\n"
        "kernel = model.layers[0].kernel\n"
        "before, placed = np.array(kernel.value), kernel.value.sharding\n"
        "SparkModel(model, 1, engine='in_process').fit(np.ones((8, 3)), np.ones((8, 4)), verbose=0)\n"
        "print((np.array(kernel.value) != before).all(), kernel.value.sharding == placed)\n"
        "print(*(shard.data.shape for shard in kernel.value.addressable_shards))\n"
    )
    environment = os.environ | {"XLA_FLAGS": "--xla_force_host_platform_device_count=2"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, env=environment)
    assert done.stdout.splitlines() == ["True True", "(3, 2) (3, 2)"], done.stderr


class Stateful(keras.Model):
    def train_step(self, data):
        return {}


class Tensors(keras.layers.Layer):
    def call(self, x):
        import tensorflow as tf

        return tf.nn.relu(x)


def in_words(y_true, y_pred):
    import tensorflow.math as tm

    return tm.abs(y_true - y_pred)


def test_models_of_tensorflow_are_refused_in_a_sentence() -> None:
    inputs = keras.Input((4,))
    stateful = Stateful(inputs, keras.layers.Dense(1)(inputs))
    stateful.compile("sgd", "mse")
    layered, lossy = mlp(), mlp(loss=in_words)
    layered.extra = Tensors()
    for model, said in (
        (
            stateful,
            r"Stateful\.train_step has no argument `state`.*train_step\(state, data\).*KERAS_BACKEND=tensorflow",
        ),
        (layered, r"Tensors\.call of the model .* uses TensorFlow, and this Keras runs on JAX\. Use keras\.ops"),
        (lossy, r"in_words of the model .* uses TensorFlow"),
    ):
        with pytest.raises(ElephasError, match=said):
            SparkModel(model, engine="in_process").fit(X, Y, verbose=0)


def test_text_is_refused_in_a_sentence() -> None:
    words = np.array(["a", "b"], dtype=object)
    with pytest.raises(ElephasError, match="numbers"):
        backend.text_tensors({"a": words})
    with pytest.raises(ElephasError, match="numbers"):
        backend.tensors([words])


class Counted(keras.layers.Layer):
    """Its code counts its own calls."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def call(self, x):
        self.calls += 1
        return x / self.calls


@pytest.mark.parametrize("eager", [{"run_eagerly": True}, {"jit_compile": False}])
def test_what_eager_code_leaves_in_attributes_does_not_reach_the_next_fit(eager: dict[str, bool]) -> None:
    def weights() -> bytes:
        keras.utils.set_random_seed(1)
        model = keras.Sequential([keras.Input((4,)), Counted(), keras.layers.Dense(1)])
        model.compile("sgd", "mse", **eager)
        SparkModel(model, num_workers=2, engine="in_process", seed=3).fit(X, Y, batch_size=4, verbose=0)
        return b"".join(weight.tobytes() for weight in model.get_weights())

    assert weights() == weights()


def test_a_process_has_the_threads_that_it_is_told_unless_jax_computes_already() -> None:
    code = (
        "import os\n"
        "from elephas_like.trainer.tensors import limit_threads\n"
        "print(limit_threads(1), os.environ['NPROC'], os.environ['XLA_FLAGS'])\n"
        "import keras; keras.ops.zeros(1) + 1\n"
        "print(limit_threads(2), os.environ['NPROC'])\n"
    )
    environment = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["True 1 --xla_cpu_multi_thread_eigen=false", "False 1"]


def test_tensorflow_is_not_imported() -> None:
    code = (
        "import sys; sys.modules['tensorflow'] = None\n"
        "import elephas_like, importlib, pkgutil\n"
        "for name in elephas_like.__all__:\n"
        "    try: getattr(elephas_like, name)\n"
        "    except ModuleNotFoundError as error: print(name, error.name)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    said = [line.split() for line in done.stdout.splitlines()]
    assert {name for name, missing in said if missing == "tensorflow"} <= {"read_tfrecords", "write_tfrecords"}


def test_tensorflow_is_not_imported_where_it_is_installed(tmp_path: Path) -> None:
    (tmp_path / "tensorflow").mkdir()
    (tmp_path / "tensorflow" / "__init__.py").write_text("raise SystemExit('imported')")
    code = (
        "import keras, numpy as np\n"
        "from elephas_like import SparkModel\n"
        "model = keras.Sequential([keras.layers.Dense(1)])\n"
        "model.compile('sgd', 'mse', metrics=['mae'])\n"
        "x = np.ones((8, 2))\n"
        "history = SparkModel(model, 2, engine='in_process', seed=1).fit(x, x[:, :1], validation_split=0.25, verbose=0)\n"
        "print(sorted(history.history))\n"
    )
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, env=environment)
    assert done.stdout.strip() == "['loss', 'mae', 'val_loss', 'val_mae']", done.stderr
