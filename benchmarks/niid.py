"""The label splits of NIID-Bench on the whole of MNIST and CIFAR-10, beside the numbers that are published for them.

    python benchmarks/niid.py --data DIR                         # the whole grid: hours on two cores; goes on where it stopped
    python benchmarks/niid.py --data DIR --cells 'mnist/labels1/K10/*' --seeds 0
    python benchmarks/niid.py --tables --docs docs/convergence.md   # what is there, into the document

DIR has `mnist.npz`, as Keras keeps it, and for CIFAR-10 an archive `cifar10-jpeg.zip` of `train/<class>/<number>.jpg` and
`test/<class>/<number>.jpg`. Without --data, both are Keras' own (`keras.datasets`): CIFAR-10 then is not compressed as JPEG.

A cell is `data/split/K<workers>/method`. Results are appended to `--results`, one line of JSON a run.

    data      mnist (60,000 + 10,000 images), cifar10 (50,000 + 10,000)
    split     labels1, labels2: each worker has rows of one or two labels, and the workers that share a label share its rows
              equally ("#C = 1" and "#C = 2" of NIID-Bench); iid
    method    defaults  10 epochs, a fiftieth of the published rows' samples, and as many exchanges as "auto" makes; with this
                        optimizer the default strategy is a plain average
              nesterov  the same with the outer step that is the default for Adam
              batch     10 epochs, an exchange after every batch of each worker, nesterov
              sqrt      the same as a plain average, the learning rate times the square root of the number of workers
              rounds    nesterov in 50 epochs of one exchange each: the published number of rounds, a tenth of the samples
              fedavg    as rounds, a plain average with fresh optimizer slots: what the published FedAvg does, with one local
                        epoch in place of ten
              keras     one process, 10 epochs, batch 64

The network is that of NIID-Bench (two convolutions of 6 and 16 filters, dense layers of 120 and 84), as are the optimizer (SGD,
0.01, momentum 0.9) and the batch of a worker, 64. The published rows train ten local epochs in each of 50 rounds: 30 million
samples on MNIST. The last round's test accuracy is shown, and the best one of all epochs, which is what the published tables have.
A fit that ends with NaN is shown as "diverges".
"""

from __future__ import annotations

import argparse
import fnmatch
import math
import platform
import sys
import time
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import keras
import numpy as np
from convergence import Results, put

from elephas_like import SparkModel
from elephas_like.core.errors import NonFiniteError
from elephas_like.rows.spool import Block

HERE = Path(__file__).resolve().parent
BATCH, CLASSES = 64, 10
METHODS: dict[str, tuple[int, dict[str, object]]] = {
    "keras": (10, {}),
    "defaults": (10, {}),
    "nesterov": (10, {"strategy": "nesterov"}),
    "batch": (10, {"frequency": "batch", "strategy": "nesterov"}),
    "sqrt": (10, {"frequency": "batch", "strategy": "average", "scale_learning_rate": "sqrt"}),
    "rounds": (50, {"frequency": "epoch", "strategy": "nesterov"}),
    "fedavg": (50, {"frequency": "epoch", "strategy": "average", "optimizer_state": "reset"}),
    "variates": (10, {"control_variates": True}),
}
"""Epochs, and arguments of SparkModel."""
PUBLISHED = {
    ("mnist", "labels1"): (19.3, 9.9, 51.8, 52.6),
    ("mnist", "labels2"): (96.9, 96.9, 96.9, 96.7),
    ("cifar10", "labels1"): (10.0, 10.0, 12.7, 10.0),
    ("cifar10", "labels2"): (51.2, 49.4, 50.4, 46.9),
}
"""FedAvg, SCAFFOLD, FedProx, FedNova on ten workers: best round of 50, as Flower reproduces NIID-Bench (baselines/niid_bench)."""


@dataclass(frozen=True)
class Cell:
    """One place of the table."""

    data: str
    split: str
    workers: int
    method: str

    def __str__(self) -> str:
        return f"{self.data}/{self.split}/K{self.workers}/{self.method}"


def grid() -> Iterator[Cell]:
    """Every cell, the cheap ones first."""
    for workers in (10, 32):
        for methods in (("defaults", "nesterov", "batch", "sqrt", "variates"), ("rounds", "fedavg")):
            for data in ("mnist", "cifar10"):
                yield Cell(data, "iid", 1, "keras")
                for split in ("labels1", "labels2", "iid"):
                    yield from (Cell(data, split, workers, method) for method in methods)


# --- data


@cache
def images(name: str, folder: Path | None) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """(x, y, x_test, y_test): (rows, side, side, channels) bytes and integer labels."""
    if name == "mnist":
        given = None if folder is None else np.load(folder / "mnist.npz")
        (x, y), (x_test, y_test) = (
            keras.datasets.mnist.load_data()
            if given is None
            else ((given["x_train"], given["y_train"]), (given["x_test"], given["y_test"]))
        )
        return x[..., None], y.astype("int64"), x_test[..., None], y_test.astype("int64")
    if folder is None:
        (x, y), (x_test, y_test) = keras.datasets.cifar10.load_data()
        return x, y.ravel().astype("int64"), x_test, y_test.ravel().astype("int64")
    from io import BytesIO

    from PIL import Image

    with zipfile.ZipFile(folder / "cifar10-jpeg.zip") as archive:
        names = sorted(name for name in archive.namelist() if name.endswith(".jpg"))
        classes = sorted({name.split("/")[1] for name in names})
        found: dict[str, tuple[list[np.ndarray], list[int]]] = {"train": ([], []), "test": ([], [])}
        for each in names:
            part, label, _ = each.split("/")
            found[part][0].append(np.asarray(Image.open(BytesIO(archive.read(each))).convert("RGB")))
            found[part][1].append(classes.index(label))
    return (*map(np.array, found["train"]), *map(np.array, found["test"]))  # type: ignore[return-value]


def parts(split: str, labels: np.ndarray, workers: int, seed: int) -> list[np.ndarray]:
    """The rows of each worker. Every row is one worker's."""
    random = np.random.default_rng([seed, 3])
    rows = random.permutation(len(labels))
    if split == "iid":
        return np.array_split(rows, workers)
    count = int(split.removeprefix("labels"))
    wanted = [{worker % CLASSES} for worker in range(workers)]  # each label has somebody
    for mine in wanted:
        while len(mine) < count:
            mine.add(int(random.integers(CLASSES)))
    found: list[list[np.ndarray]] = [[] for _ in range(workers)]
    for label in range(CLASSES):
        holders = [worker for worker, mine in enumerate(wanted) if label in mine]
        for worker, share in zip(holders, np.array_split(rows[labels[rows] == label], len(holders)), strict=True):
            found[worker].append(share)
    return [random.permutation(np.concatenate(shares)) for shares in found]


def network(shape: Sequence[int], seed: int) -> keras.Model:
    """The SimpleCNN of NIID-Bench, compiled."""
    keras.utils.set_random_seed(seed)
    layers = keras.layers
    model = keras.Sequential(
        [
            keras.Input(tuple(shape), dtype="uint8"),
            layers.Rescaling(1 / 127.5, offset=-1),
            *(
                layer
                for filters in (6, 16)
                for layer in (layers.Conv2D(filters, 5, activation="relu"), layers.MaxPooling2D())
            ),
            layers.Flatten(),
            layers.Dense(120, activation="relu"),
            layers.Dense(84, activation="relu"),
            layers.Dense(CLASSES, activation="softmax"),
        ]
    )
    optimizer = keras.optimizers.SGD(0.01, momentum=0.9)
    model.compile(optimizer, "sparse_categorical_crossentropy", metrics=["accuracy"])
    return model


# --- one run


class Tested(keras.callbacks.Callback):
    """The test accuracy after each epoch, in percent."""

    def __init__(self, x: np.ndarray, y: np.ndarray) -> None:
        super().__init__()
        self.found: list[float] = []
        self._x, self._y = x, y

    def on_epoch_end(self, epoch, logs=None):
        decided = self.model.predict(self._x, batch_size=1000, verbose=0).argmax(axis=1)
        self.found.append(100 * float(np.mean(decided == self._y)))


def run(cell: Cell, seed: int, folder: Path | None) -> dict[str, object]:
    """Trains one cell with one seed."""
    x, y, x_test, y_test = images(cell.data, folder)
    model, tested, (epochs, options) = network(x.shape[1:], seed), Tested(x_test, y_test), METHODS[cell.method]
    began, exchanges = time.perf_counter(), 0
    if cell.method == "keras":
        model.fit(x, y, epochs=epochs, batch_size=BATCH, verbose=0, callbacks=[tested])
    else:
        blocks = [Block((x[rows], y[rows]), len(rows)) for rows in parts(cell.split, y, cell.workers, seed)]
        fitted = SparkModel(model, cell.workers, engine="in_process", batch_size=BATCH, seed=seed, **options)  # type: ignore[arg-type]
        try:
            exchanges = len(fitted.fit(blocks, epochs=epochs, verbose=0, callbacks=[tested]).rounds)
        except NonFiniteError:
            tested.found.append(math.nan)
    return {
        "cell": str(cell),
        "seed": seed,
        "accuracy": tested.found[-1],
        "best": np.nanmax([0.0, *tested.found]),
        "epochs": tested.found,
        "exchanges": exchanges,
        "samples": epochs * len(x),
        "seconds": time.perf_counter() - began,
    }


# --- tables


def shown(results: Results, cell: Cell) -> str:
    """`last / best, exchanges`, means over seeds, with the spread of the last."""
    last = results.values(cell)  # type: ignore[arg-type]
    if not last:
        return ""
    if np.isnan(last).any():
        return "diverges"
    best, exchanges = (np.mean(results.values(cell, field)) for field in ("best", "exchanges"))  # type: ignore[arg-type]
    spread = f" ± {np.std(last, ddof=1):.1f}" if len(last) > 1 else ""
    return f"{np.mean(last):.1f}{spread} / {best:.1f}, {exchanges:.0f}"


def table(results: Results) -> str:
    """All cells, beside the published numbers."""
    methods = [name for name in METHODS if name != "keras"]
    lines = [
        f"| data, split | workers | {' | '.join(methods)} | published: FedAvg, SCAFFOLD, FedProx, FedNova |",
        f"|---|---|{'---|' * len(methods)}---|",
    ]
    for data in ("mnist", "cifar10"):
        for split in ("labels1", "labels2", "iid"):
            for workers in (10, 32):
                texts = [shown(results, Cell(data, split, workers, method)) for method in methods]
                published = PUBLISHED.get((data, split), ()) if workers == 10 else ()
                if any(texts):
                    told = ", ".join(map(str, published))
                    lines.append(f"| {data}, {split} | {workers} | {' | '.join(texts)} | {told} |")
        alone = results.values(Cell(data, "iid", 1, "keras"))  # type: ignore[arg-type]
        if alone:
            lines.append(f"| {data}, one process, 10 epochs | 1 | {np.mean(alone):.1f} |{' |' * len(methods)}")
    return "\n".join(lines)


def main() -> None:
    """Runs what is missing and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="the folder of the images")
    parser.add_argument("--cells", nargs="*", default=["*"], help="patterns of cells")
    parser.add_argument("--seeds", nargs="*", type=int, default=[0])
    parser.add_argument("--results", type=Path, default=HERE / "results" / "niid.jsonl")
    parser.add_argument("--tables", action="store_true", help="run nothing")
    parser.add_argument("--docs", type=Path, help="a document to write the table into")
    parser.add_argument("--limit-seconds", type=float, default=float("inf"), help="begin no run after so long")
    arguments = parser.parse_args()
    results, began = Results(arguments.results), time.perf_counter()
    for seed in arguments.seeds if not arguments.tables else ():
        for cell in grid():
            late = time.perf_counter() - began > arguments.limit_seconds
            named = any(fnmatch.fnmatch(str(cell), pattern) for pattern in arguments.cells)
            if late or not named or results.has(cell, seed):  # type: ignore[arg-type]
                continue
            found = run(cell, seed, arguments.data)
            results.add(found)
            print(
                f"{cell}, seed {seed}: {found['accuracy']:.1f}, {found['seconds']:.0f} s", file=sys.stderr, flush=True
            )
    print(f"Python {platform.python_version()}, Keras {keras.__version__}, {platform.machine()}\n")
    print(table(results))
    if arguments.docs:
        put(arguments.docs, niid=table(results))


if __name__ == "__main__":
    main()
