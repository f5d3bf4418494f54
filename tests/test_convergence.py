"""Averaging converges: digits on eight workers with the defaults, where Elephas' one average at the end does not."""

from __future__ import annotations

import keras
import numpy as np
from sklearn.datasets import load_digits

from elephas_like import SparkModel
from elephas_like.rows.spool import Block

WORKERS, EPOCHS = 8, 4


def digits() -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    x, y = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(y))
    x, y = (x / 16).astype(np.float32)[order], y.astype(np.int64)[order]
    return x[:1437], y[:1437], x[1437:], y[1437:]


def accuracy(rows: list[np.ndarray], **options: object) -> tuple[float, keras.callbacks.History]:
    x, y, x_test, y_test = digits()
    keras.utils.set_random_seed(0)
    layers = keras.layers
    model = keras.Sequential([keras.Input((64,)), layers.Dense(64, "relu"), layers.Dense(10, "softmax")])
    model.compile(keras.optimizers.Adam(0.002), "sparse_categorical_crossentropy", metrics=["accuracy"])
    blocks = [Block((x[mine], y[mine]), len(mine)) for mine in rows]
    fitted = SparkModel(model, engine="in_process", seed=0, **options)
    history = fitted.fit(blocks, epochs=EPOCHS, batch_size=4, verbose=0)
    return float(model.evaluate(x_test, y_test, verbose=0)[1]), history


def test_rows_sorted_by_label_converge_by_rounds_that_become_shorter() -> None:
    _, y, _, _ = digits()
    by_label = np.array_split(np.argsort(y, kind="stable"), WORKERS)
    reached, history = accuracy(by_label)
    assert reached > 0.92  # 0.947 when this was written
    assert max(record.of for record in history.rounds) == 20
    assert all(sum(r.samples for r in history.rounds if r.epoch == epoch) == 1437 for epoch in range(EPOCHS))
    once, _ = accuracy(by_label, strategy="one_shot")
    assert once < 0.6


def test_rows_dealt_at_random_keep_their_five_rounds() -> None:
    dealt = np.array_split(np.arange(1437), WORKERS)
    reached, history = accuracy(dealt)
    assert reached > 0.91  # 0.942
    assert [record.of for record in history.rounds] == [5] * 5 * EPOCHS


def test_workers_that_go_on_alone_converge() -> None:
    reached, history = accuracy(np.array_split(np.arange(1437), WORKERS), mode="asynchronous")
    assert reached > 0.91  # 0.939
    assert max(record.workers[0].staleness for record in history.rounds) > 1
