"""What averaging costs in accuracy, beside single-process Keras: every number of docs/convergence.md.

    python benchmarks/convergence.py --quick                                   # digits, 8 workers: a minute or two
    python benchmarks/convergence.py --cells 'mnist/sorted/K8/B/*' --seeds 0 1 # cells by pattern
    python benchmarks/convergence.py                                           # the whole grid: hours on two cores
    python benchmarks/convergence.py --tables --plot out/convergence.png       # from the results that are there
    python benchmarks/convergence.py --tables --docs docs/convergence.md       # the same into the document

A cell is `data/split/K<workers>/budget/method`. Each is run with several seeds; a seed decides the test rows, the split,
the initial weights and the order of the rows, and single-process Keras is run with the same seed: differences are
paired. Results are appended to `--results`, one line of JSON a run, and what is there is not run again.

    data      digits (1,797 images of 8 x 8), mnist (the 5,000 images of MNIST-5k); a fifth of each class is the test
    split     iid; shards2 (two blocks of one label each a worker); sorted (rows sorted by label, cut in K); unequal
              (dealt at random, the largest share eight times the smallest); "+10" behind it: 10 % of each worker's rows are
              mixed with the others', as by `shard(..., mix=0.1)`
    budget    B: the global batch is 32 (a worker's 32/K), digits 10 epochs, mnist 5: as many steps as one process takes
              A: a worker's batch is 16, 10 epochs: K workers take a K-th of the steps
    method    defaults, or what METHODS says; every name of a strategy is one too. "@server" behind it: real Spark

The model is d-64-32-10 with relu, Adam 1e-3; the engine is in_process: the library's own workers, one after the other.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import os
import platform
import re
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import ClassVar

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")
os.environ.setdefault("PYSPARK_PYTHON", sys.executable)

import keras
import numpy as np
import tensorflow as tf

from elephas_like import SparkModel
from elephas_like.core.rounds import AUTO_ROUNDS
from elephas_like.core.strategies import CODECS, STRATEGIES
from elephas_like.core.types import Mode
from elephas_like.rows.spool import Block
from elephas_like.strategies import (
    Average,
    Clipped,
    KerasOuter,
    Nesterov,
    OneBit,
    PostLocal,
    QuadraticSynchronization,
)

tf.config.threading.set_intra_op_parallelism_threads(1)  # before METHODS makes an optimizer
tf.config.threading.set_inter_op_parallelism_threads(1)

HERE = Path(__file__).resolve().parent
EPOCHS = {("digits", "B"): 10, ("mnist", "B"): 5, ("digits", "A"): 10, ("mnist", "A"): 10}
GLOBAL_BATCH, WORKER_BATCH = 32, 16
WORKERS = (1, 2, 4, 8, 16, 32)
SPLITS = ("iid", "shards2", "sorted", "unequal")
GRID = ("defaults", "average", "one_shot", "asynchronous")
SMALLER = tuple(codec for codec in CODECS if codec != "fp32")  # fp32 is what is sent without a codec
BOTH_WAYS = ("int8", "int4")
"""What packs updates and states alike."""
INT8_BOTH = {"codec": "int8", "state_codec": "int8"}
EVERY = (3, 6)
"""Rounds from one average of the optimizer's slots to the next, as in DES-LOC (Iacob et al., arXiv:2505.22549)."""


@dataclass(frozen=True)
class EqualNesterov(Nesterov):
    """The default strategy, every worker counted alike whatever its rows."""

    name: ClassVar[str] = "equal"

    def weight(self, update, context):
        return float(update.samples > 0)


@dataclass(frozen=True)
class EqualAverage(Average):
    """Averaging as Elephas did it: every worker counts alike."""

    name: ClassVar[str] = "equal average"

    def weight(self, update, context):
        return float(update.samples > 0)


METHODS: dict[str, dict[str, object]] = {
    "defaults": {},
    "asynchronous": {"mode": "asynchronous"},
    "elephas": {"strategy": EqualAverage(), "frequency": "fit"},
    "elephas_newest": {"strategy": EqualAverage(), "frequency": "epoch", "optimizer_state": "reset"},
    "five_rounds": {"frequency": "fixed"},
    "epoch": {"frequency": "epoch"},
    "per_worker": {"optimizer_state": "per_worker"},
    "reset": {"optimizer_state": "reset"},
    "async_five_rounds": {"mode": "asynchronous", "frequency": "fixed"},
    "async_per_worker": {"mode": "asynchronous", "optimizer_state": "per_worker"},
    "async_reset": {"mode": "asynchronous", "optimizer_state": "reset"},
    "hogwild": {"mode": "hogwild"},
    "momentum_85": {"strategy": Nesterov(momentum=0.85)},
    "rate_sqrt": {"scale_learning_rate": "sqrt"},
    "rate_linear": {"scale_learning_rate": "linear"},
    "equal": {"strategy": EqualNesterov()},
    "average_epoch": {"strategy": "average", "frequency": "epoch"},
    "equal_average_epoch": {"strategy": EqualAverage(), "frequency": "epoch"},
    **{codec: {"codec": codec} for codec in SMALLER},
    **{f"{codec}_both": {"codec": codec, "state_codec": codec} for codec in BOTH_WAYS},
    **{
        f"{codec}_both_per_worker": {"codec": codec, "state_codec": codec, "optimizer_state": "per_worker"}
        for codec in BOTH_WAYS
    },
    "per_worker_five": {"optimizer_state": "per_worker", "frequency": "fixed"},
    **{f"slots_{every}": {"optimizer_state_every": every} for every in EVERY},
    "variates": {"control_variates": True},
    "variates_five": {"control_variates": True, "frequency": "fixed"},
    "variates_epoch": {"control_variates": True, "frequency": "epoch"},
    "int8_both_per_worker_five": {**INT8_BOTH, "optimizer_state": "per_worker", "frequency": "fixed"},
    **{f"int8_both_slots_{every}": {**INT8_BOTH, "optimizer_state_every": every} for every in EVERY},
    "one_bit_256": {"codec": OneBit(block=256)},
    "clipped": {"strategy": Nesterov(reduce=Clipped(1.0))},
    "keras_adam": {"strategy": KerasOuter(keras.optimizers.Adam(0.01))},
    "post_local": {"strategy": "average", "frequency": PostLocal(16, after=1)},
    "quadratic": {"strategy": "average", "frequency": QuadraticSynchronization(0.004)},  # 16 steps at Adam's 1e-3
}
"""Arguments of SparkModel by the name of a method."""
OTHERS = ("epoch", "elephas_newest", "clipped", "keras_adam", "post_local", "quadratic")
"""Schedules, Elephas 7.3, a part, and a Keras optimizer as the outer step."""
MIXED = (5, 10, 20)
"""Percent of a worker's rows that are mixed with the others'."""
LENGTHS = {"epoch": "1", "five_rounds": "5", "defaults": "5 to 20"}
"""Methods of the table of mixed rows, and the exchanges of an epoch."""
WEIGHED = {"defaults": "equal", "average_epoch": "equal_average_epoch", "one_shot": "elephas"}
"""What weighs workers by their rows, and the same with equal weights: for T8."""


@dataclass(frozen=True)
class Cell:
    """One place of the table."""

    data: str
    split: str
    workers: int
    budget: str
    method: str

    @classmethod
    def of(cls, text: str) -> Cell:
        data, split, workers, budget, method = text.split("/")
        return cls(data, split, int(workers[1:]), budget, method)

    def __str__(self) -> str:
        return f"{self.data}/{self.split}/K{self.workers}/{self.budget}/{self.method}"

    @property
    def single(self) -> Cell:
        """Keras alone on the same rows."""
        return Cell(self.data, "iid", 1, self.budget, "keras")

    @property
    def epochs(self) -> int:
        return EPOCHS[self.data, self.budget]

    @property
    def batch(self) -> int:
        """Rows a batch of one worker."""
        return max(1, GLOBAL_BATCH // self.workers) if self.budget == "B" else WORKER_BATCH

    def seeds(self) -> tuple[int, ...]:
        """Those of the whole grid: five for the defaults at 8 and 32 workers, three elsewhere; two where slots travel less often at 32."""
        if self.workers == 32 and self.method in FEWER:
            return (0, 1)
        many = (
            self.method == "keras"
            or (self.method == "defaults" and self.workers in (8, 32))
            or (self.method in SMALLER and self.split == "iid")  # T7 asks for tenths of a point
            or ("_both" in self.method and self.split == "iid" and self.workers == 8)  # T13 too
            or (
                self.method in {*WEIGHED, *WEIGHED.values()} and self.split == "unequal" and self.workers == 8
            )  # T8 too
        )
        return tuple(range(5 if many else 3))


# --- data


@cache
def rows_of(data: str) -> tuple[np.ndarray, np.ndarray]:
    """All images, flat, between 0 and 1, and their labels."""
    if data == "digits":
        from sklearn.datasets import load_digits

        x, y = load_digits(return_X_y=True)
        return (x / 16).astype(np.float32), y.astype(np.int64)
    sys.path.insert(0, str(HERE.parent / "examples"))
    from mnist_data import load

    x, y, x_test, y_test = load()
    return np.concatenate([x, x_test]), np.concatenate([y, y_test])


def held_out(labels: np.ndarray, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Training rows in random order, and a fifth of each class to test on."""
    random = np.random.default_rng([seed, 1])
    by_class = [random.permutation(np.flatnonzero(labels == label)) for label in np.unique(labels)]
    test = np.sort(np.concatenate([rows[: round(len(rows) / 5)] for rows in by_class]))
    return random.permutation(np.setdiff1d(np.arange(len(labels)), test)), test


def parts(split: str, labels: np.ndarray, rows: np.ndarray, workers: int, seed: int) -> list[np.ndarray]:
    """The rows of each worker."""
    split, _, percent = split.partition("+")
    if percent:
        return swapped(parts(split, labels, rows, workers, seed), int(percent) / 100, seed)
    random = np.random.default_rng([seed, 2])
    rows = random.permutation(rows)
    if split == "iid":
        return np.array_split(rows, workers)
    if split == "unequal":
        shares = np.linspace(1, 8, workers)
        ends = np.round(shares.cumsum() / shares.sum() * len(rows)).astype(int)
        return np.split(rows, ends[:-1])
    by_label = rows[np.argsort(labels[rows], kind="stable")]
    if split == "sorted":
        return np.array_split(by_label, workers)
    blocks = np.array_split(by_label, 2 * workers)
    dealt = random.permutation(2 * workers)
    return [np.concatenate([blocks[dealt[2 * i]], blocks[dealt[2 * i + 1]]]) for i in range(workers)]


def swapped(shares: Sequence[np.ndarray], share: float, seed: int) -> list[np.ndarray]:
    """The rows of each worker after a share of each worker's was dealt to all of them, as `shard(..., mix=share)` does."""
    random = np.random.default_rng([seed, 3])
    mine = [np.split(random.permutation(rows), [round(share * len(rows))]) for rows in shares]
    dealt = random.permutation(np.concatenate([left for left, _ in mine]))
    return [np.concatenate([kept, dealt[i :: len(mine)]]) for i, (_, kept) in enumerate(mine)]


def network(features: int, seed: int, *, normalized: bool = False) -> keras.Model:
    keras.utils.set_random_seed(seed)
    layers = keras.layers
    norm = [layers.BatchNormalization()] if normalized else []
    model = keras.Sequential(
        [
            keras.Input((features,)),
            layers.Dense(64, activation="relu"),
            *norm,
            layers.Dense(32, activation="relu"),
            layers.Dense(10, activation="softmax"),
        ]
    )
    model.compile(keras.optimizers.Adam(1e-3), "sparse_categorical_crossentropy", metrics=["accuracy"])
    return model


# --- one run


def options_of(cell: Cell, steps: int) -> dict[str, object]:
    """What SparkModel is given for a method."""
    name, _, engine = cell.method.partition("@")
    if name in METHODS:
        options = dict(METHODS[name])
    elif name in STRATEGIES:
        synchronous = Mode.SYNCHRONOUS in STRATEGIES[name].modes
        options = {"strategy": name, "mode": "synchronous" if synchronous else "asynchronous"}
    else:
        raise SystemExit(f"no method {name!r}; known: {', '.join([*METHODS, *STRATEGIES])}")
    if options.get("frequency") == "fixed":
        options["frequency"] = max(1, -(-steps // AUTO_ROUNDS))
    return options | {"engine": engine or "in_process"}


@contextmanager
def spark(workers: int) -> Iterator[None]:
    """A Spark session with a core for each worker."""
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master(f"local[{workers}]").config("spark.ui.showConsoleProgress", "false")
    session = builder.config("spark.ui.enabled", "false").getOrCreate()
    session.sparkContext.setLogLevel("OFF")
    try:
        yield
    finally:
        session.stop()


def run(cell: Cell, seed: int) -> dict[str, object]:
    """Trains one cell with one seed; test accuracy in percent, test loss, and what the fit's history says."""
    x, y = rows_of(cell.data)
    train, test = held_out(y, seed)
    model = network(x.shape[1], seed)
    started = time.perf_counter()
    told: dict[str, object] = {}
    if cell.method == "keras":
        model.fit(x[train], y[train], epochs=cell.epochs, batch_size=cell.batch, verbose=0)
    else:
        shares = parts(cell.split, y, train, cell.workers, seed)
        blocks = [Block((x[rows], y[rows]), len(rows)) for rows in shares]
        steps = max(-(-len(rows) // cell.batch) for rows in shares)
        fitted = SparkModel(model, seed=seed, **options_of(cell, steps))
        with spark(cell.workers) if "@" in cell.method else nullcontext():
            history = fitted.fit(blocks, epochs=cell.epochs, batch_size=cell.batch, verbose=0)
        drifts = [record.drift for record in history.rounds if record.drift is not None]
        told = {
            "rounds": len(history.rounds),
            "drift": float(np.mean(drifts)) if drifts else None,
            "staleness": float(np.mean([worker.staleness for record in history.rounds for worker in record.workers])),
        }
    seconds = time.perf_counter() - started
    loss, accuracy = model.evaluate(x[test], y[test], verbose=0)
    return {"cell": str(cell), "seed": seed, "accuracy": 100 * accuracy, "loss": loss, "seconds": seconds} | told


# --- the grid


def grid() -> Iterator[Cell]:
    """Every cell of the note, the cheap ones first."""
    found: dict[str, Cell] = {}

    def add(cells: Iterable[Cell]) -> None:
        for cell in cells:
            found.setdefault(str(cell.single), cell.single)
            found.setdefault(str(cell), cell)

    both = ("digits", "mnist")
    for data in both:
        add(Cell(data, s, 8, "B", m) for s in SPLITS for m in ("defaults", "five_rounds", *GRID[1:]))
        add(Cell(data, s, 8, "B", "elephas") for s in SPLITS)
        add(Cell(data, "unequal", 8, "B", m) for pair in WEIGHED.items() for m in pair)
        add(Cell(data, s, 8, "B", m) for m in SMALLER for s in ("iid", "sorted"))
        both_ways = [f"{codec}_both{slots}" for codec in BOTH_WAYS for slots in ("", "_per_worker")]
        add(Cell(data, s, 8, "B", m) for m in both_ways for s in ("iid", "sorted"))
        add(Cell(data, s, 8, "B", m) for m in BYTES for s in ("iid", "sorted"))
        add(Cell(data, "iid", 2, "B", f"{m}{spark}") for m in ("defaults", "asynchronous") for spark in ("", "@server"))
    for data in both:
        add(Cell(data, s, k, "B", m) for k in (32, 2, 4, 16, 1) for s in SPLITS for m in GRID if k > 1 or s == "iid")
        add(Cell(data, s, 8, "B", m) for m in OTHERS for s in ("iid", "sorted"))
        states = ("per_worker", "reset", "async_five_rounds", "async_per_worker", "async_reset")
        add(Cell(data, s, 8, "B", m) for m in states for s in ("iid", "sorted"))
        scaled = ("defaults", "rate_sqrt", "rate_linear")
        add(Cell(data, s, k, "A", m) for k in (8, 32) for s in ("iid", "sorted") for m in scaled)
        add(Cell(data, "iid", 32, budget, "momentum_85") for budget in "BA")
        add(Cell(data, "iid", 32, budget, "nesterov") for budget in "BA")
        others = [name for name in STRATEGIES if name not in ("nesterov", "average", "one_shot", "mla")]
        add(Cell(data, s, 8, "B", m) for m in others for s in ("iid", "sorted"))
    for data in both:
        add(Cell(data, s, 32, "B", m) for m in FEWER for s in ("iid", "sorted"))
        add(
            Cell(data, f"{s}+{p}", k, "B", m)
            for p in MIXED
            for k in (8, 32)
            for s in ("sorted", "shards2")
            for m in LENGTHS
        )
        add(Cell(data, s, k, "B", m) for k in (8, 32) for s in ("iid", "sorted", "shards2") for m in LENGTHS)
        with_variates = ["variates", *(method for _, method in VARIATES.values())]
        add(Cell(data, s, k, "B", m) for k in (8, 32) for s in ("iid", "sorted", "shards2") for m in with_variates)
    return iter(found.values())


def quick() -> Iterator[Cell]:
    """Digits at eight workers."""
    yield Cell("digits", "iid", 1, "B", "keras")
    for split in ("iid", "shards2", "sorted"):
        for method in ("defaults", "five_rounds", "elephas"):
            yield Cell("digits", split, 8, "B", method)


class Results:
    """Runs by cell and seed, kept in a file of JSON lines."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._found: dict[tuple[str, int], Mapping[str, object]] = {}
        for line in path.read_text().splitlines() if path.exists() else []:
            result = json.loads(line)
            self._found[result["cell"], result["seed"]] = result  # a later line replaces an earlier one

    def has(self, cell: Cell, seed: int) -> bool:
        return (str(cell), seed) in self._found

    def add(self, result: Mapping[str, object]) -> None:
        self._found[str(result["cell"]), int(str(result["seed"]))] = result
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("a") as file:
            file.write(json.dumps(result) + "\n")

    def seeds(self, cell: Cell) -> list[int]:
        return sorted(seed for name, seed in self._found if name == str(cell))

    def values(self, cell: Cell, field: str = "accuracy") -> list[float]:
        """One number a seed."""
        return [float(self._found[str(cell), seed][field] or 0) for seed in self.seeds(cell)]

    def value(self, cell: Cell, seed: int, field: str = "accuracy") -> float:
        """One run's number."""
        return float(str(self._found[str(cell), seed][field]))

    def paired(self, cell: Cell, other: Cell, field: str = "accuracy") -> list[float]:
        """Differences to another cell, seed by seed."""
        both = [seed for seed in self.seeds(cell) if self.has(other, seed)]
        return [self._found[str(cell), s][field] - self._found[str(other), s][field] for s in both]

    def cells(self) -> list[Cell]:
        return [Cell.of(name) for name in dict.fromkeys(name for name, _ in self._found)]


# --- tables


def entry(results: Results, cell: Cell) -> str:
    """`mean ± sd (paired difference to Keras)`."""
    values = results.values(cell)
    if not values:
        return ""
    spread = f" ± {np.std(values, ddof=1):.1f}" if len(values) > 1 else ""
    against = results.paired(cell, cell.single) if cell.method != "keras" else []
    return f"{np.mean(values):.1f}{spread}" + (f" ({np.mean(against):+.1f})" if against else "")


def exchanges(results: Results, cell: Cell) -> str:
    """How often a worker exchanged in an epoch; asynchronous rounds are of one worker each."""
    rounds = float(np.mean(results.values(cell, "rounds")))
    if rounds <= 1:
        return "one in all"
    alone = max(results.values(cell, "staleness")) > 0
    return f"{rounds / cell.epochs / (cell.workers if alone else 1):.0f}"


def tables(results: Results) -> str:
    """All results, one table for each data, budget and split, methods down and workers across."""
    cells = results.cells()
    lines = []
    for data in ("digits", "mnist"):
        for budget in ("B", "A"):
            alone = Cell(data, "iid", 1, budget, "keras")
            for split in SPLITS:
                here = [
                    c for c in cells if (c.data, c.split, c.budget) == (data, split, budget) and c.method != "keras"
                ]
                if not here:
                    continue
                columns = sorted({cell.workers for cell in here})
                lines += [
                    f"\n**{data}, {split}, budget {budget}** (Keras alone: {entry(results, alone)})\n",
                    "| method | " + " | ".join(f"K = {k}" for k in columns) + " | exchanges of a worker an epoch |",
                    "|---|" + "---|" * (len(columns) + 1),
                ]
                for method in sorted(
                    {c.method for c in here}, key=lambda m: (m not in GRID, GRID.index(m) if m in GRID else m)
                ):
                    row = [Cell(data, split, k, budget, method) for k in columns]
                    counts = [exchanges(results, cell) for cell in row if results.values(cell)]
                    span = counts[0] if len(set(counts)) == 1 else f"{counts[0]} to {counts[-1]}"
                    lines.append(f"| {method} | " + " | ".join(entry(results, c) for c in row) + f" | {span} |")
    return "\n".join(lines).strip()


def mixed_table(results: Results) -> str:
    """Sorted rows of which a share is mixed, beside rows dealt at random."""
    lines = [
        f"| rows | exchanges an epoch | as they are | {' | '.join(f'{p} % mixed' for p in MIXED)} | dealt at random |",
        f"|---|---|---|{'---|' * len(MIXED)}---|",
    ]
    for data in ("digits", "mnist"):
        for split in ("sorted", "shards2"):
            for workers in (8, 32):
                for method, exchanges in LENGTHS.items():
                    splits = [split, *(f"{split}+{p}" for p in MIXED), "iid"]
                    values = [results.values(Cell(data, s, workers, "B", method))[:3] for s in splits]
                    told = [f"{np.mean(each):.1f}" if each else "" for each in values]
                    if any(values[1:-1]):
                        lines.append(f"| {data}, {split}, K = {workers} | {exchanges} | {' | '.join(told)} |")
    return "\n".join(lines)


VARIATES = {"1": ("epoch", "variates_epoch"), "5": ("five_rounds", "variates_five")}
"""Methods of the table of control variates, without and with them, by the exchanges of an epoch."""


def variates_table(results: Results) -> str:
    """Few exchanges with and without control variates, beside the defaults."""
    columns = [f"{many} an epoch{how}" for many in VARIATES for how in ("", ", control variates")]
    columns += ["the defaults, 5 to 20", "the same, control variates"]
    lines = [f"| rows | {' | '.join(columns)} |", f"|---|{'---|' * len(columns)}"]
    methods = [*(method for pair in VARIATES.values() for method in pair), "defaults", "variates"]
    for data in ("digits", "mnist"):
        for workers in (8, 32):
            for split in ("sorted", "shards2", "iid"):
                values = [results.values(Cell(data, split, workers, "B", method))[:3] for method in methods]
                told = [f"{np.mean(each):.1f}" if each else "" for each in values]
                lines.append(f"| {data}, {split}, K = {workers} | {' | '.join(told)} |")
    return "\n".join(lines)


BASELINES = {
    "Keras alone": "iid/K1/B/keras",
    "Keras with our outer step (`nesterov`), K = 1": "iid/K1/B/nesterov",
    "Elephas 7.3's averages (an epoch, slots reset), K = 8": "iid/K8/B/elephas_newest",
    "the defaults, K = 8": "iid/K8/B/defaults",
    "the defaults, K = 32": "iid/K32/B/defaults",
}


def baseline_table(results: Results) -> str:
    """Accuracy, and the paired difference to Keras alone, of the first three seeds."""

    def told(cell: Cell) -> str:
        values, apart = results.values(cell)[:3], results.paired(cell, cell.single)[:3]
        return f"{np.mean(values):.1f} ({np.mean(apart):+.1f})" if values and apart else ""

    rows = [
        f"| {name} | {' | '.join(told(Cell.of(f'{data}/{cell}')) for data in ('digits', 'mnist'))} |"
        for name, cell in BASELINES.items()
    ]
    return "\n".join(["| rows dealt at random | digits | MNIST-5k |", "|---|---|---|", *rows])


BYTES = {
    "defaults": "the defaults: nothing packed, Adam's slots averaged",
    "slots_3": "slots averaged every 3 rounds",
    "slots_6": "slots averaged every 6 rounds",
    "per_worker": "slots stay on workers",
    "per_worker_five": "the same, five exchanges an epoch",
    "int8": "updates in int8",
    "int8_both": "updates and states in int8",
    "int4_both": "updates and states in int4",
    "int8_both_slots_3": "both in int8, slots averaged every 3 rounds",
    "int8_both_slots_6": "both in int8, slots averaged every 6 rounds",
    "int8_both_per_worker": "both in int8, slots stay on workers",
    "int8_both_per_worker_five": "the same, five exchanges an epoch",
    "int4_both_per_worker": "both in int4, slots stay on workers",
}
"""Rows of the table of bytes, by method."""
FEWER = ("slots_3", "slots_6", "per_worker", "int8_both_slots_6", "int8_both_per_worker")
"""Those that are run with 32 workers, too."""


def bytes_table(results: Results, workers: int) -> str:
    """Bytes of an exchange, both ways together, beside those of the weights.

    Accuracy, the paired difference to the defaults, and the bytes of all exchanges of an epoch beside those of the weights.
    """

    def moved(options: Mapping[str, object]) -> float:
        weights = 10**6
        packed = [
            4 * weights if name not in options else CODECS[str(options[name])]().nbytes(weights)
            for name in ("codec", "state_codec")
        ]
        slots = 2 * 2 * 4 * weights / int(str(options.get("optimizer_state_every", 1)))  # Adam's two, up and down
        slots = 0 if options.get("optimizer_state") == "per_worker" else slots
        return (sum(packed) + slots) / (4 * weights)

    def told(data: str, split: str, method: str) -> str:
        cell, plain = (Cell(data, split, workers, "B", name) for name in (method, "defaults"))
        values, apart = results.values(cell), results.paired(cell, plain)
        if not values or not apart:
            return ""
        epoch = moved(METHODS[method]) * np.mean(results.values(cell, "rounds")) / cell.epochs
        return f"{np.mean(values):.1f} ({np.mean(apart):+.2f}), {epoch:.0f}"

    places = [(data, split) for data in ("digits", "mnist") for split in ("iid", "sorted")]
    head = ["| an exchange | bytes / weights' | digits, IID | digits, sorted | MNIST-5k, IID | MNIST-5k, sorted |", "|---|---|---|---|---|---|"]  # fmt: skip
    rows = [
        f"| {said} | {moved(METHODS[method]):.2f} | {' | '.join(told(*place, method) for place in places)} |"
        for method, said in BYTES.items()
        if any(told(*place, method) for place in places)
    ]
    return "\n".join([*head, *rows])


MEASURED = (("digits", "iid"), ("digits", "sorted"), ("mnist", "iid"), ("mnist", "sorted"))
"""Rows of the column "measured" of docs/strategies.md, on eight workers in budget B."""


def points(results: Results, strategy: str) -> str:
    """A strategy's mean accuracies, "96.0 / 96.1 / 93.0 / 91.1"; "-" for what was not run."""
    method = {"nesterov": "defaults", "mla": "asynchronous"}.get(strategy, strategy)
    values = [results.values(Cell(data, split, 8, "B", method)) for data, split in MEASURED]
    return " / ".join(f"{np.mean(each):.1f}" if each else "-" for each in values)


def write_points(results: Results, page: Path) -> None:
    """Write the last column of the tables of strategies."""
    lines = page.read_text().splitlines()
    for place, line in enumerate(lines):
        name = re.match(r"\| `(\w+)` \|.*\|.*\|.*\|.*\|.*\|.*\|$", line)
        if name is not None and name[1] in STRATEGIES:
            lines[place] = f"{line.rsplit('|', 2)[0]}| {points(results, name[1])} |"
    page.write_text("\n".join(lines) + "\n")


@dataclass(frozen=True)
class Gate:
    """A target: `measured` must be at least `least` (or at most, where `most`)."""

    name: str
    what: str
    target: float
    measured: float | None
    most: bool = False

    def row(self) -> str:
        sign = "≤" if self.most else "≥"
        if self.measured is None:
            return f"| {self.name} | {self.what} | {sign} {self.target:g} | not run | |"
        met = self.measured <= self.target if self.most else self.measured >= self.target
        short = f"no, short by {abs(self.measured - self.target):.2g}"
        return (
            f"| {self.name} | {self.what} | {sign} {self.target:g} | {self.measured:.4g} | {'yes' if met else short} |"
        )


def gates(results: Results) -> str:
    """T1 to T8 and T14 as far as results are there; T9 and T10 are printed by `--checks`."""

    def mean(values: Sequence[float]) -> float | None:
        return float(np.mean(values)) if len(values) else None

    def against_keras(data: str, split: str, k: int, method: str = "defaults") -> float | None:
        cell = Cell(data, split, k, "B", method)
        return mean(results.paired(cell, cell.single))

    def accuracy(data: str, split: str, k: int, budget: str = "B", method: str = "defaults") -> float | None:
        return mean(results.values(Cell(data, split, k, budget, method)))

    def against(data: str, split: str, method: str, other: str) -> float | None:
        return mean(results.paired(Cell(data, split, 8, "B", method), Cell(data, split, 8, "B", other)))

    def loss_ratio(data: str) -> float | None:
        cell = Cell(data, "iid", 8, "B", "defaults")
        seeds = [s for s in results.seeds(cell) if results.has(cell.single, s)]
        ours, theirs = results.values(cell, "loss")[: len(seeds)], results.values(cell.single, "loss")[: len(seeds)]
        return float(np.mean(ours) / np.mean(theirs)) if seeds else None

    def loss_beside(data: str, method: str) -> float | None:
        cell, plain = (Cell(data, "iid", 8, "B", name) for name in (method, "defaults"))
        seeds = [seed for seed in results.seeds(cell) if results.has(plain, seed)]
        both = [[results.value(c, seed, "loss") for seed in seeds] for c in (cell, plain)]
        return float(abs(np.mean(both[0]) / np.mean(both[1]) - 1)) if seeds else None

    found = []
    for data in ("digits", "mnist"):
        for codec, points in (("int8", -0.2), ("int4", -0.3), ("one_bit", -0.5)):
            what = f"{data}, IID, K = 8, {codec}: points to no codec"
            found.append(Gate("T7", what, points, against(data, "iid", codec, "defaults")))
        what = f"{data}, IID, K = 8, int8: share by which the test loss differs from no codec's"
        found.append(Gate("T7", what, 0.01, loss_beside(data, "int8"), most=True))
        found += [
            Gate("T1", f"{data}, IID, K = 8: points to Keras", -0.5, against_keras(data, "iid", 8)),
            Gate("T1", f"{data}, IID, K = 8: test loss / Keras'", 1.10, loss_ratio(data), most=True),
            Gate("T2", f"{data}, IID, K = 32: points to Keras", -1.5, against_keras(data, "iid", 32)),
            Gate("T3", f"{data}, shards2, K = 8: points to Keras", -1.5 if data == "digits" else -2.0, against_keras(data, "shards2", 8)),
            Gate("T4", f"{data}, sorted, K = 8: accuracy", 93 if data == "digits" else 88, accuracy(data, "sorted", 8)),
            Gate("T5", f"{data}, IID, K = 8: points over Elephas' average", 3.5 if data == "digits" else 1.5, against(data, "iid", "defaults", "elephas")),
            Gate("T5", f"{data}, shards2, K = 8: points over Elephas' average", 50 if data == "digits" else 30, against(data, "shards2", "defaults", "elephas")),
            Gate("T6", f"{data}, asynchronous, IID, K = 8: points to Keras", -1.0, against_keras(data, "iid", 8, "asynchronous")),
            Gate("T6", f"{data}, asynchronous, IID, K = 32: points to Keras", -2.0, against_keras(data, "iid", 32, "asynchronous")),
        ]  # fmt: skip
        for method, equal in WEIGHED.items():
            what = f"{data}, unequal, K = 8, {method}: points over equal weights"
            found.append(Gate("T8", what, 0.5, against(data, "unequal", method, equal)))
    for data in ("digits", "mnist"):
        for codec in BOTH_WAYS:
            what = f"{data}, IID, K = 8, {codec} both ways, slots stay on workers: points to the defaults"
            found.append(Gate("T13", what, -0.3, against(data, "iid", f"{codec}_both_per_worker", "defaults")))
    for data, least in (("digits", 90), ("mnist", 80)):
        for split, said in (("sorted", ""), ("sorted+10", ", a tenth mixed")):
            what = f"{data}, sorted{said}, K = 8, one exchange an epoch: accuracy"
            found.append(Gate("T12", what, least, accuracy(data, split, 8, "B", "epoch")))
        what = f"{data}, sorted, control variates, K = 8, one exchange an epoch: accuracy"
        found.append(Gate("T12", what, least, accuracy(data, "sorted", 8, "B", "variates_epoch")))
    what = "digits, IID, K = 32, 16 rows a batch of a worker, scale_learning_rate='sqrt': accuracy"
    found.append(Gate("T14", what, 80, accuracy("digits", "iid", 32, "A", "rate_sqrt")))
    found.sort(key=lambda gate: int(gate.name[1:]))
    return "\n".join(["| gate | what | target | measured | met |", "|---|---|---|---|---|", *(g.row() for g in found)])


# --- T9 and T10, which are no cells


class KeepsVariancesPositive(keras.callbacks.Callback):
    """On every worker, at every batch: raises where a moving variance is not positive."""

    def on_train_batch_begin(self, batch, logs=None):
        for variable in self.model.non_trainable_variables:
            if variable.name == "moving_variance" and not np.all(np.asarray(variable.value) > 0):
                raise ArithmeticError(f"moving variance down to {np.min(np.asarray(variable.value))}")


def check_one_worker() -> Gate:
    """T9: one worker and Keras on the same batches."""
    x, y = rows_of("digits")
    train, _ = held_out(y, 0)
    ours, theirs = network(64, 0), network(64, 0)
    theirs.fit(x[train], y[train], epochs=3, batch_size=32, shuffle=False, verbose=0)
    block = Block((x[train], y[train]), len(train))
    SparkModel(ours, seed=0, engine="in_process").fit([block], epochs=3, batch_size=32, shuffle=False, verbose=0)
    apart = max(float(np.abs(a - b).max()) for a, b in zip(ours.get_weights(), theirs.get_weights(), strict=True))
    return Gate(
        "T9",
        "digits, K = 1, 3 epochs: largest difference of a weight to Keras on the same batches",
        1e-6,
        apart,
        most=True,
    )


def check_batch_norm(seeds: Sequence[int]) -> list[Gate]:
    """T10: BatchNorm's variances stay positive, and what is served is as good as what a pass over the rows gives."""
    x, y = rows_of("digits")
    apart, negative = [], 0
    for seed in seeds:
        train, test = held_out(y, seed)
        model = network(64, seed, normalized=True)
        blocks = [Block((x[r], y[r]), len(r)) for r in parts("iid", y, train, 8, seed)]
        fitted = SparkModel(model, seed=seed, engine="in_process")
        try:
            fitted.fit(blocks, epochs=8, batch_size=4, verbose=0, worker_callbacks=[KeepsVariancesPositive()])
        except ArithmeticError:
            negative += 1
            continue
        served = model.evaluate(x[test], y[test], verbose=0)[1]
        (norm,) = (layer for layer in model.layers if isinstance(layer, keras.layers.BatchNormalization))
        before = keras.Model(model.inputs, norm.input).predict(x[train], verbose=0)
        norm.moving_mean.assign(before.mean(axis=0))
        norm.moving_variance.assign(before.var(axis=0))
        apart.append(100 * (served - model.evaluate(x[test], y[test], verbose=0)[1]))
    return [
        Gate(
            "T10",
            "digits, IID, K = 8, BatchNorm: runs with a moving variance that is not positive",
            0,
            negative,
            most=True,
        ),
        Gate(
            "T10",
            "the same: points of the served statistics over recomputed ones",
            -0.5,
            float(np.mean(apart)) if apart else None,
        ),
    ]


LOWEST_SHOWN = -10.0
"""Points to Keras below which the picture has numbers at its edge instead of lines: one average at the end loses up to 80."""


def plot(results: Results, path: Path) -> None:
    """Points to Keras alone against workers, one line a method, budget B."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, panels = pyplot.subplots(2, len(SPLITS), figsize=(14, 6.4), sharey=True, squeeze=False)
    for data, row in zip(("digits", "mnist"), panels, strict=True):
        for split, panel in zip(SPLITS, row, strict=True):
            panel.axhline(0, color="black", linewidth=0.8, label="Keras alone")
            for (method, marker), color in zip(
                {"defaults": "o", "asynchronous": "s", "average": "^", "one_shot": "v"}.items(),
                ("tab:blue", "tab:red", "tab:orange", "tab:green"),
                strict=True,
            ):
                cells = [Cell(data, split, workers, "B", method) for workers in (1, 2, 4, 8, 16, 32)]
                points = [(c.workers, float(np.mean(results.paired(c, c.single)))) for c in cells if results.values(c)]
                shown = [(workers, value) for workers, value in points if value >= LOWEST_SHOWN]
                panel.plot(*zip(*shown, strict=True) if shown else ([], []), marker=marker, color=color, label=method)
                for workers, value in points:
                    if value < LOWEST_SHOWN:
                        panel.text(
                            workers, LOWEST_SHOWN - 1.2, f"{value:.0f}", color=color, ha="center", fontsize="small"
                        )
            panel.set_xscale("log", base=2)
            panel.set_xticks([1, 2, 4, 8, 16, 32], ["1", "2", "4", "8", "16", "32"])
            panel.set_xlim(0.8, 40)
            panel.set_ylim(LOWEST_SHOWN - 1.7, 3)
            panel.set(title=f"{data}, {split}", xlabel="workers")
        row[0].set_ylabel("points to Keras alone")
    panels[0][0].legend(fontsize="small", loc="lower left")
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=100)


def put(path: Path, **sections: str) -> None:
    """Writes texts into a document, each between `<!-- name -->` and the next `<!-- end -->`."""
    document = path.read_text()
    for name, text in sections.items():
        before, rest = document.split(f"<!-- {name} -->", 1)
        document = f"{before}<!-- {name} -->\n{text}\n<!-- end -->{rest.split('<!-- end -->', 1)[1]}"
    path.write_text(document)


def main() -> None:
    """Runs what is missing and prints the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cells", nargs="*", help="patterns of cells, data/split/K<workers>/budget/method")
    parser.add_argument("--only", dest="cells", nargs="*", help="the same")
    parser.add_argument("--quick", action="store_true", help="digits at eight workers, two seeds")
    parser.add_argument("--seeds", nargs="*", type=int, help="instead of those of the grid")
    parser.add_argument("--results", type=Path, default=HERE / "results" / "convergence.jsonl")
    parser.add_argument("--again", action="store_true", help="run also what is there already")
    parser.add_argument("--tables", action="store_true", help="run nothing")
    parser.add_argument("--checks", action="store_true", help="run T9 and T10 too")
    parser.add_argument("--plot", type=Path, help="a PNG of accuracy against workers")
    parser.add_argument("--docs", type=Path, help="a document to write the tables into; runs T9 and T10 too")
    parser.add_argument("--strategies", type=Path, help="docs/strategies.md, to write its column of measured points")
    parser.add_argument("--limit-seconds", type=float, default=float("inf"), help="begin no run after so long")
    arguments = parser.parse_args()
    results = Results(arguments.results)
    started = time.perf_counter()
    for cell, seed in wanted(arguments):
        if (results.has(cell, seed) and not arguments.again) or time.perf_counter() - started > arguments.limit_seconds:
            continue
        result = run(cell, seed)
        results.add(result)
        print(json.dumps(result), file=sys.stderr, flush=True)
    print(
        f"Python {platform.python_version()}, Keras {keras.__version__}, TensorFlow {tf.__version__}, {platform.machine()}\n"
    )
    targets = [gates(results)]
    if arguments.checks or arguments.docs:
        targets += [gate.row() for gate in [check_one_worker(), *check_batch_norm(arguments.seeds or (0, 1, 2))]]
    sections = {
        "gates": "\n".join(targets),
        "baselines": baseline_table(results),
        "mixed": mixed_table(results),
        "variates": variates_table(results),
        "bytes": bytes_table(results, 8),
        "bytes_of_32": bytes_table(results, 32),
        "tables": tables(results),
    }
    print("\n\n".join(sections.values()))
    if arguments.docs:
        put(arguments.docs, **sections)
    if arguments.strategies:
        write_points(results, arguments.strategies)
    if arguments.plot:
        plot(results, arguments.plot)


def wanted(arguments: argparse.Namespace) -> Iterator[tuple[Cell, int]]:
    """Cells and seeds to run, seed by seed so that differences are paired early."""
    if arguments.tables:
        return
    cells = list(quick() if arguments.quick else grid())
    if arguments.cells:
        chosen = [cell for cell in cells if any(fnmatch.fnmatch(str(cell), pattern) for pattern in arguments.cells)]
        named = [Cell.of(pattern) for pattern in arguments.cells if not set(pattern) & set("*?[")]
        cells = list(dict.fromkeys([*(cell.single for cell in [*chosen, *named]), *chosen, *named]))
    for seed in range(5):
        for cell in cells:
            if seed in (
                arguments.seeds if arguments.seeds is not None else (0, 1) if arguments.quick else cell.seeds()
            ):
                yield cell, seed


if __name__ == "__main__":
    main()
