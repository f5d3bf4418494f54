"""Samples per second of one core with fused optimizer kernels, against Keras' own update steps, and how far apart weights get.

    python benchmarks/optimizers.py

MLP 784-128-128-10, batch 32, 600 steps of the compiled loop a turn, one thread; the two alternate, medians of 5 turns in CPU seconds.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np
import tensorflow as tf

from elephas_like.trainer.backends.tensorflow_fused import fuse
from elephas_like.trainer.own_optimizers import own_optimizers
from elephas_like.trainer.steps import StepLoop

ROWS, BATCH, STEPS, TURNS = 20_000, 32, 600, 5
OPTIMIZERS: dict[str, Callable[[], keras.optimizers.Optimizer]] = {
    "SGD": lambda: keras.optimizers.SGD(0.01),
    "SGD, momentum": lambda: keras.optimizers.SGD(0.01, momentum=0.9),
    "SGD, Nesterov": lambda: keras.optimizers.SGD(0.01, momentum=0.9, nesterov=True),
    "Adam": lambda: keras.optimizers.Adam(0.001),
    "AdamW": lambda: keras.optimizers.AdamW(0.001),
    "RMSprop, momentum": lambda: keras.optimizers.RMSprop(0.001, momentum=0.9),
}


def loop_of(optimizer: keras.optimizers.Optimizer, *, fused: bool) -> tuple[keras.Model, StepLoop]:
    """A new model with the same weights, and its compiled loop."""
    keras.utils.set_random_seed(0)
    dense = keras.layers.Dense
    model = keras.Sequential([keras.Input((784,)), dense(128, "relu"), dense(128, "relu"), dense(10, "softmax")])
    model.compile(optimizer, "sparse_categorical_crossentropy", metrics=["accuracy"])
    model.optimizer.build(model.trainable_variables)
    if fused:
        assert fuse(own_optimizers(model))
    return model, StepLoop(model, model.train_step)


def main() -> None:
    """Print the table."""
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    random = np.random.default_rng(0)
    columns = [tf.constant(random.random((ROWS, 784), np.float32)), tf.constant(random.integers(0, 10, ROWS))]
    order = tf.range(ROWS, dtype=tf.int64)
    print("| optimizer | Keras' step, samples/s | fused | x | weights apart after 8 steps |\n|---|---|---|---|---|")
    for name, make in OPTIMIZERS.items():
        pair = [loop_of(make(), fused=fused) for fused in (False, True)]
        for _, loop in pair:
            loop.run(columns, [0, 1], order, BATCH, 0, 8)
        weights = zip(*(model.get_weights() for model, _ in pair), strict=True)
        apart = max(float(np.abs(one - other).max()) for one, other in weights)
        seconds: list[list[float]] = [[], []]
        for _ in range(TURNS):
            for found, (_, loop) in zip(seconds, pair, strict=True):
                began = time.process_time()
                loop.run(columns, [0, 1], order, BATCH, 0, STEPS)
                found.append(time.process_time() - began)
        plain, fused = (STEPS * BATCH / statistics.median(found) for found in seconds)
        print(f"| {name} | {plain:,.0f} | {fused:,.0f} | {fused / plain:.2f} | {apart:.1e} |", flush=True)


if __name__ == "__main__":
    main()
