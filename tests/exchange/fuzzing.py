"""What hypothesis makes: messages of every kind, and frames with something wrong in them."""

from __future__ import annotations

import json
import struct
from dataclasses import fields

import numpy as np
from hypothesis import strategies as st
from small_world import SIZES
from wire_frames import frame, raw

from elephas_like.core.types import Evaluation, Joined, Order, Recollection, Span, TrainState, Update
from elephas_like.exchange import protocol

COUNTS = st.integers(0, 2**63 - 1)
SECONDS = st.floats(0, 1e300)
# Of lone surrogates only high ones: a high and a low one in a row are one letter in JSON.
LETTERS = st.characters() | st.just("\ud800")
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.sampled_from([-1, 2**63, 10**400, -(10**400), 0.5, float("nan"), float("inf"), "train", "delta"])
    | st.floats()
    | st.text(LETTERS, max_size=20),
    lambda inner: st.lists(inner, max_size=6) | st.dictionaries(st.text(max_size=10), inner, max_size=4),
    max_leaves=8,
)


def texts(letters: int = protocol.SHORT_LETTERS) -> st.SearchStrategy[str]:
    return st.text(LETTERS, max_size=min(letters, 40)) | st.just("x" * letters)


def vectors(size: int, dtype: str = "float32", optional: bool = False) -> st.SearchStrategy[np.ndarray]:
    """Any bits, NaN and infinities among them."""
    length = size * np.dtype(dtype).itemsize
    whole = st.binary(min_size=length, max_size=length).map(lambda data: np.frombuffer(data, dtype))
    return whole | st.just(np.zeros(0, dtype)) if optional else whole


def _parts(sizes: protocol.Sizes, optional: bool) -> dict[str, st.SearchStrategy[np.ndarray]]:
    """The arrays that orders and updates have in common. optional: whether all of them may be left out, as without samples."""
    kinds = {"statistics": "float32", "counters": "int64", "loss_scale": "float32", "seeds": "int64"}
    parts = {name: vectors(sizes.parts[name], dtype, optional) for name, dtype in kinds.items()}
    return parts | {name: vectors(sizes.parts[name], optional=True) for name in ("slots", "frozen")}


def states(sizes: protocol.Sizes = SIZES) -> st.SearchStrategy[TrainState]:
    own = {name: vectors(sizes.parts[name]) for name in ("weights", "learning_rate")}
    return st.builds(TrainState, **own, **_parts(sizes, optional=False))


def updates(
    sizes: protocol.Sizes = SIZES, delta: st.SearchStrategy[np.ndarray] | None = None
) -> st.SearchStrategy[Update]:
    """delta: packed ones of a codec."""

    def with_samples(samples: int) -> st.SearchStrategy[Update]:
        nothing = samples == 0
        numbers = dict.fromkeys(("worker", "number", "version", "steps"), COUNTS)
        return st.builds(
            Update,
            **numbers,
            samples=st.just(samples),
            delta=vectors(sizes.parts["weights"], optional=nothing) if delta is None else delta,
            **_parts(sizes, optional=nothing),
            metrics=st.integers(0, 4).flatmap(lambda size: vectors(size, "float64")),
            seconds=SECONDS,
        )

    return (st.just(0) | COUNTS).flatmap(with_samples)


def memories() -> st.SearchStrategy[dict[str, np.ndarray]]:
    """What a worker remembers: arrays of any names, lengths and known types."""
    kinds = st.sampled_from(["float32", "float64", "int64", "uint8"])
    arrays = st.tuples(st.integers(0, 5), kinds).flatmap(lambda each: vectors(*each))
    return st.dictionaries(texts(), arrays, max_size=4)


@st.composite
def spans(draw: st.DrawFn) -> Span:
    begin, end, of = sorted(draw(st.lists(COUNTS, min_size=3, max_size=3)))
    return Span(draw(COUNTS), begin, end, max(of, 1), draw(st.integers(1, 2**63 - 1)))


def orders() -> st.SearchStrategy[Order]:
    numbers = {"number": st.integers(-1, 2**63 - 1), "version": COUNTS}
    numbers["version"] |= st.just(-1)
    return (
        st.builds(Order, st.just("train"), **numbers, span=spans(), state=states())
        | st.builds(Order, st.just("remind"), **numbers, span=st.none() | spans(), memory=memories())
        | st.builds(Order, st.just("evaluate"), **numbers, span=st.none() | spans(), state=states())
        | st.builds(Order, st.sampled_from(["recall", "wait", "stop", "suspend"]), **numbers, span=st.none() | spans())
    )


def small_messages() -> st.SearchStrategy[protocol.Message]:
    """Those without arrays."""
    numbers = st.floats(allow_nan=False, allow_infinity=False)
    return (
        st.builds(
            Joined,
            COUNTS,
            COUNTS,
            texts(),
            COUNTS,
            COUNTS,
            texts(),
            st.integers(-(2**63), 2**64 - 1),
            st.integers(1, 2**63 - 1),
            texts(),
        )
        | st.builds(protocol.Offer, COUNTS, COUNTS, COUNTS, COUNTS)
        | st.builds(protocol.Next, COUNTS, COUNTS)
        | st.builds(protocol.Announce, COUNTS, COUNTS, texts())
        | st.builds(protocol.Beat, COUNTS, COUNTS, COUNTS)
        | st.builds(
            protocol.Report,
            COUNTS,
            COUNTS,
            texts(),
            texts(protocol.MESSAGE_LETTERS),
            texts(protocol.TRACEBACK_LETTERS),
        )
        | st.builds(protocol.TrialProgress, COUNTS, COUNTS, COUNTS, st.dictionaries(texts(), numbers, max_size=4))
        | st.builds(protocol.Printed, COUNTS, COUNTS, COUNTS, texts(protocol.PRINTED_LETTERS))
        | st.builds(protocol.Sign, st.sampled_from(["send", "again", "done"]))
        | st.builds(protocol.Refusal, texts(), texts(protocol.MESSAGE_LETTERS))
    )


def messages() -> st.SearchStrategy[protocol.Message]:
    evaluations = st.builds(
        Evaluation, COUNTS, COUNTS, COUNTS, st.integers(0, 4).flatmap(lambda size: vectors(size, "float64")), SECONDS
    )
    recollections = st.builds(Recollection, COUNTS, COUNTS, memories())
    return small_messages() | orders() | st.builds(protocol.Answer, COUNTS, updates() | evaluations | recollections)


def content(value: object) -> object:
    """A message as what can be compared, with the bits of its arrays."""
    if isinstance(value, np.ndarray):
        return value.dtype.name, value.shape, value.tobytes()
    if hasattr(value, "__dataclass_fields__"):
        return type(value), [content(getattr(value, field.name)) for field in fields(value)]  # type: ignore[arg-type]
    if isinstance(value, dict):
        return [(name, content(each)) for name, each in value.items()]
    return value


def taken_apart(whole: bytes) -> tuple[dict, bytes]:
    """The header of a frame, and what follows it."""
    (length,) = struct.unpack("<I", whole[4:8])
    return json.loads(whole[8 : 8 + length]), whole[8 + length :]


@st.composite
def frames_with_another_header(draw: st.DrawFn) -> bytes:
    """A frame with any JSON value somewhere in its header. Infinity stands for a number that is too large."""
    header, buffers = taken_apart(raw(draw(messages())))
    places = [(header, key) for key in header] + [(header["fields"], key) for key in header["fields"]]
    places += [(header["arrays"], index) for index in range(len(header["arrays"]))]
    places += [(array, index) for array in header["arrays"] for index in range(3)]
    if isinstance(header["fields"].get("span"), list):
        places += [(header["fields"]["span"], index) for index in range(5)]
    if header["fields"].get("metrics"):
        places += [(header["fields"]["metrics"], key) for key in header["fields"]["metrics"]]
    parent, key = draw(st.sampled_from(places))
    parent[key] = draw(JSON)
    return frame(json.dumps(header).replace("Infinity", "1e999").encode(), buffers)


@st.composite
def frames_with_other_bytes(draw: st.DrawFn) -> bytes:
    """A frame of which a few bytes are others, are missing, or are too many."""
    whole = bytearray(raw(draw(messages())))
    for _ in range(draw(st.integers(1, 3))):
        place = draw(st.integers(0, max(0, len(whole) - 1)))
        gone = draw(st.integers(0, 4))
        whole[place : place + gone] = draw(st.binary(max_size=4))
    return bytes(whole)


def no_frames() -> st.SearchStrategy[bytes]:
    """Any bytes; also after the beginning of a frame."""
    return st.binary(max_size=200) | st.builds(frame, st.binary(max_size=100), st.binary(max_size=50))


def bad_frames() -> st.SearchStrategy[bytes]:
    return no_frames() | frames_with_other_bytes() | frames_with_another_header()
