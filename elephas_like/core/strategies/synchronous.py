"""Synchronous strategies: every worker takes part in every round.

d is the reduction of the workers' deltas, by default their mean.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from elephas_like.core.checks import positive, share
from elephas_like.core.drift import stretch_of
from elephas_like.core.pieces import elementwise
from elephas_like.core.strategies.algebra import Context, Mean, Memory, OuterState, Strategy
from elephas_like.core.types import Frequency, Vector

STRETCH_LIKE = 8
"""Number of workers with which the outer step's defaults were measured."""


@dataclass(frozen=True)
class Average(Strategy):
    """Sample-weighted parameter averaging: x <- x + sum_i p_i d_i, p_i = n_i / sum n.

    Local SGD (Stich, "Local SGD Converges Fast and Communicates Little", ICLR 2019, arXiv:1805.09767); FedAvg if rounds
    are epochs (McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized Data", AISTATS
    2017, arXiv:1602.05629). With one worker it is plain training.
    """

    name: ClassVar[str] = "average"


@dataclass(frozen=True)
class OneShot(Average):
    """One average at the end of the whole fit: `average` with `frequency="fit"`, its only frequency.

    Zinkevich, Weimer, Smola and Li, "Parallelized Stochastic Gradient Descent", NIPS 2010. It loses accuracy with every
    additional worker. Elephas' old synchronous mode is `OneShot(reduce=Mean(equal=True))`: every partition has the same
    weight.
    """

    name: ClassVar[str] = "one_shot"
    frequencies: ClassVar[frozenset[Frequency] | None] = frozenset({Frequency.FIT})


@dataclass(frozen=True)
class OneWorker(Average):
    """`average` of one worker: x <- x_1, the weights that it ends with. x + (x_1 - x) is seldom x_1 to the last bit.

    No name stands for it: a fit takes it by itself (`of_one_worker`).
    """

    deltas: ClassVar[bool] = False

    def encode(
        self, served: Vector, end: Vector, steps: int, memory: Memory, context: Context
    ) -> tuple[Vector, Memory]:
        """Return the weights themselves."""
        return end, memory

    def step(
        self, weights: Vector, direction: Vector, outer: OuterState, context: Context
    ) -> tuple[Vector, OuterState]:
        """Return the worker's weights."""
        return direction, outer


def of_one_worker(strategy: Strategy) -> Strategy:
    """Return what a strategy comes to where there is one worker: `OneWorker` in place of averages, others as they are."""
    averages = type(strategy) in (Average, OneShot) and strategy.reduce in (None, Mean(), Mean(equal=True))
    return OneWorker() if averages else strategy


@dataclass(frozen=True)
class Nesterov(Strategy):
    """An outer Nesterov step over the averaged delta: b <- mu b + d;  x <- x + lr (d + mu b).

    The update of DiLoCo (Douillard et al., arXiv:2311.08105) with an outer learning rate of 1 and a momentum of 0.7.
    DiLoCo's 0.7 and 0.9 overshoot where rounds are few or short.

    learning_rate: lr, default 1.
    momentum: mu, default 0.7.
    stretch: whether, with more than eight workers, d is scaled to the length that the mean of eight such updates would
        have. The defaults were measured with eight workers, and more updates cancel each other more (core/drift.py has
        the formula).
    """

    name: ClassVar[str] = "nesterov"
    learning_rate: float = 1.0
    momentum: float = 0.7
    stretch: bool = True

    def __post_init__(self) -> None:
        """Check the hyper-parameters."""
        super().__post_init__()
        positive("learning_rate", self.learning_rate)
        share("momentum", self.momentum)

    def init(self, weights: Vector) -> OuterState:
        """Return the momentum buffer b, zero."""
        return {"momentum": np.zeros_like(weights)}

    @elementwise
    def step(
        self, weights: Vector, direction: Vector, outer: OuterState, context: Context
    ) -> tuple[Vector, OuterState]:
        """Compute b <- mu b + d;  x <- x + lr (d + mu b)."""
        mu = self.momentum
        if self.stretch:
            direction = direction * np.float32(stretch_of(context.agreement, STRETCH_LIKE))
        buffer: Vector = mu * outer["momentum"] + direction
        ahead: Vector = direction + mu * buffer
        return weights + self.learning_rate * ahead, {"momentum": buffer}


@dataclass(frozen=True)
class DiLoCo(Nesterov):
    """`nesterov` with DiLoCo's hyper-parameters: outer learning rate 0.7, momentum 0.9. For many, long rounds.

    Douillard et al., "DiLoCo: Distributed Low-Communication Training of Language Models", arXiv:2311.08105. Its workers
    keep their optimizers' states: `optimizer_state="per_worker"`.
    """

    name: ClassVar[str] = "diloco"
    learning_rate: float = 0.7
    momentum: float = 0.9
    stretch: bool = False


@dataclass(frozen=True)
class FedAvgM(Strategy):
    """A heavy-ball outer step: m <- beta m + d;  x <- x + lr m.

    Hsu, Qi and Brown, "Measuring the Effects of Non-Identical Data Distribution for Federated Visual Classification",
    arXiv:1909.06335. Defaults here: lr 1, beta 0.9.
    """

    name: ClassVar[str] = "fedavgm"
    learning_rate: float = 1.0
    momentum: float = 0.9

    def __post_init__(self) -> None:
        """Check the hyper-parameters."""
        super().__post_init__()
        positive("learning_rate", self.learning_rate)
        share("momentum", self.momentum)

    def init(self, weights: Vector) -> OuterState:
        """Return the momentum m, zero."""
        return {"momentum": np.zeros_like(weights)}

    @elementwise
    def step(
        self, weights: Vector, direction: Vector, outer: OuterState, context: Context
    ) -> tuple[Vector, OuterState]:
        """Compute m <- beta m + d;  x <- x + lr m."""
        buffer: Vector = self.momentum * outer["momentum"] + direction
        return weights + self.learning_rate * buffer, {"momentum": buffer}


@dataclass(frozen=True)
class SlowMo(FedAvgM):
    """Slow momentum in units of the workers' learning rate g: u <- beta u + d / g;  x <- x + alpha g u.

    Wang, Tantia, Ballas and Rabbat, "SlowMo: Improving Communication-Efficient Distributed SGD with Slow Momentum", ICLR
    2020, arXiv:1910.00643. With a constant g it is `fedavgm`; where g falls, the momentum falls with it. g is the mean of the round's steps'; a
    round at 0 leaves u as it is, and adds alpha d.
    Defaults here: alpha (`learning_rate`) 1, beta (`momentum`) 0.5.
    """

    name: ClassVar[str] = "slowmo"
    in_rates: ClassVar[bool] = True
    learning_rate: float = 1.0
    momentum: float = 0.5

    @elementwise
    def step(
        self, weights: Vector, direction: Vector, outer: OuterState, context: Context
    ) -> tuple[Vector, OuterState]:
        """Compute u <- beta u + d / g;  x <- x + alpha g u."""
        rate = context.learning_rate
        if not rate:  # there is no unit to count in
            return weights + np.float32(self.learning_rate) * direction, {"momentum": outer["momentum"]}
        buffer: Vector = self.momentum * outer["momentum"] + direction / np.float32(rate)
        return weights + np.float32(self.learning_rate * rate) * buffer, {"momentum": buffer}


@dataclass(frozen=True)
class BMUF(Strategy):
    """Blockwise model-update filtering, classic block momentum: D <- eta D + zeta d;  x <- x + D.

    Chen and Huo, "Scalable training of deep learning machines by incremental block training with intra-block parallel
    optimization and blockwise model-update filtering", ICASSP 2016.

    learning_rate: zeta, default 1.
    momentum: eta; None (the default) takes 1 - 1/K.
    """

    name: ClassVar[str] = "bmuf"
    learning_rate: float = 1.0
    momentum: float | None = None

    def __post_init__(self) -> None:
        """Check the hyper-parameters."""
        super().__post_init__()
        positive("learning_rate", self.learning_rate)
        if self.momentum is not None:
            share("momentum", self.momentum)

    def eta(self, context: Context) -> float:
        """Return the block momentum: 1 - 1/K unless it was given."""
        return 1.0 - 1.0 / context.num_workers if self.momentum is None else self.momentum

    def init(self, weights: Vector) -> OuterState:
        """Return the last block's step D, zero."""
        return {"momentum": np.zeros_like(weights)}

    @elementwise
    def step(
        self, weights: Vector, direction: Vector, outer: OuterState, context: Context
    ) -> tuple[Vector, OuterState]:
        """Compute D <- eta D + zeta d;  x <- x + D."""
        moved: Vector = self.eta(context) * outer["momentum"] + self.learning_rate * direction
        return weights + moved, {"momentum": moved}


@dataclass(frozen=True)
class NesterovBMUF(BMUF):
    """Blockwise model-update filtering with Nesterov block momentum: workers are served x + eta D.

    Chen and Huo, ICASSP 2016 (see `BMUF`). d is measured from the point where the workers started, x + eta D.
    """

    name: ClassVar[str] = "bmuf_nesterov"

    def serve(self, weights: Vector, outer: OuterState, context: Context) -> Vector:
        """Return x + eta D, the point that the momentum alone leads to."""
        return weights + self.eta(context) * outer["momentum"]


@dataclass(frozen=True)
class FedAdam(Strategy):
    """Adam as the outer step: m <- b1 m + (1 - b1) d;  v <- b2 v + (1 - b2) d^2;  x <- x + lr m / (sqrt v + tau).

    Reddi et al., "Adaptive Federated Optimization", ICLR 2021, arXiv:2003.00295: no bias correction, v begins at tau^2.

    learning_rate: lr, roughly the length of a first step in each coordinate; default 0.01.
    beta1: default 0.9.
    beta2: default 0.99.
    tau: default 1e-3.
    """

    name: ClassVar[str] = "fedadam"
    learning_rate: float = 0.01
    beta1: float = 0.9
    beta2: float = 0.99
    tau: float = 1e-3

    def __post_init__(self) -> None:
        """Check the hyper-parameters."""
        super().__post_init__()
        positive("learning_rate", self.learning_rate)
        share("beta1", self.beta1)
        share("beta2", self.beta2)
        positive("tau", self.tau)

    def init(self, weights: Vector) -> OuterState:
        """Return both moments: m zero, v tau^2."""
        return {"momentum": np.zeros_like(weights), "velocity": np.full_like(weights, self.tau**2)}

    def second(self, velocity: Vector, square: Vector) -> Vector:
        """Return the second moment after d^2 was added."""
        return self.beta2 * velocity + (1.0 - self.beta2) * square

    @elementwise
    def step(
        self, weights: Vector, direction: Vector, outer: OuterState, context: Context
    ) -> tuple[Vector, OuterState]:
        """Compute x <- x + lr m / (sqrt v + tau)."""
        momentum: Vector = self.beta1 * outer["momentum"] + (1.0 - self.beta1) * direction
        velocity = self.second(outer["velocity"], direction**2)
        step: Vector = self.learning_rate * momentum / (velocity**0.5 + self.tau)
        return weights + step, {"momentum": momentum, "velocity": velocity}


@dataclass(frozen=True)
class FedYogi(FedAdam):
    """Yogi as the outer step, `fedadam` with v <- v - (1 - b2) d^2 sign(v - d^2): v never moves by more than d^2.

    Reddi et al., "Adaptive Federated Optimization", ICLR 2021, arXiv:2003.00295.
    """

    name: ClassVar[str] = "fedyogi"

    def second(self, velocity: Vector, square: Vector) -> Vector:
        """Return the second moment after d^2 was added."""
        less: Vector = (1.0 - self.beta2) * square * np.sign(velocity - square)
        return velocity - less


@dataclass(frozen=True)
class FedAdagrad(FedAdam):
    """Adagrad as the outer step: `fedadam` with v <- v + d^2 and, since Adagrad has no momentum, b1 = 0.

    Reddi et al., "Adaptive Federated Optimization", ICLR 2021, arXiv:2003.00295. `beta2` is not used.
    """

    name: ClassVar[str] = "fedadagrad"
    beta1: float = 0.0

    def second(self, velocity: Vector, square: Vector) -> Vector:
        """Return the second moment after d^2 was added."""
        return velocity + square
