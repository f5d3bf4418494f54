"""Every variable has a role, and a state written back is the state that was read."""

from __future__ import annotations

import copy
import tempfile
from collections import Counter
from collections.abc import Callable
from inspect import signature

import keras
import numpy as np
import pytest
import tensorflow as tf

from elephas_like.core.types import Role
from elephas_like.trainer.building import build
from elephas_like.trainer.state import Variables, variables_in_words

X = np.random.default_rng(1).normal(size=(12, 4)).astype("float32")
Y = X.sum(axis=1, keepdims=True)


def dense(optimizer: object, *before: keras.layers.Layer) -> keras.Model:
    model = keras.Sequential([keras.Input((4,)), *before, keras.layers.Dense(1)])
    model.compile(optimizer, "mse", run_eagerly=True)
    build(model, (X[:1], Y[:1]))
    return model


def shapes(model: keras.Model, role: Role) -> list[tuple[int, ...]]:
    return [entry.shape for entry in Variables(model).layout.of(role)]


KERNEL = [(4, 1), (1,)]
OPTIMIZERS: dict[str, tuple[Callable[[], keras.optimizers.Optimizer], list[tuple[int, ...]], int]] = {
    # name: (optimizer, shapes of its slots, number of its counters; Adafactor has integers where it factors nothing)
    "sgd": (lambda: keras.optimizers.SGD(), [], 1),
    "momentum": (lambda: keras.optimizers.SGD(momentum=0.9), KERNEL, 1),
    "adam": (lambda: keras.optimizers.Adam(), [(4, 1), (4, 1), (1,), (1,)], 1),
    "amsgrad": (lambda: keras.optimizers.Adam(amsgrad=True), [(4, 1), (4, 1), (1,), (1,), (4, 1), (1,)], 1),
    "nadam": (lambda: keras.optimizers.Nadam(), [(), (4, 1), (4, 1), (1,), (1,)], 1),
    "adafactor": (lambda: keras.optimizers.Adafactor(), [(4,), (1,), (4, 1), (1,)], 3),
    "ema": (lambda: keras.optimizers.SGD(use_ema=True), KERNEL, 1),
    "accumulation": (lambda: keras.optimizers.SGD(gradient_accumulation_steps=3), KERNEL, 1),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_float_of_an_optimizer_is_a_slot_and_its_iteration_a_counter(name: str) -> None:
    make, slots, counters = OPTIMIZERS[name]
    model = dense(make())
    assert shapes(model, Role.WEIGHT) == KERNEL
    assert Counter(shapes(model, Role.SLOT)) == Counter(slots)
    assert len(shapes(model, Role.COUNTER)) == counters
    assert shapes(model, Role.LEARNING_RATE) == [()]
    assert shapes(model, Role.LOSS_SCALE) == []


def test_a_learning_rate_on_a_schedule_is_no_variable() -> None:
    schedule = keras.optimizers.schedules.CosineDecay(0.1, 100)
    model = dense(keras.optimizers.Adam(schedule))
    assert shapes(model, Role.LEARNING_RATE) == []
    assert Variables(model).read().learning_rate.size == 0


def test_loss_scale_and_what_it_wraps() -> None:
    model = dense(keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam(0.25), initial_scale=128.0))
    state = Variables(model).read()
    np.testing.assert_array_equal(state.loss_scale, [0.0, 128.0])  # good steps in a row, and the scale
    np.testing.assert_array_equal(state.learning_rate, [0.0, 0.25])  # the wrapper has one too, of no use
    assert len(shapes(model, Role.SLOT)) == 4
    assert len(shapes(model, Role.COUNTER)) == 2  # its iteration and the inner one's


def test_statistics_seeds_and_counts_of_layers() -> None:
    normalize = keras.layers.Normalization()
    normalize.adapt(X)
    model = dense("sgd", normalize, keras.layers.Dropout(0.5), keras.layers.BatchNormalization())
    assert shapes(model, Role.STATISTIC) == [(4,), (4,), (4,), (4,)]
    assert shapes(model, Role.SEED) == [(2,)]
    assert shapes(model, Role.COUNTER) == [(), ()]  # Normalization.count and the optimizer's iteration


class Noisy(keras.layers.Layer):
    """Holds a generator of TensorFlow's, and a complex number."""

    def __init__(self, trainable: bool = False) -> None:
        super().__init__()
        self.generator = tf.random.Generator.from_seed(1)
        self.phase = self.add_weight(
            shape=(2,), dtype="complex64", initializer="ones", trainable=trainable, name="phase"
        )

    def call(self, x: object) -> object:
        return x


def test_tensorflows_generators_are_seeds_and_complex_numbers_are_in_no_state() -> None:
    layout = Variables(dense("sgd", Noisy())).layout
    assert [entry.shape for entry in layout.of(Role.SEED)] == [(3,)]
    assert not any("phase" in entry.name for entry in layout.entries)


def test_weights_that_are_complex_are_refused() -> None:
    with pytest.raises(TypeError, match=r"'phase' is of complex64.*real and imaginary"):
        Variables(dense("sgd", Noisy(trainable=True)))


def test_what_a_step_overwrites_is_averaged_like_a_statistic() -> None:
    """FP8 keeps scales and the largest values of the last steps, which no momentum may carry off."""
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.layers[0].quantize("float8")
    model.compile("adam", "mse")
    build(model, (X[:1], Y[:1]))
    assert shapes(model, Role.WEIGHT) == KERNEL
    overwritten = [tuple(each.shape) for each in model.trainable_variables if each.overwrite_with_gradient]
    assert len(overwritten) == 6
    assert Counter(overwritten) <= Counter(shapes(model, Role.STATISTIC))


def test_what_frozen_layers_hold_has_a_role_of_its_own() -> None:
    frozen = keras.Sequential([keras.layers.Dense(3), keras.layers.BatchNormalization()])
    frozen.trainable = False
    model = dense("adam", keras.layers.BatchNormalization(), frozen)
    assert shapes(model, Role.WEIGHT) == [(4,), (4,), (3, 1), (1,)]
    assert shapes(model, Role.STATISTIC) == [(4,), (4,)]
    assert shapes(model, Role.FROZEN) == [(4, 3), (3,), (3,), (3,), (3,), (3,)]
    layout = Variables(model).layout
    assert layout.variances() == [(slice(0, 4), slice(4, 8))]
    assert layout.variances(Role.FROZEN) == [(slice(21, 24), slice(24, 27))]


def test_a_moving_average_knows_its_momentum() -> None:
    norm = keras.layers.BatchNormalization(momentum=0.75)
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(2), norm, keras.layers.Dropout(0.5)])
    layout = Variables(model).layout
    assert {entry.name.rsplit("/")[-1]: entry.momentum for entry in layout.entries if entry.momentum} == {
        "moving_mean": 0.75,
        "moving_variance": 0.75,
    }
    assert layout.momenta.tolist() == [0.75] * 4


@pytest.mark.skipif("renorm" not in signature(keras.layers.BatchNormalization).parameters, reason="an old Keras")
def test_moving_averages_of_batch_renormalization_know_theirs() -> None:
    norm = keras.layers.BatchNormalization(momentum=0.75, renorm=True, renorm_momentum=0.5)
    layout = Variables(keras.Sequential([keras.Input((1,)), norm])).layout
    found = {entry.name.rsplit("/")[-1]: entry.momentum for entry in layout.of(Role.STATISTIC)}
    moving = dict.fromkeys(("moving_mean", "moving_variance", "moving_stddev"), 0.75)
    assert found == moving | {"renorm_mean": 0.5, "renorm_stddev": 0.5}


def test_a_layer_that_a_step_calls_more_than_once_has_no_momentum_of_its_own() -> None:
    norm, inputs = keras.layers.BatchNormalization(), keras.Input((4, 2))
    each = keras.layers.TimeDistributed(keras.layers.BatchNormalization())(inputs)
    twice = norm(norm(each))
    inside = keras.Sequential([keras.Input((4, 2)), keras.layers.BatchNormalization()])
    last = keras.layers.BatchNormalization(momentum=0.75)
    once = last(inside(inside(twice)))
    last(twice)  # in another model
    momenta = Variables(keras.Model(inputs, once)).layout.momenta.tolist()
    assert (momenta.count(0.75), momenta.count(0.0)) == (4, 12)


def parts() -> list[keras.layers.Layer]:
    return [
        keras.Input((4,)),
        keras.layers.Dense(2),
        keras.layers.BatchNormalization(momentum=0.75),
        keras.layers.Dense(1),
    ]


def added() -> keras.Sequential:
    model = keras.Sequential()
    for part in parts():
        model.add(part)
    return model


def with_another_end() -> keras.Sequential:
    model = added()
    model.pop()
    model.add(keras.layers.Dense(3))
    return model


def from_a_file() -> keras.Model:
    with tempfile.TemporaryDirectory() as folder:
        added().save(f"{folder}/model.keras")
        return keras.saving.load_model(f"{folder}/model.keras")


def inside_another() -> keras.Model:
    model = added()
    return keras.Model(model.inputs, keras.layers.Dense(1)(model(model.inputs[0])))


@pytest.mark.parametrize(
    "build_up",
    [
        lambda: keras.Sequential(parts()),
        added,
        with_another_end,
        from_a_file,
        lambda: copy.deepcopy(added()),
        lambda: keras.Sequential.from_config(added().get_config()),
        inside_another,
    ],
    ids=[
        "at once",
        "layer by layer",
        "another end",
        "from a file",
        "deepcopy",
        "from its configuration",
        "inside another",
    ],
)
def test_a_sequential_has_the_momenta_of_its_layers_however_it_was_built(build_up: Callable[[], keras.Model]) -> None:
    """Keras makes a graph anew at each `add`, and keeps those before: no step calls a layer in them."""
    assert Variables(build_up()).layout.momenta.tolist() == [0.75] * 4


def test_layers_of_a_sequential_that_was_built_layer_by_layer_are_called_as_often_as_it_is() -> None:
    inner, inputs = added(), keras.Input((4,))
    inner.pop()
    inner.add(keras.layers.Dense(4))
    assert Variables(keras.Model(inputs, inner(inner(inputs)))).layout.momenta.tolist() == [0.0] * 4


def test_a_moving_variance_knows_the_place_of_its_moving_mean_and_nothing_else_does() -> None:
    normalize = keras.layers.Normalization()
    normalize.adapt(X)
    hidden = [keras.layers.BatchNormalization(), keras.layers.Dense(2), keras.layers.BatchNormalization()]
    model = dense("sgd", normalize, keras.layers.Dense(3, trainable=False), *hidden)
    layout = Variables(model).layout
    names = [entry.name.split("/")[-1] for entry in layout.of(Role.STATISTIC)]
    state = layout.flatten([np.full(entry.shape, index) for index, entry in enumerate(layout.entries)])
    found = [
        (names[[s.start for s in layout.slices(Role.STATISTIC)].index(place.start)], state.statistics[place].tolist())
        for pair in layout.variances()
        for place in pair
    ]
    by_name = {}
    for index, entry in enumerate(layout.entries):
        if entry.role is Role.STATISTIC:
            by_name.setdefault(entry.name.split("/")[-1], []).append([float(index)] * entry.size)
    assert found == [
        ("moving_mean", by_name["moving_mean"][0]),
        ("moving_variance", by_name["moving_variance"][0]),
        ("moving_mean", by_name["moving_mean"][1]),
        ("moving_variance", by_name["moving_variance"][1]),
    ]


def everything() -> keras.Model:
    inputs = keras.Input((4,))
    normalize = keras.layers.Normalization()
    normalize.adapt(X)
    hidden = keras.layers.Dropout(0.3)(keras.layers.BatchNormalization()(normalize(inputs)))
    hidden = keras.layers.Dense(3, dtype="mixed_float16")(hidden)
    hidden = keras.layers.Dense(3, dtype="bfloat16")(hidden)
    model = keras.Model(inputs, keras.layers.Dense(1, dtype="float32")(hidden))
    optimizer = keras.optimizers.Nadam(0.01, use_ema=True)
    model.compile(keras.optimizers.LossScaleOptimizer(optimizer, initial_scale=16.0), "mse", run_eagerly=True)
    return model


def test_a_state_goes_into_another_model_bit_for_bit_and_both_train_on_alike() -> None:
    one, other = everything(), everything()
    for model in (one, other):
        build(model, (X[:1], Y[:1]))
    one.fit(X, Y, batch_size=4, epochs=2, verbose=0, shuffle=False)
    state = Variables(one).read()
    Variables(other).write(state)
    for role in Role:
        np.testing.assert_array_equal(Variables(other).read().part(role), state.part(role), err_msg=role.value)
    for model in (one, other):
        model.fit(X, Y, batch_size=4, epochs=1, verbose=0, shuffle=False)
    for role in Role:
        there, here = Variables(other).read().part(role), Variables(one).read().part(role)
        np.testing.assert_array_equal(there, here, err_msg=role.value)
    assert not np.array_equal(Variables(one).read().weights, state.weights)


def test_writing_some_roles_leaves_the_others() -> None:
    model = dense("adam")
    variables = Variables(model)
    before = variables.read()
    raised = before.but(weights=before.weights + 1, slots=before.slots + 1)
    variables.write(raised, frozenset({Role.WEIGHT}))
    np.testing.assert_array_equal(variables.read().weights, raised.weights)
    np.testing.assert_array_equal(variables.read().slots, before.slots)


def test_a_normalization_computes_with_what_is_written_into_it() -> None:
    """Its constants are made by `adapt`, and by Keras after loading a file: a fit that went on from a checkpoint began without."""
    layer = keras.layers.Normalization()
    layer.adapt(X)
    adapted, fresh = dense("sgd", layer), dense("sgd", keras.layers.Normalization())
    fresh.predict(X, verbose=0)  # which compiles it, with the constants that it has now
    Variables(fresh).write(Variables(adapted).read())
    np.testing.assert_array_equal(fresh.predict(X, verbose=0), adapted.predict(X, verbose=0))
    constant = fresh.layers[0].mean
    Variables(fresh).write(Variables(adapted).read())
    assert fresh.layers[0].mean is constant  # a program may hold it, and it is the same


def test_a_normalization_of_the_users_may_have_other_weights() -> None:
    class Own(keras.layers.Normalization):
        def build(self, shape):
            self.scale = self.add_weight(shape=(shape[-1],), trainable=False, initializer="ones")
            self.built = True

        def call(self, x):
            return self.scale * x

    model = dense("sgd", Own())
    state = Variables(model).read()
    Variables(model).write(state.but(statistics=state.statistics * 3))
    assert model.layers[0].scale.numpy().tolist() == [3.0] * 4


def test_reading_gives_a_copy() -> None:
    model = dense("sgd")
    state = Variables(model).read()
    kept = state.weights.copy()
    model.set_weights([array + 1 for array in model.get_weights()])
    np.testing.assert_array_equal(state.weights, kept)


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_a_state_stays_what_it_is_while_a_model_trains_on_from_it(optimizer: str) -> None:
    model = keras.Sequential([keras.Input((64,)), keras.layers.Dense(64), keras.layers.Dense(1)])
    model.compile(optimizer, "mse")
    x, y = np.ones((8, 64), np.float32), np.zeros((8, 1), np.float32)
    build(model, (x[:1], y[:1]))
    variables = Variables(model)
    state = variables.read()
    before = {name: part.copy() for name, part in state.parts().items()}
    variables.write(state)  # of large, aligned arrays TensorFlow takes the memory itself where it may
    model.fit(x, y, epochs=2, verbose=0)
    assert not np.array_equal(variables.read().weights, before["weights"])
    for name, part in state.parts().items():
        np.testing.assert_array_equal(part, before[name])


def test_what_was_read_stays_what_it_is_while_a_model_trains_on() -> None:
    model = keras.Sequential([keras.Input((64,)), keras.layers.Dense(64, use_bias=False)])
    model.compile("sgd", "mse")
    x = np.ones((8, 64), np.float32)
    build(model, (x[:1], x[:1]))
    state = Variables(model).read()  # of a single variable: nothing is put together
    before = state.weights.copy()
    model.fit(x, np.zeros_like(x), verbose=0)
    np.testing.assert_array_equal(state.weights, before)


def test_the_layout_of_a_rebuilt_model_has_the_same_hash_whatever_its_names() -> None:
    assert Variables(everything_built()).layout.hash == Variables(everything_built()).layout.hash
    assert Variables(dense("adam")).layout.hash != Variables(dense("sgd")).layout.hash


def everything_built() -> keras.Model:
    model = everything()
    build(model, (X[:1], Y[:1]))
    return model


def test_variables_of_a_model_made_twice_have_the_same_words() -> None:
    def made(*trainable: bool) -> list[str]:
        layers = [keras.layers.Dense(4, trainable=each) for each in trainable]
        model = keras.Sequential([keras.Input((4,)), *layers, keras.layers.Dropout(0.1), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
        model.optimizer.build(model.trainable_variables)
        return variables_in_words(model, Variables(model))

    assert made(True, False) == made(True, False) != made(False, True)
    assert made(True, False)[-2:] == ["weights of float32 (4, 1)", "weights of float32 (1,)"]
