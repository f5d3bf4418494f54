"""What travels between a worker and the driver: frames of a small JSON header and raw buffers. No pickle, no copy.

    frame = MAGIC, u32 length of the header, header, buffers one after the other      (little-endian)

The header names the kind of the message, its fields and its arrays with dtype and length. Reading has two steps, so
that a server can decide about a message before its arrays are in memory: `read_head` checks everything that can be
known from the header, `read_rest` fills the arrays. Whatever is off raises `FrameError`.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Literal, Protocol

import numpy as np

from elephas_like.core.errors import ElephasError
from elephas_like.core.layout import Layout
from elephas_like.core.strategies.codecs import Codec
from elephas_like.core.types import Array, Evaluation, Joined, Order, Role, Span, TrainState, Update

MAGIC = b"ELX1"
HEADER_BYTES = 2**20
METRIC_NUMBERS = 16 * 2**20
TRACEBACK_LETTERS = 64 * 2**10
MESSAGE_LETTERS = 8 * 2**10
SIGNATURE_LETTERS = 512 * 2**10
SHORT_LETTERS = 256
PROGRESS_METRICS = 1024
SMALL_BYTES = 16 * 2**10
"""Neighbouring buffers up to this size are joined: one write is cheaper than the copy."""

_PREFIX = struct.Struct("<4sI")
_DTYPES = ("float32", "float64", "int64", "uint8")

Chunk = bytes | memoryview


class FrameError(ElephasError):
    """Bytes that are not a frame of ours, or not one that fits the model; nothing of it has been used."""


class CutShortError(FrameError):
    """The other side went away in the middle of a frame."""


class ByteSource(Protocol):
    """Where frames are read from: a file, a socket's file, an HTTP response."""

    def readinto(self, buffer: memoryview, /) -> int | None:
        """Fills the start of `buffer`; how many bytes came, 0 at the end."""
        ...


@dataclass(frozen=True)
class Sizes:
    """Numbers in each part of a state, by the name of its role: all that the wire needs of a `Layout` and of a codec.

    packed: bytes of an update's delta where a codec packs it; None: the delta is as many float32 as there are weights.
    """

    parts: Mapping[str, int]
    packed: int | None = None

    @staticmethod
    def of(layout: Layout, codec: Codec | None = None) -> Sizes:
        """The sizes of a layout, with deltas as a codec packs them."""
        weights = layout.size(Role.WEIGHT)
        packed = None if codec is None else codec.nbytes(weights)
        return Sizes({role.value: layout.size(role) for role in Role}, packed)

    @property
    def most(self) -> int:
        """Bytes of the largest frame that there can be."""
        return _PREFIX.size + HEADER_BYTES + 8 * (sum(self.parts.values()) + METRIC_NUMBERS)


@dataclass(frozen=True)
class Answer:
    """A worker brings the result of its order."""

    attempt: int
    result: Update | Evaluation


@dataclass(frozen=True)
class Offer:
    """A worker asks whether the server has room for the answer to order `number`, of `nbytes`."""

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
    """A worker says that it is there, before it writes its rows and joins."""

    worker: int
    attempt: int
    host: str


@dataclass(frozen=True)
class Beat:
    """A worker is alive. progress: rises while it is at work."""

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
class Sign:
    """A reply without content. send: bring the answer now; again: offer it again later; done: taken note."""

    word: Literal["send", "again", "done"]


@dataclass(frozen=True)
class Refusal:
    """A request that was not carried out, and why."""

    type_name: str
    message: str


Message = Answer | Announce | Joined | Offer | Next | Beat | Report | TrialProgress | Order | Sign | Refusal


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


def _seconds(value: object) -> object:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
        raise ValueError("a number of seconds from 0")
    return float(value)


def _metrics(value: object) -> object:
    if not isinstance(value, dict) or len(value) > PROGRESS_METRICS:
        raise ValueError(f"an object of at most {PROGRESS_METRICS} numbers")
    name = _text(SHORT_LETTERS)
    for key, number in value.items():
        name(key)
        if isinstance(number, bool) or not isinstance(number, int | float) or not math.isfinite(number):
            raise ValueError("finite numbers by name")
    return {key: float(number) for key, number in value.items()}


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
_FIELDS: dict[str, dict[str, Callable[[object], object]]] = {
    "order": {
        "kind": _one_of("train", "evaluate", "wait", "stop"),
        "number": _integer(-1),
        "version": _count,
        "span": _span,
    },
    "update": _who | {"number": _count, "version": _count, "samples": _count, "steps": _count, "seconds": _seconds},
    "evaluation": _who | {"number": _count, "samples": _count, "seconds": _seconds},
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
    "sign": {"word": _one_of("send", "again", "done")},
    "refusal": {"type_name": _text(SHORT_LETTERS), "message": _text(MESSAGE_LETTERS)},
}
_PLAIN: dict[str, type[Announce | Joined | Offer | Next | Beat | Report | TrialProgress | Sign | Refusal]] = {
    "announce": Announce,
    "join": Joined,
    "offer": Offer,
    "next": Next,
    "beat": Beat,
    "report": Report,
    "progress": TrialProgress,
    "sign": Sign,
    "refusal": Refusal,
}
_KINDS = {kind: name for name, kind in _PLAIN.items()}
_OPTIONAL = (Role.SLOT, Role.FROZEN)
_ROLE_DTYPES = {role.value: "int64" if role in (Role.COUNTER, Role.SEED) else "float32" for role in Role}


def _arrays_of(kind: str, values: Mapping[str, object], sizes: Sizes) -> list[tuple[str, str, Container[int]]]:
    """(name, dtype, lengths it may have) of the arrays of a message, in order.

    Slots may be left out, for workers that keep their own, and so may what frozen layers hold, where it is as it was; an update
    of no samples may leave out everything.
    """
    states = [(name, dtype, {sizes.parts[name]}) for name, dtype in _ROLE_DTYPES.items()]
    metrics = ("metrics", "float64", range(METRIC_NUMBERS + 1))
    if kind == "order":
        if values["kind"] not in ("train", "evaluate"):
            return []
        return [(name, dtype, size | {0} if name in _OPTIONAL else size) for name, dtype, size in states]
    if kind == "update":
        brought: list[tuple[str, str, Container[int]]] = []
        for name, dtype, size in states:
            if name != Role.LEARNING_RATE:
                optional = name in _OPTIONAL or values["samples"] == 0
                if name == Role.WEIGHT and sizes.packed is not None:
                    dtype, size = "uint8", {sizes.packed}
                brought.append(
                    ("delta" if name == Role.WEIGHT else name, dtype, size | {0} if optional else size),
                )
        return [*brought, metrics]
    return [metrics] if kind == "evaluation" else []


def encode(message: Message) -> list[Chunk]:
    """The frame of a message as a list of buffers, to be written one after the other; large arrays are not copied."""
    kind, values, arrays = _taken_apart(message)
    buffers: list[Chunk] = []
    places = []
    for name, array in arrays.items():
        if array.ndim != 1 or array.dtype.name not in _DTYPES:
            raise FrameError(
                f"cannot send {name}: expected a flat array of one of {_DTYPES}, "
                f"got shape {array.shape} of {array.dtype.name}."
            )
        places.append([name, array.dtype.name, array.size])
        if array.size:
            little = np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("<"))
            buffers.append(little.data.cast("B"))
    head = {"message": kind, "fields": values, "arrays": places}
    # ASCII, since a traceback may hold lone surrogates that UTF-8 does not know
    header = json.dumps(head, ensure_ascii=True, allow_nan=False, default=_plain_number).encode("ascii")
    if len(header) > HEADER_BYTES:
        raise FrameError(f"cannot send this {kind}: its header has {len(header)} bytes, expected <= {HEADER_BYTES}.")
    return _joined_where_small([_PREFIX.pack(MAGIC, len(header)) + header, *buffers])


def nbytes(chunks: Iterable[Chunk]) -> int:
    """Bytes of a frame."""
    return sum(len(chunk) for chunk in chunks)


def _plain_number(value: object) -> object:
    if isinstance(value, np.integer | np.floating):
        return value.item()
    raise TypeError(f"a frame holds numbers and text; got {type(value).__name__}.")


def _taken_apart(message: Message) -> tuple[str, dict[str, object], Mapping[str, Array]]:
    """Kind, fields and arrays of a message."""
    if isinstance(message, Answer):
        result = message.result
        kind, arrays = (
            ("update", result.arrays()) if isinstance(result, Update) else ("evaluation", {"metrics": result.metrics})
        )
        values = {"attempt": message.attempt} | {
            name: getattr(result, name) for name in _FIELDS[kind] if name != "attempt"
        }
        return kind, values, arrays
    if isinstance(message, Order):
        span = message.span and [getattr(message.span, field.name) for field in fields(Span)]
        values = {"kind": message.kind, "number": message.number, "version": message.version, "span": span}
        return "order", values, message.state.parts() if message.state else {}
    kind = _KINDS[type(message)]
    return kind, {name: getattr(message, name) for name in _FIELDS[kind]}, {}


def _joined_where_small(chunks: Sequence[Chunk]) -> list[Chunk]:
    joined: list[Chunk] = []
    for chunk in chunks:
        if joined and len(joined[-1]) + len(chunk) <= SMALL_BYTES:
            joined[-1] = bytes(joined[-1]) + chunk
        else:
            joined.append(chunk)
    return joined


@dataclass(frozen=True)
class Head:
    """A frame of which only the header has been read, and found right.

    arrays: (name, dtype, length) of what follows.
    """

    kind: str
    fields: Mapping[str, object]
    arrays: tuple[tuple[str, str, int], ...]

    @property
    def nbytes(self) -> int:
        """Bytes that follow the header."""
        return sum(np.dtype(dtype).itemsize * length for _, dtype, length in self.arrays)

    def number(self, name: str) -> int:
        """An integer field."""
        value = self.fields[name]
        assert isinstance(value, int)
        return value


def read_head(source: ByteSource, length: int, sizes: Sizes) -> Head:
    """The header of a frame of `length` bytes, after which `source` stands before the first array.

    Raises:
        FrameError: magic, header, fields or arrays are not what `sizes` lets one expect.
    """
    if not _PREFIX.size <= length <= sizes.most:
        raise FrameError(f"expected a frame of {_PREFIX.size} to {sizes.most} bytes, got {length}.")
    magic, header_bytes = _PREFIX.unpack(_read(source, _PREFIX.size))
    if magic != MAGIC:
        raise FrameError(f"expected a frame that begins with {MAGIC!r}, got {magic!r}. Is the peer of another version?")
    if header_bytes > min(HEADER_BYTES, length - _PREFIX.size):
        raise FrameError(
            f"expected a header of at most {min(HEADER_BYTES, length - _PREFIX.size)} bytes, got {header_bytes}."
        )
    kind, values, arrays = _header(_read(source, header_bytes))
    checked = _checked_fields(kind, values)
    head = Head(kind, checked, _checked_arrays(kind, arrays, _arrays_of(kind, checked, sizes)))
    if _PREFIX.size + header_bytes + head.nbytes != length:
        raise FrameError(
            f"{kind}: expected a frame of {_PREFIX.size + header_bytes + head.nbytes} bytes, got one of {length}."
        )
    return head


def read_rest(source: ByteSource, head: Head) -> Message:
    """The message whose header has been read."""
    arrays: dict[str, Array] = {}
    for name, dtype, length in head.arrays:
        values: Array = np.empty(length, np.dtype(dtype).newbyteorder("<"))
        if length:
            _fill(source, values.data.cast("B"))
        arrays[name] = values.astype(dtype, copy=False)
    return _put_together(head.kind, dict(head.fields), arrays)


def decode(source: ByteSource, length: int, sizes: Sizes) -> Message:
    """The message of a frame of `length` bytes."""
    return read_rest(source, read_head(source, length, sizes))


def _refuse_constant(word: str) -> object:
    raise ValueError(f"{word} is no JSON")


def _header(raw: bytes) -> tuple[str, dict[str, object], list[object]]:
    try:
        head = json.loads(raw, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise FrameError(f"expected a header in JSON: {error}.") from error
    if not isinstance(head, dict) or set(head) != {"message", "fields", "arrays"}:
        raise FrameError("expected a header with exactly 'message', 'fields' and 'arrays'.")
    kind, values, arrays = head["message"], head["fields"], head["arrays"]
    if not isinstance(kind, str) or kind not in _FIELDS:
        raise FrameError(f"expected a message of one of {sorted(_FIELDS)}, got {str(kind)[:SHORT_LETTERS]!r}.")
    if not isinstance(values, dict) or not isinstance(arrays, list):
        raise FrameError(f"{kind}: expected fields as an object and arrays as a list.")
    return kind, values, arrays


def _checked_fields(kind: str, values: dict[str, object]) -> dict[str, object]:
    if set(values) != set(_FIELDS[kind]):
        raise FrameError(f"{kind}: expected the fields {sorted(_FIELDS[kind])}, got {str(sorted(values))[:1000]}.")
    checked = {}
    for name, check in _FIELDS[kind].items():
        try:
            checked[name] = check(values[name])
        except ValueError as error:
            raise FrameError(f"{kind}: expected {name} to be {error}, got {str(values[name])[:100]!r}.") from error
    if kind == "order" and checked["kind"] == "train" and checked["span"] is None:
        raise FrameError("order: expected a train order to have a span, got none.")
    return checked


def _checked_arrays(
    kind: str, arrays: list[object], expected: list[tuple[str, str, Container[int]]]
) -> tuple[tuple[str, str, int], ...]:
    if len(arrays) != len(expected):
        names = [name for name, _, _ in expected]
        raise FrameError(f"{kind}: expected the arrays {names}, got {len(arrays)} arrays.")
    checked = []
    for found, (name, dtype, lengths) in zip(arrays, expected, strict=True):
        if not isinstance(found, list) or len(found) != 3:
            raise FrameError(f"{kind}: expected [name, dtype, length] of {name}, got {str(found)[:100]!r}.")
        length = found[2]
        if found[0] != name or found[1] != dtype:
            raise FrameError(f"{kind}: expected {name} as {dtype}, got {str(found[0])[:100]} as {str(found[1])[:100]}.")
        if isinstance(length, bool) or not isinstance(length, int) or length not in lengths:
            raise FrameError(
                f"{kind}: expected {name} to have {_listed(lengths)} numbers, got {str(length)[:100]}. "
                "Is this another model?"
            )
        checked.append((name, dtype, length))
    return tuple(checked)


def _listed(lengths: Container[int]) -> str:
    if isinstance(lengths, range):
        return f"at most {lengths[-1]}"
    return " or ".join(map(str, sorted(lengths, reverse=True))) if isinstance(lengths, set) else str(lengths)


def _put_together(kind: str, values: dict[str, object], arrays: dict[str, Array]) -> Message:
    # the tables above hold the types of all fields, which mypy cannot see through
    if kind in _PLAIN:
        return _PLAIN[kind](**values)  # type: ignore[arg-type]
    if kind == "order":
        state = TrainState(**arrays) if arrays else None  # type: ignore[arg-type]
        return Order(state=state, **values)  # type: ignore[arg-type]
    attempt = values.pop("attempt")
    assert isinstance(attempt, int)
    if kind == "update":
        return Answer(attempt, Update(**values, **arrays))  # type: ignore[arg-type]
    return Answer(attempt, Evaluation(**values, **arrays))  # type: ignore[arg-type]


def _read(source: ByteSource, count: int) -> bytes:
    buffer = bytearray(count)
    _fill(source, memoryview(buffer))
    return bytes(buffer)


def _fill(source: ByteSource, buffer: memoryview) -> None:
    done = 0
    while done < len(buffer):
        came = source.readinto(buffer[done:])
        if not came:
            raise CutShortError(f"expected {len(buffer)} bytes, got {done} before the other side went away.")
        done += came
