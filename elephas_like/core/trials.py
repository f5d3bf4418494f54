"""Messages of a search: what a slot is told to try, what it reports, and what it returns."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol

import numpy as np

from elephas_like.core.checks import shortly
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
    """One point of the search space to try.

    params: the argument of the user's function.
    keep_below: the worst loss at which the trial's model is still returned.
    """

    number: int
    params: object
    batch_size: int = 32
    keep_below: float = math.inf

    def wants_model(self, loss: float | None) -> bool:
        """Return whether a trial of this loss returns its model.

        A loss equal to `keep_below` does: trial numbers break ties.
        """
        return loss is not None and loss <= self.keep_below


@dataclass(frozen=True)
class TrialResult:
    """The result of a trial.

    history: logs of each epoch.
    best_epoch, loss: the epoch of the lowest loss, whose state the model has, and that loss.
    model: the bytes of a Keras file of the kind that `suffix` names; empty where the model was not wanted.
    notes: anything else the user's function returned, as plain data.
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
        """Whether the trial may be the best one: it has a loss and was not pruned."""
        return self.loss is not None and self.status in (TrialStatus.OK, TrialStatus.TIMEOUT)


class Evaluate(Protocol):
    """A picklable function that runs one trial, on a slot or in this process (tuning/trial.py)."""

    def __call__(self, order: TrialOrder, shards: Sequence[ShardRef], report: Report) -> TrialResult:
        """Return the result of one trial.

        Args:
            order: the point to try.
            shards: the training rows and, where they were given separately, the validation rows.
            report: called after each epoch; returns whether to go on.
        """
        ...


def number_of(what: str, value: Any) -> float:
    """Return what a user's function gave as a number.

    Args:
        what: it is, for the error.

    Raises:
        TypeError: it is none.
    """
    try:
        return float(np.asarray(value).item() if getattr(value, "shape", ()) and np.size(value) == 1 else value)
    except (TypeError, ValueError, OverflowError):
        raise TypeError(f"{what} must be one number; got {shortly(value)}.") from None


def notes_of(found: Mapping[Any, object], but: Collection[str], *, allow_nan: bool = False) -> dict[str, object]:
    """Return what else is in the dict that a user's function returned, so far as JSON can hold it. NumPy's numbers are Python's.

    Args:
        but: keys that say something else.
        allow_nan: whether NaN and infinity may stay.
    """
    notes = {}
    for name, value in found.items():
        plain = value.item() if isinstance(value, np.generic) else value
        if name not in but and _is_plain(plain, allow_nan):
            notes[str(name)] = plain
    return notes


def _is_plain(value: object, allow_nan: bool) -> bool:
    try:
        json.dumps(value, allow_nan=allow_nan)
    except (TypeError, ValueError):
        return False
    return True
