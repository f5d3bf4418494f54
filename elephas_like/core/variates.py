"""Control variates: what keeps workers with unlike rows from drifting apart within a round (SCAFFOLD).

A worker whose rows have one label walks towards that label, and all the others elsewhere; the longer the round, the less their mean
is worth. With control variates a worker adds to each of its steps what its own mean step of the last round lacked to the mean step of
all workers. So all go where all went, and each still follows its own rows in what is new of them.

This is SCAFFOLD with option II (Karimireddy et al., "SCAFFOLD: Stochastic Controlled Averaging for Federated Learning", ICML 2020,
arXiv:1910.06378, equations 3 to 5) in the space of steps: there c_i = (x - y_i) / (K eta), the mean gradient by which SGD has moved; a
step of any optimizer takes the place of eta times a gradient, so that the optimizer need not be SGD, and no gradient is touched.

Steps are kept in units of the learning rate, the mean of those that a round trains with, so that a rate that changes from round to round
changes the corrections, too, and one that changes within a round (a warm-up from almost nothing) does not make them long.

    worker   c_i = own steps of the last round / their number    correction = c - c_i    after each batch: weights += correction
             message = own steps, without the corrections, which are zero in the mean of all workers
    driver   c = mean message / mean number of steps
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from elephas_like.core.merging import finite
from elephas_like.core.types import Vector


class ControlVariate:
    """One worker's: call `correction` before a round, and `own_end` after it.

    own: the worker's mean step of the last round that it trained, at a learning rate of 1; None before the first. Never changed in place.

    Args:
        left_out: the places of weights that are not corrected.
    """

    def __init__(self, left_out: Sequence[slice] = ()) -> None:
        self.own: Vector | None = None
        self._left_out = left_out
        self._rate = 1.0
        self._correction: Vector | None = None

    def correction(self, mean_step: Vector, rate: float) -> Vector | None:
        """Return what is added to the weights after each step of the next round; None for nothing.

        Args:
            mean_step: of all workers in the last round, at this round's learning rate; empty if there was none.
            rate: this round's learning rate, the mean of its steps'; at 0 there are no corrections.
        """
        self._rate, self._correction = rate, None
        if rate and self.own is not None and self.own.size == mean_step.size:
            self._correction = mean_step - np.float32(self._rate) * self.own
            for place in self._left_out:
                self._correction[place] = 0
        return self._correction

    def own_end(self, start: Vector, end: Vector, steps: int) -> Vector:
        """Return where a round would have ended without its corrections, and remember the mean of its own steps.

        At a learning rate of 0 steps say nothing: those of the round before are remembered.

        Args:
            start: the weights that it began with. end: those that it ended with, after `steps` batches, at least one.
        """
        if self._correction is not None:
            end = end - np.float32(steps) * self._correction
            self._correction = None
        if not self._rate:
            return end
        own = (end - start) / np.float32(steps * self._rate)
        if finite(own):
            self.own = own
        return end


class MeanStep:
    """The driver's: the mean step of all workers in one round, sum_i w_i d_i / sum_i w_i h_i for messages d_i of h_i steps."""

    def __init__(self) -> None:
        self._weight = self._steps = 0.0

    def add(self, weight: float, steps: int) -> None:
        """Count one worker's message."""
        self._weight += weight
        self._steps += weight * steps

    def of(self, mean: Vector, rate: float) -> Vector | None:
        """Return the mean step that goes with the mean message, at a learning rate of 1; None if no worker took a step, or at a rate of 0.

        Args:
            rate: the learning rate of the round, the mean of its steps'.
        """
        return mean * np.float32(self._weight / (self._steps * rate)) if self._steps and rate else None
