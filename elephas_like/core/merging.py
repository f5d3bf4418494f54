"""What becomes of each part of the state besides the trainable weights when updates are merged.

Statistics are averaged by samples, variances by the law of total variance (Var = E[var_i] + Var[mean_i]). Optimizer slots
are averaged by samples, all of them together: a first moment averaged without its second destroys training. Integers and
bools are one worker's, and so is a loss scale with its step counter: no mean of theirs is a state.

The same rule holds for both kinds of exchange. `RoundMerge` merges the updates of one synchronous round. `RunningMerge`
merges asynchronous updates one by one, each as a share of a moving mean.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np

from elephas_like.core.layout import Layout
from elephas_like.core.strategies.algebra import WeightedMean
from elephas_like.core.types import SLOTS_SINCE, Array, Floats, Integers, Role, RoundRecord, TrainState, Update, Vector

Numbers = TypeVar("Numbers", Vector, Integers)


def finite(vector: Vector) -> bool:
    """Whether all numbers are finite. Adding them up is ten times as fast as looking at each, and nearly always enough."""
    with np.errstate(over="ignore", invalid="ignore"):
        return bool(np.isfinite(vector.sum())) or bool(np.isfinite(vector).all())


@dataclass
class StatisticsMean:
    """Sample-weighted statistics: means as they are, variances by the law of total variance. In float64.

    What is a moving average has moved by 1 - momentum ** steps of the way to the rows of its worker, and the averages of two workers
    lie apart by as much less than their rows do: the variance between them counts as if it had been part of every step's. So the
    pooled variance is that of steps which see the batches of all workers together.
    """

    layout: Layout
    role: Role = Role.STATISTIC
    _sum: Floats | None = None
    _squares: list[Floats] = field(default_factory=list)
    _origin: Floats | None = None
    _weight: float = 0.0
    _steps: float = 0.0
    _together: bool = True
    _dtype: np.dtype[np.float32] = field(default_factory=lambda: np.dtype(np.float32))

    def add(self, statistics: Vector, samples: int, steps: int = 0) -> None:
        """Take one worker's statistics.

        Args:
            steps: in which its moving averages have moved on from those that all workers began with; 0 if it began with others.
        """
        if samples == 0 or statistics.size == 0:
            return
        term, self._dtype = statistics.astype(np.float64), statistics.dtype
        # Means are taken from the first worker's: equal (frozen) statistics come back to the last bit.
        self._origin = term.copy() if self._origin is None else self._origin
        means = [mean for mean, _ in self.layout.variances(self.role)]
        squares = [samples * (term[mean] - self._origin[mean]) ** 2 for mean in means]
        self._squares = [a + b for a, b in zip(self._squares, squares, strict=True)] if self._squares else squares
        term *= samples
        self._sum = term if self._sum is None else self._sum + term
        self._weight += samples
        self._steps += samples * steps
        self._together = self._together and steps > 0

    def result(self) -> Vector | None:
        """The pooled statistics; None where nothing came."""
        if self._sum is None or self._origin is None:
            return None
        pooled = self._sum / self._weight
        for (mean, variance), squares in zip(self.layout.variances(self.role), self._squares, strict=True):
            between = squares / self._weight - (pooled[mean] - self._origin[mean]) ** 2
            pooled[variance] = np.maximum(pooled[variance] + between * self._stretch(mean), 0.0)
        return pooled.astype(self._dtype, copy=False)

    def _stretch(self, mean: slice) -> Floats | float:
        """Return what the variance between workers' moving means is multiplied by."""
        if self.role is not Role.STATISTIC or not self._together:
            return 1.0
        moved = 1 - self.layout.momenta[mean].astype(np.float64) ** (self._steps / self._weight)
        return np.divide(1.0, moved, out=np.ones_like(moved), where=moved > 0)  # with a momentum of 1 nothing moves


class Replaced:
    """Which numbers callbacks have set, and since which version of the state workers begin with them.

    A worker that began before brings the values of before, also of a variable that it does not train, such as the weight of a
    loss that a callback raises from epoch to epoch. Those values are no result of its training.
    """

    def __init__(self) -> None:
        self._since: dict[Role, Integers] = {}

    def note(self, before: TrainState, after: TrainState, version: int) -> None:
        """Note that callbacks have made `after` of `before`, and that states have it from a version on."""
        for role in (Role.STATISTIC, Role.COUNTER):
            was, now = before.part(role), after.part(role)
            if now is not was:
                since = self._since.get(role, np.zeros(was.size, np.int64))
                self._since[role] = np.where(now != was, version, since)

    def kept(self, role: Role, ours: Numbers, theirs: Numbers, version: int) -> Numbers:
        """Return a worker's numbers, with ours in the place of those that were set after it had begun at `version`."""
        since = self._since.get(role)
        if since is None or not theirs.size or not (since > version).any():
            return theirs
        return np.where(since > version, ours, theirs)


def lower_scales(ours: Vector, theirs: Vector, *, on_equal: bool) -> Vector:
    """Return the lower of two loss scales, with its step counter, for each optimizer that has one.

    Args:
        ours, theirs: (steps since the scale grew, scale) of each such optimizer, one after the other.
        on_equal: whether theirs is taken where the scales are equal.
    """
    one, other = ours.reshape(-1, 2), theirs.reshape(-1, 2)
    take = (other[:, 1] < one[:, 1]) | (on_equal & (other[:, 1] == one[:, 1]))
    return np.where(take[:, None], other, one).ravel()


def mix_statistics(
    ours: Vector,
    theirs: Vector,
    share: float,
    layout: Layout,
    role: Role = Role.STATISTIC,
    between: Sequence[Floats | None] = (),
) -> Vector:
    """Statistics of a mixture, `share` of it theirs: means move by it, variances follow the law of total variance.

    Ours where theirs are left out. What is not finite in ours becomes theirs: nothing lies between infinity and a number.

    Args:
        between: for each variance, that between the means of the batches of all workers, as far as theirs have moved, if it is known.
    """
    if theirs.size == 0:
        return ours
    with np.errstate(invalid="ignore"):
        pooled: Floats = ours.astype(np.float64) + share * (theirs.astype(np.float64) - ours)
        pairs = layout.variances(role)
        for (mean, variance), known in zip(pairs, between or [None] * len(pairs), strict=True):
            apart = theirs[mean].astype(np.float64) - ours[mean]
            pooled[variance] += share * (1 - share) * apart**2 if known is None else share * known
    if not finite(ours):
        pooled = np.where(np.isfinite(ours), pooled, theirs)
    return pooled.astype(ours.dtype, copy=False)


class BatchMeans:
    """The means of the batches behind the last updates, one for each worker, which the workers' moving means have come a part of the way to.

    They say how far workers' rows lie apart, where the moving means of a state are those of all workers. Of a worker that brings nothing
    any more nothing is left once the others have brought as many updates.
    """

    def __init__(self, layout: Layout, num_workers: int) -> None:
        self._means = [mean for mean, _ in layout.variances()]
        self._momenta = [layout.momenta[mean].astype(np.float64) for mean in self._means]
        self._most = num_workers
        self._last: tuple[Floats, ...] = ()

    def between(self, theirs: Vector, began: Vector, steps: int) -> list[Floats | None]:
        """Take a worker's statistics after so many steps. Return, for each variance, that between the means times the share of the way.

        None where no momentum is known.
        """
        if not self._means:
            return []
        moved = 1 - np.concatenate(self._momenta) ** steps
        start, end = (
            np.concatenate([each[mean] for mean in self._means]).astype(np.float64) for each in (began, theirs)
        )
        own = start + np.divide(end - start, moved, out=np.zeros_like(end), where=moved > 0)
        last = self._last = (*self._last, own)[-self._most :]
        ends = np.cumsum([momentum.size for momentum in self._momenta])[:-1]
        found = np.split(moved * np.var(last, axis=0), ends)
        return [each if momentum.all() else None for each, momentum in zip(found, self._momenta, strict=True)]

    def checkpoint(self) -> dict[str, Array]:
        """Return the means by their number, the oldest first."""
        return {str(number): means for number, means in enumerate(self._last)}

    def restore(self, arrays: Mapping[str, Array]) -> None:
        """Continue from a checkpoint; from an earlier version's, which has none, as a new fit."""
        found = [arrays[name].astype(np.float64, copy=False) for name in sorted(arrays, key=int)]
        self._last = tuple(found)[-self._most :]


def begun_anew(theirs: Vector, began: Vector, ours: Vector, steps: int, layout: Layout) -> Vector:
    """Return a worker's statistics as they would be if it had begun with ours.

    A moving average holds momentum ** steps of what a worker began with. In an asynchronous fit that is what ours were several updates
    ago, and to be drawn back there by every update halves the speed at which they move: a small CNN on eight workers, whose
    accuracy in one process is 95.2 %, ended at 87 % in place of 95.3 % (docs/convergence.md).

    Args:
        began: what the worker began with.
    """
    moving = np.flatnonzero(layout.momenta)  # others may be infinite
    kept = layout.momenta[moving].astype(np.float64) ** steps
    moved = theirs.copy()
    moved[moving] += kept * (ours[moving].astype(np.float64) - began[moving])
    for _, variance in layout.variances():  # a layer that a step calls twice keeps less than that
        moved[variance] = np.maximum(moved[variance], np.minimum(theirs[variance], ours[variance]) / 2)
    return moved


def share_of(updates: int, num_workers: int) -> float:
    """How far slots and statistics move towards a worker's: 1 / min(t + 1, K) at the update after t others.

    So they are the mean of all updates so far, and once K have come the moving mean of about the last K. The zeros that
    they begin with are no estimate of anything: where they kept a share, Adam's second moments were too small for the
    step counter that goes with them, and the first steps too long (docs/convergence.md has the numbers).
    """
    return 1.0 / min(updates + 1, num_workers)


class RoundMerge:
    """Merges the parts of all updates of one synchronous round, in worker order.

    Integers, and learning rates that steps have changed, are those of the worker with the most steps in an epoch, or else in the round,
    the first of several. Loss scales are the lowest; of equal ones the counter of the worker with more steps counts. One worker alone
    also keeps its seeds, and so draws on as Keras does.

    Args:
        num_workers: workers that train; seeds are taken over from one alone.
        largest: the worker that has the most steps in an epoch, if it is known: integers are its own where it brings any.
    """

    def __init__(self, layout: Layout, num_workers: int, largest: int | None = None) -> None:
        self._num_workers = num_workers
        self._largest = largest
        self._slots = WeightedMean()
        self._statistics = StatisticsMean(layout)
        self._frozen = StatisticsMean(layout, Role.FROZEN)
        self._frozen_unchanged = 0
        self._most_steps: float = -1
        self._scale_steps = -1
        self._counters: Integers | None = None
        self._learning_rate: Vector | None = None
        self._loss_scale: Vector | None = None
        self._seeds: Integers | None = None

    def add(self, update: Update, *, late: bool = False) -> None:
        """Add one worker's parts.

        Args:
            late: the update started from an earlier round's state. Its integers and slots are out of date, and left out.
        """
        self._statistics.add(update.statistics, update.samples, 0 if late else update.steps)
        self._frozen.add(update.frozen, update.samples)
        self._frozen_unchanged += 0 if update.frozen.size else update.samples
        if late:
            return
        self._slots.add(update.slots, float(update.samples))
        self._add_counters(update)
        if self._num_workers == 1:
            self._seeds = update.seeds

    def take_slots(self, held: Mapping[str, Array]) -> None:
        """Take slots that were added up elsewhere, in place of those that were added here."""
        self._slots = WeightedMean(held)

    def _add_counters(self, update: Update) -> None:
        # Of unequal shards one that has fewer steps in an epoch may have more in a round.
        steps = math.inf if update.worker == self._largest and update.steps else update.steps
        if steps > self._most_steps:
            self._most_steps, self._counters = steps, update.counters
            self._learning_rate = update.learning_rate if update.learning_rate.size else None
        if self._loss_scale is None:
            self._scale_steps, self._loss_scale = update.steps, update.loss_scale
        else:
            further = update.steps > self._scale_steps
            self._scale_steps = max(self._scale_steps, update.steps)
            self._loss_scale = lower_scales(self._loss_scale, update.loss_scale, on_equal=further)

    def result(self, start: TrainState) -> dict[str, Array]:
        """Return the merged parts by the name of their role. Parts that no update brought are left out.

        Args:
            start: the state that the round began with.
        """
        frozen = self._frozen.result()
        if frozen is not None and self._frozen_unchanged:
            # Workers whose frozen values did not change sent none: they count with the values of the start.
            self._frozen.add(start.frozen, self._frozen_unchanged)
            frozen = self._frozen.result()
        merged = {
            "statistics": self._statistics.result(),
            "slots": self._slots.result(),
            "counters": self._counters,
            "learning_rate": self._learning_rate,
            "loss_scale": self._loss_scale,
            "seeds": self._seeds,
            "frozen": frozen,
        }
        return {name: part for name, part in merged.items() if part is not None}


@dataclass
class RunningMerge:
    """Merges asynchronous updates into the shared state, one at a time.

    Integers are those of the worker with the most steps so far. A lower loss scale is always taken over. A higher one is
    taken only from an update that started from the lowest scale: scales grow as in one process, and no worker undoes what
    another one found out.

    steps: of each worker so far. lowered: the version since which loss scales are as low as they are.
    replaced: what callbacks have set. begun: the version and the statistics that each worker has begun with.
    means: of the batches behind the last updates.
    """

    layout: Layout
    num_workers: int
    steps: dict[int, int] = field(default_factory=dict)
    lowered: int = 0
    replaced: Replaced = field(default_factory=Replaced)
    begun: dict[int, tuple[int, Vector]] = field(default_factory=dict)
    means: BatchMeans = field(init=False)

    def __post_init__(self) -> None:
        self.means = BatchMeans(self.layout, self.num_workers)

    def begins(self, worker: int, version: int, statistics: Vector) -> None:
        """Note what a worker begins with, of a layout with moving averages."""
        if self.layout.momenta.any():
            self.begun[worker] = version, statistics.copy()  # which others may be changing

    def merge(self, state: TrainState, update: Update, share: float, version: int) -> dict[str, Array]:
        """Return the state's parts after an update, by the name of their role, without weights and slots.

        Args:
            share: how far statistics move towards the worker's.
            version: from which on every served state has this update.
        """
        version_begun, began = self.begun.get(update.worker, (-1, None))
        statistics, between = update.statistics, list[Floats | None]()
        if began is not None and version_begun == update.version and statistics.size:
            between = self.means.between(statistics, began, update.steps)
            statistics = begun_anew(statistics, began, state.statistics, update.steps, self.layout)
        kept = self.replaced.kept(Role.STATISTIC, state.statistics, statistics, update.version)
        if kept is not statistics:
            between = []  # what a callback has set stays
        merged: dict[str, Array] = {
            "statistics": mix_statistics(state.statistics, kept, share, self.layout, between=between),
            "counters": self._counters(state.counters, update),
            "loss_scale": self._loss_scale(state.loss_scale, update, version),
        }
        if update.frozen.size:
            merged["frozen"] = mix_statistics(state.frozen, update.frozen, share, self.layout, Role.FROZEN)
        if self.num_workers == 1:
            merged["seeds"] = update.seeds
        return merged

    def _counters(self, ours: Integers, update: Update) -> Integers:
        self.steps[update.worker] = self.steps.get(update.worker, 0) + update.steps
        theirs = self.replaced.kept(Role.COUNTER, ours, update.counters, update.version)
        return theirs if self.steps[update.worker] >= max(self.steps.values()) else ours

    def _loss_scale(self, ours: Vector, update: Update, version: int) -> Vector:
        if update.version >= self.lowered:
            scales = update.loss_scale
        else:
            scales = lower_scales(ours, update.loss_scale, on_equal=False)
        if np.any(scales[1::2] < ours[1::2]):
            self.lowered = version
        return scales


def with_mean_slots(
    state: TrainState,
    memories: Iterable[tuple[int, Mapping[str, Array]]],
    rounds: Sequence[RoundRecord],
    since: int = 0,
) -> TrainState:
    """Return a state with the mean of the slots that workers remember, weighted by the samples that each has trained.

    Its own are those of the fit's begin, beside a step counter that has gone on: with Adam the first steps of whatever trains next
    would be up to three times too long.

    Args:
        rounds: since the last average. since: its number; slots that have gone on from an earlier one, as a straggler's, are left out.
    """
    samples: Counter[int] = Counter()
    for finished in rounds:
        samples.update({worker.worker: worker.samples for worker in finished.workers})
    mean = WeightedMean()
    for worker, memory in memories:  # one at a time: each may be larger than a state
        slots: Vector | None = memory.get("slots")  # type: ignore[assignment]  # as it was
        if slots is not None and samples[worker] and int(memory.get(SLOTS_SINCE, (0,))[0]) == since:
            mean.add(slots, float(samples[worker]))
    slots = mean.result()
    return state if slots is None else state.but(slots=slots.astype(state.slots.dtype, copy=False))
