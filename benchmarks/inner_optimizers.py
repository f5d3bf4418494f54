"""The optimizers that workers train with, under an outer step with momentum and under plain averages: test accuracy on digits.

    python benchmarks/inner_optimizers.py [--seeds 0 1] [--docs docs/convergence.md]

The cells are those of convergence.py (budget B: as many steps as one process takes, at a global batch of 32), each with the strategies
`nesterov` / `average`. Learning rates are chosen for one process of Keras', among a third, once and three times a middle one, by the
first seed's test accuracy.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path

import convergence
import keras
import numpy as np

OPTIMIZERS: dict[str, tuple[Callable[[float], keras.optimizers.Optimizer], float]] = {
    "Adam": (keras.optimizers.Adam, 0.001),
    "RMSprop": (keras.optimizers.RMSprop, 0.001),
    "SGD": (keras.optimizers.SGD, 0.1),
    "SGD, momentum 0.9": (lambda rate: keras.optimizers.SGD(rate, momentum=0.9), 0.03),
    "Lion": (keras.optimizers.Lion, 0.0003),
    "Muon": (keras.optimizers.Muon, 0.003),
    "ScheduleFreeAdamW": (keras.optimizers.ScheduleFreeAdamW, 0.01),
}
ALONE = "digits/iid/K1/B/keras"
COLUMNS = {
    "K = 8, at random": "digits/iid/K8/B",
    "K = 8, sorted": "digits/sorted/K8/B",
    "K = 32, at random": "digits/iid/K32/B",
    "K = 32, sorted": "digits/sorted/K32/B",
}
STRATEGIES = ("nesterov", "average")
_network = convergence.network


def accuracy(cell: str, optimizer: str, rate: float, seeds: Sequence[int]) -> list[float]:
    """The test accuracy of each seed, in percent, with an optimizer in place of the grid's Adam."""
    make = OPTIMIZERS[optimizer][0]

    def network(features: int, seed: int, **options: bool) -> keras.Model:
        model = _network(features, seed, **options)
        model.compile(make(rate), model.loss, metrics=["accuracy"])
        return model

    convergence.network = network
    data, split, workers, budget, method = cell.split("/")
    found = convergence.Cell(data, split, int(workers[1:]), budget, method)
    return [convergence.run(found, seed)["accuracy"] for seed in seeds]  # type: ignore[misc]  # it is a number


def _rates(middle: float) -> list[float]:
    return [round(middle * factor, 6) for factor in (1 / 3, 1, 3)]


def main() -> None:
    """Print the table, or write it into a document."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", nargs="*", type=int, default=[0, 1])
    parser.add_argument("--docs", type=Path, help="a document to write the table into")
    arguments = parser.parse_args()
    lines = [
        f"| optimizer | learning rate | one process | {' | '.join(COLUMNS)} |",
        f"|---|---|---|{'---|' * len(COLUMNS)}",
    ]
    for name, (_, middle) in OPTIMIZERS.items():
        tried = {rate: accuracy(ALONE, name, rate, arguments.seeds[:1]) for rate in _rates(middle)}
        rate = max(tried, key=tried.__getitem__)
        found = [f"{np.mean(accuracy(ALONE, name, rate, arguments.seeds)):.1f}"]
        for cell in COLUMNS.values():
            pair = [np.mean(accuracy(f"{cell}/{strategy}", name, rate, arguments.seeds)) for strategy in STRATEGIES]
            found.append(" / ".join(f"{value:.1f}" for value in pair))
        lines.append(f"| {name} | {rate:g} | {' | '.join(found)} |")
        print(lines[-1], flush=True)
    text = "\n".join(lines)
    print(text)
    if arguments.docs:
        convergence.put(arguments.docs, inner_optimizers=text)


if __name__ == "__main__":
    main()
