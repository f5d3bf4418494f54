"""What a strategy is: how updates are encoded on the worker, weighted, reduced, stepped and served on the driver.

All functions are pure and work on flat float32 vectors. A strategy holds hyper-parameters only; what it remembers
between exchanges is plain arrays by name, handed in and out: an `OuterState` on the driver, a `Memory` on each worker.

    worker    start  = merge(served, memory)                 trains from `start` to `end`
              message, memory = encode(served, end, steps, memory, context)
    driver    direction = reduction of the messages, each with its `weight`    once `quorum` of them have come
              weights, outer = step(weights, direction, outer, context)
              served = serve(weights, outer, context)

A `Reduce` says how messages become one direction. It is a part that is handed to a strategy, `Nesterov(reduce=Median())`,
and parts go around parts, `Clipped(norm=1.0, then=Median())`: strategies are put together, not derived.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Protocol

import numpy as np

from elephas_like.core.drift import UNKNOWN, Agreement
from elephas_like.core.layout import Layout
from elephas_like.core.types import Array, Frequency, Mode, Role, Update, Vector

OuterState = Mapping[str, Vector]
"""What a strategy remembers on the driver, by name; a checkpoint of it is these arrays."""
Memory = Mapping[str, Vector]
"""What a strategy remembers on one worker, by name."""
NOTHING: Memory = {}


@dataclass(frozen=True)
class Context:
    """What a strategy may know at an exchange.

    version: exchanges that are in the weights. num_workers: K. layout: which tensor lies where in a vector.
    progress: share of the fit's rows that have been trained, 0 to 1.
    learning_rate: the workers' optimizers', as of the exchange; 1 where it is not known.
    weight: in `step`, the weights of the updates of this exchange added up.
    agreement: what this exchange saw of its updates; known to `step` where workers wait for each other.
    """

    version: int
    num_workers: int
    layout: Layout = Layout(())  # noqa: RUF009  # frozen
    progress: float = 0.0
    learning_rate: float = 1.0
    weight: float = 0.0
    agreement: Agreement = UNKNOWN

    def staleness(self, update: Update) -> int:
        """Exchanges that took place between the state that an update started from and now: 0 in synchronous rounds."""
        return max(0, self.version - update.version)

    def tensors(self) -> list[slice]:
        """Where each tensor lies in a vector; one for everything where the layout is not known."""
        return self.layout.slices(Role.WEIGHT) or [slice(None)]


class Reduction(Protocol):
    """Takes messages one at a time, in worker order, so that the server need not hold them all."""

    def add(self, delta: Vector, weight: float) -> None:
        """Takes one worker's message."""
        ...

    def result(self) -> Vector | None:
        """The direction that the messages make together; None where none had any weight."""
        ...

    def held(self) -> dict[str, Array]:
        """What has been taken so far as plain arrays, for a checkpoint; `Reduce.begin` goes on from it."""
        ...


class WeightedMean:
    """sum_i w_i d_i / sum_i w_i, in float32, summed in the order of arrival."""

    def __init__(self, held: Mapping[str, Array] = NOTHING) -> None:
        self._sum: Vector | None = np.array(held["sum"], np.float32) if "sum" in held else None
        self._weight = float(held["weight"][0]) if "weight" in held else 0.0

    def add(self, delta: Vector, weight: float) -> None:
        """Takes one vector; nothing where the weight is 0."""
        if weight == 0 or delta.size == 0:
            return
        term = delta * np.float32(weight)
        if self._sum is None:
            self._sum = term
        else:
            self._sum += term
        self._weight += weight

    def result(self) -> Vector | None:
        """The mean, or None where nothing came."""
        if self._sum is None:
            return None
        return self._sum / np.float32(self._weight)

    def held(self) -> dict[str, Array]:
        """The sum and the weight."""
        return {} if self._sum is None else {"sum": self._sum.copy(), "weight": np.array([self._weight])}


class Sum:
    """sum_i w_i d_i: what additive strategies apply."""

    def __init__(self, held: Mapping[str, Array] = NOTHING) -> None:
        self._sum: Vector | None = np.array(held["sum"], np.float32) if "sum" in held else None

    def add(self, delta: Vector, weight: float) -> None:
        """Takes one vector."""
        term = delta * np.float32(weight)
        self._sum = term if self._sum is None else self._sum + term

    def result(self) -> Vector | None:
        """The sum, or None where nothing came."""
        return self._sum

    def held(self) -> dict[str, Array]:
        """The sum."""
        return {} if self._sum is None else {"sum": self._sum}


class Gathered:
    """Holds all messages of an exchange, for a `Reduce` that must see them together: K vectors of memory."""

    def __init__(self, reduce: Reduce, context: Context, held: Mapping[str, Array] = NOTHING) -> None:
        self._reduce, self._context = reduce, context
        self._deltas = [np.array(row, np.float32) for row in held.get("deltas", ())]
        self._weights = [float(weight) for weight in held.get("weights", ())]

    def add(self, delta: Vector, weight: float) -> None:
        """Keeps one vector; not where it has no weight."""
        if weight and delta.size:
            self._deltas.append(delta)
            self._weights.append(weight)

    def result(self) -> Vector | None:
        """What `Reduce.combine` makes of them."""
        return self._reduce.combine(self._deltas, self._weights, self._context) if self._deltas else None

    def held(self) -> dict[str, Array]:
        """The vectors, one a row, and their weights."""
        return {"deltas": np.array(self._deltas), "weights": np.array(self._weights)} if self._deltas else {}


@dataclass(frozen=True)
class Reduce:
    """How the messages of one exchange become one direction. Write your own by overriding `combine`.

    Those that can sum as messages come override `begin` instead, and hold one vector however many workers there are.
    """

    def weight(self, update: Update, context: Context) -> float:
        """How much an update counts, unless the strategy says: by default the samples that went into it."""
        return float(update.samples)

    def combine(self, deltas: Sequence[Vector], weights: Sequence[float], context: Context) -> Vector:
        """The direction that all messages make together, shape (n,). There is at least one, none with a weight of 0.

        Args:
            deltas: the messages in worker order, shape (n,) each; not to be changed.
            weights: of the same length, above 0.
        """
        raise NotImplementedError

    def begin(self, context: Context, held: Mapping[str, Array] = NOTHING) -> Reduction:
        """A fresh reduction for one exchange, or the one that `held` was taken from."""
        return Gathered(self, context, held)

    def around(self, own: Reduce) -> Reduce:
        """This part, put around a strategy's own where it is one that goes around another and was given none."""
        return self


@dataclass(frozen=True)
class Mean(Reduce):
    """The weighted mean, sum_i w_i d_i / sum_i w_i.

    equal: every update counts the same, whatever its samples, as Elephas averages.
    """

    equal: bool = False

    def weight(self, update: Update, context: Context) -> float:
        """Its samples, or 1."""
        return float(bool(update.samples)) if self.equal else float(update.samples)

    def begin(self, context: Context, held: Mapping[str, Array] = NOTHING) -> Reduction:
        """Sums as messages come."""
        return WeightedMean(held)


@dataclass(frozen=True)
class Total(Reduce):
    """The weighted sum, sum_i w_i d_i."""

    def begin(self, context: Context, held: Mapping[str, Array] = NOTHING) -> Reduction:
        """Sums as messages come."""
        return Sum(held)


@dataclass(frozen=True)
class Strategy:
    """Sample-weighted averaging of deltas; subclasses override what they do otherwise.

    reduce: how deltas become one direction; None takes the strategy's own, the weighted mean unless it says otherwise.
    """

    name: ClassVar[str] = "strategy"
    modes: ClassVar[frozenset[Mode]] = frozenset({Mode.SYNCHRONOUS})
    frequencies: ClassVar[frozenset[Frequency] | None] = None
    """Names of frequencies that it admits; None: all ("fit" only in mode synchronous), and any number of steps."""
    additive: ClassVar[bool] = False
    """Whether an exchange is x <- x + something of the update alone, so that hogwild may do it without a lock."""
    remembers: ClassVar[bool] = False
    """Whether workers keep a `Memory` between rounds: then a round must find the process of the last one."""
    deltas: ClassVar[bool] = True
    """Whether messages are deltas, small numbers around 0, which is what codecs and clipping are for."""
    reduces: ClassVar[Reduce] = Mean()
    """The strategy's own way to make deltas one direction."""

    reduce: Reduce | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        """Checks what was given.

        Raises:
            TypeError: `reduce` is no Reduce.
        """
        if self.reduce is not None and not isinstance(self.reduce, Reduce):
            raise TypeError(f"{self.name}: reduce must be a Reduce such as Median(); got {self.reduce!r}.")

    # On the worker.

    def merge(self, served: Vector, memory: Memory, context: Context) -> Vector:
        """What a worker trains from: what it was served; elastic methods go on from weights of their own."""
        return served

    def encode(
        self, served: Vector, end: Vector, steps: int, memory: Memory, context: Context
    ) -> tuple[Vector, Memory]:
        """What a worker sends, and what it remembers: by default the way it went, shape (n,), pointing downhill.

        Args:
            served: the weights that it was served. end: those that it has come to. steps: batches in between.
            memory: what it remembered of its last round; empty at first.
        """
        return end - served, memory

    # On the driver.

    def quorum(self, num_workers: int) -> int:
        """Updates that make one exchange where workers go on alone; in mode synchronous it is always all of them."""
        return 1

    def init(self, weights: Vector) -> OuterState:
        """What is remembered before the first exchange."""
        return {}

    def weight(self, update: Update, context: Context) -> float:
        """How much an update counts: what the `Reduce` says, by default the samples that went into it."""
        return self._reducing.weight(update, context)

    def reduction(self, context: Context, held: Mapping[str, Array] = NOTHING) -> Reduction:
        """A fresh reduction for one exchange, or the one that `held` was taken from."""
        return self._reducing.begin(context, held)

    @property
    def _reducing(self) -> Reduce:
        return self.reduces if self.reduce is None else self.reduce.around(self.reduces)

    def step(
        self, weights: Vector, direction: Vector, outer: OuterState, context: Context
    ) -> tuple[Vector, OuterState]:
        """The weights after an exchange and what is remembered. `weights` and `outer` are not changed."""
        return weights + direction, outer

    def serve(self, weights: Vector, outer: OuterState, context: Context) -> Vector:
        """What workers are sent to go on from; look-ahead methods send another point than the weights."""
        return weights
