"""Pruning rules replayed on real learning curves: the numbers of docs/tuning.md about the median rule, ASHA and Hyperband.

    python benchmarks/pruning.py                    # both tables, in some minutes
    python benchmarks/pruning.py --orders 2         # faster

The curves are those of the searches without pruning in results/search.jsonl: 30 random points of 20 epochs, five seeds each of
digits and MNIST-5k. A search is replayed by its events: so many slots take the trials in an order of their own, epochs of a
trial take between 0.8 and 1.25 units of time, and the rule answers each report with what it knows by then.

    same trials   the 30 trials of a seed in `--orders` orders: epochs saved, and what the best trial's accuracy loses
    same epochs   as many trials as 600 epochs are enough for, from the 150 of all seeds in `--orders` orders of each seed: the
                  best accuracy that was found. Here a rule that stops more tries more points.
"""

from __future__ import annotations

import argparse
import heapq
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from elephas_like.core.pruning import ASHA, Hyperband, MedianRule, NumberedRule, Rule, stops

RESULTS = Path(__file__).resolve().parent / "results" / "search.jsonl"
EPOCHS = 20
BUDGET = 600
RULES: dict[str, Rule | NumberedRule | None] = {
    "none": None,
    "`MedianRule()`": MedianRule(),
    "`MedianRule(min_trials=3)`": MedianRule(min_trials=3),
    "`ASHA(min_epochs=1)`": ASHA(3, 1),
    "`ASHA(min_epochs=2)`": ASHA(3, 2),
    "`ASHA()`": ASHA(),
    "`ASHA(eta=2, min_epochs=1)`": ASHA(2, 1),
    "`ASHA(eta=2, min_epochs=3)`": ASHA(2, 3),
    "`ASHA(eta=4, min_epochs=1)`": ASHA(4, 1),
    "`Hyperband(20)`": Hyperband(EPOCHS),
    "`Hyperband(20, eta=2)`": Hyperband(EPOCHS, 2),
    "`Hyperband(20, min_epochs=2)`": Hyperband(EPOCHS, 3, 2),
}

Curves = Sequence[Sequence[float]]


@dataclass(frozen=True)
class Replay:
    """What came of a search. best: the lowest loss of the trials that finished; inf where none did."""

    epochs: int
    finished: int
    best: float


def curves(data: str) -> list[Curves]:
    """The losses (negative accuracies) of every trial of every seed, epoch by epoch."""
    lines = [json.loads(line) for line in RESULTS.read_text().splitlines()]
    found = [line for line in lines if line["part"] == "quality" and line["data"] == data and line["algo"] == "random"]
    whole = sorted((line for line in found if line["pruning"] is None), key=lambda line: line["seed"])
    return [[[-value for value in trial["curve"]] for trial in line["trials"]] for line in whole]


def replayed(
    trials: Curves, slots: int, rule: Rule | NumberedRule | None, speeds: Sequence[float], budget: float = np.inf
) -> Replay:
    """A search that tries these trials in this order; after `budget` epochs none begins, and those that run go on."""
    losses: dict[int, list[float]] = {}
    queue: list[tuple[float, int]] = []
    finished: list[int] = []
    trained = 0

    def begin(now: float) -> None:
        number = len(losses)
        if number < len(trials) and trained < budget:
            losses[number] = []
            heapq.heappush(queue, (now + speeds[number], number))

    for _ in range(slots):
        begin(0.0)
    while queue:
        now, trial = heapq.heappop(queue)
        mine = losses[trial]
        mine.append(trials[trial][len(mine)])
        trained += 1
        if len(mine) == len(trials[trial]):
            finished.append(trial)
            begin(now)
        elif rule is not None and stops(rule, trial, {number: found for number, found in losses.items() if found}):
            begin(now)
        else:
            heapq.heappush(queue, (now + speeds[trial], trial))
    return Replay(trained, len(finished), min((min(trials[trial]) for trial in finished), default=np.inf))


def shuffled(trials: Curves, seed: Sequence[int], first: bool) -> tuple[Curves, np.ndarray]:
    """(trials in an order of the seed's, or in their own, how long their epochs take)."""
    rng = np.random.default_rng(seed)
    order = np.arange(len(trials)) if first else rng.permutation(len(trials))
    return [trials[place] for place in order], rng.uniform(0.8, 1.25, len(trials))


def same_trials(data: str, slots: int, rule: Rule | NumberedRule | None, orders: int) -> list[str]:
    """Share of the epochs saved; accuracy lost by the best trial, in points; how often nothing; trials that finished."""
    saved, lost, finished = [], [], []
    for seed, trials in enumerate(curves(data)):
        for order in range(orders):
            given, speeds = shuffled(trials, (seed, order), order == 0)
            found = replayed(given, slots, rule, speeds)
            saved.append(1 - found.epochs / sum(map(len, given)))
            lost.append(100 * (found.best - min(map(min, given))))
            finished.append(found.finished)
    kept = np.mean(np.array(lost) < 1e-6)
    return [
        f"{np.mean(saved):.0%}",
        f"{kept:.0%}",
        f"{np.mean(lost):.2f} (at most {np.max(lost):.2f})",
        f"{np.mean(finished):.1f} (at least {min(finished)})",
    ]


def same_epochs(data: str, slots: int, rule: Rule | NumberedRule | None, orders: int) -> list[str]:
    """Trials begun are not limited: the mean of the best accuracies found within the budget, in %, and the worst one."""
    pool = [trial for trials in curves(data) for trial in trials]
    best = []
    for order in range(5 * orders):
        given, speeds = shuffled(pool, (99, order), False)
        best.append(-100 * replayed(given, slots, rule, speeds, BUDGET).best)
    return [f"{np.mean(best):.2f} (worst {np.min(best):.2f})"]


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table in Markdown."""
    return "\n".join("| " + " | ".join(line) + " |" for line in [head, ["---"] * len(head), *rows])


def main() -> None:
    """Prints both tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--orders", type=int, default=10, help="orders of each seed's trials")
    orders = parser.parse_args().orders
    measures = ("epochs saved", "best trial kept", "points lost", "trials finished")
    head = [f"{data}: {what}" for data in ("digits", "mnist") for what in measures]
    for slots in (2, 8):
        rows = [
            [name, *(cell for data in ("digits", "mnist") for cell in same_trials(data, slots, rule, orders))]
            for name, rule in RULES.items()
            if rule is not None
        ]
        print(f"## The same 30 trials, {slots} slots\n\n{table(['rule', *head], rows)}\n")
    both = [(data, slots) for data in ("digits", "mnist") for slots in (2, 8)]
    rows = [[name, *(same_epochs(*where, rule, orders)[0] for where in both)] for name, rule in RULES.items()]
    print(f"## Best accuracy within {BUDGET} epochs, in %\n")
    print(table(["rule", *(f"{data}, {slots} slots" for data, slots in both)], rows))


if __name__ == "__main__":
    main()
