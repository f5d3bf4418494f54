"""Asynchronous strategies: each worker exchanges alone, whenever it is ready.

tau is an update's staleness: the exchanges between the state that it started from and now.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from elephas_like.core.checks import positive, positive_int, share
from elephas_like.core.pieces import elementwise
from elephas_like.core.strategies.algebra import Context, Memory, OuterState, Reduce, Strategy, Total
from elephas_like.core.types import Mode, Update, Vector

STRAIGHT = 4
"""Steps of K workers that may be added up although all were made from about the same weights."""
AHEAD = 16
"""Steps of the other workers that the momentum tells in advance."""
_TINY = 1e-30
"""Vectors shorter than this have no direction."""


@dataclass(frozen=True)
class MomentumLookAhead(Strategy):
    """Momentum look-ahead: m <- mu m + (1 - mu) d;  x <- x + lr (d + mu m);  workers are sent x + lr r m.

    d is the delta times its arrival weight a. K updates that differ by noise get a = K^-1/2: together they are as long as
    one. Updates of long rounds agree instead, and with K^-1/2 would be sqrt(K) times as long, far beyond what any worker
    has seen. So with c, the mean cosine between the workers' last updates, and h, the delta's steps:

        a = min(K^-1/2, max(1 / (K sqrt(c + (1 - c) / K)), STRAIGHT / (K h)))

    The second is the weight with which K updates of mean cosine c are together as long as one. The third lets short
    rounds have more: K deltas may add up to so many steps in a line.

    Before an update comes back, b others come in between, and each moves x by about lr (1 + mu) m. Workers start where
    those will have led, as far as a direction can be trusted, which is AHEAD of the K a h steps:

        r = mu + (1 + mu) b min(1, AHEAD / (K a h)),   b <- min(b + (tau - b) / K, K - 1)

    tau is the staleness of the update that the worker has just brought; on average it is the number of the other workers that
    exchange. During the first K exchanges b is K - 1.

    Momentum look-ahead as in Ajanthan et al., "Momentum Look-Ahead for Asynchronous Distributed Low-Communication
    Training" (ICLR 2025 workshop on modular, collaborative and decentralized deep learning), where r = mu; K^-1/2 as in
    HeLoCo (arXiv:2606.00271); the rest is this library's (docs/convergence.md). Defaults here: lr 0.7, mu 0.9.
    """

    name: ClassVar[str] = "mla"
    by_staleness: ClassVar[bool] = True
    modes: ClassVar[frozenset[Mode]] = frozenset({Mode.ASYNCHRONOUS})
    reduces: ClassVar[Reduce] = Total()
    learning_rate: float = 0.7
    momentum: float = 0.9

    def __post_init__(self) -> None:
        """Check the hyper-parameters."""
        super().__post_init__()
        positive("learning_rate", self.learning_rate)
        share("momentum", self.momentum)

    def init(self, weights: Vector) -> OuterState:
        """Return the momentum m, zero, r, how far ahead of x along it workers are sent, and b, which is not known yet."""
        return {"momentum": np.zeros_like(weights), "reach": _number(self.momentum), "others": _number(0)}

    def weight(self, update: Update, context: Context) -> float:
        """Return the arrival weight, from 1/K to K^-1/2, or 0 for an update that trained nothing."""
        if not update.samples:
            return 0.0
        workers = context.num_workers
        same = max(0.0, context.agreement.cosine or 0.0)
        as_long_as_one = 1 / (workers * (same + (1 - same) / workers) ** 0.5)
        return float(min(workers**-0.5, max(as_long_as_one, STRAIGHT / (workers * max(1, update.steps)))))

    @elementwise
    def step(
        self, weights: Vector, direction: Vector, outer: OuterState, context: Context
    ) -> tuple[Vector, OuterState]:
        """Compute m <- mu m + (1 - mu) d;  x <- x + lr (d + mu m)."""
        mu = self.momentum
        buffer: Vector = mu * outer["momentum"] + (1.0 - mu) * direction
        ahead: Vector = direction + mu * buffer
        others = self._others(outer, context)
        after = {"momentum": buffer, "reach": _number(self._reach(others, context)), "others": _number(others)}
        return weights + self.learning_rate * ahead, after

    def _others(self, outer: OuterState, context: Context) -> float:
        """Return b: the mean of many, as one update may have met twice as many others as the next."""
        workers = context.num_workers
        if context.version < workers or "others" not in outer:  # checkpoints of earlier versions have none
            return workers - 1
        before = float(outer["others"][0])
        return min(before + (context.behind - before) / workers, workers - 1)

    def _reach(self, others: float, context: Context) -> float:
        """Return r."""
        together = context.num_workers * context.weight * max(1, context.steps)
        told = min(1.0, AHEAD / together) if together else 0.0
        return self.momentum + (1 + self.momentum) * others * told

    def serve(self, weights: Vector, outer: OuterState, context: Context) -> Vector:
        """Return x + lr r m, where the others' next updates are expected to lead."""
        reach = outer["reach"][0] if "reach" in outer else self.momentum  # checkpoints of earlier versions have none
        return weights + np.float32(self.learning_rate * reach) * outer["momentum"]


def _number(value: float) -> Vector:
    return np.array([value], np.float32)


@dataclass(frozen=True)
class HeLoCo(MomentumLookAhead):
    """`mla` with each tensor of a delta corrected against the momentum m before it is applied.

    c is the cosine of delta and momentum, conf = |d| / (|d| + kappa |m|), v = m / |m|, u = d / |d|:

        c >= keep       d unchanged
        0 <= c < keep   rotated towards m, its length kept: |d| phi((1 - l) u + l v),  l = min(turn (1 - c) conf, 1)
        c < 0           the component against m is reduced: d - s c |d| v,  s = min(shrink (-c) conf, most)

    Al Asif et al., "HeLoCo: Efficient asynchronous low-communication training under data and device heterogeneity",
    arXiv:2606.00271. Defaults here: keep 0.2, shrink 0.5, turn 1, kappa 3, most 0.5, lr 0.7, mu 0.9.
    """

    name: ClassVar[str] = "heloco"
    keep: float = 0.2
    shrink: float = 0.5
    turn: float = 1.0
    kappa: float = 3.0
    most: float = 0.5

    def step(
        self, weights: Vector, direction: Vector, outer: OuterState, context: Context
    ) -> tuple[Vector, OuterState]:
        """Apply the step of `mla` to the corrected direction."""
        return super().step(weights, self.corrected(direction, outer["momentum"], context), outer, context)

    def corrected(self, direction: Vector, momentum: Vector, context: Context) -> Vector:
        """Return the direction corrected tensor by tensor.

        The arrival weight is divided out first: conf is about the delta itself.
        """
        arrival = context.weight or 1.0
        out = direction.copy()
        for place in context.tensors():
            d, m = direction[place] / np.float32(arrival), momentum[place]
            length, against = float(np.linalg.norm(d)), float(np.linalg.norm(m))
            if length < _TINY or against < _TINY:
                continue
            u, v = d / np.float32(length), m / np.float32(against)
            cosine = float(u @ v)
            sure = length / (length + self.kappa * against)
            if cosine < 0:
                less = min(self.shrink * -cosine * sure, self.most)
                d = d - np.float32(less * cosine * length) * v
            elif cosine < self.keep:
                by = np.float32(min(self.turn * (1 - cosine) * sure, 1.0))
                turned = (1 - by) * u + by * v
                d = np.float32(length / max(float(np.linalg.norm(turned)), _TINY)) * turned
            out[place] = d * np.float32(arrival)
        return out


@dataclass(frozen=True)
class DownPour(Strategy):
    """Add every delta as it arrives: x <- x + d_i.

    Downpour SGD (Dean et al., "Large Scale Distributed Deep Networks", NIPS 2012) without the server's Adagrad; with
    `mode="hogwild"` without a lock (Recht, Re, Wright and Niu, "Hogwild!: A Lock-Free Approach to Parallelizing
    Stochastic Gradient Descent", NIPS 2011). Windows must be short: sums of whole epochs diverge from about eight
    workers on.
    """

    name: ClassVar[str] = "downpour"
    modes: ClassVar[frozenset[Mode]] = frozenset({Mode.ASYNCHRONOUS, Mode.HOGWILD})
    additive: ClassVar[bool] = True
    reduces: ClassVar[Reduce] = Total()

    def weight(self, update: Update, context: Context) -> float:
        """Return 1: the whole delta is added."""
        return 1.0


@dataclass(frozen=True)
class DownPourAdagrad(Strategy):
    """Downpour with Adagrad on the server: v <- v + d_i^2;  x <- x + lr d_i / (sqrt v + epsilon).

    Dean et al., "Large Scale Distributed Deep Networks", NIPS 2012. Steps get shorter with every update.

    learning_rate: length of the first step in each coordinate; default 0.01.
    epsilon: default 1e-6.
    """

    name: ClassVar[str] = "downpour_adagrad"
    modes: ClassVar[frozenset[Mode]] = frozenset({Mode.ASYNCHRONOUS})
    reduces: ClassVar[Reduce] = Total()
    learning_rate: float = 0.01
    epsilon: float = 1e-6

    def __post_init__(self) -> None:
        """Check the hyper-parameters."""
        super().__post_init__()
        positive("learning_rate", self.learning_rate)
        positive("epsilon", self.epsilon)

    def weight(self, update: Update, context: Context) -> float:
        """Return 1: the whole delta is added."""
        return 1.0

    def init(self, weights: Vector) -> OuterState:
        """Return the sum of squares v, zero."""
        return {"velocity": np.zeros_like(weights)}

    @elementwise
    def step(
        self, weights: Vector, direction: Vector, outer: OuterState, context: Context
    ) -> tuple[Vector, OuterState]:
        """Compute v <- v + d^2;  x <- x + lr d / (sqrt v + epsilon)."""
        velocity: Vector = outer["velocity"] + direction**2
        step: Vector = self.learning_rate * direction / (velocity**0.5 + self.epsilon)
        return weights + step, {"velocity": velocity}


@dataclass(frozen=True)
class ADAG(DownPour):
    """Accumulated gradient normalization: x <- x + d_i / steps_i, the mean step of a window instead of their sum.

    Hermans, Spanakis and Moeckel, "Accumulated Gradient Normalization", ACML 2017, arXiv:1710.02368. With an adaptive
    optimizer on the workers the center hardly moves: prefer plain SGD with a high learning rate.
    """

    name: ClassVar[str] = "adag"

    def encode(
        self, served: Vector, end: Vector, steps: int, memory: Memory, context: Context
    ) -> tuple[Vector, Memory]:
        """Return the delta divided by its number of steps."""
        return (end - served) / np.float32(max(1, steps)), memory


@dataclass(frozen=True)
class DynSGD(Strategy):
    """Weight deltas by their staleness: x <- x + d_i / (tau_i + 1).

    Jiang, Cui, Zhang and Yu, "Heterogeneity-aware Distributed Parameter Servers", SIGMOD 2017.
    """

    name: ClassVar[str] = "dynsgd"
    by_staleness: ClassVar[bool] = True
    modes: ClassVar[frozenset[Mode]] = frozenset({Mode.ASYNCHRONOUS})
    reduces: ClassVar[Reduce] = Total()

    def weight(self, update: Update, context: Context) -> float:
        """Return 1 / (tau + 1)."""
        return 1.0 / (context.staleness(update) + 1)


@dataclass(frozen=True)
class StalenessAware(DynSGD):
    """Weight deltas by their staleness: x <- x + d_i / max(1, tau_i).

    Zhang, Gupta, Lian and Liu, "Staleness-Aware Async-SGD for Distributed Deep Learning", IJCAI 2016, arXiv:1511.05950.
    """

    name: ClassVar[str] = "staleness_aware"

    def weight(self, update: Update, context: Context) -> float:
        """Return 1 / max(1, tau)."""
        return 1.0 / max(1, context.staleness(update))


@dataclass(frozen=True)
class FedAsync(Strategy):
    """Mix a worker's weights into the center: x <- (1 - a) x + a y_i,  a = alpha (1 + tau_i)^-power.

    Xie, Koyejo and Gupta, "Asynchronous Federated Optimization", arXiv:1903.03934, polynomial staleness. Workers send
    weights instead of deltas, so codecs and clipping do not apply. Defaults here: alpha 0.6, power 0.5.
    """

    name: ClassVar[str] = "fedasync"
    modes: ClassVar[frozenset[Mode]] = frozenset({Mode.ASYNCHRONOUS})
    deltas: ClassVar[bool] = False
    alpha: float = 0.6
    power: float = 0.5

    def __post_init__(self) -> None:
        """Check the hyper-parameters.

        Raises:
            TypeError: `reduce` is given.
            ValueError: `alpha` or `power` is out of range.
        """
        super().__post_init__()
        if self.reduce is not None:
            raise TypeError("fedasync sends weights, not deltas: it takes no reduce=.")
        if not 0 < self.alpha <= 1:
            raise ValueError(f"alpha must be above 0 and at most 1; got {self.alpha!r}.")
        positive("power", self.power, zero=True)

    def encode(
        self, served: Vector, end: Vector, steps: int, memory: Memory, context: Context
    ) -> tuple[Vector, Memory]:
        """Return the weights themselves."""
        return end, memory

    def weight(self, update: Update, context: Context) -> float:
        """Return a, the share of the worker's weights."""
        return float(self.alpha * (1.0 + context.staleness(update)) ** -self.power)

    @elementwise
    def step(
        self, weights: Vector, direction: Vector, outer: OuterState, context: Context
    ) -> tuple[Vector, OuterState]:
        """Compute x <- x + a (y - x)."""
        return weights + np.float32(context.weight) * (direction - weights), outer


@dataclass(frozen=True)
class FedBuff(Strategy):
    """Buffer M deltas, then step: x <- x + lr sum_i s(tau_i) d_i / M,  s(tau) = (1 + tau)^-power.

    Nguyen et al., "Federated Learning with Buffered Asynchronous Aggregation", AISTATS 2022, arXiv:2106.06639. Several
    deltas are averaged although no worker waits. Staleness counts steps, not deltas. Deltas that are still in the
    buffer when training ends are not used.

    buffer: M; None (the default) takes K, so that a step has about one delta of each worker.
    learning_rate: lr, default 1.
    power: default 0.5.
    """

    name: ClassVar[str] = "fedbuff"
    by_staleness: ClassVar[bool] = True
    modes: ClassVar[frozenset[Mode]] = frozenset({Mode.ASYNCHRONOUS})
    reduces: ClassVar[Reduce] = Total()
    buffer: int | None = None
    learning_rate: float = 1.0
    power: float = 0.5

    def __post_init__(self) -> None:
        """Check the hyper-parameters."""
        super().__post_init__()
        if self.buffer is not None:
            positive_int("buffer", self.buffer)
        positive("learning_rate", self.learning_rate)
        positive("power", self.power, zero=True)

    def quorum(self, num_workers: int) -> int:
        """Return M."""
        return num_workers if self.buffer is None else self.buffer

    def weight(self, update: Update, context: Context) -> float:
        """Return (1 + tau)^-power / M."""
        return float((1.0 + context.staleness(update)) ** -self.power / self.quorum(context.num_workers))

    @elementwise
    def step(
        self, weights: Vector, direction: Vector, outer: OuterState, context: Context
    ) -> tuple[Vector, OuterState]:
        """Compute x <- x + lr d."""
        return weights + np.float32(self.learning_rate) * direction, outer


@dataclass(frozen=True)
class DelayedNesterov(Strategy):
    """Step with every delta, and with the momentum at every N-th.

    x <- x + lr d / N;  at every N-th delta also m <- mu m + (the mean of the last N deltas) and x <- x + lr mu m.

    Liu et al., "Asynchronous Local-SGD Training for Language Modeling", arXiv:2401.09135, delayed Nesterov. N deltas
    together move x as far as one `nesterov` step over their mean.

    delay: N; None (the default) takes K.
    learning_rate: lr, default 0.7.
    momentum: mu, default 0.9.
    """

    name: ClassVar[str] = "delayed_nesterov"
    modes: ClassVar[frozenset[Mode]] = frozenset({Mode.ASYNCHRONOUS})
    reduces: ClassVar[Reduce] = Total()
    delay: int | None = None
    learning_rate: float = 0.7
    momentum: float = 0.9

    def __post_init__(self) -> None:
        """Check the hyper-parameters."""
        super().__post_init__()
        if self.delay is not None:
            positive_int("delay", self.delay)
        positive("learning_rate", self.learning_rate)
        share("momentum", self.momentum)

    def weight(self, update: Update, context: Context) -> float:
        """Return 1: the whole delta is added."""
        return 1.0

    def init(self, weights: Vector) -> OuterState:
        """Return the momentum m, the sum of the deltas since its last step, and their number, all zero."""
        zero = np.zeros_like(weights)
        return {"momentum": zero, "buffer": zero, "pushes": np.zeros(1, np.float32)}

    @elementwise
    def step(
        self, weights: Vector, direction: Vector, outer: OuterState, context: Context
    ) -> tuple[Vector, OuterState]:
        """Apply one delta; at every N-th also update and apply the momentum."""
        delay, rate = self.delay or context.num_workers, self.learning_rate
        buffer: Vector = outer["buffer"] + direction
        pushes: Vector = outer["pushes"] + np.float32(1)
        moved: Vector = weights + (rate / delay) * direction
        if pushes[0] < delay:
            return moved, {"momentum": outer["momentum"], "buffer": buffer, "pushes": pushes}
        momentum: Vector = self.momentum * outer["momentum"] + buffer / np.float32(delay)
        after = {"momentum": momentum, "buffer": np.zeros_like(buffer), "pushes": np.zeros_like(pushes)}
        return moved + (rate * self.momentum) * momentum, after
