"""Strategies for exchanges at which each worker goes on alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from elephas_like.core.strategies.algebra import Context, OuterState, Reduction, Strategy, Sum
from elephas_like.core.types import Mode, Update, Vector


@dataclass(frozen=True)
class MomentumLookAhead(Strategy):
    """Momentum look-ahead: m <- mu m + (1 - mu) d;  x <- x + lr (d + mu m);  workers are sent x + lr mu m.

    d is the delta times K^-1/2, so that K workers together move sqrt(K) deltas a round. Momentum look-ahead as in
    Ajanthan et al., "Momentum Look-Ahead for Asynchronous Distributed Low-Communication Training" (ICLR 2025 workshop
    on modular, collaborative and decentralized deep learning); the arrival weight as in HeLoCo (arXiv:2606.00271).
    """

    name: ClassVar[str] = "mla"
    modes: ClassVar[frozenset[Mode]] = frozenset({Mode.ASYNCHRONOUS})
    learning_rate: float = 0.7
    momentum: float = 0.9

    def init(self, weights: Vector) -> OuterState:
        """The momentum m, zero."""
        return {"momentum": np.zeros_like(weights)}

    def weight(self, update: Update, context: Context) -> float:
        """The arrival weight, K^-1/2; 0 for an update that trained nothing."""
        return float(context.num_workers**-0.5) if update.samples else 0.0

    def reduction(self) -> Reduction:
        """One update at a time, scaled by its weight."""
        return Sum()

    def step(
        self, weights: Vector, direction: Vector, outer: OuterState, context: Context
    ) -> tuple[Vector, OuterState]:
        """One step: m <- mu m + (1 - mu) d;  x <- x + lr (d + mu m)."""
        mu = self.momentum
        buffer: Vector = mu * outer["momentum"] + (1.0 - mu) * direction
        ahead: Vector = direction + mu * buffer
        return weights + self.learning_rate * ahead, {"momentum": buffer}

    def serve(self, weights: Vector, outer: OuterState, context: Context) -> Vector:
        """The point x + lr mu m: where the weights are about to be."""
        return weights + self.learning_rate * self.momentum * outer["momentum"]


@dataclass(frozen=True)
class DownPour(Strategy):
    """Every delta is added as it comes: x <- x + d_i.

    Downpour SGD (Dean et al., "Large Scale Distributed Deep Networks", NIPS 2012) without the server's Adagrad; with
    `mode="hogwild"` without a lock (Recht et al., "Hogwild!", NIPS 2011). Windows must be short: sums of whole epochs
    diverge from about eight workers.
    """

    name: ClassVar[str] = "downpour"
    modes: ClassVar[frozenset[Mode]] = frozenset({Mode.ASYNCHRONOUS, Mode.HOGWILD})
    additive: ClassVar[bool] = True

    def weight(self, update: Update, context: Context) -> float:
        """Always 1: the whole delta."""
        return 1.0

    def reduction(self) -> Reduction:
        """The sum."""
        return Sum()
