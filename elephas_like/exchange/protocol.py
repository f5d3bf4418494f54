"""The messages between a worker and the driver, and which fields and arrays each of them may have.

wire.py turns messages into frames and back by the tables at the end: `FIELDS` checks every field of a header, `arrays_of` says
which arrays follow it.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass, fields
from typing import Literal

from elephas_like.core.layout import Layout
from elephas_like.core.strategies.codecs import Codec
from elephas_like.core.types import Joined, Order, Result, Role, Span

MAGIC = b"ELX1"
PREFIX = struct.Struct("<4sI")
HEADER_BYTES = 2**20
METRIC_NUMBERS = 16 * 2**20
TRACEBACK_LETTERS = 64 * 2**10
PRINTED_LETTERS = 64 * 2**10
MESSAGE_LETTERS = 8 * 2**10
SIGNATURE_LETTERS = 512 * 2**10
SHORT_LETTERS = 256
PROGRESS_METRICS = 1024
READ_AHEAD = 64 * 2**20
MEMORY_VECTORS = 16
"""Vectors of as many numbers as weights that a worker may remember. Our strategies and codecs need one each."""


@dataclass(frozen=True)
class Sizes:
    """How many numbers each part of a state has, by the name of its role: what the wire needs of a `Layout` and a codec.

    packed: bytes of an update's delta if a codec packs it; None if it has one number per weight.
    memory: most numbers that a worker remembers from round to round.
    step: bytes of a packed step from one round's weights to the next; None if they are always sent whole.
    mean_step: numbers of the mean step of all workers that orders to train bring along, for control variates; None for no such steps.
    doubles: the parts that are float64.
    """

    parts: Mapping[str, int]
    packed: int | None = None
    memory: int = 0
    step: int | None = None
    mean_step: int | None = None
    doubles: frozenset[str] = frozenset()

    @staticmethod
    def of(
        layout: Layout,
        codec: Codec | None = None,
        *,
        state_codec: Codec | None = None,
        workers_remember: bool = False,
        control_variates: bool = False,
    ) -> Sizes:
        """The sizes of a layout, with deltas and steps as codecs pack them."""
        weights = layout.size(Role.WEIGHT)
        packed, step = (None if each is None else each.nbytes(weights) for each in (codec, state_codec))
        memory = layout.size(Role.SLOT) + MEMORY_VECTORS * weights if workers_remember else 0
        mean_step = weights if control_variates else None
        doubles = frozenset(role.value for role in Role if layout.dtype(role) == "float64")
        return Sizes({role.value: layout.size(role) for role in Role}, packed, memory, step, mean_step, doubles)

    @property
    def read_ahead(self) -> int:
        """Bytes of answers to read before their turn: 64 MiB, or one update, which comes while the one before it is added."""
        return max(READ_AHEAD, self.update() + HEADER_BYTES)

    def update(self, *without: Role) -> int:
        """Return the bytes of an update's arrays. without: what it leaves out."""
        saved = 0 if self.packed is None else self._bytes(Role.WEIGHT) * self.parts[Role.WEIGHT.value] - self.packed
        return self.state(*without) - saved

    def order(self, *without: Role) -> int:
        """Return the bytes of the arrays of an order to train, to a worker who has the last one's weights."""
        beside = self._bytes(Role.WEIGHT) * (self.mean_step or 0)
        if self.step is None:
            return self.state(*without) + beside
        return self.state(Role.WEIGHT, *without) + self.step + beside

    def state(self, *without: Role) -> int:
        """Return the bytes of a state's arrays. without: what it leaves out."""
        return sum(self._bytes(name) * size for name, size in self.parts.items() if name not in without)

    def dtype(self, name: str) -> str:
        """Return the dtype of a part of a state."""
        return "float64" if name in self.doubles else _ROLE_DTYPES[name]

    def _bytes(self, name: str) -> int:
        return 4 if self.dtype(name) == "float32" else 8

    @property
    def most(self) -> int:
        """Bytes of the largest frame that there can be."""
        state = sum(self.parts.values()) + (self.mean_step or 0)
        return PREFIX.size + HEADER_BYTES + 8 * max(state + METRIC_NUMBERS, self.memory)


@dataclass(frozen=True)
class Answer:
    """The result of a worker's order."""

    attempt: int
    result: Result


@dataclass(frozen=True)
class Offer:
    """A worker asks whether the answer to order `number`, of `nbytes`, may be sent."""

    worker: int
    attempt: int
    number: int
    nbytes: int


@dataclass(frozen=True)
class Next:
    """A worker without work asks for an order."""

    worker: int
    attempt: int


@dataclass(frozen=True)
class Announce:
    """A worker's first sign of life, before it writes its rows and joins."""

    worker: int
    attempt: int
    host: str


@dataclass(frozen=True)
class Beat:
    """A heartbeat. progress: rises while the worker is at work."""

    worker: int
    attempt: int
    progress: int = 0


@dataclass(frozen=True)
class Report:
    """A worker's exception, as a value."""

    worker: int
    attempt: int
    type_name: str
    message: str
    traceback_text: str


@dataclass(frozen=True)
class TrialProgress:
    """A trial of a search has finished an epoch. worker: the trial's number; metrics: its logs, the finite ones."""

    worker: int
    attempt: int
    epoch: int
    metrics: Mapping[str, float]


@dataclass(frozen=True)
class Printed:
    """What a worker has printed since the last message of this kind. number: of letters before it, in this attempt."""

    worker: int
    attempt: int
    number: int
    text: str


@dataclass(frozen=True)
class Sign:
    """A reply without content. send: send the answer now; again: offer it again later, or have another attempt of the
    task do what failed; done: noted.
    """

    word: Literal["send", "again", "done"]


@dataclass(frozen=True)
class Refusal:
    """A request that was not carried out, and why."""

    type_name: str
    message: str


Message = Answer | Announce | Joined | Offer | Next | Beat | Report | TrialProgress | Printed | Order | Sign | Refusal


def _integer(low: int, high: int = 2**63 - 1) -> Callable[[object], object]:
    def check(value: object) -> object:
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise ValueError(f"an integer from {low} to {high}")
        return value

    return check


def _text(letters: int) -> Callable[[object], object]:
    def check(value: object) -> object:
        if not isinstance(value, str) or len(value) > letters:
            raise ValueError(f"a text of at most {letters} letters")
        return value

    return check


def _one_of(*words: str) -> Callable[[object], object]:
    def check(value: object) -> object:
        if not isinstance(value, str) or value not in words:
            raise ValueError(f"one of {words}")
        return value

    return check


def _number(value: object) -> float:
    """Return a JSON number as a float; NaN if it is none. Integers may be larger than any float: those become infinity."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return math.nan
    try:
        return float(value)
    except OverflowError:
        return math.inf


def _seconds(value: object) -> object:
    seconds = _number(value)
    if not 0 <= seconds < math.inf:
        raise ValueError("a number of seconds from 0")
    return seconds


def _metrics(value: object) -> object:
    if not isinstance(value, dict) or len(value) > PROGRESS_METRICS:
        raise ValueError(f"an object of at most {PROGRESS_METRICS} numbers")
    name = _text(SHORT_LETTERS)
    for key, number in value.items():
        name(key)
        if not math.isfinite(_number(number)):
            raise ValueError("finite numbers by name")
    return {key: _number(number) for key, number in value.items()}


def _span(value: object) -> object:
    if value is None:
        return None
    names = [field.name for field in fields(Span)]
    if not isinstance(value, list) or len(value) != len(names):
        raise ValueError(f"null or the list {names}")
    for number in value:
        _count(number)
    span = Span(*value)
    if not span.begin <= span.end <= span.of or span.of < 1 or span.epochs < 1:
        raise ValueError("a span with 0 <= begin <= end <= of, of >= 1 and epochs >= 1")
    return span


_count = _integer(0)
_who = {"worker": _count, "attempt": _count}
FIELDS: dict[str, dict[str, Callable[[object], object]]] = {
    "order": {
        "kind": _one_of("train", "evaluate", "recall", "remind", "wait", "stop", "suspend"),
        "number": _integer(-1),
        "version": _integer(-1),
        "span": _span,
        "after": _integer(-1),
    },
    "update": _who | {"number": _count, "version": _count, "samples": _count, "steps": _count, "seconds": _seconds},
    "evaluation": _who | {"number": _count, "samples": _count, "seconds": _seconds},
    "recollection": _who | {"number": _count},
    "join": _who
    | {
        "host": _text(SHORT_LETTERS),
        "rows": _count,
        "validation_rows": _count,
        "layout_hash": _text(SHORT_LETTERS),
        "checksum": _integer(-(2**63), 2**64 - 1),
        "accumulation": _integer(1),
        "signature": _text(SIGNATURE_LETTERS),
    },
    "offer": _who | {"number": _count, "nbytes": _count},
    "next": _who,
    "announce": _who | {"host": _text(SHORT_LETTERS)},
    "beat": _who | {"progress": _count},
    "report": _who
    | {
        "type_name": _text(SHORT_LETTERS),
        "message": _text(MESSAGE_LETTERS),
        "traceback_text": _text(TRACEBACK_LETTERS),
    },
    "progress": _who | {"epoch": _count, "metrics": _metrics},
    "printed": _who | {"number": _count, "text": _text(PRINTED_LETTERS)},
    "sign": {"word": _one_of("send", "again", "done")},
    "refusal": {"type_name": _text(SHORT_LETTERS), "message": _text(MESSAGE_LETTERS)},
}
PLAIN_MESSAGES: dict[
    str, type[Announce | Joined | Offer | Next | Beat | Report | TrialProgress | Printed | Sign | Refusal]
] = {
    "announce": Announce,
    "join": Joined,
    "offer": Offer,
    "next": Next,
    "beat": Beat,
    "report": Report,
    "progress": TrialProgress,
    "printed": Printed,
    "sign": Sign,
    "refusal": Refusal,
}
PLAIN_KINDS = {kind: name for name, kind in PLAIN_MESSAGES.items()}
_OPTIONAL = (Role.SLOT, Role.FROZEN)
_ROLE_DTYPES = {role.value: "int64" if role in (Role.COUNTER, Role.SEED) else "float32" for role in Role}


def arrays_of(kind: str, values: Mapping[str, object], sizes: Sizes) -> list[tuple[str, str, Container[int]]]:
    """Return (name, dtype, allowed lengths) of a message's arrays, in order.

    Slots may be left out by workers that keep their own, and by orders to evaluate. Frozen values, and an update's learning rate, may be left out
    if they did not change; weights of an order to train, if a packed step to them is there. An update of no samples may leave out everything.
    """
    states = [(name, sizes.dtype(name), {sizes.parts[name]}) for name in _ROLE_DTYPES]
    metrics = ("metrics", "float64", range(METRIC_NUMBERS + 1))
    if kind == "order":
        if values["kind"] not in ("train", "evaluate"):
            return []
        ordered: list[tuple[str, str, Container[int]]] = []
        step = sizes.step if values["kind"] == "train" else None
        for name, dtype, size in states:
            optional = name in _OPTIONAL or (step is not None and name == Role.WEIGHT)
            ordered.append((name, dtype, size | {0} if optional else size))
        if step is not None:
            ordered.append(("step", "uint8", {0, step}))
        if sizes.mean_step is not None and values["kind"] == "train":
            ordered.append(("mean_step", sizes.dtype(Role.WEIGHT), {0, sizes.mean_step}))
        return ordered
    if kind == "update":
        brought: list[tuple[str, str, Container[int]]] = []
        for name, dtype, size in states:
            optional = name in (*_OPTIONAL, Role.LEARNING_RATE) or values["samples"] == 0
            if name == Role.WEIGHT and sizes.packed is not None:
                dtype, size = "uint8", {sizes.packed}
            brought.append(("delta" if name == Role.WEIGHT else name, dtype, size | {0} if optional else size))
        return [*brought, metrics]
    return [metrics] if kind == "evaluation" else []


def holds_memory(kind: str, values: Mapping[str, object]) -> bool:
    """Whether a message's arrays are what a worker remembers: any names and lengths, up to `Sizes.memory` numbers."""
    return kind == "recollection" or (kind == "order" and values["kind"] == "remind")
