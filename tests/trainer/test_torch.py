"""Keras on PyTorch: variables, buffers, random numbers, pickles, threads, and what is refused. Run by `make test-torch`."""

from __future__ import annotations

import importlib
import subprocess
import sys
import warnings

import cloudpickle
import keras
import numpy as np
import pytest
import torch
from conformance.compare import by_keras, by_spark_model, difference

from elephas_like import SparkModel, VotingModel
from elephas_like.core.errors import ElephasError, ElephasWarning
from elephas_like.core.types import Role
from elephas_like.ensembles.recalibration import BatchNorms, array_batches
from elephas_like.trainer.backends import torch as backend
from elephas_like.trainer.building import build
from elephas_like.trainer.code import pickle_by_value
from elephas_like.trainer.inference import Predictor
from elephas_like.trainer.spec import Carry, ModelSpec
from elephas_like.trainer.state import Variables
from trainer.small import mlp, rows

L = keras.layers
X, Y = rows(22)


def test_a_variable_does_not_keep_the_array_that_it_is_set_to() -> None:
    variable, array = keras.Variable(np.zeros(64, "float32")), np.ones(64, "float32")
    backend.assign(variable, array)
    array[:] = 7
    assert backend.value_of(variable).sum() == 64
    held = backend.value_of(variable)
    backend.assign(variable, array)
    assert held.sum() == 64


def test_a_variable_is_set_to_arrays_that_pytorch_would_not_take() -> None:
    variable, array = keras.Variable(np.zeros(3, "float32")), np.arange(3.0)
    array.flags.writeable = False
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for given in (array, array[::-1]):
            backend.assign(variable, given)
            assert backend.value_of(variable).tolist() == given.tolist()


def test_bfloat16_is_read_as_float32() -> None:
    variable = keras.Variable(np.full(3, 1.5), dtype="bfloat16")
    value = backend.value_of(variable)
    assert (value.dtype, value.tolist()) == (np.float32, [1.5, 1.5, 1.5])
    backend.assign(variable, np.full(3, 2.5, "float32"))
    assert (backend.dtype_of(variable), backend.value_of(variable).tolist()) == ("bfloat16", [2.5] * 3)


def test_the_key_of_a_new_model_stays() -> None:
    """Modules begin in training mode, and the first look at a model, like Keras' fit, leaves them in the other."""
    inputs = keras.Input((3,))
    model = keras.Model(inputs, keras.layers.Dense(1)(inputs))
    model.compile("sgd", "mse")
    keys = [ModelSpec.from_model(model).key for _ in range(2)]
    model.train()
    assert {*keys, ModelSpec.from_model(model).key} == {keys[0]}


def test_a_spec_carries_values_or_leaves_them_out() -> None:
    model = mlp(keras.optimizers.SGD(0.1, momentum=0.9, use_ema=True))
    build(model, (X, Y))
    model.fit(X, Y, epochs=1, verbose=0)
    whole, bare = (ModelSpec.from_model(model, carry).build() for carry in (Carry.ALL, Carry.NOTHING))
    state = Variables(model).read()
    for name, part in Variables(whole).read().parts().items():
        assert part.tobytes() == state.parts()[name].tobytes(), name
    assert not Variables(bare).read().weights.any()
    whole.fit(X, Y, epochs=1, verbose=0)  # its gradients reach the parameters that the optimizer knows
    assert not np.array_equal(Variables(whole).read().weights, state.weights)


def test_what_a_layer_had_before_it_was_quantized_does_not_travel(caplog: pytest.LogCaptureFixture) -> None:
    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(16), keras.layers.Dense(1)])
    model.layers[0].quantize("int8")  # Keras' registry for PyTorch still has the kernel of floats
    model.compile("adam", "mse")
    spec = ModelSpec.from_model(model, Carry.ALL)
    assert not caplog.records
    kernels = [value for value in spec.values if getattr(value, "shape", ()) == (8, 16)]
    assert [kernel.dtype for kernel in kernels] == [np.int8]
    copy = spec.build()
    assert {id(each) for each in copy.parameters()} == {id(variable.value) for variable in copy.variables}


def test_what_a_model_keeps_in_tensors_travels() -> None:
    model = mlp()
    model.offsets, model.half = torch.arange(3.0), torch.full((2,), 1.5, dtype=torch.bfloat16)
    model.sparse = torch.eye(2).to_sparse()
    copy = ModelSpec.from_model(model).build()
    assert copy.offsets.tolist() == [0, 1, 2]
    assert (copy.half.dtype, copy.half.tolist()) == (torch.bfloat16, [1.5, 1.5])
    assert copy.sparse.to_dense().tolist() == [[1, 0], [0, 1]]


def test_functions_of_torch_compile_travel_as_what_they_were_made_of() -> None:
    @torch.compile
    def half(x):
        return x / 2

    def quarter(x):
        return half(x) / 2

    quarter._torchdynamo_orig_callable = half  # as functools.wraps(half) would leave it there

    @torch.compiler.disable
    def kept_out(x):
        return x

    model = mlp()
    model.half, model.quarter, model.kept_out = half, quarter, kept_out
    copy = ModelSpec.from_model(model).build()
    for sent in (copy.quarter, cloudpickle.loads(pickle_by_value(quarter))):
        assert sent(torch.ones(1)) == 0.25
    assert copy.half(torch.ones(1)) == 0.5
    assert not hasattr(copy.half, "_torchdynamo_orig_callable")
    assert copy.kept_out._torchdynamo_disable


def test_functions_of_torch_compile_that_an_installed_module_has_go_by_name(tmp_path, monkeypatch) -> None:
    site = tmp_path / "site-packages"
    site.mkdir()
    (site / "half_of_torch.py").write_text(
        "import threading\n\nimport torch\n\nlock = threading.Lock()\n\n\n@torch.compile\ndef half(x):\n    lock\n    return x / 2\n"
    )
    monkeypatch.syspath_prepend(site)
    module = importlib.import_module("half_of_torch")
    assert cloudpickle.loads(pickle_by_value(module.half)) is module.half


def test_sparse_and_nested_tensors_are_told_from_others() -> None:
    assert backend.is_sparse(torch.eye(2).to_sparse())
    assert backend.dense(torch.eye(2).to_sparse()).tolist() == [[1, 0], [0, 1]]
    assert not backend.is_sparse(torch.eye(2))
    assert not backend.is_ragged(torch.eye(2))


# Modules of PyTorch's own: their parameters are Keras' variables, their buffers are not.


def of_modules() -> tuple[keras.Model, tuple[np.ndarray, ...]]:
    normalized = torch.nn.Sequential(torch.nn.Linear(4, 5), torch.nn.BatchNorm1d(5), torch.nn.Tanh())
    model = keras.Sequential([keras.Input((4,)), L.TorchModuleWrapper(normalized, output_shape=(None, 5)), L.Dense(1)])
    model.compile(keras.optimizers.SGD(0.05, momentum=0.9), "mse", metrics=["mae"])
    return model, (X[:16], Y[:16])


def test_the_statistics_of_pytorchs_modules_are_part_of_the_state_under_keras_names() -> None:
    model, _ = of_modules()
    entries = {entry.name: entry for entry in Variables(model).layout.entries}
    roles = {name: entries[name].role for name in ("moving_mean", "moving_variance", "num_batches_tracked")}
    assert roles == {
        "moving_mean": Role.STATISTIC,
        "moving_variance": Role.STATISTIC,
        "num_batches_tracked": Role.COUNTER,
    }
    assert entries["moving_variance"].variance_of is not None
    assert sum(entry.size for entry in entries.values() if entry.role is Role.WEIGHT) == 4 * 5 + 5 + 2 * 5 + 5 + 1


def test_a_model_with_pytorchs_modules_is_trained_as_keras_trains_it() -> None:
    found, expected = by_spark_model(of_modules), by_keras(of_modules)
    assert not difference(expected, found)
    assert (found[0]["statistics"] != [0] * 5 + [1] * 5).all()  # they have moved from where they began


def test_two_workers_average_the_statistics_of_pytorchs_modules() -> None:
    model, (x, y) = of_modules()
    SparkModel(model, num_workers=2, engine="in_process").fit(x, y, batch_size=8, epochs=1, verbose=0)
    layer = model.layers[0].module[1]
    assert layer.num_batches_tracked == 1
    assert layer.running_mean.abs().sum() > 0


def test_recalibration_puts_the_buffers_of_pytorchs_modules_back() -> None:
    wrapped, (x, _) = of_modules()
    model = keras.Sequential([keras.Input((4,)), L.BatchNormalization(), *wrapped.layers])
    before = Variables(model).read().parts()
    BatchNorms(model).moments(array_batches(x, 8))
    assert {name: part.tobytes() for name, part in Variables(model).read().parts().items()} == {
        name: part.tobytes() for name, part in before.items()
    }


def of_two_libraries(x):
    return torch.abs(keras.ops.square(x))


def test_a_function_that_names_torch_and_an_attribute_ops_can_be_sent() -> None:
    """Of all such names cloudpickle takes torch.ops for one of the function's modules, and it cannot be pickled by itself."""
    sent = cloudpickle.loads(pickle_by_value(of_two_libraries))
    assert sent(torch.tensor([-2.0])).tolist() == [4]


class TwoOptimizers(keras.Model):
    """A train step in PyTorch's form, with an optimizer for each layer."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = L.Dense(3, activation="tanh"), L.Dense(1)
        self.tracker = keras.metrics.Mean(name="loss")

    def compile(self) -> None:
        super().compile()
        self.slow, self.fast = keras.optimizers.SGD(0.01), keras.optimizers.Adam(0.02)

    def call(self, x):
        return self.last(self.first(x))

    def train_step(self, data):
        x, y = data
        self.zero_grad()
        loss = keras.ops.mean((self(x) - y) ** 2)
        loss.backward()
        for layer, optimizer in ((self.first, self.slow), (self.last, self.fast)):
            weights = layer.trainable_weights
            with torch.no_grad():
                optimizer.apply([weight.value.grad for weight in weights], weights)
        self.tracker.update_state(loss.detach())
        return {"loss": self.tracker.result()}


def two_optimizers() -> tuple[keras.Model, tuple[np.ndarray, ...]]:
    model = TwoOptimizers()
    model.compile()
    return model, (X[:16], Y[:16])


def test_a_train_step_of_ones_own_is_taken_as_keras_takes_it() -> None:
    assert not difference(by_keras(two_optimizers), by_spark_model(two_optimizers))


class Counting(torch.nn.Module):
    """Puts new tensors in the place of its buffers, and adds to one."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)
        self.register_buffer("mean", torch.zeros(4))
        self.register_buffer("total", torch.zeros(4))
        self.register_buffer("wide", torch.arange(4.0).expand(3, 4))
        self.register_buffer("turn", torch.polar(torch.ones(4), torch.arange(4.0)))

    def forward(self, x):
        hidden = self.linear(x)
        if self.training:
            self.mean = 0.9 * self.mean + 0.1 * hidden.detach().mean(0)
            self.total += hidden.detach().sum(0)
        return hidden - self.mean + self.wide[0] + (self.turn * hidden).real


def of_changing_buffers() -> tuple[keras.Model, tuple[np.ndarray, ...]]:
    model = keras.Sequential([keras.Input((4,)), L.TorchModuleWrapper(Counting(), output_shape=(None, 4)), L.Dense(1)])
    model.compile("sgd", "mse")
    return model, (X[:16], Y[:16])


def test_buffers_that_a_forward_pass_replaces_are_state_and_go_on_working() -> None:
    found, expected = by_spark_model(of_changing_buffers), by_keras(of_changing_buffers)
    assert not difference(expected, found)
    model, (x, y) = of_changing_buffers()
    SparkModel(model, num_workers=2, engine="in_process").fit(x, y, batch_size=4, verbose=0)
    module = model.layers[0].module
    assert module.mean.abs().sum() > 0
    assert module.total.abs().sum() > 0
    model.fit(x, y, verbose=0)  # by Keras itself


def test_hooks_and_attributes_of_parameters_travel() -> None:
    def hooked() -> tuple[keras.Model, tuple[np.ndarray, ...]]:
        model = mlp()
        model.layers[0].kernel.value.register_hook(lambda gradient: 0.1 * gradient)
        model.layers[0].kernel.value.rate = 0.5
        return model, (X[:16], Y[:16])

    assert not difference(by_keras(hooked), by_spark_model(hooked))
    assert ModelSpec.from_model(hooked()[0]).build().layers[0].kernel.value.rate == 0.5


def wrapped(module: torch.nn.Module) -> keras.Model:
    model = keras.Sequential([keras.Input((4,)), L.TorchModuleWrapper(module, output_shape=(None, 4)), L.Dense(1)])
    model.compile("sgd", "mse")
    return model


def test_tensors_that_would_be_others_on_a_worker_are_refused() -> None:
    sharing, turning = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)
    device = keras.ops.convert_to_tensor(0).device  # moved elsewhere, tensors share nothing any longer
    sharing.register_buffer("all", torch.arange(4.0, device=device))
    sharing.register_buffer("some", sharing.all[:2])
    turning.turn = torch.nn.Parameter(torch.ones(2, dtype=torch.complex64))
    jitted = torch.nn.utils.parametrizations.weight_norm(torch.nn.Linear(4, 4))
    for module, said in (
        (sharing, r"two tensors of the model .* share memory, of shapes"),
        (turning, r"has a parameter of complex64, and workers exchange real numbers"),
        (jitted, r"cannot be sent to workers"),
    ):
        with pytest.raises(ElephasError, match=said):
            SparkModel(wrapped(module), num_workers=2, engine="in_process").fit(X, Y, verbose=0)


def test_tensors_side_by_side_in_one_memory_are_no_others_on_a_worker() -> None:
    """As cuDNN lays out the weights of an LSTM."""
    module, flat = torch.nn.Linear(4, 4), torch.arange(8.0)
    module.register_buffer("first", flat[:4])
    module.register_buffer("last", flat[4:])
    SparkModel(wrapped(module), num_workers=2, engine="in_process").fit(X, Y, verbose=0)
    assert (module.first.tolist(), module.last.tolist()) == ([0, 1, 2, 3], [4, 5, 6, 7])


def test_an_optimizer_of_pytorch_is_warned_of() -> None:
    model, rows_of = two_optimizers()
    build(model, rows_of)
    model.own = torch.optim.Adam([weight.value for weight in model.trainable_weights])
    with pytest.warns(
        ElephasWarning, match=r"holds Adam of PyTorch's, whose state is no part of what workers exchange"
    ):
        SparkModel(model, num_workers=2, engine="in_process").fit(*rows_of, batch_size=4, verbose=0)


class Counted(keras.Model):
    """Its code counts its own calls."""

    def __init__(self) -> None:
        super().__init__()
        self.dense, self.calls = L.Dense(1), 0

    def call(self, x):
        self.calls += 1
        return self.dense(x) / self.calls


def test_what_eager_code_leaves_in_attributes_does_not_reach_the_next_fit() -> None:
    def weights() -> bytes:
        keras.utils.set_random_seed(1)
        model = Counted()
        model.compile("sgd", "mse")
        SparkModel(model, num_workers=2, engine="in_process", seed=3).fit(X, Y, batch_size=4, verbose=0)
        return b"".join(weight.tobytes() for weight in model.get_weights())

    assert weights() == weights()


class Dropping(keras.Model):
    """Drops as PyTorch's own mode says."""

    def __init__(self) -> None:
        super().__init__()
        self.dense = L.Dense(1)

    def call(self, x):
        return self.dense(torch.nn.functional.dropout(x, 0.5, self.training))


def test_predictions_and_votes_are_made_in_evaluation_mode() -> None:
    model = Dropping()
    model.compile("sgd", "mse")
    model(X)
    predictor = Predictor.of(model, 8)
    assert model.training
    found = np.concatenate([outputs[0] for outputs, _ in predictor.of_arrays(X, len(X))])
    voted = VotingModel([model]).evaluate(X, Y)
    np.testing.assert_allclose(found, model.predict(X, verbose=0), rtol=1e-6)
    np.testing.assert_allclose(np.ravel(voted)[0], model.evaluate(X, Y, verbose=0), rtol=1e-5)


# Random numbers.


def test_dropout_without_a_seed_draws_the_same_numbers_again() -> None:
    def weights(noise: int) -> bytes:
        keras.utils.set_random_seed(3)
        model = keras.Sequential([keras.Input((4,)), L.Dense(8), L.Dropout(0.5), L.Dense(1)])
        model.compile("sgd", "mse")
        torch.manual_seed(noise)  # what else the processes of two workers have drawn
        trained = SparkModel(model, num_workers=2, engine="in_process", seed=5)
        trained.fit(X, Y, epochs=2, batch_size=4, verbose=0)
        return b"".join(weight.tobytes() for weight in model.get_weights())

    assert weights(1) == weights(2)


class Noisy(L.Layer):
    """Draws in every call."""

    def call(self, x):
        return x + torch.rand_like(x)


def test_building_leaves_the_users_random_numbers_alone() -> None:
    model = keras.Sequential([keras.Input((4,)), Noisy(), L.Dense(1)])
    torch.manual_seed(4)
    expected = torch.rand(3)
    torch.manual_seed(4)
    model.compile("sgd", "mse")
    build(model, (X, Y))
    assert torch.equal(torch.rand(3), expected)


# What is refused.


class Stateless(keras.Model):
    def train_step(self, state, data):
        return {}, state


class Tensors(L.Layer):
    def call(self, x):
        import tensorflow as tf

        return tf.nn.relu(x)


def test_models_of_other_backends_are_refused_in_a_sentence() -> None:
    inputs = keras.Input((4,))
    stateless = Stateless(inputs, L.Dense(1)(inputs))
    stateless.compile("sgd", "mse")
    layered = mlp()
    layered.extra = Tensors()
    for model, said in (
        (stateless, r"Stateless\.train_step takes \(state, data\), as on JAX.*train_step\(data\).*KERAS_BACKEND=jax"),
        (layered, r"Tensors\.call of the model .* uses TensorFlow, and this Keras runs on PyTorch\. Use keras\.ops"),
    ):
        with pytest.raises(ElephasError, match=said):
            SparkModel(model, engine="in_process").fit(X, Y, verbose=0)


def test_what_is_no_number_is_refused_in_a_sentence() -> None:
    words = np.array(["a", "b"], dtype=object)
    with pytest.raises(ElephasError, match=r"Keras on PyTorch computes with numbers.*KERAS_BACKEND=tensorflow"):
        backend.text_tensors({"a": words})
    for column in (words, np.zeros(2, np.uint64)):
        with pytest.raises(ElephasError, match=rf"PyTorch computes with numbers.*column of {column.dtype.name}"):
            backend.tensors([column])


def test_a_process_has_the_threads_that_it_is_told_also_after_it_has_computed() -> None:
    code = (
        "import torch\n"
        "from elephas_like.trainer.tensors import limit_threads\n"
        "print(limit_threads(1), torch.get_num_threads())\n"
        "torch.ones(3) + 1\n"
        "print(limit_threads(2), torch.get_num_threads())\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["True 1", "True 2"]


def test_a_card_is_looked_for_without_starting_cuda_which_a_forked_process_could_not_use() -> None:
    code = "import os, elephas_like.trainer; print(os.environ['PYTORCH_NVML_BASED_CUDA_CHECK'])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "1"


def test_neither_tensorflow_nor_jax_is_imported() -> None:
    code = (
        "import sys; sys.modules['tensorflow'] = sys.modules['jax'] = None\n"
        "import elephas_like\n"
        "for name in elephas_like.__all__:\n"
        "    try: getattr(elephas_like, name)\n"
        "    except ModuleNotFoundError as error: print(name, error.name)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    said = [line.split() for line in done.stdout.splitlines()]
    assert {name for name, missing in said if missing in ("tensorflow", "jax")} <= {"read_tfrecords", "write_tfrecords"}
