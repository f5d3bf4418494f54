"""The vocabulary of a search: what a slot is told to try, what it reports, what it brings back."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from elephas_like.core.errors import Failure
from elephas_like.core.types import ShardRef

Logs = Mapping[str, float]
Report = Callable[[int, Logs], bool]
"""(epoch from 0, its logs) -> whether to go on."""


class TrialStatus(StrEnum):
    """How a trial ended."""

    OK = "ok"
    PRUNED = "pruned"
    TIMEOUT = "timeout"
    FAILED = "failed"
    INTERRUPTED = "interrupted"


@dataclass(frozen=True)
class TrialOrder:
    """One point of the space to try.

    params: what the user's function gets.
    keep_below: the loss that the trial may have at most for its model to be brought back.
    """

    number: int
    params: object
    batch_size: int = 32
    keep_below: float = math.inf

    def wants_model(self, loss: float | None) -> bool:
        """Whether a trial of this loss brings its model back; with the bar's own loss it may, for numbers break ties."""
        return loss is not None and loss <= self.keep_below


@dataclass(frozen=True)
class TrialResult:
    """What came of a trial.

    history: logs of each epoch. best_epoch, loss: the epoch of the lowest loss, whose state the model has.
    model: a file of Keras' as bytes, of the kind that `suffix` names; empty where it was not wanted.
    notes: whatever else the user's function returned, as plain data.
    """

    number: int
    status: TrialStatus
    history: tuple[dict[str, float], ...] = ()
    best_epoch: int | None = None
    loss: float | None = None
    seconds: float = 0.0
    host: str = ""
    failure: Failure | None = None
    model: bytes = field(default=b"", repr=False)
    suffix: str = ".keras"
    notes: Mapping[str, object] = field(default_factory=dict)

    @property
    def counts(self) -> bool:
        """Whether the trial may be the best one: it has a loss, and was not stopped for being worse than others."""
        return self.loss is not None and self.status in (TrialStatus.OK, TrialStatus.TIMEOUT)


class Evaluate(Protocol):
    """A picklable that tries one point, on a slot or in this process (tuning/trial.py)."""

    def __call__(self, order: TrialOrder, shards: Sequence[ShardRef], report: Report) -> TrialResult:
        """The result of one trial.

        Args:
            shards: the training rows and, where they were given apart, the validation rows.
        """
        ...
