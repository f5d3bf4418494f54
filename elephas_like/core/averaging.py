"""What becomes of each part of the state at an exchange: one round of many updates, or one update on its own.

Trainable weights go through the strategy. Statistics are averaged by samples, variances by the law of total variance
(Var = E[var_i] + Var[mean_i]), and never pass an outer momentum, which would make a variance negative. Optimizer slots
are averaged by samples, all of them together: a first moment averaged without its second destroys training. Integers and
bools are one worker's, and so is a loss scale with its step counter: no mean of theirs is a state.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field, replace

import numpy as np

from elephas_like.core.drift import UNKNOWN, DriftMonitor
from elephas_like.core.errors import NonFiniteError
from elephas_like.core.layout import Layout
from elephas_like.core.strategies.algebra import Context, OuterState, Strategy, WeightedMean
from elephas_like.core.strategies.codecs import Codec, opened
from elephas_like.core.types import Floats, Integers, OnNaN, Role, TrainState, Update, Vector, WorkerRecord

log = logging.getLogger(__name__)


def finite(vector: Vector) -> bool:
    """Whether all numbers are finite. Adding them up is ten times as fast as looking at each, and nearly always enough."""
    with np.errstate(over="ignore", invalid="ignore"):
        return bool(np.isfinite(vector.sum())) or bool(np.isfinite(vector).all())


def admit(update: Update, on_nan: OnNaN, layout: Layout, state: TrainState) -> bool:
    """Whether an update may be applied: False where it holds NaN or infinity and `on_nan` is "drop".

    Args:
        state: what the update is applied to. What is not finite in its untrained parts may stay so: the mask of an attention
            layer, the bounds of an observer that has seen nothing.

    Raises:
        NonFiniteError: the same where `on_nan` is "raise", naming worker and round.
    """
    parts = ((update.delta, Role.WEIGHT), (update.slots, Role.SLOT))
    untrained = ((update.statistics, Role.STATISTIC), (update.frozen, Role.FROZEN))
    broken = [(~np.isfinite(part), role) for part, role in parts if not finite(part)]
    broken += [
        (~np.isfinite(part) & np.isfinite(state.part(role)), role) for part, role in untrained if not finite(part)
    ]
    broken = [(places, role) for places, role in broken if places.any()]
    if not broken:
        return True
    places, role = broken[0]
    bad = [entry.name for entry, place in zip(layout.of(role), layout.slices(role), strict=True) if places[place].any()]
    text = f"worker {update.worker} brought NaN or infinity in round {update.number} (in {', '.join(bad[:5])})"
    if on_nan is OnNaN.DROP:
        log.warning("%s; the update is dropped (on_nan='drop').", text)
        return False
    raise NonFiniteError(
        f"{text}. Expected finite numbers: look for a learning rate that is too high, a loss that takes log(0), or "
        "NaN among the rows. on_nan='drop' goes on without such updates."
    )


def displacement(update: Update, strategy: Strategy, weights: Vector) -> Vector:
    """Which way an update goes from the weights that it is applied to, whatever a strategy's messages are."""
    return update.delta if strategy.deltas else update.delta - weights


def record(update: Update, staleness: int, dropped: bool, stale: bool = False) -> WorkerRecord:
    """What `history.rounds` keeps of an update."""
    return WorkerRecord(
        worker=update.worker,
        samples=update.samples,
        steps=update.steps,
        seconds=update.seconds,
        staleness=staleness,
        dropped=int(dropped),
        stale=stale,
    )


@dataclass
class StatisticsMean:
    """Sample-weighted statistics: means as they are, variances by the law of total variance. In float64."""

    layout: Layout
    role: Role = Role.STATISTIC
    _sum: Floats | None = None
    _origin: Floats | None = None
    _weight: float = 0.0

    def add(self, statistics: Vector, samples: int) -> None:
        """Takes one worker's statistics."""
        if samples == 0 or statistics.size == 0:
            return
        term = statistics.astype(np.float64)
        # Means are taken from the first worker's: equal (frozen) statistics come back to the last bit.
        self._origin = term.copy() if self._origin is None else self._origin
        for mean, variance in self.layout.variances(self.role):
            term[variance] += (term[mean] - self._origin[mean]) ** 2  # E[x^2], which averages as it is
        term *= samples
        self._sum = term if self._sum is None else self._sum + term
        self._weight += samples

    def result(self) -> Vector | None:
        """The pooled statistics; None where nothing came."""
        if self._sum is None or self._origin is None:
            return None
        pooled = self._sum / self._weight
        for mean, variance in self.layout.variances(self.role):
            pooled[variance] = np.maximum(pooled[variance] - (pooled[mean] - self._origin[mean]) ** 2, 0.0)
        return pooled.astype(np.float32)


@dataclass
class Leader:
    """What is not averaged in a round: integers are those of the worker with the most steps, loss scales the lowest."""

    _steps: int = -1
    _scale_steps: int = -1
    counters: Integers | None = None
    loss_scale: Vector | None = None

    def add(self, update: Update) -> None:
        """Takes one worker's; of workers with equally many steps the first one's count."""
        if update.steps > self._steps:
            self._steps, self.counters = update.steps, update.counters
        if self.loss_scale is None:
            self._scale_steps, self.loss_scale = update.steps, update.loss_scale
        else:
            further = update.steps > self._scale_steps
            self._scale_steps = max(self._scale_steps, update.steps)
            self.loss_scale = lower_scales(self.loss_scale, update.loss_scale, on_equal=further)


def lower_scales(ours: Vector, theirs: Vector, *, on_equal: bool) -> Vector:
    """The lower loss scale of two, of each optimizer that has one, with the step counter that goes with it.

    Args:
        ours, theirs: (steps since the scale grew, scale) of each such optimizer, one after the other.
        on_equal: whether equal scales come with their counter.
    """
    one, other = ours.reshape(-1, 2), theirs.reshape(-1, 2)
    take = (other[:, 1] < one[:, 1]) | (on_equal & (other[:, 1] == one[:, 1]))
    return np.where(take[:, None], other, one).ravel()


@dataclass
class Round:
    """One synchronous exchange: takes updates in worker order, gives the next state.

    monitor: looks at the updates of the fit's rounds, one after the other. agreement: what it saw of this one, at the end.
    """

    start: TrainState
    outer: OuterState
    layout: Layout
    strategy: Strategy
    context: Context
    on_nan: OnNaN = OnNaN.RAISE
    codec: Codec | None = None
    monitor: DriftMonitor = field(default_factory=DriftMonitor)
    records: list[WorkerRecord] = field(default_factory=list)
    metrics: list[Floats] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._weights = self.strategy.reduction(self.context)
        self._weight = 0.0
        self._slots = WeightedMean()
        self._statistics = StatisticsMean(self.layout)
        self._frozen = StatisticsMean(self.layout, Role.FROZEN)
        self._unchanged = 0
        self._leader = Leader()
        self._seeds: Integers = self.start.seeds
        self._moved = False
        self.agreement = UNKNOWN

    def add(self, update: Update) -> None:
        """Takes one update, or drops it."""
        update = opened(update, self.codec, self.start.weights.size)
        admitted = admit(update, self.on_nan, self.layout, self.start)
        self.records.append(record(update, 0, not admitted))
        if not admitted or update.samples == 0:
            return
        self.metrics.append(update.metrics)
        self.monitor.add(update.worker, displacement(update, self.strategy, self.start.weights))
        weight = self.strategy.weight(update, self.context)
        self._weights.add(update.delta, weight)
        self._weight += weight
        self._slots.add(update.slots, float(update.samples))
        self._statistics.add(update.statistics, update.samples)
        self._frozen.add(update.frozen, update.samples)
        self._unchanged += 0 if update.frozen.size else update.samples
        self._leader.add(update)
        if self.context.num_workers == 1:
            self._seeds = update.seeds  # one worker alone draws on as Keras does
        self._moved = True

    def finish(self) -> tuple[TrainState, OuterState]:
        """The state after the exchange and what the strategy remembers; the start again where nothing came."""
        self.agreement = self.monitor.measure()
        direction = self._weights.result()
        if not self._moved or direction is None:
            return self.start, self.outer
        context = replace(self.context, weight=self._weight, agreement=self.agreement)
        weights, outer = self.strategy.step(self.start.weights, direction, self.outer, context)
        slots, statistics = self._slots.result(), self._statistics.result()
        frozen = self._frozen.result()
        if frozen is not None and self._unchanged:
            self._frozen.add(self.start.frozen, self._unchanged)
            frozen = self._frozen.result()
        counters, loss_scale = self._leader.counters, self._leader.loss_scale
        state = TrainState(
            weights=weights.astype(np.float32, copy=False),  # a strategy's own numbers may be of another kind
            statistics=self.start.statistics if statistics is None else statistics,
            slots=self.start.slots if slots is None else slots,
            counters=self.start.counters if counters is None else counters,
            learning_rate=self.start.learning_rate,
            loss_scale=self.start.loss_scale if loss_scale is None else loss_scale,
            seeds=self._seeds,
            frozen=self.start.frozen if frozen is None else frozen,
        )
        return state, outer


def mix_statistics(ours: Vector, theirs: Vector, share: float, layout: Layout, role: Role = Role.STATISTIC) -> Vector:
    """Statistics of a mixture, `share` of it theirs: means move by it, variances follow the law of total variance.

    Ours where theirs are left out. What is not finite in ours becomes theirs: nothing lies between infinity and a number.
    """
    if theirs.size == 0:
        return ours
    with np.errstate(invalid="ignore"):
        pooled: Floats = ours.astype(np.float64) + share * (theirs.astype(np.float64) - ours)
        for mean, variance in layout.variances(role):
            apart = theirs[mean].astype(np.float64) - ours[mean]
            pooled[variance] += share * (1 - share) * apart**2
    if not finite(ours):
        pooled = np.where(np.isfinite(ours), pooled, theirs)
    return pooled.astype(np.float32)
