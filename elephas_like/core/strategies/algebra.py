"""The interface of a strategy: what a worker sends, and how the driver combines, applies and serves it.

All functions are pure and work on flat vectors of float32, or of float64 for models whose weights are that. A strategy
object holds hyper-parameters only. Its state between exchanges is plain arrays by name, passed in and returned: an
`OuterState` on the driver, a `Memory` on each worker.

    worker    start  = merge(served, memory)                 trains from `start` to `end`
              message, memory = encode(served, end, steps, memory, context)
    driver    direction = reduction of the messages, each with its `weight`    once `quorum` of them have come
              weights, outer = step(weights, direction, outer, context)
              served = serve(weights, outer, context)

A `Reduce` says how messages are combined into one direction. It is passed to a strategy, `Nesterov(reduce=Median())`,
and may wrap another one, `Clipped(norm=1.0, then=Median())`: strategies are composed, not derived.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Protocol

import numpy as np

from elephas_like.core.drift import UNKNOWN, Agreement
from elephas_like.core.layout import Layout
from elephas_like.core.pieces import add_scaled
from elephas_like.core.types import Array, Frequency, Mode, Role, Update, Vector

OuterState = Mapping[str, Vector]
"""State of a strategy on the driver: arrays by name, which are also its checkpoint."""
Memory = Mapping[str, Vector]
"""State of a strategy on one worker: arrays by name."""
NOTHING: Memory = {}


@dataclass(frozen=True)
class Context:
    """What a strategy knows at an exchange.

    version: number of exchanges that the weights contain.
    num_workers: K.
    layout: where each tensor lies in a vector.
    progress: share of the fit's rows that have been trained, 0 to 1.
    learning_rate: of the workers' optimizers, as `Strategy.in_rates` has it; 1 where it is not known.
    weight: in `step`, the sum of the weights of this exchange's updates.
    steps, behind: in asynchronous `step`, how many steps the last update has taken, and its staleness.
    agreement: how much updates agree: in synchronous rounds this exchange's, known to `step`; in asynchronous exchanges the
        last ones of all workers, the new one among them.
    """

    version: int
    num_workers: int
    layout: Layout = Layout(())  # noqa: RUF009  # frozen
    progress: float = 0.0
    learning_rate: float = 1.0
    weight: float = 0.0
    steps: int = 0
    behind: int = 0
    agreement: Agreement = UNKNOWN

    def staleness(self, update: Update) -> int:
        """Return the exchanges between the state that an update started from and now: 0 in synchronous rounds."""
        return max(0, self.version - update.version)

    def tensors(self) -> list[slice]:
        """Return the slice of each tensor in a vector; one slice over everything where the layout is not known."""
        return self.layout.slices(Role.WEIGHT) or [slice(None)]


class Reduction(Protocol):
    """Accumulates messages one at a time, in worker order, so that the server need not hold them all."""

    def add(self, delta: Vector, weight: float) -> None:
        """Add one worker's message."""
        ...

    def result(self) -> Vector | None:
        """Return the direction of all messages together, or None if none had any weight. To be called once, after all of them."""
        ...

    def held(self) -> dict[str, Array]:
        """Return the messages accumulated so far as plain arrays, for a checkpoint; `Reduce.begin` continues from them."""
        ...


def _copied(vector: Array) -> Vector:
    copy: Vector = np.array(vector)
    return copy


class WeightedMean:
    """sum_i w_i d_i / sum_i w_i, in the type of the first vector, summed in the order of arrival. Of one vector that vector, to the last bit."""

    def __init__(self, held: Mapping[str, Array] = NOTHING) -> None:
        self._sum: Vector | None = _copied(held["sum"]) if "sum" in held else None
        self._weight = float(held["weight"][0]) if "weight" in held else 0.0
        # Whether the sum is one vector, not yet multiplied by its weight: w d / w is seldom d.
        self._alone = "alone" in held

    def add(self, delta: Vector, weight: float) -> None:
        """Add one vector; a weight of 0 adds nothing."""
        if weight == 0 or delta.size == 0:
            return
        if self._sum is None:
            self._sum, self._alone = _copied(delta), True
        else:
            if self._alone:
                self._sum *= self._sum.dtype.type(self._weight)
                self._alone = False
            self._sum = add_scaled(self._sum, delta, weight)
        self._weight += weight

    def result(self) -> Vector | None:
        """Return the mean, or None if nothing was added. The sum becomes the mean: nothing can be added any more."""
        if self._sum is None:
            return None
        total, self._sum = self._sum, None
        if not self._alone:
            total /= total.dtype.type(self._weight)
        return total

    def held(self) -> dict[str, Array]:
        """Return the sum and the total weight; of one vector the vector itself, marked as such."""
        if self._sum is None:
            return {}
        alone = {"alone": np.ones(1, np.int64)} if self._alone else {}
        return {"sum": self._sum.copy(), "weight": np.array([self._weight]), **alone}


class Sum:
    """sum_i w_i d_i: the reduction of additive strategies."""

    def __init__(self, held: Mapping[str, Array] = NOTHING) -> None:
        self._sum: Vector | None = _copied(held["sum"]) if "sum" in held else None

    def add(self, delta: Vector, weight: float) -> None:
        """Add one vector."""
        self._sum = add_scaled(self._sum, delta, weight)

    def result(self) -> Vector | None:
        """Return the sum, or None if nothing was added."""
        return self._sum

    def held(self) -> dict[str, Array]:
        """Return the sum."""
        return {} if self._sum is None else {"sum": self._sum.copy()}


class Gathered:
    """Keeps all messages of an exchange, for a `Reduce` that must see them together: K vectors of memory."""

    def __init__(self, reduce: Reduce, context: Context, held: Mapping[str, Array] = NOTHING) -> None:
        self._reduce, self._context = reduce, context
        self._deltas = [_copied(row) for row in held.get("deltas", ())]
        self._weights = [float(weight) for weight in held.get("weights", ())]

    def add(self, delta: Vector, weight: float) -> None:
        """Keep one vector, unless its weight is 0."""
        if weight and delta.size:
            self._deltas.append(delta)
            self._weights.append(weight)

    def result(self) -> Vector | None:
        """Return the result of `Reduce.combine`, or None if nothing was added."""
        return self._reduce.combine(self._deltas, self._weights, self._context) if self._deltas else None

    def held(self) -> dict[str, Array]:
        """Return the vectors, one a row, and their weights."""
        return {"deltas": np.array(self._deltas), "weights": np.array(self._weights)} if self._deltas else {}


@dataclass(frozen=True)
class Reduce:
    """How the messages of one exchange are combined into one direction. Write your own by overriding `combine`.

    A reduction that can be summed as messages come overrides `begin` instead; it holds one vector, whatever the number
    of workers.
    """

    def weight(self, update: Update, context: Context) -> float:
        """Return the weight of an update where the strategy sets none: by default its number of samples."""
        return float(update.samples)

    def combine(self, deltas: Sequence[Vector], weights: Sequence[float], context: Context) -> Vector:
        """Return the direction of all messages together, shape (n,).

        Args:
            deltas: the messages in worker order, shape (n,) each, at least one; not to be modified.
            weights: one per message, above 0.
        """
        raise NotImplementedError

    def begin(self, context: Context, held: Mapping[str, Array] = NOTHING) -> Reduction:
        """Return a reduction for one exchange: a new one, or one that continues from `held`."""
        return Gathered(self, context, held)

    def around(self, own: Reduce) -> Reduce:
        """Return this reduction composed with the strategy's own.

        Reductions that wrap another one and were given none wrap `own`.
        """
        return self


@dataclass(frozen=True)
class Mean(Reduce):
    """The weighted mean, sum_i w_i d_i / sum_i w_i.

    equal: whether every update has the same weight, whatever its samples, as in Elephas. Default False.
    """

    equal: bool = False

    def weight(self, update: Update, context: Context) -> float:
        """Return the update's samples; with `equal`, 1 (0 for an update without samples)."""
        return float(bool(update.samples)) if self.equal else float(update.samples)

    def begin(self, context: Context, held: Mapping[str, Array] = NOTHING) -> Reduction:
        """Return a running weighted mean."""
        return WeightedMean(held)


@dataclass(frozen=True)
class Total(Reduce):
    """The weighted sum, sum_i w_i d_i."""

    def begin(self, context: Context, held: Mapping[str, Array] = NOTHING) -> Reduction:
        """Return a running sum."""
        return Sum(held)


@dataclass(frozen=True)
class Strategy:
    """Sample-weighted averaging of deltas. Subclasses override the functions that differ.

    reduce: how deltas are combined into one direction; None takes the strategy's own `reduces`, the weighted mean by
        default.
    """

    name: ClassVar[str] = "strategy"
    modes: ClassVar[frozenset[Mode]] = frozenset({Mode.SYNCHRONOUS})
    frequencies: ClassVar[frozenset[Frequency] | None] = None
    """Frequencies that the strategy accepts; None: all ("fit" only in mode synchronous), and any number of steps."""
    additive: ClassVar[bool] = False
    """Whether an exchange is x <- x + f(update), so that hogwild may apply it without a lock."""
    remembers: ClassVar[bool] = False
    """Whether workers keep a `Memory` between rounds. Then each round must run in the process of the last one."""
    deltas: ClassVar[bool] = True
    """Whether messages are deltas, small numbers around 0. Codecs and clipping need that."""
    by_staleness: ClassVar[bool] = False
    """Whether `weight` falls with an update's staleness."""
    in_rates: ClassVar[bool] = False
    """Whether `step` counts in learning rates: then a context has the mean of the round's steps', and else that of the first one."""
    reduces: ClassVar[Reduce] = Mean()
    """The reduction where `reduce` is not given."""

    reduce: Reduce | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        """Check `reduce`.

        Raises:
            TypeError: `reduce` is no Reduce.
        """
        if self.reduce is not None and not isinstance(self.reduce, Reduce):
            raise TypeError(f"{self.name}: reduce must be a Reduce such as Median(); got {self.reduce!r}.")

    # On the worker.

    def merge(self, served: Vector, memory: Memory, context: Context) -> Vector:
        """Return the weights that a worker trains from: those that it was served.

        Elastic methods return the worker's own weights.
        """
        return served

    def encode(
        self, served: Vector, end: Vector, steps: int, memory: Memory, context: Context
    ) -> tuple[Vector, Memory]:
        """Return the message of a worker, shape (n,), and its new memory.

        By default the message is the delta `end - served`.

        Args:
            served: the weights that the worker was served.
            end: its weights after training.
            steps: batches in between.
            memory: its memory after the last round; empty at first.
        """
        return end - served, memory

    # On the driver.

    def quorum(self, num_workers: int) -> int:
        """Return the number of updates in one asynchronous exchange.

        In synchronous mode an exchange always waits for all workers.
        """
        return 1

    def init(self, weights: Vector) -> OuterState:
        """Return the outer state before the first exchange."""
        return {}

    def weight(self, update: Update, context: Context) -> float:
        """Return the weight of an update: that of the `Reduce`, by default the update's number of samples."""
        return self._reducing.weight(update, context)

    def reduction(self, context: Context, held: Mapping[str, Array] = NOTHING) -> Reduction:
        """Return a reduction for one exchange: a new one, or one that continues from `held`."""
        return self._reducing.begin(context, held)

    @property
    def _reducing(self) -> Reduce:
        return self.reduces if self.reduce is None else self.reduce.around(self.reduces)

    @property
    def innermost(self) -> Reduce:
        """The part that combines deltas, whatever is done to them before."""
        part = self._reducing
        while isinstance(inner := getattr(part, "then", None), Reduce):
            part = inner
        return part

    def step(
        self, weights: Vector, direction: Vector, outer: OuterState, context: Context
    ) -> tuple[Vector, OuterState]:
        """Return the weights and the outer state after an exchange. `weights` and `outer` are not modified."""
        return weights + direction, outer

    def serve(self, weights: Vector, outer: OuterState, context: Context) -> Vector:
        """Return the weights that workers continue from. Look-ahead methods serve another point than the weights."""
        return weights
