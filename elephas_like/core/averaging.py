"""One synchronous exchange: which updates are admitted, and the next state that they make.

Trainable weights go through the strategy. All other parts are merged by core/merging.py and never pass an outer momentum,
which would make a variance negative.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache

from elephas_like.core.drift import UNKNOWN, DriftMonitor
from elephas_like.core.errors import NonFiniteError
from elephas_like.core.layout import Layout
from elephas_like.core.merging import Replaced, RoundMerge
from elephas_like.core.strategies.algebra import Context, OuterState, Strategy, Sum, WeightedMean
from elephas_like.core.strategies.codecs import Codec
from elephas_like.core.summing import Summed, Weighed, Weighing, not_finite
from elephas_like.core.types import Floats, OnNaN, Role, TrainState, Update, Vector, WorkerRecord
from elephas_like.core.variates import MeanStep

log = logging.getLogger(__name__)


def admit(update: Update, on_nan: OnNaN, layout: Layout, state: TrainState) -> bool:
    """Whether an update may be applied. False if it holds NaN or infinity and `on_nan` is "drop".

    Args:
        state: what the update is applied to (`not_finite`).

    Raises:
        NonFiniteError: the same where `on_nan` is "raise", naming worker and round.
    """
    return _admitted(update, not_finite(update, layout, state), on_nan)


def _admitted(update: Update, bad: Sequence[str], on_nan: OnNaN) -> bool:
    if not bad:
        return True
    text = f"worker {update.worker} brought NaN or infinity in round {update.number} (in {', '.join(bad[:5])})"
    if on_nan is OnNaN.DROP:
        log.warning("%s; the update is dropped (on_nan='drop').", text)
        return False
    raise NonFiniteError(
        f"{text}. Expected finite numbers: look for a learning rate that is too high, a loss that takes log(0), or "
        "NaN among the rows. on_nan='drop' goes on without such updates."
    )


@lru_cache(maxsize=4096, typed=True)
def _shared(count: int) -> int:
    """Return the same object for equal counts: a long fit's history repeats few of them very often."""
    return count


def record(update: Update, staleness: int, dropped: bool, stale: bool = False) -> WorkerRecord:
    """Return an update's entry in `history.rounds`."""
    return WorkerRecord(
        worker=update.worker,
        samples=_shared(update.samples),
        steps=_shared(update.steps),
        seconds=update.seconds,
        staleness=staleness,
        dropped=int(dropped),
        stale=stale,
    )


@dataclass
class Round:
    """One synchronous exchange: merges updates in worker order into the next state.

    monitor: measures the drift, round by round. agreement: of this round, once it has finished.
    replaced: what callbacks have set. largest: the worker that has the most steps in an epoch, if it is known.
    mean_step: of all workers, at a learning rate of 1, once the round has finished, where workers have control variates; None where they have none.
    """

    start: TrainState
    outer: OuterState
    layout: Layout
    strategy: Strategy
    context: Context
    on_nan: OnNaN = OnNaN.RAISE
    codec: Codec | None = None
    monitor: DriftMonitor = field(default_factory=DriftMonitor)
    replaced: Replaced = field(default_factory=Replaced)
    largest: int | None = None
    control_variates: bool = False
    records: list[WorkerRecord] = field(default_factory=list)
    metrics: list[Floats] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.weighing = Weighing(self.strategy, self.context, self.layout, self.codec)
        self._weights = self.strategy.reduction(self.context)
        self._weight = 0.0
        self._parts = RoundMerge(self.layout, self.context.num_workers, self.largest)
        self._moved = False
        self._steps = MeanStep()
        self.mean_step: Vector | None = None
        self.agreement = UNKNOWN

    def add(self, update: Update) -> None:
        """Add one update, or drop it."""
        weighed = self.weighing.weigh(update, self.start)
        weight = self._note(weighed)
        if weight is not None:
            self._weights.add(weighed.update.delta, weight)
            self._add_parts(weighed.update)

    def add_summed(self, summed: Summed) -> None:
        """Add all updates of the round, of which the vectors were added up elsewhere."""
        for weighed in summed.updates:
            if self._note(weighed) is not None:
                self._add_parts(weighed.update)
        kind = type(self._weights)
        assert issubclass(kind, WeightedMean | Sum)  # adds_up
        self._weights = kind(summed.weights)
        self._parts.take_slots(summed.slots)

    def _note(self, weighed: Weighed) -> float | None:
        """Record an update and take what it says of drift. Return its weight; None if it is not applied."""
        update = weighed.update
        admitted = _admitted(update, weighed.not_finite, self.on_nan)
        staleness = self.context.staleness(update)
        self.records.append(record(update, staleness, not admitted))
        if not weighed.counts:
            return None
        self.metrics.append(update.metrics)
        self.monitor.take(update.worker, weighed.direction)
        # Where rows differ from worker to worker, a straggler's update is all that its rows say in as many rounds as it took.
        weight = weighed.weight * (1 + staleness * self.monitor.apart)
        self._weight += weight
        self._steps.add(weight, update.steps)
        self._moved = True
        return weight

    def _add_parts(self, update: Update) -> None:
        statistics = self.replaced.kept(Role.STATISTIC, self.start.statistics, update.statistics, update.version)
        self._parts.add(replace(update, statistics=statistics), late=self.context.staleness(update) > 0)

    def finish(self) -> tuple[TrainState, OuterState]:
        """Return the next state and the strategy's memory; those of the start if no worker trained."""
        self.agreement = self.monitor.measure()
        direction = self._weights.result()
        # All weights are frozen: statistics move on, such as BatchNorm's averages over other rows.
        if self._moved and not self.start.weights.size:
            return self.start.but(**self._parts.result(self.start)), self.outer
        if not self._moved or direction is None:
            return self.start, self.outer
        if self.control_variates:
            self.mean_step = self._steps.of(direction, self.context.learning_rate)
        context = replace(self.context, weight=self._weight, agreement=self.agreement)
        weights, outer = self.strategy.step(self.start.weights, direction, self.outer, context)
        # A strategy's own numbers may be of another kind than the weights.
        weights = weights.astype(self.start.weights.dtype, copy=False)
        state = self.start.but(weights=weights, **self._parts.result(self.start))
        return state, outer
