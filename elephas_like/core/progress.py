"""How far a fit is: all that its next round needs, as plain data. It is what a checkpoint keeps (model/checkpoints.py)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from itertools import islice
from typing import Protocol

import numpy as np

from elephas_like.core.errors import ElephasError
from elephas_like.core.strategies.algebra import OuterState
from elephas_like.core.types import Array, Floats, Memories, RoundRecord, Span, TrainState, Vector, WorkerRecord, same

_NUMBERS = ("orders", "version", "samples", "level", "epoch")
_ROUND = np.dtype("i8, i8, i8, f8, f8, f8")  # epoch, of, number of workers; loss, cosine, drift
_WORKER_FIELDS = tuple(each.name for each in fields(WorkerRecord))
_WORKER = np.dtype("i8, i8, i8, f8, i8, i8, ?")  # WorkerRecord's fields, in their order


@dataclass
class FitProgress:
    """The state after the last finished round, which the model keeps after Ctrl-C or a failure, and how the fit goes on.

    epoch: the epoch that is under way, or begins next; -1 before the first. span: its last finished round, None before it has
        one. metrics: sums of its rounds so far.
    rounds: the records of all finished rounds.
    outer: what the strategy remembers on the driver; None before the first round.
    orders, version, samples: orders given to workers, exchanges that are in the state, and rows that were trained on.
    first_rate: the learning rate at the start of the fit; NaN before.
    level: of the length of rounds (`RoundLength`). directions: of each worker's last update (`DriftMonitor`).
    published: the weights that the last round's workers began with, where steps between states are packed; None: the next ones are sent
        whole.
    mean_step: of all workers in the last round, at a learning rate of 1, where they have control variates; None before.
    center: the shared state of an asynchronous fit at the end of its last epoch (`Center.checkpoint`).
    memories: what workers remember, while a checkpoint is written, and from reading one to the end of the next round (or
        asynchronous epoch). None: not known, or the fit's workers remember nothing.
    """

    state: TrainState
    rounds: list[RoundRecord] = field(default_factory=list)
    epoch: int = -1
    span: Span | None = None
    metrics: Floats = field(default_factory=lambda: np.zeros(0))
    outer: OuterState | None = None
    orders: int = 0
    version: int = 0
    samples: int = 0
    first_rate: float = float("nan")
    level: int = 0
    directions: dict[int, Vector] = field(default_factory=dict)
    published: Vector | None = None
    mean_step: Vector | None = None
    center: Mapping[str, Array] = field(default_factory=dict)
    memories: Memories | None = None

    def go_on_from(self, state: TrainState) -> None:
        """Take over what callbacks have made of the state. Workers begin with exactly the weights that are set, not with some near them."""
        if self.published is not None and not same(self.state.weights, state.weights):
            self.published = None
        self.state = state

    def end_epoch(self, epoch: int) -> None:
        """Note that an epoch is over, callbacks included: the next one begins."""
        self.epoch, self.span, self.metrics = epoch + 1, None, np.zeros(0)

    def begin_epoch_again(self) -> None:
        """Forget which rounds of the epoch under way are finished, but not what they have trained."""
        if self.span is not None:
            del self.rounds[len(self.rounds) - len(self.rounds_of(self.epoch)) :]
            self.span, self.metrics = None, np.zeros(0)

    def rounds_of(self, epoch: int) -> list[RoundRecord]:
        """Return the records of an epoch's finished rounds, if it is the last that has any."""
        begin = len(self.rounds)
        while begin and self.rounds[begin - 1].epoch == epoch:
            begin -= 1
        return self.rounds[begin:]

    def arrays(self) -> dict[str, Array]:
        """Return everything as arrays by name."""
        span = self.span
        return {
            "numbers": np.array([getattr(self, name) for name in _NUMBERS], np.int64),
            "first_rate": np.array(self.first_rate),
            "span": np.array([] if span is None else [span.epoch, span.begin, span.end, span.of], np.int64),
            "metrics": self.metrics,
            **_under("state", self.state.parts()),
            **_under("outer", self.outer or {}),
            "outer_begun": np.array(self.outer is not None),
            **_under("direction", {str(worker): vector for worker, vector in self.directions.items()}),
            **({} if self.published is None else {"published": self.published}),
            **({} if self.mean_step is None else {"mean_step": self.mean_step}),
            **_under("center", self.center),
            **_memory_arrays(self.memories),
            **_tables(self.rounds),
        }

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, Array], like: TrainState | None = None) -> FitProgress:
        """Return what `arrays` was made of.

        Args:
            like: a state of the same model, to compare with.

        Raises:
            ElephasError: the state has other sizes than `like`.
        """
        state = _taken("state", arrays)
        for name, part in () if like is None else like.parts().items():
            if name not in state or not _fits(state[name], part):
                found = None if name not in state else state[name].shape
                if found == part.shape:
                    raise ElephasError(f"the {name} are {state[name].dtype}; expected {part.dtype}.")
                raise ElephasError(f"the {name} have shape {found}; expected {part.shape}.")
            state[name] = state[name].astype(part.dtype, copy=False)
        published: Vector | None = arrays.get("published")  # type: ignore[assignment]  # as it was
        mean_step: Vector | None = arrays.get("mean_step")  # type: ignore[assignment]  # as it was
        weights = state["weights"]
        for what, found_as in (("weights that workers had", published), ("mean step of the workers", mean_step)):
            if found_as is not None and not _fits(found_as, weights):
                raise ElephasError(
                    f"the {what}: found {found_as.dtype} of shape {found_as.shape}; expected {weights.dtype} of shape {weights.shape}."
                )
        span = arrays["span"].tolist()
        return cls(
            TrainState(**state),  # type: ignore[arg-type]  # dtypes were compared
            _records(arrays),
            span=Span(*span) if span else None,
            metrics=arrays["metrics"].astype(np.float64),
            outer=_taken("outer", arrays) if arrays["outer_begun"] else None,  # type: ignore[arg-type]  # as it was
            first_rate=float(arrays["first_rate"]),
            directions={int(worker): vector for worker, vector in _taken("direction", arrays).items()},  # type: ignore[misc]
            published=None if published is None else published.astype(weights.dtype, copy=False),
            mean_step=None if mean_step is None else mean_step.astype(weights.dtype, copy=False),
            center=_taken("center", arrays),
            memories=_memories(arrays),
            **dict(zip(_NUMBERS, arrays["numbers"].tolist(), strict=True)),
        )


def _fits(found: Array, like: Array) -> bool:
    """Return whether an array of a checkpoint can be what another one is. Earlier versions kept float64 as float32."""
    narrower = (found.dtype.name, like.dtype.name) == ("float32", "float64")
    return found.shape == like.shape and (narrower or found.dtype == like.dtype)


class Saving(Protocol):
    """Where a fit's progress is saved (model/checkpoints.py)."""

    def due(self, amid_epoch: bool) -> bool:
        """Whether the progress is to be saved now: between the rounds of an epoch, or at the end of one. Thread-safe."""
        ...

    def save(self, progress: FitProgress, due: bool) -> None:
        """Save the progress if it is due. Called after each round, and after each epoch's callbacks, also where it is not."""
        ...


class NotSaved:
    """Saves nothing: a fit without checkpoints."""

    def due(self, amid_epoch: bool) -> bool:
        """Return False."""
        return False

    def save(self, progress: FitProgress, due: bool) -> None:
        """Do nothing."""


def _under(prefix: str, arrays: Mapping[str, Array]) -> dict[str, Array]:
    return {f"{prefix}.{name}": array for name, array in arrays.items()}


def _taken(prefix: str, arrays: Mapping[str, Array]) -> dict[str, Array]:
    return {name[len(prefix) + 1 :]: array for name, array in arrays.items() if name.startswith(f"{prefix}.")}


def _memory_arrays(memories: Memories | None) -> dict[str, Array]:
    """Return memories as arrays. `recalled` tells workers that remember nothing from workers that were not asked."""
    if memories is None:
        return {}
    of_all = {f"{worker}.{name}": array for worker, memory in memories.items() for name, array in memory.items()}
    return {"recalled": np.array(sorted(memories), np.int64), **_under("memory", of_all)}


def _memories(arrays: Mapping[str, Array]) -> Memories | None:
    if "recalled" not in arrays:  # also in checkpoints written before workers were asked
        return None
    return {worker: _taken(f"memory.{worker}", arrays) for worker in arrays["recalled"].tolist()}


def _tables(rounds: list[RoundRecord]) -> dict[str, Array]:
    """Return the records as tables: a row for each round, and one for each worker in it. `known` tells None from NaN."""
    measured = [(each.loss, each.cosine, each.drift) for each in rounds]
    lines = [
        (each.epoch, each.of, len(each.workers), *(np.nan if number is None else number for number in numbers))
        for each, numbers in zip(rounds, measured, strict=True)
    ]
    known = np.array([[number is not None for number in numbers] for numbers in measured], bool).reshape(-1, 3)
    workers = [tuple(getattr(record, name) for name in _WORKER_FIELDS) for each in rounds for record in each.workers]
    return {"rounds": np.array(lines, _ROUND), "known": known, "workers": np.array(workers, _WORKER)}


def _records(arrays: Mapping[str, Array]) -> list[RoundRecord]:
    workers = iter([WorkerRecord(*row) for row in arrays["workers"].tolist()])
    records = []
    for number, (row, known) in enumerate(zip(arrays["rounds"].tolist(), arrays["known"].tolist(), strict=True)):
        epoch, of, count, *measured = row
        values = [value if is_known else None for value, is_known in zip(measured, known, strict=True)]
        records.append(RoundRecord(number, epoch, tuple(islice(workers, count)), values[0], of, values[1], values[2]))
    return records
