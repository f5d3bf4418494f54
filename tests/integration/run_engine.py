"""A script: trains a CNN with BatchNorm and noise without a seed, and an MLP with dropout, on each engine, and prints digests of all
they learned.

The MLP on rows sorted by label, with packed steps: its workers drift apart, and its rounds become shorter. And once more under a strategy
of parts and a codec, with weights that a callback sets; and with slots that are averaged every third round.
"""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Iterator

os.environ |= {"TF_NUM_INTRAOP_THREADS": "1", "TF_NUM_INTEROP_THREADS": "1"}

import keras
import numpy as np
import tensorflow as tf

tf.config.threading.set_intra_op_parallelism_threads(1)
tf.config.threading.set_inter_op_parallelism_threads(1)

from session import say, started  # noqa: E402
from small import digits  # noqa: E402  threads are set first

from elephas_like import SparkModel  # noqa: E402
from elephas_like.engine import job_rounds  # noqa: E402
from elephas_like.engine.shuffled_sums import worth_it  # noqa: E402
from elephas_like.strategies import Clipped, Nesterov, Radial  # noqa: E402

layers = keras.layers


def mlp() -> keras.Model:
    keras.utils.set_random_seed(1)
    model = keras.Sequential(
        [keras.Input((8, 8, 1)), layers.Flatten(), layers.Dense(24, "relu"), layers.Dropout(0.3), layers.Dense(10)]
    )
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"])
    return model


class Noise(layers.Layer):
    """Adds noise in training and in evaluation, and names no seed."""

    def call(self, x):
        return x + keras.random.normal(keras.ops.shape(x))


def cnn() -> keras.Model:
    keras.utils.set_random_seed(2)
    model = keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            layers.Conv2D(6, 3),
            layers.BatchNormalization(),
            layers.ReLU(),
            layers.GlobalAveragePooling2D(),
            Noise(),
            layers.Dense(10, dtype="float64"),
        ]
    )
    optimizer = keras.optimizers.SGD(0.05, momentum=0.9)
    model.compile(optimizer, keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"])
    return model


class Halves(keras.callbacks.Callback):
    """Sets weights at an epoch's end."""

    def on_epoch_end(self, epoch: int, logs: dict | None = None) -> None:
        self.model.set_weights([value / 2 for value in self.model.get_weights()])


def digest(arrays: list) -> str:
    found = hashlib.blake2b(digest_size=12)
    for array in arrays:
        found.update(str(np.asarray(array).dtype).encode() + np.ascontiguousarray(array).tobytes())
    return found.hexdigest()


def fits(engine: str, context: object) -> Iterator[dict]:
    """What four fits on an engine learn."""
    x, y = digits()
    x, y = x[:500].reshape(-1, 8, 8, 1), y[:500]
    by_label = np.argsort(y, kind="stable")
    parts = Nesterov(reduce=Clipped(2.0, then=Radial()))
    for name, model, order, options in (
        ("cnn", cnn(), slice(None), {}),
        ("sorted", mlp(), by_label, {"codec": "int8", "state_codec": "int4"}),
        ("set weights", mlp(), slice(None), {"strategy": parts, "codec": "int8", "state_codec": "top_k"}),
        (
            "kept by workers",
            mlp(),
            by_label,
            {"frequency": 4, "optimizer_state_every": 3, "control_variates": True},
        ),
    ):
        if name == "kept by workers" and engine == "jobs":  # whose tasks keep nothing
            continue
        rows, labels = x[order], y[order]
        given = {
            "epochs": 2,
            "verbose": 0,
            "validation_split": 0.1,
            "callbacks": [Halves()] if name == "set weights" else [],
        }
        # Some fits of the jobs engine have their updates added up by Spark, which others leave to the driver.
        job_rounds.worth_it = (lambda *_, **__: True) if name in ("cnn", "sorted") else worth_it
        fitted = SparkModel(model, 2, seed=7, engine=engine, batch_size=16, **options)
        if engine == "in_process":
            # Arrays are dealt like cards: these are the rows of two partitions, put where dealing gives them back.
            halves = np.stack([np.arange(250), np.arange(250, 500)], axis=1).ravel()
            history = fitted.fit(rows[halves], labels[halves], **given)
        else:
            pairs = context.parallelize(list(zip(rows, labels.tolist(), strict=True)), 2)
            history = fitted.fit(pairs, **given)
        yield {
            "engine": engine,
            "model": name,
            "weights": digest(model.get_weights()),
            "optimizer": digest([variable.numpy() for variable in model.optimizer.variables]),
            "history": dict(history.history.items()),
            "samples": [record.samples for record in history.rounds],
            "schedule": [(record.epoch, record.of) for record in history.rounds],
            "drift": [record.drift for record in history.rounds],
        }


def main(*engines: str) -> None:
    context = started("local[2]", "engines", log_level="ERROR")
    for engine in engines:
        for answer in fits(engine, context):
            say(answer)
    context.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
