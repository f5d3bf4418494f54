"""The objective of a search: one metric in an epoch's logs, and whether it is minimized or maximized."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

_UP = (
    "acc",
    "accuracy",
    "auc",
    "concordance_correlation",
    "cosine_similarity",
    "f1_score",
    "fbeta_score",
    "io_u",
    "iou",
    "pearson_correlation",
    "precision",
    "precision_at_recall",
    "r2_score",
    "recall",
    "recall_at_precision",
    "sensitivity_at_specificity",
    "specificity_at_sensitivity",
    "true_negatives",
    "true_positives",
)
_DOWN = (
    "crossentropy",
    "divergence",
    "error",
    "false_negatives",
    "false_positives",
    "hinge",
    "log_cosh",
    "logcosh",
    "loss",
    "mae",
    "mape",
    "mse",
    "msle",
    "poisson",
    "rmse",
)


def maximizes(metric: str) -> bool | None:
    """Return whether a larger value of a metric is better, judged by its name; None where the name does not say.

    A prefix `val_`, the name of an output before the metric's and Keras' number after it (`auc_1`) are ignored.
    """
    name = re.sub(r"_\d+$", "", metric.removeprefix("val_"))
    for names, answer in ((_DOWN, False), (_UP, True)):
        if any(name == known or name.endswith(f"_{known}") for known in names):
            return answer
    return None


@dataclass(frozen=True)
class Objective:
    """A metric by name, with its sign turned so that lower is better: the loss of a trial."""

    name: str
    maximize: bool = False

    def loss(self, logs: Mapping[str, float]) -> float:
        """Return the loss of one epoch's logs; infinity where the metric is missing or not finite."""
        value = logs.get(self.name, math.nan)
        if not math.isfinite(value):
            return math.inf
        return -value if self.maximize else value

    def losses(self, history: Sequence[Mapping[str, float]]) -> list[float]:
        """Return the loss of every epoch."""
        return [self.loss(logs) for logs in history]

    def value(self, loss: float) -> float:
        """Return the metric's value for a loss: the inverse of `loss`."""
        return -loss if self.maximize else loss
