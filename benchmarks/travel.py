"""What it costs to send a model: seconds to write it down, to compare it, and to make it again; beside Keras' archive.

Usage: python benchmarks/travel.py [repeats]
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")

import keras
import numpy as np

from elephas_like.core.types import Update
from elephas_like.exchange import protocol, wire
from elephas_like.trainer import spec
from elephas_like.trainer.spec import Carry, ModelSpec
from elephas_like.trainer.state import Variables

L = keras.layers


def mlp() -> keras.Model:
    """The MLP of benchmarks/throughput.py."""
    layers = [L.Dense(128, "relu"), L.Dropout(0.2), L.Dense(128, "relu"), L.Dropout(0.2), L.Dense(10, "softmax")]
    model = keras.Sequential([keras.Input((784,)), *layers])
    model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
    return model


def lstm() -> keras.Model:
    """A small recurrent model."""
    model = keras.Sequential([keras.Input((20, 16)), L.Bidirectional(L.LSTM(32)), L.Dense(1)])
    model.compile("adam", "mse")
    return model


def mobile_net() -> keras.Model:
    """154 layers, 2.3 million weights."""
    model = keras.applications.MobileNetV2((32, 32, 3), weights=None, classes=10)
    model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
    return model


def archived(model: keras.Model) -> None:
    """Writes and reads Keras' archive, as models travelled before."""
    with tempfile.TemporaryDirectory() as folder:
        model.save(Path(folder) / "model.keras")
        keras.saving.load_model(Path(folder) / "model.keras", safe_mode=False)


def seconds(call: Callable[[], object], repeats: int) -> float:
    """The median."""
    took = []
    for _ in range(repeats):
        started = time.perf_counter()
        call()
        took.append(time.perf_counter() - started)
    return statistics.median(took)


def row(name: str, model: keras.Model, repeats: int) -> str:
    """A model's line of the table."""

    def written() -> ModelSpec:
        return ModelSpec.from_model(model, Carry.NOTHING)

    def written_first() -> ModelSpec:
        spec._checked.clear()
        return written()

    sent, whole = written(), ModelSpec.from_model(model, Carry.WEIGHTS)
    took = [seconds(call, repeats) for call in (written_first, written, sent.build)]
    sizes = [
        (len(each.program) + sum(value.nbytes for value in each.values if isinstance(value, np.ndarray))) / 1024
        for each in (sent, whole)
    ]
    texts = [*(f"{value:.3f} s" for value in took), *(f"{size:,.0f}" for size in sizes)]
    return f"| {name} | {' | '.join(texts)} | {seconds(lambda: archived(model), repeats):.3f} s |"


def exchanged(frozen: bool) -> float:
    """KiB of an update of a MobileNetV2 whose base is frozen, with what the base holds and without."""
    base = keras.applications.MobileNetV2((32, 32, 3), weights=None, include_top=False, pooling="avg")
    base.trainable = False
    model = keras.Sequential([base, L.Dense(10, "softmax")])
    model.compile("adam", "sparse_categorical_crossentropy")
    model.optimizer.build(model.trainable_variables)
    state = Variables(model).read()
    held = {name: part for name, part in state.parts().items() if name not in ("weights", "learning_rate", "frozen")}
    parts = {"delta": state.weights, **held, "frozen": state.frozen if frozen else state.frozen[:0]}
    update = Update(0, 0, 0, samples=1, steps=1, metrics=np.zeros(2), **parts)
    return wire.nbytes(wire.encode(protocol.Answer(0, update))) / 1024


def main(repeats: int) -> None:
    """Prints the table."""
    print(
        "| model | written and compared | written again | made again | KiB for a fit | KiB with weights | Keras' archive |"
    )
    print("|---|---|---|---|---|---|---|")
    for make in (mlp, lstm, mobile_net):
        model = make()
        model.optimizer.build(model.trainable_variables)
        print(row(make.__name__, model, repeats), flush=True)
    print(f"\nan update of a MobileNetV2 with a frozen base: {exchanged(True):,.0f} KiB whole,", end=" ")
    print(f"{exchanged(False):,.0f} KiB without what the base holds")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 5)
