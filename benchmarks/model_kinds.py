"""Models of other kinds than the grid's MLP, averaged: a convolutional and a recurrent one, and a small transformer on text.

    python benchmarks/model_kinds.py [--models conv lstm text] [--seeds 0 1] [--docs docs/convergence.md]

The cells are those of convergence.py in budget B: as many steps as one process takes, at a global batch of 32. Results are appended to
`--results`, and what is there is not run again.

    conv    MNIST-5k as images: two convolutions with BatchNormalization; 5 epochs; accuracy in percent
    lstm    digits as sequences of 8 rows: LSTM of 32 units; 10 epochs; accuracy in percent
    text    the reference manual that Python brings (`pydoc_data.topics`), 6,000 windows of 64 characters, each of which is predicted
            from those before it: one causal attention block; 5 epochs; perplexity. "sorted" is the order of the text: a worker has a
            part of the manual of its own
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import convergence
import keras
import numpy as np

from elephas_like import SparkModel
from elephas_like.rows.spool import Block

Rows = tuple[np.ndarray, np.ndarray, np.ndarray]
"""Features, labels, and the kind of each row: by kinds rows are sorted and held out."""
layers = keras.layers
WINDOW, WINDOWS = 64, 6000


@cache
def image_rows() -> Rows:
    """MNIST-5k."""
    x, y = convergence.rows_of("mnist")
    return x.reshape(-1, 28, 28, 1), y, y


@cache
def sequence_rows() -> Rows:
    """Digits, row by row."""
    x, y = convergence.rows_of("digits")
    return x.reshape(-1, 8, 8), y, y


@cache
def text_rows() -> Rows:
    """Windows of text that do not overlap, as numbers of characters; of ten kinds, by place."""
    from pydoc_data.topics import topics

    text = "".join(topics[name] for name in sorted(topics)).encode("ascii", "replace")[: WINDOW * WINDOWS]
    numbers = np.frombuffer(text, np.uint8).astype(np.int32)
    numbers = np.where((numbers >= 32) & (numbers < 127), numbers - 31, 0).reshape(WINDOWS, WINDOW)
    return numbers[:, :-1], numbers[:, 1:], np.arange(WINDOWS) * 10 // WINDOWS


def conv() -> list[keras.KerasTensor]:
    """Input and output of the convolutional model."""
    inputs = x = keras.Input((28, 28, 1))
    for filters in (8, 16):
        x = layers.Conv2D(filters, 3, use_bias=False)(x)
        x = layers.Activation("relu")(layers.BatchNormalization()(x))
        x = layers.MaxPooling2D()(x)
    return [inputs, layers.Dense(10, activation="softmax")(layers.Flatten()(x))]


def lstm() -> list[keras.KerasTensor]:
    """Input and output of the recurrent model."""
    inputs = keras.Input((8, 8))
    return [inputs, layers.Dense(10, activation="softmax")(layers.LSTM(32)(inputs))]


def text() -> list[keras.KerasTensor]:
    """Input and output of the transformer."""
    inputs = keras.Input((WINDOW - 1,), dtype="int32")
    places = keras.ops.cumsum(keras.ops.ones_like(inputs), axis=1) - 1
    x = layers.Embedding(96, 48)(inputs) + layers.Embedding(WINDOW - 1, 48)(places)
    normal = layers.LayerNormalization()(x)
    x = x + layers.MultiHeadAttention(4, 12)(normal, normal, use_causal_mask=True)
    x = x + layers.Dense(48)(layers.Dense(96, activation="gelu")(layers.LayerNormalization()(x)))
    return [inputs, layers.Dense(96, activation="softmax")(layers.LayerNormalization()(x))]


@dataclass(frozen=True)
class Kind:
    """A kind of model, and what it is trained on."""

    rows: Callable[[], Rows]
    tensors: Callable[[], list[keras.KerasTensor]]
    epochs: int
    rate: float

    def model(self, seed: int) -> keras.Model:
        """The compiled model."""
        keras.utils.set_random_seed(seed)
        model = keras.Model(*self.tensors())
        model.compile(keras.optimizers.Adam(self.rate), "sparse_categorical_crossentropy", metrics=["accuracy"])
        return model


KINDS = {
    "conv": Kind(image_rows, conv, 5, 0.001),
    "lstm": Kind(sequence_rows, lstm, 10, 0.003),
    "text": Kind(text_rows, text, 5, 0.003),
}
PLACES = {
    "K = 8, at random": "iid/K8",
    "K = 8, sorted": "sorted/K8",
    "K = 32, at random": "iid/K32",
    "K = 32, sorted": "sorted/K32",
}
METHODS = ("defaults", "asynchronous", "downpour_adagrad", "elephas_newest")


def run(cell: convergence.Cell, seed: int) -> dict[str, object]:
    """Train one cell; the test rows' accuracy in percent, or the perplexity of text."""
    kind = KINDS[cell.data]
    x, y, kinds = kind.rows()
    train, test = convergence.held_out(kinds, seed)
    model = kind.model(seed)
    if cell.method == "keras":
        model.fit(x[train], y[train], epochs=kind.epochs, batch_size=cell.batch, verbose=0)
    else:
        shares = convergence.parts(cell.split, kinds, np.sort(train), cell.workers, seed)
        blocks = [Block((x[rows], y[rows]), len(rows)) for rows in shares]
        fitted = SparkModel(model, seed=seed, **convergence.options_of(cell, 0))
        fitted.fit(blocks, epochs=kind.epochs, batch_size=cell.batch, verbose=0)
    loss, accuracy = model.evaluate(x[test], y[test], verbose=0)
    value = math.exp(loss) if cell.data == "text" else 100 * accuracy
    return {"cell": str(cell), "seed": seed, "value": value}


def wanted(models: Sequence[str]) -> list[convergence.Cell]:
    """The cells of the table."""
    cells = [convergence.Cell(name, "iid", 1, "B", "keras") for name in models]
    return cells + [
        convergence.Cell.of(f"{name}/{place}/B/{method}")
        for name in models
        for method in METHODS
        for place in PLACES.values()
    ]


def table(results: convergence.Results) -> str:
    """A row for each model and method."""
    lines = [f"| model | method | one process | {' | '.join(PLACES)} |", f"|---|---|---|{'---|' * len(PLACES)}"]
    for name in KINDS:
        alone = results.values(convergence.Cell(name, "iid", 1, "B", "keras"), "value")
        for method in METHODS:
            cells = [convergence.Cell.of(f"{name}/{place}/B/{method}") for place in PLACES.values()]
            found = [results.values(cell, "value") for cell in cells]
            if any(found) and alone:
                told = [f"{np.mean(values):.1f}" if values else "" for values in (alone, *found)]
                lines.append(f"| {name} | {method} | {' | '.join(told)} |")
    return "\n".join(lines)


def main() -> None:
    """Run what is missing, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="*", choices=KINDS, default=list(KINDS))
    parser.add_argument("--seeds", nargs="*", type=int, default=[0, 1])
    parser.add_argument("--results", type=Path, default=convergence.HERE / "results" / "model_kinds.jsonl")
    parser.add_argument("--tables", action="store_true", help="run nothing")
    parser.add_argument("--docs", type=Path, help="a document to write the table into")
    arguments = parser.parse_args()
    results = convergence.Results(arguments.results)
    for seed in [] if arguments.tables else arguments.seeds:
        for cell in wanted(arguments.models):
            if not results.has(cell, seed):
                result = run(cell, seed)
                results.add(result)
                print(json.dumps(result), file=sys.stderr, flush=True)
    found = table(results)
    print(found)
    if arguments.docs:
        convergence.put(arguments.docs, model_kinds=found)


if __name__ == "__main__":
    main()
