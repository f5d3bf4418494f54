"""Rounds whose updates are added up on the way to the driver: what is left of each update, and sums of slices of their vectors.

Where one driver takes in the vectors of all workers, its link and its memory limit a fit. Most strategies need no more of the
updates than a weighted sum, which any machine can compute: each one a slice of the vectors, over all workers, in worker order. So
the driver gets one vector in place of K, with the bits that it would have computed itself.

    worker     weighed = weighing.weigh(update, start)        cut into slices
    any place  partial = weighing.added(slices of one place)
    driver     Summed.of(...), which core/averaging.py takes into the round
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from elephas_like.core.drift import sample_of
from elephas_like.core.layout import Layout
from elephas_like.core.merging import finite
from elephas_like.core.strategies.algebra import Context, Strategy, Sum, WeightedMean
from elephas_like.core.strategies.codecs import Codec, opened
from elephas_like.core.types import Array, Role, TrainState, Update, Vector, nothing

Held = Mapping[str, Array]
"""What a reduction has accumulated (`Reduction.held`)."""


@dataclass(frozen=True)
class Weighed:
    """An update with what a round asks of its vectors, which may have been left behind.

    not_finite: variables in which it has NaN or infinity; such an update is not applied.
    weight: of its delta among those of all workers.
    direction: the numbers of its step that drift is measured by.
    """

    update: Update
    not_finite: tuple[str, ...]
    weight: float
    direction: Vector

    @property
    def counts(self) -> bool:
        """Whether the update is applied."""
        return not self.not_finite and self.update.samples > 0

    def without_vectors(self) -> Weighed:
        """Return the same without delta and slots."""
        return replace(self, update=replace(self.update, delta=nothing(), slots=nothing()))


@dataclass(frozen=True)
class Term:
    """One slice of the vectors of one worker's update."""

    worker: int
    weight: float
    samples: int
    delta: Vector
    slots: Vector


@dataclass(frozen=True)
class Partial:
    """The sums of one slice, and the workers that are in them."""

    place: int
    workers: tuple[int, ...]
    weights: Held
    slots: Held


@dataclass(frozen=True)
class Weighing:
    """How updates are weighed, by plain data that travels to the workers.

    codec: what their deltas are packed with.
    """

    strategy: Strategy
    context: Context
    layout: Layout
    codec: Codec | None = None

    def weigh(self, update: Update, start: TrainState) -> Weighed:
        """Return an update, unpacked, with what a round asks of it.

        Args:
            start: the state that the round begins with.
        """
        update = opened(update, self.codec, start.weights.size)
        bad = not_finite(update, self.layout, start)
        if bad or update.samples == 0:
            return Weighed(update, bad, 0.0, nothing())
        step = sample_of(displacement(update, self.strategy, start.weights))
        return Weighed(update, bad, self.strategy.weight(update, self.context), step)

    def added(self, place: int, terms: Iterable[Term]) -> Partial:
        """Return the sums of one slice of all workers' vectors."""
        weights, slots = self.strategy.reduction(self.context), WeightedMean()
        ordered = sorted(terms, key=lambda term: term.worker)
        for term in ordered:
            weights.add(term.delta, term.weight)
            slots.add(term.slots, float(term.samples))
        return Partial(place, tuple(term.worker for term in ordered), weights.held(), slots.held())


@dataclass(frozen=True)
class Summed:
    """The updates of a round, in worker order and without their vectors, and what was accumulated of these."""

    updates: Sequence[Weighed]
    weights: Held
    slots: Held

    @classmethod
    def of(cls, updates: Iterable[Weighed], partials: Iterable[Partial]) -> Summed:
        """Put the sums of all slices together, which have the same workers."""
        slices = sorted(partials, key=lambda partial: partial.place)
        return cls(
            sorted(updates, key=lambda weighed: weighed.update.worker),
            _whole([partial.weights for partial in slices]),
            _whole([partial.slots for partial in slices]),
        )

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays."""
        arrays = [array for weighed in self.updates for array in (*weighed.update.arrays().values(), weighed.direction)]
        return sum(array.nbytes for array in (*arrays, *self.weights.values(), *self.slots.values()))


def adds_up(strategy: Strategy, context: Context) -> bool:
    """Return whether a strategy needs only the sum of the deltas, which slices of them have as well."""
    return strategy.deltas and type(strategy.reduction(context)) in (WeightedMean, Sum)


def cut(weighed: Weighed, count: int) -> Iterator[Term]:
    """Yield the vectors of an update that counts in `count` slices."""
    update = weighed.update
    for place in range(count):
        delta, slots = (vector[_slice(vector.size, place, count)] for vector in (update.delta, update.slots))
        yield Term(update.worker, weighed.weight, update.samples, delta, slots)


def displacement(update: Update, strategy: Strategy, weights: Vector) -> Vector:
    """Return an update's step from the weights it is applied to, whatever the strategy's messages are."""
    return update.delta if strategy.deltas else update.delta - weights


def not_finite(update: Update, layout: Layout, state: TrainState) -> tuple[str, ...]:
    """Return the variables in which an update has NaN or infinity; () where it has none.

    Args:
        state: what the update is applied to. What is not finite in its untrained parts may stay so: the mask of an attention
            layer, the bounds of an observer that has seen nothing.
    """
    parts = ((update.delta, Role.WEIGHT), (update.slots, Role.SLOT))
    untrained = ((update.statistics, Role.STATISTIC), (update.frozen, Role.FROZEN))
    broken = [(~np.isfinite(part), role) for part, role in parts if not finite(part)]
    broken += [
        (~np.isfinite(part) & np.isfinite(state.part(role)), role) for part, role in untrained if not finite(part)
    ]
    for places, role in broken:
        if places.any():
            entries = zip(layout.of(role), layout.slices(role), strict=True)
            return tuple(entry.name for entry, place in entries if places[place].any())
    return ()


def _slice(size: int, place: int, count: int) -> slice:
    return slice(size * place // count, size * (place + 1) // count)


def _whole(held: Sequence[Held]) -> Held:
    """Return what a reduction of whole vectors would hold: its sum is in slices, its weight is that of each."""
    filled = [each for each in held if "sum" in each]  # a slice may have no numbers
    if not filled:
        return {}
    weight = {name: array for name, array in filled[0].items() if name != "sum"}
    return {"sum": np.concatenate([each["sum"] for each in filled]), **weight}
