"""When a synchronous round ends that does not wait for its slowest workers."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Quorum:
    """A round ends when `workers` with rows have answered and the others have had `grace` times the time that this took.

    The update of a straggler, which comes later, is added to the round that is under way then; where workers have rows of different
    kinds, with the weight of all rounds that it took (`core/averaging.py`).

    workers: at least 1.
    grace: 0 for none.
    """

    workers: int
    grace: float = 0.1

    @classmethod
    def of(cls, asked: int | float, grace: float, num_workers: int) -> Quorum:
        """Return the quorum that is a number of workers, or a share of them, rounded up.

        Raises:
            ValueError: more workers than there are.
        """
        # A product such as 0.28 * 25 = 7.000000000000001 is not rounded up beyond what was asked for.
        workers = asked if isinstance(asked, int) else max(1, math.ceil(asked * num_workers - 1e-9))
        if workers > num_workers:
            raise ValueError(f"quorum={asked} needs {workers} workers; the fit has {num_workers}.")
        return cls(workers, grace)

    def missing(self, workers: int, answered: int, without_rows: int) -> int:
        """Return how many updates are missing before the quorum is reached; 0 or less once it is.

        Those without rows train nothing and answer at once. They do not count, and where they are many, the quorum is as many
        workers as are left.

        Args:
            workers: of the fit. answered: those of them that have answered the round. without_rows: those of the answers
                that trained no row.
        """
        return min(self.workers, workers - without_rows) - (answered - without_rows)

    def end(self, began: float, reached: float) -> float:
        """Return when a round ends that began at `began` and whose quorum was reached at `reached`, in seconds."""
        return reached + self.grace * (reached - began)
