"""Samples per second of one core with optimizers in fewer ops, against Keras' own update steps, and how far apart weights get.

    python benchmarks/optimizers.py

MLP 784-128-128-10, batch 32, and the table of bench.py (28-64-32-2, batch 256): 600 steps of the compiled loop a turn, one thread. Keras' own
step, the same with the number of the step read once, as workers have it, and fused kernels alternate; medians of 11 turns in CPU seconds,
and in brackets by the least of them, which other machines on the same host disturb least.
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

from elephas_like.trainer.backends.tensorflow_fused import fuse, read_step_once
from elephas_like.trainer.own_optimizers import own_optimizers
from elephas_like.trainer.steps import StepLoop

ROWS, STEPS, TURNS = 20_000, 600, 11
NETWORKS = {"MLP": ((784, 128, 128, 10), 32), "table": ((28, 64, 32, 2), 256)}
OPTIMIZERS: dict[str, Callable[[], keras.optimizers.Optimizer]] = {
    "SGD": lambda: keras.optimizers.SGD(0.01),
    "SGD, momentum": lambda: keras.optimizers.SGD(0.01, momentum=0.9),
    "SGD, Nesterov": lambda: keras.optimizers.SGD(0.01, momentum=0.9, nesterov=True),
    "Adam": lambda: keras.optimizers.Adam(0.001),
    "AdamW": lambda: keras.optimizers.AdamW(0.001),
    "RMSprop, momentum": lambda: keras.optimizers.RMSprop(0.001, momentum=0.9),
}


def loop_of(
    sizes: tuple[int, ...], optimizer: keras.optimizers.Optimizer, *, once: bool, fused: bool
) -> tuple[keras.Model, StepLoop]:
    """A new model with the same weights, and its compiled loop."""
    keras.utils.set_random_seed(0)
    first, *inner, last = sizes
    layers = [*(keras.layers.Dense(size, "relu") for size in inner), keras.layers.Dense(last, "softmax")]
    model = keras.Sequential([keras.Input((first,)), *layers])
    model.compile(optimizer, "sparse_categorical_crossentropy", metrics=["accuracy"])
    model.optimizer.build(model.trainable_variables)
    if fused:
        assert fuse(own_optimizers(model))
    if once:
        read_step_once(own_optimizers(model))
    return model, StepLoop(model, model.train_step)


def compare(network: str, name: str) -> None:
    """Print a row of the table."""
    sizes, batch = NETWORKS[network]
    random = np.random.default_rng(0)
    x, y = random.random((ROWS, sizes[0]), np.float32), random.integers(0, sizes[-1], ROWS)
    columns, order = [tf.constant(x), tf.constant(y)], tf.range(STEPS * batch, dtype=tf.int64) % ROWS
    kinds = ({"once": False, "fused": False}, {"once": True, "fused": False}, {"once": True, "fused": True})
    loops = [loop_of(sizes, OPTIMIZERS[name](), **kind) for kind in kinds]
    for _, loop in loops:
        loop.run(columns, [0, 1], order, batch, 0, 8)
    weights = [model.get_weights() for model, _ in loops]
    apart = [max(float(np.abs(a - b).max()) for a, b in zip(weights[0], each, strict=True)) for each in weights[1:]]
    seconds: list[list[float]] = [[] for _ in loops]
    for _ in range(TURNS):
        for found, (_, loop) in zip(seconds, loops, strict=True):
            began = time.process_time()
            loop.run(columns, [0, 1], order, batch, 0, STEPS)
            found.append(time.process_time() - began)
    middle, least = list(map(statistics.median, seconds)), list(map(min, seconds))
    gained = [
        f"{middle[0] / middle[kind]:.2f} ({least[0] / least[kind]:.2f}) | {apart[kind - 1]:.1e}" for kind in (1, 2)
    ]
    print(f"| {network}, {name} | {STEPS * batch / middle[0]:,.0f} | {' | '.join(gained)} |", flush=True)


def main() -> None:
    """Print the table."""
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    print(
        "| network, optimizer | Keras' step, samples/s | read once, x | weights apart after 8 steps | fused, x | apart |"
    )
    print("|---|---|---|---|---|---|")
    for network in NETWORKS:
        for name in OPTIMIZERS:
            compare(network, name)


if __name__ == "__main__":
    main()
