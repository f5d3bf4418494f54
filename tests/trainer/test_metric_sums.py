"""Metrics whose states no sum can answer for are named; those that keep sums and counts are not."""

from __future__ import annotations

import keras
import numpy as np
import pytest

from elephas_like import SparkModel
from elephas_like.core.errors import ElephasWarning
from elephas_like.trainer.building import build
from elephas_like.trainer.metric_sums import not_summable
from elephas_like.trainer.state import Variables

X, Y = np.linspace(0, 1, 24).reshape(8, 3).astype("float32"), np.arange(8.0)[:, None]


class Kept(keras.metrics.Metric):
    """Keeps one number; `step` says what becomes of it."""

    def __init__(self, name: str, step: object, start: str = "zeros") -> None:
        super().__init__(name=name)
        self.step, self.kept = step, self.add_weight(shape=(), initializer=start, name="kept")

    def update_state(self, y_true, y_pred, sample_weight=None) -> None:
        self.kept.assign(self.step(self.kept, keras.ops.cast(y_true, "float32")))

    def result(self):
        return self.kept

    def reset_state(self) -> None:
        self.kept.assign(1.0 if self.name == "lowest" else 0.0)


def total() -> Kept:
    return Kept("total", lambda kept, y: kept + keras.ops.sum(y))


METRICS = {
    "total": total,
    "peak": lambda: Kept("peak", lambda kept, y: keras.ops.maximum(kept, keras.ops.max(y))),
    "moving": lambda: Kept("moving", lambda kept, y: 0.9 * kept + keras.ops.mean(y)),
    "last": lambda: Kept("last", lambda kept, y: keras.ops.max(y)),
    "lowest": lambda: Kept("lowest", lambda kept, y: keras.ops.minimum(kept, keras.ops.min(y)), "ones"),
}


def model_of(*metrics: keras.metrics.Metric) -> keras.Model:
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dropout(0.5), keras.layers.Dense(1)])
    model.compile("sgd", "mse", metrics=[*metrics, "mae", keras.metrics.RootMeanSquaredError()])
    build(model, (X, Y))
    return model


def test_metrics_that_do_not_add_up_are_named_and_the_model_stays_as_it_was() -> None:
    model = model_of(*(make() for make in METRICS.values()))
    before = Variables(model).read()
    assert not_summable(model, (X, Y)) == ["peak", "moving", "last", "lowest"]
    after = Variables(model).read()
    assert {name: part.tobytes() for name, part in before.parts().items()} == {
        name: part.tobytes() for name, part in after.parts().items()
    }


def test_a_metric_that_a_batch_does_not_move_is_not_named() -> None:
    assert not_summable(model_of(METRICS["peak"]()), (X, 0 * Y)) == []


def test_fit_says_which_they_are_once() -> None:
    model = model_of(METRICS["peak"](), total())
    with pytest.warns(ElephasWarning, match=r"'peak' do not add up") as caught:
        SparkModel(model, num_workers=2, engine="in_process").fit(X, Y + 1, epochs=2, verbose=0)
    assert len([one for one in caught if issubclass(one.category, ElephasWarning)]) == 1
