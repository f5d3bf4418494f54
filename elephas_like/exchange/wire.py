"""Frames between a worker and the driver: a small JSON header and raw buffers. No pickle, no copy.

    frame = MAGIC, u32 length of the header, header, buffers one after the other      (little-endian)

The header names the kind of the message, its fields, and its arrays with dtype and length. Reading has two steps, so that a
server can decide about a message before its arrays are in memory: `read_head` checks the header, `read_rest` fills the
arrays. Whatever is wrong raises `FrameError`. protocol.py defines the messages.
"""

from __future__ import annotations

import json
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Protocol

import numpy as np

from elephas_like.core.errors import ElephasError
from elephas_like.core.types import Array, Evaluation, Order, PackedStep, Recollection, Result, Span, TrainState, Update
from elephas_like.exchange.protocol import (
    FIELDS,
    HEADER_BYTES,
    MAGIC,
    MEMORY_VECTORS,
    PLAIN_KINDS,
    PLAIN_MESSAGES,
    PREFIX,
    SHORT_LETTERS,
    Answer,
    Message,
    Sizes,
    arrays_of,
    holds_memory,
)

SMALL_BYTES = 16 * 2**10
"""Neighbouring buffers up to this size are joined: one write is cheaper than the copy."""

_READ_BYTES = 2**20
_DTYPES = ("float32", "float64", "int64", "uint8")

Chunk = bytes | memoryview


class FrameError(ElephasError):
    """Bytes that are not a frame of ours, or not one that fits the model; nothing of it has been used."""


class CutShortError(FrameError):
    """The other side went away in the middle of a frame."""


class ByteSource(Protocol):
    """What frames are read from: a file, a socket's file, an HTTP response."""

    def readinto(self, buffer: memoryview, /) -> int | None:
        """Fill the start of `buffer`. Return how many bytes came; 0 at the end."""
        ...


def encode(message: Message) -> list[Chunk]:
    """Return a message's frame as buffers to be written one after the other. Large arrays are not copied."""
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
    return _joined_where_small([PREFIX.pack(MAGIC, len(header)) + header, *buffers])


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
        kind, arrays = _result_arrays(result)
        values = {"attempt": message.attempt} | {
            name: getattr(result, name) for name in FIELDS[kind] if name != "attempt"
        }
        return kind, values, arrays
    if isinstance(message, Order):
        span = message.span and [getattr(message.span, field.name) for field in fields(Span)]
        values = {"kind": message.kind, "number": message.number, "version": message.version, "span": span, "after": -1}
        if message.state is None:
            return "order", values, message.memory
        sent = message.state.parts()
        if message.step is not None:
            values, sent = values | {"after": message.step.after}, sent | {"step": message.step.packed}
        return "order", values, sent if message.mean_step is None else sent | {"mean_step": message.mean_step}
    kind = PLAIN_KINDS[type(message)]
    return kind, {name: getattr(message, name) for name in FIELDS[kind]}, {}


def _result_arrays(result: Result) -> tuple[str, Mapping[str, Array]]:
    match result:
        case Update():
            return "update", result.arrays()
        case Evaluation():
            return "evaluation", {"metrics": result.metrics}
        case Recollection():
            return "recollection", result.memory


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
    """A frame of which only the header has been read and checked.

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
    """Read the header of a frame of `length` bytes. `source` then stands before the first array.

    Raises:
        FrameError: magic, header, fields or arrays are not what `sizes` lets one expect.
    """
    if not PREFIX.size <= length <= sizes.most:
        raise FrameError(f"expected a frame of {PREFIX.size} to {sizes.most} bytes, got {length}.")
    magic, header_bytes = PREFIX.unpack(read(source, PREFIX.size))
    if magic != MAGIC:
        raise FrameError(f"expected a frame that begins with {MAGIC!r}, got {magic!r}. Is the peer of another version?")
    if header_bytes > min(HEADER_BYTES, length - PREFIX.size):
        raise FrameError(
            f"expected a header of at most {min(HEADER_BYTES, length - PREFIX.size)} bytes, got {header_bytes}."
        )
    kind, values, arrays = _header(read(source, header_bytes))
    checked = _checked_fields(kind, values)
    if holds_memory(kind, checked):
        head = Head(kind, checked, _checked_memory(kind, arrays, sizes.memory))
    else:
        head = Head(kind, checked, _checked_arrays(kind, arrays, arrays_of(kind, checked, sizes)))
    _check_weights(head, sizes)
    if PREFIX.size + header_bytes + head.nbytes != length:
        raise FrameError(
            f"{kind}: expected a frame of {PREFIX.size + header_bytes + head.nbytes} bytes, got one of {length}."
        )
    return head


def read_rest(source: ByteSource, head: Head) -> Message:
    """Read the arrays after a header and return the message."""
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


def read(source: ByteSource, count: int) -> bytearray:
    """Return the next `count` bytes, read as they come: a length that was only announced allocates nothing.

    Raises:
        CutShortError: they end before.
    """
    data, scratch = bytearray(), memoryview(bytearray(min(count, _READ_BYTES)))
    while len(data) < count:
        came = source.readinto(scratch[: count - len(data)])
        if not came:
            raise CutShortError(f"expected {count} bytes, got {len(data)} before the other side went away.")
        data += scratch[:came]
    return data


def _refuse_constant(word: str) -> object:
    raise ValueError(f"{word} is no JSON")


def _header(raw: bytearray) -> tuple[str, dict[str, object], list[object]]:
    try:
        head = json.loads(raw, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise FrameError(f"expected a header in JSON: {error}.") from error
    if not isinstance(head, dict) or set(head) != {"message", "fields", "arrays"}:
        raise FrameError("expected a header with exactly 'message', 'fields' and 'arrays'.")
    kind, values, arrays = head["message"], head["fields"], head["arrays"]
    if not isinstance(kind, str) or kind not in FIELDS:
        raise FrameError(f"expected a message of one of {sorted(FIELDS)}, got {str(kind)[:SHORT_LETTERS]!r}.")
    if not isinstance(values, dict) or not isinstance(arrays, list):
        raise FrameError(f"{kind}: expected fields as an object and arrays as a list.")
    return kind, values, arrays


def _checked_fields(kind: str, values: dict[str, object]) -> dict[str, object]:
    if set(values) != set(FIELDS[kind]):
        raise FrameError(f"{kind}: expected the fields {sorted(FIELDS[kind])}, got {str(sorted(values))[:1000]}.")
    checked = {}
    for name, check in FIELDS[kind].items():
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
        if found[0] != name or (found[1] != dtype and length):  # what is left out has no type
            raise FrameError(f"{kind}: expected {name} as {dtype}, got {str(found[0])[:100]} as {str(found[1])[:100]}.")
        if isinstance(length, bool) or not isinstance(length, int) or length not in lengths:
            raise FrameError(
                f"{kind}: expected {name} to have {_listed(lengths)} numbers, got {str(length)[:100]}. "
                "Is this another model?"
            )
        checked.append((name, dtype, length))
    return tuple(checked)


def _checked_memory(kind: str, arrays: list[object], most: int) -> tuple[tuple[str, str, int], ...]:
    """The arrays of what a worker remembers. Strategies name them, and say how long they are."""
    checked: dict[str, tuple[str, str, int]] = {}
    numbers = 0
    for found in arrays:
        if not isinstance(found, list) or len(found) != 3:
            raise FrameError(f"{kind}: expected [name, dtype, length], got {str(found)[:100]!r}.")
        name, dtype, length = found
        if not isinstance(name, str) or len(name) > SHORT_LETTERS or name in checked:
            raise FrameError(f"{kind}: expected names of up to {SHORT_LETTERS} letters, got {str(name)[:100]!r}.")
        if dtype not in _DTYPES:
            raise FrameError(f"{kind}: expected {name!r} as one of {_DTYPES}, got {str(dtype)[:100]}.")
        if isinstance(length, bool) or not isinstance(length, int) or not 0 <= length <= most - numbers:
            raise FrameError(
                f"{kind}: expected a worker to remember at most {most} numbers, got {numbers} and then {name[:100]!r} of "
                f"{str(length)[:100]}. A strategy may keep {MEMORY_VECTORS} vectors as long as the weights."
            )
        checked[name] = (name, dtype, length)
        numbers += length
    return tuple(checked.values())


def _check_weights(head: Head, sizes: Sizes) -> None:
    """Do nothing if an order to train has either weights or a step to them."""
    lengths = {name: length for name, _, length in head.arrays}
    stepping = head.kind == "order" and "step" in lengths and sizes.parts["weights"] > 0
    if stepping and (lengths["weights"] > 0) == (lengths["step"] > 0):
        raise FrameError("order: expected either weights or a packed step, got both or neither.")


def _listed(lengths: Container[int]) -> str:
    if isinstance(lengths, range):
        return f"at most {lengths[-1]}"
    return " or ".join(map(str, sorted(lengths, reverse=True))) if isinstance(lengths, set) else str(lengths)


def _put_together(kind: str, values: dict[str, object], arrays: dict[str, Array]) -> Message:
    # the tables above hold the types of all fields, which mypy cannot see through
    if kind in PLAIN_MESSAGES:
        return PLAIN_MESSAGES[kind](**values)  # type: ignore[arg-type]
    after = values.pop("after", -1)
    if holds_memory(kind, values):
        memory = {"memory": arrays}
        if kind == "order":
            return Order(**values, **memory)  # type: ignore[arg-type]
        attempt = values.pop("attempt")
        assert isinstance(attempt, int)
        return Answer(attempt, Recollection(**values, **memory))  # type: ignore[arg-type]
    if kind == "order":
        packed, mean_step = arrays.pop("step", None), arrays.pop("mean_step", None)
        step = None if packed is None else PackedStep(after, packed)  # type: ignore[arg-type]
        state = TrainState(**arrays) if arrays else None  # type: ignore[arg-type]
        return Order(state=state, step=step, mean_step=mean_step, **values)  # type: ignore[arg-type]
    attempt = values.pop("attempt")
    assert isinstance(attempt, int)
    if kind == "update":
        return Answer(attempt, Update(**values, **arrays))  # type: ignore[arg-type]
    return Answer(attempt, Evaluation(**values, **arrays))  # type: ignore[arg-type]


def _fill(source: ByteSource, buffer: memoryview) -> None:
    done = 0
    while done < len(buffer):
        came = source.readinto(buffer[done:])
        if not came:
            raise CutShortError(f"expected {len(buffer)} bytes, got {done} before the other side went away.")
        done += came
