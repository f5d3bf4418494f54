"""A model is built by a step on a batch, which leaves nothing else behind; it is not built again."""

from __future__ import annotations

import threading
from collections.abc import Callable

import keras
import numpy as np
import pytest
import tensorflow as tf

from elephas_like.core.types import Role
from elephas_like.trainer.building import build, build_optimizer
from elephas_like.trainer.state import Variables, read_metrics

X = np.random.default_rng(1).normal(size=(12, 4)).astype("float32")
Y = X.sum(axis=1, keepdims=True)


class Sampler(keras.Model):
    """Draws in inference too, and takes only x."""

    def __init__(self) -> None:
        super().__init__()
        self.dense = keras.layers.Dense(4)
        self.seeds = keras.random.SeedGenerator(5)
        self.error = keras.metrics.Mean(name="error")

    def call(self, x):
        return self.dense(x) + keras.random.normal(keras.ops.shape(x), seed=self.seeds)

    def test_step(self, data):
        self.error.update_state(keras.ops.mean((self(data) - data) ** 2))
        return {"error": self.error.result()}


def test_building_draws_nothing_and_counts_nothing() -> None:
    model = Sampler()
    model.compile("adam")
    seeds = model.seeds.state.numpy()
    build(model, (X[:1],))
    np.testing.assert_array_equal(model.seeds.state.numpy(), seeds)
    assert not read_metrics(model).any()
    assert [weight.shape for weight in model.trainable_variables] == [(4, 4), (4,)]
    assert model.optimizer.built


class Adversary(keras.Model):
    """Only a train step, as in Keras' GAN guide: neither call nor a test step that works."""

    def __init__(self) -> None:
        super().__init__()
        self.generator = keras.Sequential([keras.Input((2,)), keras.layers.Dense(4)])
        self.critic = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        self.built = True

    def train_step(self, data):
        raise NotImplementedError


def test_a_model_with_nothing_but_a_train_step_is_built() -> None:
    model = Adversary()
    model.compile("adam")
    build(model, (X[:1],))
    assert len(Variables(model).layout.of(Role.SLOT)) == 8


class Uncertain(keras.losses.Loss):
    """Its weight is trained with the model's, which do not list it: the step gives both to the optimizer."""

    def __init__(self) -> None:
        super().__init__()
        self.log_variance = keras.Variable(0.0, name="log_variance")

    def call(self, y_true, y_pred):
        return (y_true - y_pred) ** 2 * keras.ops.exp(-self.log_variance) + self.log_variance


class Weighs(keras.Sequential):
    def train_step(self, data):
        x, y = data
        weights = [*self.trainable_variables, self.loss.log_variance]
        with tf.GradientTape() as tape:
            loss = self.loss(y, self(x, training=True))
        self.optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
        return self.compute_metrics(x, y, None)


def test_an_optimizer_is_built_for_what_the_user_s_step_gives_it_and_again_where_the_model_is_compiled_again() -> None:
    model = Weighs([keras.Input((4,)), keras.layers.Dense(1)])
    for _ in range(2):
        model.compile(keras.optimizers.SGD(momentum=0.9), Uncertain())
        assert not build_optimizer(model)  # from a row
        build(model, (X, Y))
        assert build_optimizer(model)
        assert [tuple(slot.shape) for slot in model.optimizer.variables[2:]] == [(4, 1), (1,), ()]


def test_a_counter_of_the_class_is_no_weight_that_only_a_step_knows() -> None:
    model = Weighs([keras.Input((4,)), keras.layers.Dense(1)])
    model.counter = tf.Variable(0, dtype=tf.int64)
    model.compile(keras.optimizers.SGD(momentum=0.9), "mse")
    assert build_optimizer(model)


def test_a_mistake_in_the_rows_is_raised_when_building() -> None:
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    with pytest.raises(ValueError, match="expected axis -1 of input shape to have value 4"):
        build(model, (X[:1, :3], Y[:1]))


def no_input(*layers: keras.layers.Layer) -> keras.Model:
    model = keras.Sequential([*layers, keras.layers.Dense(2)])
    model.compile("sgd", "mse")
    return model


def test_a_model_without_input_is_built_for_batches_of_any_size() -> None:
    sample = (np.ones((4, 3), np.float32), np.ones((4, 2), np.float32))
    keras.utils.set_random_seed(3)
    model = no_input(keras.layers.Dense(5))
    build(model, sample)
    assert model.input_shape == (None, 3)
    assert model.layers[0].output.shape == (None, 5)
    keras.utils.set_random_seed(3)
    expected = no_input(keras.layers.Dense(5))
    expected.build((None, 3))
    for found, weights in zip(model.get_weights(), expected.get_weights(), strict=True):
        np.testing.assert_array_equal(found, weights)


def test_unless_a_layer_needs_to_know_the_batch() -> None:
    sample = (np.ones((4, 3), np.float32), np.ones((4, 2), np.float32))
    fixed = keras.layers.Lambda(lambda x: keras.ops.reshape(x, (int(x.shape[0]), 3)))
    model = no_input(fixed)
    build(model, sample)
    assert model.built
    assert model.predict(sample[0], verbose=0, batch_size=4).shape == (4, 2)


class Counted(keras.layers.Layer):
    """Counts how often it is called, in a step or in a trace of one; with a part that is not used at first."""

    def __init__(self, *, spare: bool) -> None:
        super().__init__()
        self.calls = 0
        self.more, self.uses_more = keras.layers.Dense(4) if spare else None, False

    def build(self, shape) -> None:
        """Its part is built when it is used."""

    def call(self, x):
        self.calls += 1
        return self.more(x) if self.uses_more else x


def counted(*, spare: bool = False) -> tuple[keras.Model, Counted]:
    layer = Counted(spare=spare)
    model = keras.Sequential([keras.Input((4,)), layer, keras.layers.Dense(1)])
    model.compile("adam", "mse", metrics=["mae"])
    return model, layer


def compiled_again(model: keras.Model, layer: Counted) -> tuple[np.ndarray, ...]:
    model.compile("adam", "mae", metrics=["mse"])
    return X[:1], Y[:1]


def with_a_part_in_use(model: keras.Model, layer: Counted) -> tuple[np.ndarray, ...]:
    layer.uses_more = True
    return X[:1], Y[:1]


def with_weights(model: keras.Model, layer: Counted) -> tuple[np.ndarray, ...]:
    return X[:1], Y[:1], np.ones(1, "float32")


def of_another_type(model: keras.Model, layer: Counted) -> tuple[np.ndarray, ...]:
    return X[:1].astype("int64"), Y[:1]


def test_what_is_built_is_not_built_again() -> None:
    model, layer = counted()
    build(model, (X[:1], Y[:1]))
    model.train_on_batch(X, Y)
    calls = layer.calls
    build(model, (X[3:9], Y[3:9]))
    assert layer.calls == calls
    assert not read_metrics(model).any()
    assert int(model.optimizer.iterations) == 1


@pytest.mark.parametrize("change", [compiled_again, with_a_part_in_use, with_weights, of_another_type])
def test_what_has_changed_is_built(change: Callable[..., tuple[np.ndarray, ...]]) -> None:
    model, layer = counted(spare=change is with_a_part_in_use)
    build(model, (X[:1], Y[:1]))
    sample = change(model, layer)
    calls = layer.calls
    build(model, sample)
    assert layer.calls > calls
    assert model.optimizer.built
    assert layer.more is None or layer.more.built


def test_rows_of_another_width_are_still_a_mistake() -> None:
    model, _ = counted()
    build(model, (X[:1], Y[:1]))
    with pytest.raises(ValueError, match="expected axis -1 of input shape to have value 4"):
        build(model, (X[:1, :3], Y[:1]))


def test_a_thread_waits_for_an_optimizer_that_another_one_builds() -> None:
    begun, seen = threading.Event(), threading.Event()

    class Slow(keras.optimizers.SGD):
        def add_variable_from_reference(self, *args, **others):  # Keras says "built" before it makes the slots
            begun.set()
            seen.wait(0.2)
            return super().add_variable_from_reference(*args, **others)

    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile(Slow(momentum=0.9), "mse")
    building = threading.Thread(target=build_optimizer, args=(model,))
    building.start()
    begun.wait()
    build_optimizer(model)
    found = len(model.optimizer.variables)
    seen.set()
    building.join()
    assert found == 2 + 2  # an iteration, a rate, and a slot for each of two weights


class HalfBuilt(keras.Model):
    """What `build(shape)` marks as built without building its layers, one of which is never used."""

    def __init__(self) -> None:
        super().__init__()
        self.dense, self.unused = keras.layers.Dense(1), keras.layers.Dense(3)

    def call(self, x):
        return self.dense(x)


@pytest.mark.filterwarnings("ignore:`build:UserWarning")
def test_a_subclass_that_build_has_only_marked_as_built_needs_a_row() -> None:
    model = HalfBuilt()
    model.build((None, 4))
    model.compile("adam", "mse")
    assert model.built
    assert not build_optimizer(model)
    build(model, (np.zeros((2, 4), "float32"), np.zeros((2, 1), "float32")))
    assert build_optimizer(model)
    assert len(model.optimizer.variables) == 2 + 2 * 2  # an iteration, a rate, and two slots for each of two weights
    assert not model.unused.built
