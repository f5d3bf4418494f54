"""When to stop a trial early: rules are functions of the losses reported so far, its own and those of other trials."""

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
    """Stops a trial whose best loss so far is worse than the median of the others' mean loss over the same epochs.

        stop at epoch s  if  min(l_1..l_s) > median over trials j of (l_j1 + ... + l_js) / s

    from Golovin et al., "Google Vizier: A Service for Black-Box Optimization", KDD 2017, section 3.2.2. A trial of n
    epochs counts for epochs up to n, also one that was itself stopped, or that runs still: where many trials begin at
    once, nothing would be stopped before the first of them has ended.

    min_trials: others that must have come as far before anything is stopped.
    warmup_epochs: epochs after which nothing is stopped yet; more than 0 where good trials begin slowly (learning rates that
        warm up). The defaults are measured in docs/tuning.md.
    """

    min_trials: int = 5
    warmup_epochs: int = 0

    def __post_init__(self) -> None:
        positive_int("min_trials", self.min_trials)
        positive_int("warmup_epochs", self.warmup_epochs, least=0)

    def __call__(self, losses: Sequence[float], others: Sequence[Sequence[float]]) -> bool:
        """Whether to stop the trial now."""
        epochs = len(losses)
        if epochs == 0 or epochs <= self.warmup_epochs:
            return False
        means = [statistics.fmean(other[:epochs]) for other in others if len(other) >= epochs]
        if len(means) < self.min_trials:
            return False
        return min(losses) > statistics.median(means)
