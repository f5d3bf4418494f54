"""Milliseconds of CPU to move a state in and out of a model: by Keras' own calls, and as workers do it.

    python benchmarks/state.py [--times 50]

An MLP 784-128-128-10 with SGD, and twenty dense layers with BatchNorm and Adam. A model's metrics are reset and read besides.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")

import keras
import numpy as np

from elephas_like.trainer.building import build
from elephas_like.trainer.state import Variables, read_metrics
from elephas_like.trainer.tensors import limit_threads

layers = keras.layers


def compiled(width: int, hidden: list[keras.layers.Layer], optimizer: str) -> keras.Model:
    model = keras.Sequential([keras.Input((width,)), *hidden, layers.Dense(10, "softmax")])
    model.compile(optimizer, "sparse_categorical_crossentropy", metrics=["accuracy"])
    build(model, (np.zeros((1, width), np.float32), np.zeros(1, np.int64)))
    return model


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", type=int, default=50)
    times = parser.parse_args().times
    limit_threads(1)
    deep = [layer for _ in range(20) for layer in (layers.Dense(64, "relu"), layers.BatchNormalization())]
    print("| model | variables | Keras' calls, ms | ours, ms | times |\n|---|---|---|---|---|")
    for name, model in (
        ("MLP, SGD", compiled(784, [layers.Dense(128, "relu"), layers.Dense(128, "relu")], "sgd")),
        ("20 dense layers with BatchNorm, Adam", compiled(64, deep, "adam")),
    ):
        variables = Variables(model)
        state = variables.read()
        own = [*model.trainable_variables, *model.non_trainable_variables, *model.optimizer.variables]
        values = [variable.numpy() for variable in own]

        def keras_calls(model: keras.Model = model, own: list = own, values: list = values) -> None:
            for variable, value in zip(own, values, strict=True):
                variable.assign(value)
            model.reset_metrics()
            for variable in [*own, *model.metrics_variables]:
                keras.ops.convert_to_numpy(variable.value)

        def ours(model: keras.Model = model, variables: Variables = variables, state: object = state) -> None:
            variables.write(state)
            model.reset_metrics()
            variables.read()
            read_metrics(model)

        theirs, mine = milliseconds(keras_calls, times), milliseconds(ours, times)
        print(f"| {name} | {len(own)} | {theirs:.1f} | {mine:.1f} | {theirs / mine:.1f} |")


def milliseconds(call: Callable[[], None], times: int) -> float:
    """CPU time of a call, the mean of many."""
    call()
    started = time.process_time()
    for _ in range(times):
        call()
    return 1000 * (time.process_time() - started) / times


if __name__ == "__main__":
    main()
