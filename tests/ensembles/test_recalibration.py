from __future__ import annotations

import keras
import numpy as np
import pytest

from elephas_like.core.types import Role
from elephas_like.ensembles.recalibration import BatchNorms, Moments, array_batches, even_batches

layers = keras.layers


def model(*between: keras.layers.Layer, seed: int = 0) -> keras.Model:
    keras.utils.set_random_seed(seed)
    given = [keras.Input((3,)), layers.BatchNormalization(name="first"), layers.Dense(4), *between]
    made = keras.Sequential([*given, layers.BatchNormalization(name="second"), layers.Dense(1)])
    made.compile("sgd", "mse")
    return made


def rows(count: int = 50) -> np.ndarray:
    return np.random.default_rng(1).normal([1, -2, 5], [1, 3, 0.5], (count, 3)).astype("float32")


def recalibrated(made: keras.Model, x: np.ndarray, batch_size: int) -> BatchNorms:
    norms = BatchNorms(made)
    norms.write(norms.moments(array_batches(x, batch_size)))
    return norms


def normalized(x: np.ndarray) -> np.ndarray:
    return (x - x.mean(0)) / np.sqrt(x.var(0) + 1e-3)


def test_the_first_layers_statistics_are_those_of_all_rows_together() -> None:
    x, made = rows(), model()
    for batch_size in (7, 16, 50, 500):
        recalibrated(made, x, batch_size)
        first = made.get_layer("first")
        np.testing.assert_allclose(first.moving_mean, x.mean(0), rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(first.moving_variance, x.var(0), rtol=1e-5)


def test_a_deeper_layer_sees_batches_normalized_by_themselves() -> None:
    x, made = rows(), model()
    recalibrated(made, x, 10)
    kernel, bias = made.layers[1].get_weights()
    seen = np.concatenate([normalized(x[start : start + 10]) @ kernel + bias for start in range(0, 50, 10)])
    second = made.get_layer("second")
    np.testing.assert_allclose(second.moving_mean, seen.mean(0), atol=1e-5)
    np.testing.assert_allclose(second.moving_variance, seen.var(0), rtol=1e-4)
    # One batch of all rows: what the layer sees in inference too.
    recalibrated(made, x, 50)
    first = layers.BatchNormalization()
    first.build((None, 3))
    first.set_weights(made.get_layer("first").get_weights())
    seen = np.asarray(first(x)) @ kernel + bias
    np.testing.assert_allclose(second.moving_mean, seen.mean(0), atol=1e-5)
    np.testing.assert_allclose(second.moving_variance, seen.var(0), rtol=1e-4)


def test_images_are_pooled_over_their_places() -> None:
    x = np.random.default_rng(0).normal(3, 2, (10, 4, 4, 2)).astype("float32")
    made = keras.Sequential([keras.Input((4, 4, 2)), layers.BatchNormalization()])
    recalibrated(made, x, 3)
    np.testing.assert_allclose(made.layers[0].moving_mean, x.mean((0, 1, 2)), rtol=1e-5)
    np.testing.assert_allclose(made.layers[0].moving_variance, x.var((0, 1, 2)), rtol=1e-5)


def test_nothing_else_changes() -> None:
    x, made = rows(), model(layers.Dropout(0.5, seed=3), layers.SpectralNormalization(layers.Dense(4)))
    norms = BatchNorms(made)
    before = [np.array(variable) for variable in made.variables]
    moments = norms.moments(array_batches(x, 10))
    for old, variable in zip(before, made.variables, strict=True):
        np.testing.assert_array_equal(old, variable)
    assert [layer.momentum for layer in norms.layers] == [0.99, 0.99]
    norms.write(moments)
    changed = {
        v.path for old, v in zip(before, made.variables, strict=True) if (np.asarray(old) != np.asarray(v)).any()
    }
    assert {path.rsplit("/", 1)[-1] for path in changed} == {"moving_mean", "moving_variance"}
    # The same again, from the same seeds.
    np.testing.assert_array_equal(norms.moments(array_batches(x, 10)).statistics, moments.statistics)


def test_statistics_that_are_nan_are_cured() -> None:
    x, made = rows(), model()
    made.get_layer("first").moving_mean.assign(np.full(3, np.nan, "float32"))
    recalibrated(made, x, 10)
    assert all(np.isfinite(weight).all() for weight in made.get_weights())


def test_frozen_layers_stay_as_they_are() -> None:
    made = model()
    made.get_layer("first").trainable = False
    assert [layer.name for layer in recalibrated(made, rows(), 10).layers] == ["second"]
    np.testing.assert_array_equal(made.get_layer("first").moving_mean, np.zeros(3))


def test_nested_wrapped_and_own_layers_are_found_in_the_order_of_their_weights() -> None:
    class Block(layers.Layer):
        def __init__(self) -> None:
            super().__init__()
            self.norm = layers.BatchNormalization(name="own")

        def build(self, shape) -> None:
            self.norm.build(shape)

        def call(self, x, training=None):
            return self.norm(x, training=training)

    inner = keras.Sequential([keras.Input((4, 3)), layers.BatchNormalization(name="inner")])
    wrapped = layers.TimeDistributed(layers.BatchNormalization(name="wrapped"))
    made = keras.Sequential([keras.Input((4, 3)), inner, wrapped, Block()])
    assert [layer.name for layer in BatchNorms(made).layers] == ["inner", "wrapped", "own"]


def test_parts_pool_to_the_whole() -> None:
    x, made = rows(60), model()
    norms = BatchNorms(made)
    parts = [norms.moments(array_batches(part, 10)) for part in (x[:20], x[20:30], x[:0], x[30:])]
    whole = norms.moments(array_batches(x, 10))
    assert [part.rows for part in parts] == [20, 10, 0, 30]
    pooled = norms.pool(parts)
    assert pooled.rows == 60
    np.testing.assert_allclose(pooled.statistics, whole.statistics, rtol=1e-5, atol=1e-6)
    assert norms.layout.size(Role.STATISTIC) == whole.statistics.size


def test_pooling_is_the_law_of_total_variance() -> None:
    norms = BatchNorms(keras.Sequential([keras.Input((1,)), layers.BatchNormalization()]))
    # Rows 1, 3 (mean 2, variance 1) and row 8: mean 4, variance (9 + 1 + 16) / 3.
    pooled = norms.pool([Moments(2, np.float32([2, 1])), Moments(1, np.float32([8, 0]))])
    np.testing.assert_allclose(pooled.statistics, [4, 26 / 3], rtol=1e-6)


def test_batches_are_even() -> None:
    assert [part.stop - part.start for part in even_batches(33, 16)] == [11, 11, 11]
    assert [part.stop - part.start for part in even_batches(5, 2)] == [1, 2, 2]
    assert list(even_batches(0, 4)) == []


def test_batch_renormalization_is_refused() -> None:
    norm = layers.BatchNormalization()
    norm.renorm = True
    with pytest.raises(ValueError, match="renorm=True"):
        BatchNorms(keras.Sequential([keras.Input((2,)), norm]))
