"""The objective of a search: one metric in an epoch's logs, and whether it is minimized or maximized."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

_UP = (
    "acc",
    "accuracy",
    "auc",
    "concordance_correlation",
    "cosine_similarity",
    "f1",
    "f1_score",
    "fbeta",
    "fbeta_score",
    "io_u",
    "iou",
    "pearson_correlation",
    "precision",
    "precision_at_recall",
    "r2",
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
    "kld",
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


_NEGATED = "neg_(mean|root_mean|median|log_loss|brier_score|max_error)"
"""Scorers of scikit-learn's that are better where they are larger."""


def maximizes(metric: str) -> bool | None:
    """Return whether a larger value of a metric is better, judged by its name; None where the name does not say.

    A prefix `val_`, the name of an output before the metric's and Keras' number after it (`auc_1`) are ignored, and
    so is case. "neg_mean_squared_error" does not say: to scikit-learn it is an error with its sign turned, to Keras that of an
    output called "neg".
    """
    if re.match(_NEGATED, metric):
        return None
    name = re.sub(r"_\d+$", "", metric.lower().removeprefix("val_"))
    for names, answer in ((_DOWN, False), (_UP, True)):
        if any(name == known or name.endswith(f"_{known}") for known in names):
            return answer
    return None


@dataclass(frozen=True)
class Objective:
    """A metric by name, with its sign turned so that lower is better: the loss of a trial.

    more: further objectives. The first one decides alone which epoch of a trial is its best.
    """

    name: str
    maximize: bool = False
    more: tuple[Objective, ...] = ()

    @property
    def all(self) -> tuple[Objective, ...]:
        """All objectives, this one first."""
        return (self, *self.more)

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


COLUMNS = ("trial", "status", "best_epoch", "epochs", "seconds", "host", "params", "history", "error", "notes")
"""What a search's table of trials has beside objectives and parameters."""


def objective_of(name: object, direction: object) -> Objective:
    """Return the objective of a name and "min", "max" or "auto"; of several, from a list of each.

    Raises:
        TypeError: a name is none. ValueError: an unknown direction, "auto" for a name that says nothing, a name given twice.
    """
    if isinstance(name, list | tuple) and name:
        directions = direction if isinstance(direction, list | tuple) else [direction] * len(name)
        if len(directions) != len(name) or len(set(map(str, name))) != len(name):
            raise ValueError(
                f"objective={name!r}, direction={direction!r}: expected different names, and a direction for each."
            )
        first, *more = (_objective_of(*both) for both in zip(name, directions, strict=True))
        return replace(first, more=tuple(more))
    return _objective_of(name, direction)


def _objective_of(name: object, direction: object) -> Objective:
    if not isinstance(name, str) or not name:
        raise TypeError(f"objective must be the name of a metric, such as 'val_loss'; got {name!r}.")
    if name in COLUMNS or name.startswith("param_"):
        raise ValueError(f"objective={name!r} is a column of the table of trials already: give it another name.")
    if direction not in ("auto", "min", "max"):
        raise ValueError(f"direction must be one of 'auto', 'min', 'max'; got {direction!r}.")
    known = maximizes(name)
    if direction == "auto" and known is None:
        raise ValueError(
            f"direction='auto' cannot tell whether {name!r} should be low or high: give direction='min' or direction='max'."
        )
    return Objective(name, bool(known) if direction == "auto" else direction == "max")


def pareto_front(losses: Sequence[Sequence[float]]) -> list[int]:
    """Return the places of those that no other one is at least as good as in everything, and better in something."""

    def beats(one: Sequence[float], other: Sequence[float]) -> bool:
        pairs = list(zip(one, other, strict=True))
        return all(left <= right for left, right in pairs) and any(left < right for left, right in pairs)

    return [place for place, mine in enumerate(losses) if not any(beats(other, mine) for other in losses)]
