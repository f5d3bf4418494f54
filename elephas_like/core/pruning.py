"""Pruning rules: functions of a trial's reported losses, and of other trials', that say whether to stop it early."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Protocol, runtime_checkable

from elephas_like.core.checks import positive_int

Rule = Callable[[Sequence[float], Sequence[Sequence[float]]], bool]
"""(losses of the trial, epoch by epoch; losses of all other trials, those that run still included) -> whether to stop it.

Lower is better."""


@dataclass(frozen=True)
class MedianRule:
    """Stop a trial whose best loss so far is worse than the median of the other trials' mean loss over the same epochs.

        stop at epoch s  if  min(l_1..l_s) > median over trials j of (l_j1 + ... + l_js) / s

    Golovin et al., "Google Vizier: A Service for Black-Box Optimization", KDD 2017, section 3.2.2. A trial of n epochs
    counts at epochs up to n, also while it is still running or if it was itself stopped: where many trials start at
    once, nothing would otherwise be stopped before the first of them has ended.

    min_trials: other trials that must have reached the epoch before anything is stopped.
    warmup_epochs: epochs after which nothing is stopped yet. Give more than 0 where good trials begin slowly (learning
        rates that warm up). The defaults are measured in docs/tuning.md.
    """

    min_trials: int = 5
    warmup_epochs: int = 0

    def __post_init__(self) -> None:
        positive_int("min_trials", self.min_trials)
        positive_int("warmup_epochs", self.warmup_epochs, least=0)

    def __call__(self, losses: Sequence[float], others: Sequence[Sequence[float]]) -> bool:
        """Return whether to stop the trial now."""
        epochs = len(losses)
        if epochs == 0 or epochs <= self.warmup_epochs:
            return False
        means = [statistics.fmean(other[:epochs]) for other in others if len(other) >= epochs]
        if len(means) < self.min_trials:
            return False
        return min(losses) > statistics.median(means)


@dataclass(frozen=True)
class ASHA:
    """Stop a trial at a rung unless its best loss so far is among the best 1/eta of all that have reached the rung.

        rungs: min_epochs, min_epochs * eta, min_epochs * eta^2, ... epochs
        stop at rung r  if  #{others at r with a lower best loss} >= max(1, floor(n_r / eta)),  n_r: all at r, this one too

    Asynchronous successive halving: Li et al., "A System for Massively Parallel Hyperparameter Tuning", MLSys 2020, in the
    form that stops trials where the paper's pauses them: a task of Spark's cannot be paused. Nobody waits for a rung to be
    full, so the first ones to arrive go on. Between rungs nothing is stopped. It stops far more than `MedianRule`, and
    the best trial more often: it is for searches of many trials. docs/tuning.md has the numbers.

    eta: of so many trials at a rung one goes on.
    min_epochs: the first rung. The papers begin with 1; where a search is short, 3 loses less (docs/tuning.md).
    """

    eta: int = 3
    min_epochs: int = 3

    def __post_init__(self) -> None:
        positive_int("eta", self.eta, least=2)
        positive_int("min_epochs", self.min_epochs)

    def __call__(self, losses: Sequence[float], others: Sequence[Sequence[float]]) -> bool:
        """Return whether to stop the trial now."""
        rung = len(losses)
        if not self.is_rung(rung):
            return False
        best = min(losses)
        there = [min(other[:rung]) for other in others if len(other) >= rung]
        go_on = max(1, (len(there) + 1) // self.eta)
        return sum(other < best for other in there) >= go_on

    def is_rung(self, epochs: int) -> bool:
        """Return whether trials are judged after so many epochs."""
        rung = self.min_epochs
        while rung < epochs:
            rung *= self.eta
        return rung == epochs


@dataclass(frozen=True)
class Hyperband:
    """Several `ASHA` rules side by side, each with a later first rung: a hedge against trials that begin slowly.

    Bracket b has its first rung at `min_epochs * eta^b`, as long as that is at most `epochs`; the last bracket stops
    little or nothing. Trials are dealt to brackets by number, in the proportions of the paper's table, and are held against
    trials of their own bracket only. Li et al., "Hyperband", JMLR 2018, with asynchronous brackets as in Li et al. 2020.

    epochs: of a whole trial.
    eta, min_epochs: as for `ASHA`.
    """

    epochs: int
    eta: int = 3
    min_epochs: int = 1

    def __post_init__(self) -> None:
        positive_int("epochs", self.epochs)
        positive_int("eta", self.eta, least=2)
        positive_int("min_epochs", self.min_epochs)

    @property
    def brackets(self) -> tuple[ASHA, ...]:
        """The rules, from the one that stops most to the one that stops least."""
        rules = [ASHA(self.eta, self.min_epochs)]
        while rules[-1].min_epochs * self.eta <= self.epochs:
            rules.append(ASHA(self.eta, rules[-1].min_epochs * self.eta))
        return tuple(rules)

    @property
    def sizes(self) -> tuple[int, ...]:
        """How many of each `sum(sizes)` trials a bracket gets: ceil((s + 1) / (b + 1) * eta^b), for b = s, ..., 0."""
        count = len(self.brackets)
        return tuple(math.ceil(count * self.eta**b / (b + 1)) for b in reversed(range(count)))

    def bracket(self, trial: int) -> int:
        """Return the number of the bracket that a trial is in: spread evenly, so that any few trials are of all."""
        return _dealt(self.sizes)[trial % sum(self.sizes)]

    def stops(self, trial: int, losses: Mapping[int, Sequence[float]]) -> bool:
        """Return whether to stop a trial now.

        Args:
            losses: of all trials, by number, those that run still included.
        """
        bracket = self.bracket(trial)
        others = [found for number, found in losses.items() if number != trial and self.bracket(number) == bracket]
        return self.brackets[bracket](losses[trial], others)


@cache
def _dealt(sizes: tuple[int, ...]) -> tuple[int, ...]:
    """Return the brackets of the first `sum(sizes)` trials: each trial goes to the one that is furthest behind its share."""
    order: list[int] = []
    counts, total = [0] * len(sizes), sum(sizes)
    for place in range(1, total + 1):
        due = [place * size / total - count for size, count in zip(sizes, counts, strict=True)]
        bracket = due.index(max(due))
        order.append(bracket)
        counts[bracket] += 1
    return tuple(order)


@runtime_checkable
class NumberedRule(Protocol):
    """A rule that asks which trial is which."""

    def stops(self, trial: int, losses: Mapping[int, Sequence[float]]) -> bool:
        """Return whether to stop a trial now; `losses` are those of all trials, by number."""
        ...


def stops(rule: Rule | NumberedRule, trial: int, losses: Mapping[int, Sequence[float]]) -> bool:
    """Return whether a rule of either kind stops a trial now."""
    if isinstance(rule, NumberedRule):
        return bool(rule.stops(trial, losses))
    return bool(rule(losses[trial], tuple(found for number, found in losses.items() if number != trial)))


RULES = ("median", "asha", "hyperband")


def rule_of(pruning: object, epochs: int | None, objectives: int = 1) -> Rule | NumberedRule | None:
    """Return the rule for what a user gives: a name, a rule, or None. "auto" is "median", and None for several objectives.

    Args:
        epochs: of a whole trial; None where nobody knows.

    Raises:
        ValueError: it is none of these, Hyperband without `epochs`, or a rule for several objectives.
    """
    if objectives > 1:
        if pruning is None or pruning == "auto":
            return None
        raise ValueError(
            "several objectives have no order to prune trials by: leave pruning out, or give pruning=None."
        )
    if pruning is None or callable(pruning) or isinstance(pruning, NumberedRule):
        return pruning
    if pruning in ("auto", "median"):
        return MedianRule()
    if pruning == "asha":
        return ASHA()
    if pruning == "hyperband":
        if epochs is None:
            raise ValueError("pruning='hyperband' needs epochs=: the number of reports of a whole trial.")
        return Hyperband(epochs)
    names = ", ".join(map(repr, RULES))
    raise ValueError(f"pruning must be {names}, None, or a function of (losses, losses of others); got {pruning!r}.")
