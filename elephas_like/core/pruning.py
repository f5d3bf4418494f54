"""Pruning rules: functions of a trial's reported losses, and of other trials', that say whether to stop it early."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

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
