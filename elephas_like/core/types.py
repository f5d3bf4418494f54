"""The vocabulary: read this file and you know the library.

A *driver* turns a compiled Keras model into a `TrainState`. Rows become *shards*, one per worker. Workers train a *span* of
their shard from the state they were ordered to start from, and bring an `Update`. A strategy turns updates into the next state.
What crosses a process is a frozen dataclass of plain data.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Literal

import numpy as np
import numpy.typing as npt

Vector = npt.NDArray[np.float32]
"""Numbers of a state: float32, or float64 where a model has variables of that (`Layout.dtype`). Whatever computes with them keeps their type."""
Integers = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Bytes = npt.NDArray[np.uint8]
Array = npt.NDArray[np.generic]
Memories = Mapping[int, Mapping[str, Array]]
"""What workers remember from round to round, by worker: arrays by name."""

ASIDE = 2**62
"""Orders about memory are numbered from here: checkpoints leave the numbers of others, which seeds are drawn from, as they are."""


def nothing() -> Vector:
    """A vector of no numbers."""
    return np.zeros(0, np.float32)


def same(one: Array, other: Array) -> bool:
    """Whether two vectors hold the same numbers, NaN among them."""
    return one is other or np.array_equal(one, other, equal_nan=True)


class Mode(StrEnum):
    """Who waits for whom at an exchange."""

    SYNCHRONOUS = "synchronous"
    ASYNCHRONOUS = "asynchronous"
    HOGWILD = "hogwild"


class Frequency(StrEnum):
    """When rounds end, where it is not a number of steps."""

    AUTO = "auto"
    EPOCH = "epoch"
    BATCH = "batch"
    FIT = "fit"


class EngineName(StrEnum):
    """What holds the rounds."""

    AUTO = "auto"
    SERVER = "server"
    JOBS = "jobs"
    GANG = "gang"
    IN_PROCESS = "in_process"


class OptimizerState(StrEnum):
    """What becomes of the optimizer's slots (momenta, second moments) at an exchange."""

    AVERAGE = "average"
    PER_WORKER = "per_worker"
    RESET = "reset"


class Resources(StrEnum):
    """What a worker's task needs besides cores, by the names that Spark's settings use."""

    GPU = "gpu"


class OnNaN(StrEnum):
    """What becomes of an update with NaN or infinity in it."""

    RAISE = "raise"
    DROP = "drop"


class RateScale(StrEnum):
    """How the learning rate grows with the rows of all workers' batches together.

    linear: as they do (Goyal et al. 2017, for SGD). sqrt: as their square root (Krizhevsky 2014; for Adam and the like Malladi et
    al. 2022).
    """

    LINEAR = "linear"
    SQRT = "sqrt"

    def factor(self, num_workers: int) -> float:
        """Return what the learning rate of one worker is multiplied by where so many train side by side."""
        return float(num_workers) if self is RateScale.LINEAR else math.sqrt(num_workers)


class Role(StrEnum):
    """What a variable is, which decides what happens to it at an exchange (docs/architecture.md has the table)."""

    WEIGHT = "weights"
    STATISTIC = "statistics"
    FROZEN = "frozen"
    SLOT = "slots"
    COUNTER = "counters"
    LEARNING_RATE = "learning_rate"
    LOSS_SCALE = "loss_scale"
    SEED = "seeds"


def seldom_changed(optimizer_state: OptimizerState, every: int = 1) -> tuple[Role, ...]:
    """Return the parts of a state that most exchanges leave as they are: slots too, unless each exchange averages them.

    Args:
        every: rounds from one average of the slots to the next.
    """
    averaged = optimizer_state == OptimizerState.AVERAGE and every == 1
    return (Role.FROZEN,) if averaged else (Role.FROZEN, Role.SLOT)


SLOTS_SINCE = "slots_since"
"""The name under which a worker remembers of which average the slots are that it has gone on from: how many rounds had ended then."""


def last_average(version: int, every: int) -> int:
    """Return how many of `version` rounds had ended when the workers' slots were averaged last; 0 at the begin of the fit.

    Args:
        every: rounds from one average to the next; 0 for never.
    """
    return version - version % every if every else 0


@dataclass(frozen=True)
class TrainState:
    """Everything that training changes, one flat vector per role; a `Layout` says which variable lies where.

    frozen: what frozen layers hold, which training seldom changes. Left out of an order or an update, it is what it was.
    """

    weights: Vector
    statistics: Vector
    slots: Vector
    counters: Integers
    learning_rate: Vector
    loss_scale: Vector
    seeds: Integers
    frozen: Vector = field(default_factory=nothing)

    def part(self, role: Role) -> Array:
        """The flat vector of one role."""
        value: Array = getattr(self, role.value)
        return value

    def parts(self) -> dict[str, Array]:
        """All flat vectors by the name of their role, in the order of `Role`."""
        return {role.value: self.part(role) for role in Role}

    def but(self, **parts: Array) -> TrainState:
        """The same state with some vectors exchanged."""
        return replace(self, **parts)  # type: ignore[arg-type]  # callers name vectors of the dtype of their role

    @property
    def nbytes(self) -> int:
        """Bytes of all vectors together."""
        return sum(part.nbytes for part in self.parts().values())


@dataclass(frozen=True)
class Span:
    """Which part of which epoch to train: of `s` steps in an epoch, floor(s begin / of) to floor(s end / of).

    `epochs` > 1 is the one round of `frequency="fit"`: the whole of several epochs in a row.
    """

    epoch: int
    begin: int = 0
    end: int = 1
    of: int = 1
    epochs: int = 1


@dataclass(frozen=True)
class PackedStep:
    """How a worker comes to the weights of an order to train from those of an earlier one: it adds what `packed` unpacks to.

    after: the number of that order; -1 where there is none, and the weights are whole.
    """

    after: int = -1
    packed: Bytes = field(default_factory=lambda: np.zeros(0, np.uint8))


@dataclass(frozen=True)
class Order:
    """What a worker is told at an exchange.

    kind: "train" and "evaluate" are work. "recall": send what you remember. "remind": remember `memory`. "wait": ask again.
        "stop": the run is over. "suspend": end the task; a later task carries on with the same rows.
    number: counts the orders of a run (synchronous) or of one worker (asynchronous), from 0; or from `ASIDE`.
    version: exchanges that are in `state`; what staleness is counted from. In a recall or reminder, the number of the order
        after which the memory was or is wanted: no later update of the worker is in the driver's state. -1: before the first.
    step: where steps between states are packed: what a worker that has trained order `step.after` needs in place of `state.weights`.
    mean_step: where workers have control variates: the mean step of all of them in the last round, at the learning rate of this one;
        empty in the first (core/variates.py).
    """

    kind: Literal["train", "evaluate", "recall", "remind", "wait", "stop", "suspend"]
    number: int = -1
    version: int = 0
    span: Span | None = None
    state: TrainState | None = None
    memory: Mapping[str, Array] = field(default_factory=dict)
    step: PackedStep | None = None
    mean_step: Vector | None = None

    @classmethod
    def to_evaluate(cls, state: TrainState, number: int = -1, version: int = 0) -> Order:
        """Return the order to evaluate a state. It leaves out the optimizer's slots, which no evaluation reads."""
        return cls("evaluate", number, version, state=state.but(slots=nothing()))


@dataclass(frozen=True)
class Update:
    """What one worker brings from one span.

    delta: what the strategy's `encode` made of it, by default weights after minus weights before.
    frozen, learning_rate: empty where training left it as it was.
    metrics: sums of metric variables in the model's order, float64; () where nothing was trained.
    seconds: time spent training, without waiting.
    """

    worker: int
    number: int
    version: int
    samples: int
    steps: int
    delta: Vector
    statistics: Vector
    slots: Vector
    counters: Integers
    loss_scale: Vector
    seeds: Integers
    metrics: Floats
    seconds: float = 0.0
    frozen: Vector = field(default_factory=nothing)
    learning_rate: Vector = field(default_factory=nothing)

    def arrays(self) -> dict[str, Array]:
        """The arrays of the update by name."""
        parts = ("statistics", "frozen", "slots", "counters", "learning_rate", "loss_scale", "seeds")
        names = ("delta", *parts, "metrics")
        return {name: getattr(self, name) for name in names}


@dataclass(frozen=True)
class Evaluation:
    """Metric sums of one state over one worker's validation rows."""

    worker: int
    number: int
    samples: int
    metrics: Floats
    seconds: float = 0.0


@dataclass(frozen=True)
class Recollection:
    """What one worker remembers: the answer to a recall. Without arrays, the answer to a reminder."""

    worker: int
    number: int
    memory: Mapping[str, Array] = field(default_factory=dict)


@dataclass(frozen=True)
class Slot:
    """An input or an output of a model: what the columns of a DataFrame are matched with.

    shape: of one row, None where an axis may have any length; None as a whole where the model does not say.
    wide: whether its numbers are of a type that float32 does not hold: float64, or whole numbers of 32 bits and more.
    """

    name: str
    shape: tuple[int | None, ...] | None = None
    text: bool = False
    wide: bool = False


@dataclass(frozen=True)
class Column:
    """One column of a shard on disk: `rows` values of `shape` and `dtype` in a raw file.

    dtype "string" means UTF-8 text: `path` holds the bytes and `path + ".ends"` the int64 end of each value.
    """

    path: str
    dtype: str
    shape: tuple[int, ...]


@dataclass(frozen=True)
class ShardRef:
    """Where one worker's rows lie and what they look like.

    structure: how the columns make up a row, `(x,)`, `(x, y)` or `(x, y, sample_weight)`, as core/structure.py reads it.
    """

    dataset: str
    worker: int
    directory: str
    host: str
    rows: int
    columns: tuple[Column, ...]
    structure: Structure
    checksum: int = 0


Structure = None | int | list["Structure"] | dict[str, "Structure"]


@dataclass(frozen=True)
class FitConfig:
    """What of `fit`'s arguments a worker needs. Checked on the driver, trusted afterwards.

    larger_batches: so many workers, the first ones, have a row more in each batch: a global batch that is no multiple.
    split_seed: of the rows held out, which stay the same over the fits of one SparkModel; None takes `seed`.
    bootstrap: seed of a draw with replacement of as many training rows as there are; None trains on each once.
    optimizer_state_every: rounds from one average of the optimizer's slots to the next, where they are averaged.
    control_variates: whether workers correct each step by what their own last ones lacked to those of all (core/variates.py).
    names_nan: whether a worker whose update is not finite raises, if its rows hold NaN, and names the row.
    keeps_before: whether a worker keeps what it remembered before its last order: when asked, it may be ahead of the driver.
    fused_optimizer: whether the optimizer may take fused kernels.
    in_rounds: whether workers train in rounds: `Order.version` counts them, and evaluations between them do not.
    """

    batch_size: int = 32
    larger_batches: int = 0
    epochs: int = 1
    initial_epoch: int = 0
    shuffle: bool = True
    seed: int = 0
    split_seed: int | None = None
    bootstrap: int | None = None
    num_workers: int = 1
    validation_split: float = 0.0
    class_weight: Mapping[int, float] | None = None
    optimizer_state: OptimizerState = OptimizerState.AVERAGE
    optimizer_state_every: int = 1
    control_variates: bool = False
    keeps_before: bool = False
    names_nan: bool = False
    fused_optimizer: bool = False
    in_rounds: bool = True
    resident_bytes: int = 128 * 2**20
    chunk_bytes: int = 16 * 2**20

    def batch_size_of(self, worker: int) -> int:
        """Rows a batch on one worker."""
        return self.batch_size + (worker < self.larger_batches)

    @property
    def slots_every(self) -> int:
        """Rounds after which workers begin with the driver's slots again; 0 for never: they go on with their own."""
        if self.optimizer_state == OptimizerState.AVERAGE:
            return self.optimizer_state_every
        return int(self.optimizer_state == OptimizerState.RESET)

    @property
    def keeps_slots(self) -> bool:
        """Whether workers keep slots of their own from round to round."""
        return self.slots_every != 1


@dataclass(frozen=True)
class Joined:
    """What a worker says when it joins: who, where, and how much there is to train on.

    signature: what its rows look like (core/columns.py); "" where it has none.
    """

    worker: int
    attempt: int
    host: str
    rows: int
    validation_rows: int
    layout_hash: str
    checksum: int = 0
    accumulation: int = 1
    signature: str = ""


@dataclass(frozen=True, slots=True)
class WorkerRecord:
    """What one worker did in one round, for `history.rounds`.

    staleness: updates of others that came between the state that it started from and this update; of strategies that step
        once for several (`fedbuff`), such steps.
    dropped: 1 where the update was not applied; stale: it was dropped because of its staleness.
    """

    worker: int
    samples: int
    steps: int
    seconds: float
    staleness: int = 0
    dropped: int = 0
    stale: bool = False


@dataclass(frozen=True, slots=True)
class RoundRecord:
    """One exchange, for `history.rounds`: synchronous rounds hold all workers, asynchronous ones a single worker.

    of: the round was one of so many equal parts of the epoch; under a Schedule, which cuts unequal ones, the epoch's steps.
    cosine, drift: whether the updates agree, as core/drift.py says; None where it was not to be told.
    """

    round: int
    epoch: int
    workers: tuple[WorkerRecord, ...]
    loss: float | None = None
    of: int = 1
    cosine: float | None = None
    drift: float | None = None

    @property
    def samples(self) -> int:
        """Rows trained in this round by all workers."""
        return sum(record.samples for record in self.workers)


@dataclass(frozen=True)
class EpochRecord:
    """What the driver's callbacks are told at an epoch's end.

    center: the shared state of an asynchronous fit at that moment, for a checkpoint (`Center.checkpoint`).
    memories: what its workers remember that belongs to that state; None if they were not asked.
    """

    epoch: int
    state: TrainState
    metrics: Floats
    samples: int
    validation: Floats | None = None
    rounds: tuple[RoundRecord, ...] = field(default=())
    center: Mapping[str, Array] = field(default_factory=dict)
    memories: Memories | None = None


Result = Update | Evaluation | Recollection
"""What a worker answers an order with."""
