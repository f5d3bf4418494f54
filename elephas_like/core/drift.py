"""Whether updates differ because their workers do, or because of the batches that happened to come.

At an exchange all updates differ. Where rows were dealt at random the differences are noise, other ones in each round.
Where each worker has rows of another kind (sorted labels, users, sites) its update resembles its own last one more
than it resembles the others' last ones, round after round. That is the drift of local training, and what short rounds
cure; noise is left alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from elephas_like.core.types import Floats, Integers, Vector

SAMPLE = 2**14
"""Weights that are compared: enough for a cosine to two digits, and little to keep of each worker."""


DRIFT_HIGH = 0.2
"""Drift from which on workers pull apart: the next automatic round is half as long."""


@dataclass(frozen=True)
class Agreement:
    """How far the updates of one exchange agree.

    cosine: mean cosine between the updates of different workers; None for a single update.
    drift: mean cosine between a worker's update and its own last one, minus that between a worker's update and another
        worker's last one, from -2 to 2. About 0 where workers have rows of the same kind. None without a last round.
    updates: how many there were. pairs: those of them whose worker has a last one, which the drift is a mean over.
    """

    cosine: float | None = None
    drift: float | None = None
    updates: int = 0
    pairs: int = 0


UNKNOWN = Agreement()
"""Nothing is known: no updates, or nothing to compare them with."""


def stretch_of(agreement: Agreement, like: int) -> float:
    """How much longer the mean of `like` updates would be than that of those that came; at least 1.

    Of K updates of length 1 with a mean cosine of c the mean has length sqrt(c + (1 - c) / K): noise cancels out. What
    workers of different rows disagree on lastingly is no noise: the drift is counted as if it were agreement.
    """
    if agreement.cosine is None or agreement.updates <= like:
        return 1.0
    same = min(1.0, max(0.0, agreement.cosine) + max(0.0, agreement.drift or 0.0))
    return float(np.sqrt((same + (1 - same) / like) / (same + (1 - same) / agreement.updates)))


class DriftMonitor:
    """Measures drift round by round. Keeps a sample of each worker's last direction, and nothing else.

    directions, drift: of the workers' last updates, to begin with.
    tells: whether updates of this round tell the drift. By optimizer slots of its own an update resembles the worker's last one, whatever
        its rows: then the drift is what it was.
    """

    def __init__(self, directions: Mapping[int, Vector] | None = None, drift: float | None = None) -> None:
        self.tells = True
        self._drift = drift
        self.restore(directions or {})

    @property
    def directions(self) -> dict[int, Vector]:
        """The directions of the workers' last updates."""
        return self._before | self._now

    def restore(self, directions: Mapping[int, Vector]) -> None:
        """Begin with the directions of the workers' last updates."""
        self._now: dict[int, Vector] = {}
        self._before: dict[int, Vector] = dict(directions)
        self._total: Floats = _sum(self._before) if self._before else np.zeros(1)

    def add(self, worker: int, delta: Vector) -> None:
        """Take one worker's delta of this round. A delta of zeros is ignored."""
        self.take(worker, sample_of(delta))

    def take(self, worker: int, sample: Vector) -> None:
        """Take the sample of one worker's delta (`sample_of`)."""
        norm = float(np.sqrt((sample.astype(np.float64) ** 2).sum()))
        if norm > 0:
            last = self._now.get(worker, self._before.get(worker))
            self._now[worker] = sample / np.float32(norm)
            self._total = self._total + self._now[worker] - (0 if last is None else last)

    @property
    def agreement(self) -> Agreement:
        """What the last updates of the workers say, one each, without a round's end; not the drift."""
        count = len(self._before.keys() | self._now.keys())
        return Agreement(_mean_cosine(self._total, count), updates=count)

    def measure(self) -> Agreement:
        """Return what the updates of this round say, and begin the next round."""
        now, before = dict(self._now), self._before  # a copy: without a lock others may be adding
        self._before, self._now = before | now, {}
        pairs = sum(worker in before for worker in now)
        if self.tells:
            self._drift = drift_of(now, before)
        return Agreement(cosine_of(now), self._drift, len(now), pairs)

    @property
    def apart(self) -> float:
        """How far the rows of the workers differ, by the last drift: 0 for not at all, 1 from `DRIFT_HIGH` on."""
        return min(1.0, max(0.0, self._drift or 0.0) / DRIFT_HIGH)


def cosine_of(directions: dict[int, Vector]) -> float | None:
    """Mean cosine over pairs of different workers: (|sum u|^2 - K) / (K (K - 1)) for unit vectors u."""
    return _mean_cosine(_sum(directions), len(directions)) if directions else None


def _mean_cosine(total: Floats, count: int) -> float | None:
    """The same, of the sum of so many unit vectors."""
    return (_dot(total, total) - count) / (count * (count - 1)) if count > 1 else None


def drift_of(now: dict[int, Vector], before: dict[int, Vector]) -> float | None:
    """Mean of u_i . v_i minus mean of u_i . v_j over i != j, for unit vectors u of this round and v of the last one."""
    both = [worker for worker in now if worker in before]
    pairs = len(now) * len(before) - len(both)
    if not both or not pairs:
        return None
    own = sum(_dot(now[worker], before[worker]) for worker in both)
    others = _dot(_sum(now), _sum(before)) - own
    return own / len(both) - others / pairs


def sample_of(delta: Vector) -> Vector:
    """Return the numbers of a delta that are compared."""
    return delta[places(delta.size)]


@lru_cache(maxsize=4)
def places(size: int) -> Integers:
    """Return which of `size` weights are compared: all, or `SAMPLE` of them spread by the golden ratio, always the same."""
    if size <= SAMPLE:
        return np.arange(size)
    turns = np.arange(SAMPLE, dtype=np.float64) * 0.6180339887498949
    return np.sort((np.modf(turns)[0] * size).astype(np.int64))


def _sum(directions: dict[int, Vector]) -> Floats:
    total: Floats = np.sum(list(directions.values()), axis=0, dtype=np.float64)
    return total


def _dot(one: Vector | Floats, other: Vector | Floats) -> float:
    return float((one.astype(np.float64) * other).sum())
