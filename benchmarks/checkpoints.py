"""What a checkpoint costs: seconds to write and to read one, and its size, in a local directory.

    python benchmarks/checkpoints.py [rounds]

Two models with Adam: the MLP of the other benchmarks, and one of 25 million weights; the first also with eight workers that keep
optimizer slots of their own. Medians, with the fastest and the slowest.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

os.environ |= {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1"}

import keras

from elephas_like.core.progress import FitProgress
from elephas_like.core.strategies import Nesterov
from elephas_like.core.types import Joined
from elephas_like.model.checkpoints import Checkpoints
from elephas_like.trainer.callbacks import DriverHooks
from elephas_like.trainer.request import FitSeeds


def mlp(inputs: int, units: int, layers: int) -> keras.Model:
    hidden = [keras.layers.Dense(units, "relu") for _ in range(layers)]
    model = keras.Sequential([keras.Input((inputs,)), *hidden, keras.layers.Dense(10, "softmax")])
    model.compile("adam", "sparse_categorical_crossentropy")
    model.optimizer.build(model.trainable_variables)
    return model


def measured(model: keras.Model, rounds: int, workers: int = 0) -> None:
    """workers: those that keep slots of their own."""
    hooks = DriverHooks(model, (), epochs=1, verbose=0)
    state, _ = hooks.train_begin(0)
    memories = {worker: {"slots": state.slots} for worker in range(workers)} or None
    progress = FitProgress(state, outer=Nesterov().init(state.weights), memories=memories)
    written, read, size = [], [], 0
    with tempfile.TemporaryDirectory() as folder:
        checkpoints = Checkpoints(folder, None, None)
        checkpoints.begin({}, FitSeeds(0), 0, hooks, None)
        checkpoints.workers_joined([Joined(0, 0, "", 1, 0, "")], progress)
        for _ in range(rounds):
            started = time.perf_counter()
            checkpoints.save(progress, due=True)
            written.append(time.perf_counter() - started)
            started = time.perf_counter()
            found = Checkpoints(folder, None, None).found(True)
            assert found is not None
            found.progress(state)
            read.append(time.perf_counter() - started)
        size = sum(path.stat().st_size for path in Path(folder).glob("*-0.*"))
    for what, seconds in (("write", written), ("read", read)):
        print(
            f"{model.count_params():>10,} weights, {workers} workers' slots, {size / 2**20:6.1f} MiB: {what:5s} {statistics.median(seconds):.3f} s "
            f"({min(seconds):.3f} to {max(seconds):.3f})"
        )


def main(rounds: int = 7) -> None:
    measured(mlp(784, 128, 1), rounds)
    measured(mlp(784, 128, 1), rounds, workers=8)
    measured(mlp(2048, 2048, 6), rounds)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
