"""What frozen layers hold is left out of exchanges where it does not change: every engine comes to the same bits."""

from __future__ import annotations

import keras
import numpy as np
import pytest

from elephas_like import SparkModel
from elephas_like.trainer.state import Variables

L = keras.layers
rng = np.random.default_rng(3)
X = rng.normal(size=(24, 4)).astype("float32")
Y = X.sum(axis=1, keepdims=True)


class Following(keras.Model):
    """A frozen base, a trained layer, and a target that follows it from the second epoch on."""

    def __init__(self) -> None:
        super().__init__()
        self.base, self.online, self.target = L.Dense(3), L.Dense(1), L.Dense(1)
        self.base.trainable = self.target.trainable = False

    def call(self, x):
        hidden = self.base(x)
        return self.online(hidden) - self.target(hidden)

    def train_step(self, data):
        logs = super().train_step(data)
        share = keras.ops.cast(self.optimizer.iterations > 3, "float32") * 0.1
        for mine, theirs in zip(self.target.weights, self.online.weights, strict=True):
            mine.assign(mine + share * (theirs - mine))
        return logs


def fitted(engine: str, sc) -> tuple[np.ndarray, np.ndarray]:
    keras.utils.set_random_seed(1)
    model = Following()
    model.compile(keras.optimizers.SGD(0.05), "mse")
    model(X[:1])
    before = Variables(model).read().frozen
    spark_model = SparkModel(model, num_workers=2, engine=engine, batch_size=4, seed=1, frequency="epoch")
    rows = list(zip(X, Y, strict=True))
    spark_model.fit(sc.parallelize(rows, 2), epochs=4, verbose=0, shuffle=False)
    state = Variables(model).read()
    assert not np.array_equal(state.frozen, before)
    np.testing.assert_array_equal(state.frozen[:15], before[:15])  # the base: 4 x 3 + 3
    return state.weights, state.frozen


@pytest.mark.parametrize("engine", ["server", "jobs"])
def test_a_target_that_begins_to_follow_is_exchanged_from_then_on(sc, engine: str) -> None:
    for ours, theirs in zip(fitted(engine, sc), fitted("in_process", sc), strict=True):
        np.testing.assert_array_equal(ours, theirs)
