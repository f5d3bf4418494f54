"""Sum the metric states of many workers: sums, never means of means."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from elephas_like.core.types import Floats


def add(states: Iterable[Floats]) -> Floats:
    """Return the sum of metric states.

    Empty states (a worker that trained nothing) count as zero; no states give an empty array.
    """
    total: Floats = np.zeros(0)
    for state in states:
        if state.size == 0:
            continue
        total = state.astype(np.float64) if total.size == 0 else total + state
    return total
