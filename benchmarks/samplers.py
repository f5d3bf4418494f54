"""Random search, hyperopt's TPE and Optuna's TPE on a real objective: the table of samplers in docs/tuning.md.

    python benchmarks/samplers.py                   # about a minute

The objective is the error of a support vector machine on scikit-learn's digits: 400 rows to train on, 800 that rank. Its space has
a choice of kernels with parameters of their own, so that samplers meet conditional parameters. The samplers are those that
`search(algo=)` uses. Slots are replayed: a trial takes between 0.5 and 2 units of time, and a slot that becomes free asks for a
point when only the trials that have ended are known. Regret is the best error after so many trials, less the lowest error that any
of the searches has found, in points.
"""

from __future__ import annotations

import argparse
import heapq
import warnings
from collections.abc import Callable
from functools import cache

import numpy as np
from hyperopt import hp
from sklearn.datasets import load_digits
from sklearn.decomposition import PCA
from sklearn.exceptions import ConvergenceWarning
from sklearn.svm import SVC

from elephas_like.core.objective import Objective
from elephas_like.core.trials import TrialResult, TrialStatus
from elephas_like.tuning.samplers import sampler_of
from elephas_like.tuning.space import Space

SPACE = {
    "cost": ("loguniform", -7, 7),
    "parts": ("quniform", 4, 64, 4),
    "whiten": [False, True],
    "kernel": hp.choice(
        "kernel",
        [
            {"name": "linear"},
            {"name": "rbf", "gamma": hp.loguniform("width", -12, 2)},
            {"name": "poly", "gamma": hp.loguniform("scale", -12, 2), "degree": hp.randint("degree", 2, 6)},
            {"name": "sigmoid", "gamma": hp.loguniform("slope", -12, 2)},
        ],
    ),
}
ALGORITHMS = {"random": "random", "hyperopt's TPE": "tpe", "Optuna's TPE": "optuna"}


def objective() -> Callable[[dict], float]:
    """From a point of the space to the error in %."""
    x, y = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(y))
    x, y = x[order] / 16, y[order]

    @cache
    def reduced(parts: int, whiten: bool) -> np.ndarray:
        return PCA(parts, whiten=whiten, random_state=0).fit(x[:400]).transform(x[:1200])

    def error(params: dict) -> float:
        rows = reduced(int(params["parts"]), params["whiten"])
        own = {("kernel" if name == "name" else name): value for name, value in params["kernel"].items()}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            machine = SVC(C=params["cost"], max_iter=1000, **own).fit(rows[:400], y[:400])
        return 100 * (1 - machine.score(rows[400:], y[400:1200]))

    return error


def searched(error: Callable[[dict], float], algo: str, seed: int, slots: int, trials: int) -> list[float]:
    """The errors of a search's trials, in the order in which they ended."""
    sampler = sampler_of(Space(SPACE), algo, seed, Objective("error"))
    times = np.random.default_rng([seed, 1]).uniform(0.5, 2.0, trials)
    running: list[tuple[float, int, float]] = []
    errors: list[float] = []
    now, begun = 0.0, 0
    while begun < trials or running:
        while begun < trials and len(running) < slots:
            point = sampler.suggest(begun)
            assert point is not None
            heapq.heappush(running, (now + times[begun], begun, error(sampler.space.at(point))))
            begun += 1
        now, number, found = heapq.heappop(running)
        sampler.tell(TrialResult(number, TrialStatus.OK, ({"error": found},), 0, found))
        errors.append(found)
    return errors


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--trials", type=int, default=30)
    given = parser.parse_args()
    error = objective()
    found = {
        (slots, name): [searched(error, algo, seed, slots, given.trials) for seed in range(given.seeds)]
        for slots in (2, 8)
        for name, algo in ALGORITHMS.items()
    }
    least = min(min(errors) for searches in found.values() for errors in searches)
    after = [count for count in (10, 20, 30, 60, 100) if count <= given.trials]
    print(f"Lowest error: {least:.2f}%. {given.seeds} seeds.\n")
    print("| slots | sampler | " + " | ".join(f"regret after {count}" for count in after) + " | worst seed |")
    print("| --- " * (len(after) + 3) + "|")
    for (slots, name), searches in found.items():
        means = [f"{np.mean([min(errors[:count]) - least for errors in searches]):.2f}" for count in after]
        worst = max(min(errors) for errors in searches) - least
        print(f"| {slots} | {name} | " + " | ".join(means) + f" | {worst:.2f} |")


if __name__ == "__main__":
    main()
