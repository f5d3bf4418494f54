"""The state that asynchronous workers share, one update at a time; and its lock-free sibling.

An epoch ends when the samples of all workers together cross a multiple of the rows; the state at that moment is kept
as the epoch's. Training ends on the same count, so that stragglers cannot overwrite the model.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np

from elephas_like.core import scores
from elephas_like.core.averaging import admit, displacement, record
from elephas_like.core.drift import UNKNOWN, Agreement, DriftMonitor
from elephas_like.core.layout import Layout
from elephas_like.core.merging import RunningMerge, share_of, slots_step
from elephas_like.core.rounds import RoundLength
from elephas_like.core.strategies.algebra import Context, Strategy
from elephas_like.core.strategies.codecs import Codec, opened
from elephas_like.core.types import (
    Array,
    EpochRecord,
    Floats,
    OnNaN,
    Order,
    RoundRecord,
    Span,
    TrainState,
    Update,
    Vector,
)

LearningRate = Callable[[TrainState, int], float]
"""The optimizers' learning rate in a state, after so many further steps."""

LEAST_PAIRS = 8
"""Pairs of a worker's update and its last one that a drift is made of: that of two workers is noise where rounds are short."""


class Center(Protocol):
    """What an asynchronous engine asks of the shared state.

    version: counts the updates that are in it, or the steps of strategies that step once for several. max_staleness: versions
    that may have come since a worker's state was served; None for any number.
    """

    version: int
    max_staleness: int | None

    def commit(self, update: Update) -> bool:
        """Applies one update; False where it was dropped."""
        ...

    def served(self) -> tuple[int, TrainState]:
        """Version and the state that a worker goes on from."""
        ...

    def snapshot(self) -> TrainState:
        """The state itself, unchanged by later commits."""
        ...

    def replace(self, parts: Mapping[str, Array], moved: Vector | None = None) -> None:
        """Takes over the parts that the driver's callbacks changed, by the name of their role; weights by how they moved."""
        ...


def plain_rate(state: TrainState, steps: int) -> float:
    """The learning rate that a state holds, whatever the steps; 1 where it holds none."""
    return float(state.learning_rate[0]) if state.learning_rate.size else 1.0


def too_stale(update: Update, center: Center) -> bool:
    """Whether more updates than allowed have come since the state was served that this one starts from."""
    return center.max_staleness is not None and center.version - update.version > center.max_staleness


class _Center(Center):
    """What both kinds of shared state hold, and which updates they take.

    Args:
        codec: what the updates' deltas are packed with.
        budget: rows that the fit trains altogether, which `Context.progress` is the share of; 0 where that is not known.
        monitor: looks at the updates that are applied.
        learning_rate: the optimizers' in a state, after so many further steps.
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
        self._samples = 0
        self._merge = RunningMerge(layout, num_workers)
        self._prepare()

    def commit(self, update: Update) -> bool:
        """Applies one update; False where it was dropped."""
        if too_stale(update, self):
            return False
        update = opened(update, self._codec, self._state.weights.size)
        if not admit(update, self._on_nan, self._layout, self._state):
            return False
        if update.samples:
            self._monitor.add(update.worker, displacement(update, self._strategy, self._state.weights))
            self._apply(update)
        return True

    def _prepare(self) -> None:
        raise NotImplementedError

    def _apply(self, update: Update) -> None:
        raise NotImplementedError

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
        """Steps the weights once `quorum` updates are in; slots and statistics move a share of the way to the worker's."""
        context = self._context()
        weight = self._strategy.weight(update, context)
        self._reduction.add(update.delta, weight)
        self._came += 1
        self._weight += weight
        self._samples += update.samples
        weights = self._state.weights
        if self._came >= self._quorum:
            direction = self._reduction.result()
            if direction is not None:
                context = replace(context, weight=self._weight)
                weights, self._outer = self._strategy.step(weights, direction, self._outer, context)
            self.version += 1
            self._begin()
        share = share_of(self._updates, self._num_workers)
        self._updates += 1
        parts = self._merge.merge(self._state, update, share, self.version)
        step = slots_step(self._state.slots, update.slots, share)
        if step is not None:
            parts["slots"] = self._state.slots + step
        self._state = self._state.but(weights=weights.astype(np.float32, copy=False), **parts)

    def served(self) -> tuple[int, TrainState]:
        """The version and what the strategy serves."""
        weights = self._strategy.serve(self._state.weights, self._outer, self._context())
        return self.version, self._state.but(weights=weights.astype(np.float32, copy=False))

    def snapshot(self) -> TrainState:
        """The state: it is never changed in place."""
        return self._state

    def replace(self, parts: Mapping[str, Array], moved: Vector | None = None) -> None:
        """Takes the parts that callbacks changed, and goes where they moved the weights."""
        self._state = self._state.but(**parts)
        if moved is not None:
            self._state = self._state.but(weights=self._state.weights + moved)

    def checkpoint(self) -> dict[str, Array]:
        """All that the center is, as plain arrays by name: the state, what the strategy remembers, a half-full buffer."""
        merge = self._merge
        counts = np.array([self.version, self._updates, self._samples, self._came, merge.lowered], np.int64)
        return {
            **{f"state.{name}": part for name, part in self._state.parts().items()},
            **{f"outer.{name}": vector for name, vector in self._outer.items()},
            **{f"held.{name}": array for name, array in self._reduction.held().items()},
            "counts": counts,
            "steps": np.array(list(merge.steps.items()), np.int64).reshape(-1, 2),
            "weight": np.array([self._weight]),
        }

    def restore(self, arrays: Mapping[str, Array]) -> None:
        """Goes on from a checkpoint of a center with the same strategy."""

        def under(prefix: str) -> dict[str, Array]:
            return {name.removeprefix(prefix): array for name, array in arrays.items() if name.startswith(prefix)}

        self._state = self._state.but(**under("state."))
        self._outer = under("outer.")  # type: ignore[assignment]  # float32, as they were taken
        self.version, self._updates, self._samples, came, lowered = (int(count) for count in arrays["counts"])
        self._merge.steps = {int(worker): int(steps) for worker, steps in arrays["steps"]}
        self._merge.lowered = lowered
        self._begin(under("held."))
        self._came, self._weight = came, float(arrays["weight"][0])

    def _begin(self, held: Mapping[str, Array] | None = None) -> None:
        """An empty buffer, or one that holds something already."""
        self._reduction = self._strategy.reduction(self._context(), held or {})
        self._came = 0
        self._weight = 0.0


def context_of(layout: Layout, version: int, num_workers: int, samples: int, budget: int, rate: float) -> Context:
    """What a strategy may know: `samples` of `budget` rows have been trained, and the learning rate is `rate`."""
    return Context(version, num_workers, layout, min(1.0, samples / budget) if budget else 0.0, rate)


class HogwildCenter(_Center):
    """The shared state without a lock: updates of several workers are added at the same time, to the same numbers.

    Recht et al., "Hogwild!: A Lock-Free Approach to Parallelizing Stochastic Gradient Descent", NIPS 2011. An addition
    may be lost where two meet on one number; that is the method. This is the one object that changes arrays in place.
    """

    def _prepare(self) -> None:
        if not self._strategy.additive:
            raise ValueError(f"hogwild needs an additive strategy such as 'downpour'; got {self._strategy.name!r}.")
        self._state = self.snapshot()  # the one that is changed in place

    def _apply(self, update: Update) -> None:
        """Adds the update in place, whoever else is adding."""
        context = self._context()
        reduction = self._strategy.reduction(context)
        reduction.add(update.delta, self._strategy.weight(update, context))
        direction = reduction.result()
        self._samples += update.samples
        share = share_of(self.version, self._num_workers)
        state = self._state
        if direction is not None:
            self.add(state.weights, direction)
        step = slots_step(state.slots, update.slots, share)
        if step is not None:
            self.add(state.slots, step)
        for name, part in self._merge.merge(state, update, share, self.version + 1).items():
            getattr(state, name)[:] = part
        self.version += 1

    def add(self, shared: np.ndarray, term: np.ndarray) -> None:
        """Shared += term. NumPy lets go of the interpreter's lock in here, so several of these run at once."""
        np.add(shared, term, out=shared)

    def served(self) -> tuple[int, TrainState]:
        """The version and a copy, taken while others may be adding."""
        return self.version, self.snapshot()

    def snapshot(self) -> TrainState:
        """A copy."""
        return TrainState(**{name: part.copy() for name, part in self._state.parts().items()})  # type: ignore[arg-type]

    def replace(self, parts: Mapping[str, Array], moved: Vector | None = None) -> None:
        """Writes the parts that callbacks changed over the shared ones, and adds how they moved the weights."""
        for name, part in parts.items():
            getattr(self._state, name)[:] = part
        if moved is not None:
            self.add(self._state.weights, moved)


@dataclass
class Ledger:
    """Counts an asynchronous run: who has done how much, where epochs end, when it is over. Not thread-safe itself.

    rows: rows of all shards together; epochs end at multiples of it.
    rounds: exchanges in an epoch of each worker's own shard; 0 for one that has no rows.
    finest: as many as that while updates drift apart; `rounds` unless given.
    monitor: what the updates are looked at with; whoever applies them shows them to it.
    """

    rows: int
    rounds: tuple[int, ...]
    first_epoch: int
    last_epoch: int
    finest: tuple[int, ...] = ()
    monitor: DriftMonitor = field(default_factory=DriftMonitor)
    samples: int = 0
    exchanges: dict[int, int] = field(default_factory=dict)
    finished: deque[EpochRecord] = field(default_factory=deque)
    history: list[RoundRecord] = field(default_factory=list)
    _metrics: Floats = field(default_factory=lambda: np.zeros(0))
    _epoch_start: int = 0
    _looks: list[Agreement] = field(default_factory=list)
    _watched: int = 0

    def __post_init__(self) -> None:
        self._round_lengths = [RoundLength(*both) for both in zip(self.rounds, self.finest or self.rounds, strict=True)]
        self._walks = [round_length.walk(self.first_epoch) for round_length in self._round_lengths]
        self._spans = [next(walk, Span(self.first_epoch)) for walk in self._walks]

    @property
    def epoch(self) -> int:
        """The epoch that is under way."""
        return self.first_epoch + self.samples // self.rows

    @property
    def over(self) -> bool:
        """Whether the budget of samples is used up."""
        return self.samples >= self.rows * (self.last_epoch - self.first_epoch)

    def has_work(self, worker: int) -> bool:
        """Whether there is something for a worker to train."""
        return self.rounds[worker] > 0 and not self.over

    def book(self, update: Update, staleness: int, applied: bool, center: Center) -> None:
        """Counts an update; where it ends an epoch, a snapshot goes to `finished`."""
        epoch = self.epoch
        self.exchanges[update.worker] = self.exchanges.get(update.worker, 0) + 1
        self.samples += update.samples
        if applied:
            self._metrics = scores.add([self._metrics, update.metrics])
        done = record(update, staleness, not applied, stale=not applied and too_stale(update, center))
        span, agreement = self._spans[update.worker], self._look(applied and update.samples > 0)
        said = {"cosine": agreement.cosine, "drift": agreement.drift}
        self.history.append(RoundRecord(len(self.history), epoch, (done,), of=span.of, **said))
        self._spans[update.worker] = next(self._walks[update.worker], span)
        while epoch < min(self.epoch, self.last_epoch):
            rounds = tuple(self.history[self._epoch_start :])
            self.finished.append(
                EpochRecord(epoch, center.snapshot(), self._metrics, sum(r.samples for r in rounds), rounds=rounds)
            )
            self._metrics, self._epoch_start = np.zeros(0), len(self.history)
            epoch += 1

    def next_order(self, worker: int, center: Center) -> Order:
        """What a worker that has just exchanged is to train next, from the state that is served now."""
        version, state = center.served()
        return Order("train", self.exchanges.get(worker, 0), version, self._spans[worker], state)

    def _look(self, moved: bool) -> Agreement:
        """What the last K updates that moved the weights say, once for all of them: the paces turn by the mean of some looks.

        K counts the workers that have rows.
        """
        self._watched += moved
        if not moved or self._watched % sum(rounds > 0 for rounds in self.rounds):
            return UNKNOWN
        agreement = self.monitor.measure()
        if agreement.drift is not None:
            self._looks.append(agreement)
        pairs = [look.pairs for look in self._looks]
        if sum(pairs) >= LEAST_PAIRS:
            drift = float(np.average([look.drift for look in self._looks], weights=pairs))
            for round_length in self._round_lengths:
                round_length.adapt(drift)
            self._looks.clear()
        return agreement
