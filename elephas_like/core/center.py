"""The state that asynchronous workers share: `LockedCenter` under any strategy, `HogwildCenter` without a lock."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from elephas_like.core.averaging import admit
from elephas_like.core.drift import DriftMonitor
from elephas_like.core.errors import ElephasError
from elephas_like.core.layout import Layout
from elephas_like.core.merging import RunningMerge, share_of
from elephas_like.core.pieces import move_towards
from elephas_like.core.strategies.algebra import Context, Strategy
from elephas_like.core.strategies.codecs import Codec, opened
from elephas_like.core.summing import displacement
from elephas_like.core.types import (
    Array,
    OnNaN,
    Role,
    TrainState,
    Update,
    Vector,
)

LearningRate = Callable[[TrainState, int], float]
"""The optimizers' learning rate in a state, after so many further steps."""


@dataclass(frozen=True)
class Commit:
    """What became of one update.

    staleness: versions that came between the state the update started from and the update.
    applied: False if it was dropped. stale: it was dropped because of its staleness.
    """

    staleness: int
    applied: bool = True
    stale: bool = False


class Center(Protocol):
    """The shared state, as asynchronous engines use it.

    version: counts the updates that are in it, or the steps of strategies that step once for several. max_staleness: versions
    that may have come since a worker's state was served; None for any number.
    """

    version: int
    max_staleness: int | None

    def commit(self, update: Update) -> Commit:
        """Apply one update or drop it, and return what became of it."""
        ...

    def served(self, worker: int | None = None, *, live: bool = False) -> tuple[int, TrainState]:
        """Return the version and the state that a worker starts its next span from.

        Args:
            worker: who starts; None for nobody.
            live: commits may change the state while it is read. For those who send it at once and do not keep it.
        """
        ...

    def snapshot(self) -> TrainState:
        """Return the state itself, unchanged by later commits."""
        ...

    def replace(self, before: TrainState, after: TrainState) -> None:
        """Change the state as callbacks have changed one that was taken before. How they moved weights is added."""
        ...

    def checkpoint(self) -> dict[str, Array]:
        """Return what it remembers beside its state, as plain arrays by name."""
        ...


Projection = Callable[[Vector], Vector]
"""Weights as a model's constraints allow them."""


def unconstrained(weights: Vector) -> Vector:
    """Return the same weights."""
    return weights


def mean_rate(rate: LearningRate, state: TrainState, steps: int) -> float:
    """Return the mean of the learning rates of the next `steps` steps from a state on; of four of them, evenly spread."""
    count = min(max(1, steps), 4)  # a schedule takes half a millisecond
    rates = [rate(state, (2 * number + 1) * steps // (2 * count)) for number in range(count)]
    return rates[0] if min(rates) == max(rates) else math.fsum(rates) / count


def plain_rate(state: TrainState, steps: int) -> float:
    """Return the learning rate that a state holds, whatever the steps; 1 if it holds none."""
    return float(state.learning_rate[0]) if state.learning_rate.size else 1.0


class _Center(Center):
    """What both kinds of shared state have in common: the state, and which updates are applied.

    Args:
        codec: what the updates' deltas are packed with.
        budget: rows that the whole fit trains, for `Context.progress`; 0 if unknown.
        monitor: measures the drift of applied updates.
        learning_rate: the optimizers' in a state, after so many further steps.
        constrain: what the model's constraints make of weights.
    """

    def __init__(
        self,
        state: TrainState,
        layout: Layout,
        strategy: Strategy,
        num_workers: int,
        on_nan: OnNaN = OnNaN.RAISE,
        *,
        codec: Codec | None = None,
        budget: int = 0,
        max_staleness: int | None = None,
        monitor: DriftMonitor | None = None,
        learning_rate: LearningRate = plain_rate,
        constrain: Projection = unconstrained,
    ) -> None:
        self.version = 0
        self.max_staleness = max_staleness
        self._state = state
        self._layout = layout
        self._strategy = strategy
        self._num_workers = num_workers
        self._on_nan = on_nan
        self._codec = codec
        self._budget = budget
        self._monitor = monitor or DriftMonitor()
        self._learning_rate = learning_rate
        self._constrain = constrain
        self._samples = 0
        self._merge = RunningMerge(layout, num_workers)
        self._prepare()

    def commit(self, update: Update) -> Commit:
        """Apply one update or drop it, and return what became of it."""
        staleness = max(0, self.version - update.version)
        if self.max_staleness is not None and staleness > self.max_staleness:
            return Commit(staleness, applied=False, stale=True)
        if update.learning_rate.size:
            raise ElephasError(
                "a train step, or an optimizer, has set the learning rate. Asynchronous workers would each have their own: use "
                "mode='synchronous', a keras.optimizers.schedules.LearningRateSchedule, or a callback."
            )
        update = opened(update, self._codec, self._state.weights.size)
        if not admit(update, self._on_nan, self._layout, self._state):
            return Commit(staleness, applied=False)
        if update.samples:
            self._monitor.add(update.worker, displacement(update, self._strategy, self._state.weights))
            self._apply(update)
        return Commit(staleness)

    def checkpoint(self) -> dict[str, Array]:
        """Return what it remembers beside its state, as plain arrays by name."""
        merge = self._merge
        return {
            "counts": np.array([self.version, self._samples, merge.lowered], np.int64),
            "steps": np.array(list(merge.steps.items()), np.int64).reshape(-1, 2),
            **{f"direction.{worker}": vector for worker, vector in self._monitor.directions.items()},
            **{f"batches.{name}": means for name, means in merge.means.checkpoint().items()},
        }

    def restore(self, arrays: Mapping[str, Array], workers: Collection[int] | None = None) -> None:
        """Continue from a checkpoint of a center with the same strategy, whose state this one was made with.

        Checkpoints of earlier versions have no directions: the first updates are weighted as those of a new fit.

        Args:
            workers: those that train now; None for those that did. The steps of others are forgotten: integers would stand still until
                somebody has made as many.
        """
        directions = {int(worker): vector for worker, vector in _under("direction.", arrays).items()}
        self._monitor.restore(directions)  # type: ignore[arg-type]  # as they were taken
        self.version, self._samples, self._merge.lowered = (int(count) for count in arrays["counts"])
        self._merge.steps = {
            int(worker): int(steps) for worker, steps in arrays["steps"] if workers is None or worker in workers
        }
        self._merge.means.restore(_under("batches.", arrays))

    def _prepare(self) -> None:
        raise NotImplementedError

    def _apply(self, update: Update) -> None:
        raise NotImplementedError

    def _changed(self, before: TrainState, after: TrainState) -> dict[str, Array]:
        """Return the state's parts, without weights, as callbacks have changed them. Numbers that they left alone stay as they are now.

        Workers that began before are known by their version. Whether a state of the present version was served before cannot be
        told: it counts as such.
        """
        self._merge.replaced.note(before, after, self.version + 1)
        parts: dict[str, Array] = {}
        for role in set(Role) - {Role.WEIGHT}:
            was, now = before.part(role), after.part(role)
            if now is not was:
                moves_on = role in (Role.STATISTIC, Role.COUNTER)
                parts[role.value] = np.where(was != now, now, self._state.part(role)) if moves_on else now
        return parts

    def _context(self) -> Context:
        rate = self._learning_rate(self._state, 0)
        return context_of(self._layout, self.version, self._num_workers, self._samples, self._budget, rate)


class LockedCenter(_Center):
    """The shared state under any strategy. Not thread-safe by itself: the server holds a lock around each call."""

    def _prepare(self) -> None:
        self._outer = self._strategy.init(self._state.weights)
        self._updates = 0
        self._quorum = self._strategy.quorum(self._num_workers)
        self._begin()

    def _apply(self, update: Update) -> None:
        """Step the weights once `quorum` updates are in. Move slots and statistics a share of the way to the worker's."""
        now = self._context()
        context = replace(now, agreement=self._monitor.agreement, steps=update.steps, behind=now.staleness(update))
        weight = self._strategy.weight(update, context)
        self._reduction.add(update.delta, weight)
        self._came += 1
        self._weight += weight
        self._samples += update.samples
        after = self.version + 1  # also while a buffer fills: states served at this version may lack the update
        weights = self._state.weights if self._came < self._quorum else self._step(context)
        share = share_of(self._updates, self._num_workers)
        self._updates += 1
        parts = self._merge.merge(self._state, update, share, after)
        if update.slots.size:
            parts["slots"] = move_towards(self._state.slots, update.slots, share, np.empty_like(self._state.slots))
        self._state = self._state.but(weights=weights.astype(self._state.weights.dtype, copy=False), **parts)

    def _step(self, context: Context) -> Vector:
        """Return the weights after the strategy's step by what has come, of which nothing is kept."""
        weights, direction = self._state.weights, self._reduction.result()
        if direction is not None:
            context = replace(context, weight=self._weight)
            weights, self._outer = self._strategy.step(weights, direction, self._outer, context)
            weights = self._constrain(weights.astype(self._state.weights.dtype, copy=False))
        self.version += 1
        self._begin()
        return weights

    def served(self, worker: int | None = None, *, live: bool = False) -> tuple[int, TrainState]:
        """Return the version and the state with the weights that the strategy serves, which no commit changes."""
        if worker is not None:
            self._merge.begins(worker, self.version, self._state.statistics)
        weights = self._strategy.serve(self._state.weights, self._outer, self._context())
        if weights is not self._state.weights:  # a point ahead of them
            weights = self._constrain(weights.astype(self._state.weights.dtype, copy=False))
        return self.version, self._state.but(weights=weights)

    def snapshot(self) -> TrainState:
        """Return the state, which is never changed in place."""
        return self._state

    def replace(self, before: TrainState, after: TrainState) -> None:
        """Change the state as callbacks have changed one that was taken before."""
        self._state = self._state.but(**self._changed(before, after))
        if after.weights is not before.weights:
            self._state = self._state.but(weights=self._state.weights + (after.weights - before.weights))

    def checkpoint(self) -> dict[str, Array]:
        """Return what it remembers beside its state: the strategy's memory, a half-full buffer, counts."""
        return {
            **super().checkpoint(),
            **{f"outer.{name}": vector for name, vector in self._outer.items()},
            **{f"held.{name}": array for name, array in self._reduction.held().items()},
            "buffer": np.array([self._updates, self._came], np.int64),
            "weight": np.array([self._weight]),
        }

    def restore(self, arrays: Mapping[str, Array], workers: Collection[int] | None = None) -> None:
        """Continue from a checkpoint of a center with the same strategy, whose state this one was made with."""
        super().restore(arrays, workers)
        self._outer = _under("outer.", arrays)  # type: ignore[assignment]  # as they were taken
        self._begin(_under("held.", arrays))
        self._updates, self._came = (int(count) for count in arrays["buffer"])
        self._weight = float(arrays["weight"][0])

    def _begin(self, held: Mapping[str, Array] | None = None) -> None:
        """Begin a buffer, empty or with what it held."""
        self._reduction = self._strategy.reduction(self._context(), held or {})
        self._came = 0
        self._weight = 0.0


def _under(prefix: str, arrays: Mapping[str, Array]) -> dict[str, Array]:
    return {name.removeprefix(prefix): array for name, array in arrays.items() if name.startswith(prefix)}


def context_of(layout: Layout, version: int, num_workers: int, samples: int, budget: int, rate: float) -> Context:
    """Return a strategy's context after `samples` of `budget` rows, at the learning rate `rate`."""
    return Context(version, num_workers, layout, min(1.0, samples / budget) if budget else 0.0, rate)


class HogwildCenter(_Center):
    """The shared state without a lock: several workers' updates are added to the same numbers at the same time.

    Recht et al., "Hogwild!: A Lock-Free Approach to Parallelizing Stochastic Gradient Descent", NIPS 2011. An addition
    may be lost where two meet on one number; that is the method. This is the one object that changes arrays in place.
    """

    def _prepare(self) -> None:
        if not self._strategy.additive:
            raise ValueError(f"hogwild needs an additive strategy such as 'downpour'; got {self._strategy.name!r}.")
        self._state = self._copy()  # the one that is changed in place

    def _apply(self, update: Update) -> None:
        """Add the update in place, while others may be adding."""
        context = self._context()
        reduction = self._strategy.reduction(context)
        reduction.add(update.delta, self._strategy.weight(update, context))
        direction = reduction.result()
        self._samples += update.samples
        share = share_of(self.version, self._num_workers)
        state = self._state
        if direction is not None:
            self.add(state.weights, direction)
        if update.slots.size:
            move_towards(state.slots, update.slots, share, out=state.slots)
        self._take(self._merge.merge(state, update, share, self.version + 1))
        self.version += 1

    def add(self, shared: np.ndarray, term: np.ndarray) -> None:
        """Add in place. NumPy releases the interpreter's lock here, so several of these run at once."""
        np.add(shared, term, out=shared)

    def served(self, worker: int | None = None, *, live: bool = False) -> tuple[int, TrainState]:
        """Return the version and a copy, taken while others may be adding; the state itself if it may be `live`."""
        version, state = self.version, self._state if live else self._copy()
        if worker is not None:
            self._merge.begins(worker, version, state.statistics)
        return version, state.but(weights=self._constrain(state.weights))

    def snapshot(self) -> TrainState:
        """Return a copy, whose weights are constrained: the shared ones are where updates have added up to."""
        state = self._copy()
        return state.but(weights=self._constrain(state.weights))

    def _copy(self) -> TrainState:
        return TrainState(**{name: part.copy() for name, part in self._state.parts().items()})  # type: ignore[arg-type]

    def replace(self, before: TrainState, after: TrainState) -> None:
        """Change the state, while others may be adding, as callbacks have changed one that was taken before."""
        self._take(self._changed(before, after))
        if after.weights is not before.weights:
            self.add(self._state.weights, after.weights - before.weights)

    def _take(self, parts: Mapping[str, Array]) -> None:
        """Overwrite parts. Frozen layers and slots get new arrays: they are sent only if they are not those that were sent before."""
        for name, part in parts.items():
            if name == Role.FROZEN.value:
                self._state = self._state.but(frozen=part)
            elif name == Role.SLOT.value:
                self._state = self._state.but(slots=part.copy())
            else:
                getattr(self._state, name)[:] = part
