"""Which strategy may be the default of asynchronous fits: what each does to a model that is being fine-tuned, and with long rounds.

    python benchmarks/async_default.py            # about five minutes on two cores

On the grid of convergence.py, whose rounds are short, `adag` and `downpour_adagrad` are often ahead of `mla`. Both fix the length of the
step that an update makes, one by the steps of the round, the other by itself. This shows what that costs elsewhere.
"""

from __future__ import annotations

import argparse
import os
from dataclasses import dataclass
from statistics import mean
from typing import ClassVar

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")

import keras
from convergence import held_out, network, parts, rows_of

from elephas_like import SparkModel
from elephas_like.core.strategies import OuterState
from elephas_like.core.types import Update, Vector
from elephas_like.rows.spool import Block
from elephas_like.strategies import Context, MomentumLookAhead


@dataclass(frozen=True)
class AsPublished(MomentumLookAhead):
    """`mla` whose rounds all weigh the same, and which looks ahead along its own momentum only."""

    name: ClassVar[str] = "mla, a = K^-1/2, r = mu"

    def weight(self, update: Update, context: Context) -> float:
        return float(context.num_workers**-0.5)

    def serve(self, weights: Vector, outer: OuterState, context: Context) -> Vector:
        return weights + self.learning_rate * self.momentum * outer["momentum"]


STRATEGIES = {
    "mla": "mla",
    AsPublished.name: AsPublished(),
    "adag": "adag",
    "downpour_adagrad": "downpour_adagrad",
    "downpour": "downpour",
}
WORKERS, BATCH = 8, 4
FINE = 1e-5
"""The learning rate of fine-tuning: a hundredth of that of training."""
COLUMNS = {  # name: (whether the model is trained already, learning rate, epochs, frequency)
    "fine-tuned": (True, FINE, 2, "auto"),
    "auto": (False, 1e-3, 5, "auto"),
    "every 25 steps": (False, 1e-3, 5, 25),
    "every 100 steps": (False, 1e-3, 5, 100),
}


def accuracies(data: str, seed: int) -> dict[str, dict[str, float]]:
    """Test accuracy in percent, by column and strategy; "keras" is one process with as many steps."""
    x, y = rows_of(data)
    train, test = held_out(y, seed)
    blocks = [Block((x[rows], y[rows]), len(rows)) for rows in parts("iid", y, train, WORKERS, seed)]

    def accuracy(model: keras.Model) -> float:
        return 100 * model.evaluate(x[test], y[test], verbose=0)[1]

    trained = network(x.shape[1], seed)
    trained.fit(x[train], y[train], epochs=10, batch_size=32, verbose=0)
    found: dict[str, dict[str, float]] = {}
    for column, (is_trained, rate, epochs, frequency) in COLUMNS.items():
        found[column] = {}
        for strategy in ("keras", *STRATEGIES):
            model = network(x.shape[1], seed)
            if is_trained:
                model.set_weights(trained.get_weights())
            model.optimizer.learning_rate = rate
            if strategy == "keras":
                model.fit(x[train], y[train], epochs=epochs, batch_size=WORKERS * BATCH, verbose=0)
            else:
                options = {"mode": "asynchronous", "engine": "in_process", "frequency": frequency}
                fitted = SparkModel(model, strategy=STRATEGIES[strategy], seed=seed, **options)
                fitted.fit(blocks, epochs=epochs, batch_size=BATCH, verbose=0)
            found[column][strategy] = accuracy(model)
    found["before"] = {"keras": accuracy(trained)}
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    seeds = parser.parse_args().seeds
    for data in ("digits", "mnist"):
        found = [accuracies(data, seed) for seed in seeds]
        before = mean(one["before"]["keras"] for one in found)
        print(f"\n{data}, {WORKERS} workers, means of {len(seeds)}; before fine-tuning {before:.1f} %\n")
        print(f"| | {' | '.join(COLUMNS)} |\n|---|{'---|' * len(COLUMNS)}")
        for strategy in ("keras", *STRATEGIES):
            cells = (f"{mean(one[column][strategy] for one in found):.1f}" for column in COLUMNS)
            print(f"| {strategy} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
