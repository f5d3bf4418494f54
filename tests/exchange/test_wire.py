from __future__ import annotations

import io
import json
import struct
import tracemalloc
from dataclasses import replace

import numpy as np
import pytest
from fuzzing import bad_frames, content, frames_with_another_header, messages, taken_apart, updates
from hypothesis import example, given, settings
from hypothesis import strategies as st
from small_world import LAYOUT, SIZES, floats, integers, joined, state, train_order, update
from wire_frames import decode, frame, raw

from elephas_like.core.layout import Layout, LayoutEntry
from elephas_like.core.strategies import CODECS, Int8
from elephas_like.core.types import Evaluation, Order, PackedStep, Role, nothing
from elephas_like.exchange import protocol, wire


def changed(message: protocol.Message, **fields: object) -> bytes:
    """The frame of a message with some fields of its header changed."""
    whole = raw(message)
    (length,) = struct.unpack("<I", whole[4:8])
    header = json.loads(whole[8 : 8 + length])
    header["fields"].update(fields)
    return frame(header, whole[8 + length :])


def assert_same(one: object, other: object) -> None:
    for name, value in vars(one).items():
        twin = getattr(other, name)
        if isinstance(value, np.ndarray):
            assert value.dtype == twin.dtype
            np.testing.assert_array_equal(value, twin)
        elif hasattr(value, "parts"):
            assert_same(value, twin)
        else:
            assert value == twin


@pytest.mark.parametrize(
    "message",
    [
        joined(3, checksum=2**64 - 1),
        protocol.Offer(1, 2, 3, 4),
        protocol.Next(1, 2),
        protocol.Announce(1, 2, "host-1"),
        protocol.Beat(1, 2, 3),
        protocol.Report(1, 2, "ValueError", "bad \ud800 row", "Traceback ..."),
        protocol.Sign("again"),
        protocol.Refusal("SupersededError", "gone"),
        Order("stop"),
    ],
)
def test_what_goes_in_comes_out(message: protocol.Message) -> None:
    assert decode(raw(message)) == message


@pytest.mark.parametrize(
    "order", [train_order(3, 1.0, -2.0), Order("evaluate", 4, 9, state=state().but(slots=floats(), frozen=floats()))]
)
def test_orders_keep_their_state(order: Order) -> None:
    back = decode(raw(order))
    assert isinstance(back, Order)
    assert_same(order, back)


PACKED = protocol.Sizes.of(LAYOUT, state_codec=Int8())


def decode_packed(whole: bytes) -> protocol.Message:
    return wire.decode(io.BytesIO(whole), len(whole), PACKED)


def test_an_order_may_have_a_packed_step_in_place_of_weights() -> None:
    whole = replace(train_order(3, 1.0, -2.0), step=PackedStep())
    back = decode_packed(raw(whole))
    assert isinstance(back, Order)
    assert content(back) == content(whole)
    step = PackedStep(2, Int8().pack(floats(1.0, -2.0)))
    brief = replace(train_order(3), state=state().but(weights=floats()), step=step)
    back = decode_packed(raw(brief))
    assert isinstance(back, Order)
    assert content(back) == content(brief)
    assert isinstance(decode_packed(raw(Order("evaluate", 4, state=state()))), Order)


def test_an_order_to_train_may_bring_the_mean_step_of_all_workers() -> None:
    sizes = protocol.Sizes.of(LAYOUT, control_variates=True)
    assert sizes.order() == protocol.Sizes.of(LAYOUT).order() + 4 * sizes.parts["weights"]
    for mean_step in (floats(), floats(0.5, -3.0)):
        whole = raw(replace(train_order(3, 1.0, -2.0), mean_step=mean_step))
        back = wire.decode(io.BytesIO(whole), len(whole), sizes)
        assert isinstance(back, Order)
        assert back.mean_step.tolist() == mean_step.tolist()
        with pytest.raises(wire.FrameError, match="expected the arrays"):  # of a fit without
            decode(whole)
    for wrong, message in ((floats(1.0), "mean_step to have 2 or 0 numbers, got 1"), (None, "expected the arrays")):
        whole = raw(replace(train_order(3, 1.0, -2.0), mean_step=wrong))
        with pytest.raises(wire.FrameError, match=message):
            wire.decode(io.BytesIO(whole), len(whole), sizes)


@pytest.mark.parametrize(
    ("order", "message"),
    [
        (train_order(), "expected the arrays"),  # one that knows of no steps
        (replace(train_order(), step=PackedStep(0, np.zeros(3, np.uint8))), "step to have 6 or 0 numbers, got 3"),
        (Order("evaluate", 0, state=state().but(weights=floats())), "weights to have 2 numbers, got 0"),
        (
            replace(train_order(), step=PackedStep(0, np.zeros(6, np.uint8))),
            "either weights or a packed step, got both",
        ),
        (replace(train_order(), state=state().but(weights=floats()), step=PackedStep()), "got both or neither"),
    ],
)
def test_other_steps_are_refused(order: Order, message: str) -> None:
    with pytest.raises(wire.FrameError, match=message):
        decode_packed(raw(order))


def test_weights_are_whole_where_no_step_is_packed() -> None:
    with pytest.raises(wire.FrameError, match="weights to have 2 numbers, got 0"):
        decode(raw(replace(train_order(), state=state().but(weights=floats()))))


@pytest.mark.parametrize(
    "result",
    [
        update(1, 2, np.nan, np.inf),
        update(1, 2, slots=False),
        replace(update(1, 2), frozen=floats(4.0, 5.0, 6.0)),
        replace(update(samples=0), delta=floats(), statistics=floats(), metrics=np.zeros(0)),
        Evaluation(1, 5, 10, np.array([0.25, 4.0]), 1.5),
    ],
)
def test_answers_keep_their_arrays(result: object) -> None:
    back = decode(raw(protocol.Answer(7, result)))  # type: ignore[arg-type]
    assert isinstance(back, protocol.Answer)
    assert back.attempt == 7
    assert_same(result, back.result)


WIDE = Layout(
    tuple(replace(entry, dtype="float64") if entry.role is Role.WEIGHT else entry for entry in LAYOUT.entries)
)


def test_parts_of_float64_keep_their_bits_and_need_no_type_where_they_are_left_out() -> None:
    sizes = protocol.Sizes.of(WIDE, control_variates=True)
    assert sizes.state() == protocol.Sizes.of(LAYOUT).state() + 4 * 2
    third = np.array([1 / 3, -1e300])
    whole = raw(replace(train_order(), state=state().but(weights=third), mean_step=nothing()))
    assert wire.decode(io.BytesIO(whole), len(whole), sizes).state.weights.tolist() == third.tolist()
    for sent in (replace(update(), delta=third), replace(update(samples=0), delta=nothing())):
        whole = raw(protocol.Answer(1, sent))
        assert wire.decode(io.BytesIO(whole), len(whole), sizes).result.delta.tolist() == sent.delta.tolist()
    whole = raw(protocol.Answer(1, update(1, 2)))
    with pytest.raises(wire.FrameError, match="delta as float64, got delta as float32"):
        wire.decode(io.BytesIO(whole), len(whole), sizes)


def test_orders_and_updates_of_training_say_nothing_of_memory() -> None:
    """A fit pays for its workers' memory only when a checkpoint asks for it."""
    order, buffers = taken_apart(raw(train_order(3, 1.0, 2.0)))
    assert order["fields"] == {"kind": "train", "number": 3, "version": 3, "span": [0, 0, 1, 1, 1], "after": -1}
    assert [name for name, _, _ in order["arrays"]] == [role.value for role in Role]
    assert len(buffers) == 4 * (2 + 1 + 3 + 2 + 1) + 8 * (1 + 2)  # floats and integers of the state
    sent, buffers = taken_apart(raw(protocol.Answer(7, update(1, 2))))
    assert set(sent["fields"]) == {"worker", "attempt", "number", "version", "samples", "steps", "seconds"}
    assert len(buffers) == 4 * (2 + 1 + 2) + 8 * (1 + 2 + 2)


def test_large_arrays_are_not_copied() -> None:
    weights = np.zeros(100_000, np.float32)
    chunks = wire.encode(Order("evaluate", 0, state=state().but(weights=weights)))
    assert any(np.shares_memory(np.frombuffer(chunk, np.uint8), weights) for chunk in chunks)
    assert len(chunks) == 3  # header, weights, and the small rest in one


def test_numpy_numbers_may_be_fields() -> None:
    back = decode(raw(protocol.Answer(np.int64(7), update(samples=np.int64(4)))))  # type: ignore[arg-type]
    assert isinstance(back, protocol.Answer)
    assert back.result.samples == 4


def test_only_flat_arrays_of_known_dtypes_are_sent() -> None:
    with pytest.raises(wire.FrameError, match=r"delta: expected a flat array .* float16"):
        wire.encode(protocol.Answer(1, replace(update(), delta=np.zeros(2, np.float16))))  # type: ignore[arg-type]
    with pytest.raises(wire.FrameError, match=r"shape \(2, 1\)"):
        wire.encode(protocol.Answer(1, replace(update(), delta=np.zeros((2, 1), np.float32))))


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (b"PK\x03\x04" + raw(protocol.Beat(0, 1))[4:], "begins with"),
        (protocol.MAGIC + struct.pack("<I", 2**31) + b"x" * 100, "header of at most"),
        (protocol.MAGIC, "frame of 8 to"),
        (frame(b"{" * 50), "in JSON"),
        (frame(b"[" * 100_000), "in JSON"),
        (frame([1]), "exactly 'message'"),
        (frame({"message": "beat", "fields": [], "arrays": []}), "fields as an object"),
        (frame({"message": "pickle", "fields": {}, "arrays": []}), "one of"),
        (frame({"message": "beat", "fields": {"worker": 0}, "arrays": []}), "expected the fields"),
        (raw(protocol.Beat(0, 1)) + b"more", "expected a frame of"),
        (changed(protocol.Beat(0, 1), worker=-1), "worker to be an integer from 0"),
        (changed(protocol.Beat(0, 1), worker=True), "worker to be an integer"),
        (changed(protocol.Beat(0, 1), worker=2**63), "worker to be an integer"),
        (changed(protocol.Beat(0, 1), attempt="1"), "attempt to be an integer"),
        (changed(protocol.Beat(0, 1), progress=-1), "progress to be an integer from 0"),
        (changed(protocol.Announce(0, 1, "here"), host="h" * 257), "host to be a text of at most 256"),
        (changed(joined(), host="x" * 257), "host to be a text of at most 256"),
        (changed(protocol.Report(0, 1, "E", "m", ""), traceback_text="x" * 65537), "traceback_text to be a text"),
        (changed(protocol.Sign("done"), word="obey"), "word to be one of"),
        (changed(train_order(), span=[0, 2, 1, 3, 1]), "span with 0 <= begin"),
        (changed(train_order(), span=None), "to have a span"),
        (changed(train_order(), kind="wait"), r"expected the arrays \[\]"),
        (changed(protocol.Answer(1, update()), seconds=-1), "seconds to be a number"),
        (frame(raw(protocol.Answer(1, update())).split(b"ELX1")[1][4:].replace(b"0.25", b"NaN")), "in JSON"),
        (raw(protocol.Answer(1, replace(update(), delta=np.zeros(3, np.float32)))), "delta to have 2 numbers, got 3"),
        (raw(protocol.Answer(1, replace(update(), delta=np.zeros(0, np.float32)))), "delta to have 2 numbers, got 0"),
        (raw(protocol.Answer(1, replace(update(), slots=np.zeros(1, np.float32)))), "slots to have 2 or 0 numbers"),
        (raw(protocol.Answer(1, replace(update(), delta=np.zeros(2)))), "delta as float32, got delta as float64"),
        (raw(Order("evaluate", 0, state=state(1.0, 2.0, 3.0))), "weights to have 2 numbers, got 3"),
    ],
)
def test_whatever_is_off_is_refused(bad: bytes, message: str) -> None:
    with pytest.raises(wire.FrameError, match=message):
        decode(bad)


def test_every_truncation_is_refused() -> None:
    whole = raw(protocol.Answer(1, update()))
    for kept in range(len(whole)):
        with pytest.raises(wire.CutShortError):
            decode(whole[:kept], len(whole))
        with pytest.raises(wire.FrameError):
            decode(whole[:kept])


def test_bytes_of_an_exchange(capsys: pytest.CaptureFixture[str]) -> None:
    """What a worker sends of an MLP of 100,480 weights that keeps its optimizer's slots to itself; printed with -s."""
    layout = Layout((LayoutEntry("kernel", Role.WEIGHT, (785, 128), "float32"),))
    delta = np.random.default_rng(0).normal(size=785 * 128).astype(np.float32)
    nothing = {"statistics": floats(), "slots": floats(), "counters": integers(), "seeds": integers()}
    sent = {}
    for codec in (None, *(kind() for kind in CODECS.values())):
        message = delta if codec is None else codec.pack(delta)
        frame = raw(protocol.Answer(1, replace(update(), delta=message, **nothing)))
        wire.decode(io.BytesIO(frame), len(frame), protocol.Sizes.of(layout, codec))
        sent["none" if codec is None else codec.name] = len(frame)
    print("\n" + "\n".join(f"{name:8} {size:8,d} bytes" for name, size in sent.items()))
    share = {name: size / sent["none"] for name, size in sent.items()}
    assert share["fp16"] < 0.51
    assert share["int8"] < 0.26
    assert share["int4"] < 0.14
    assert share["one_bit"] < 0.05
    assert share["top_k"] < 0.022


@given(messages())
def test_every_message_comes_back_to_the_last_bit(message: protocol.Message) -> None:
    assert content(decode(raw(message))) == content(message)


@settings(max_examples=20)
@pytest.mark.parametrize("name", sorted(CODECS))
@given(data=st.data())
def test_packed_deltas_come_back_to_the_last_bit(name: str, data: st.DataObject) -> None:
    codec = CODECS[name]()
    sizes = protocol.Sizes.of(LAYOUT, codec)
    weights = st.lists(st.floats(-(2.0**30), 2.0**30, width=32), min_size=2, max_size=2).map(
        lambda values: floats(*values)
    )
    message = protocol.Answer(1, data.draw(updates(sizes, weights.map(codec.pack))))
    whole = raw(message)
    assert content(wire.decode(io.BytesIO(whole), len(whole), sizes)) == content(message)


def decoded_or_refused(frame: bytes, length: int | None = None) -> None:
    """Decode; whatever is wrong is a FrameError, and nothing else."""
    try:
        message = decode(frame, length)
    except wire.FrameError:
        return
    assert isinstance(message, protocol.Message)


@settings(max_examples=60)
@given(bad_frames())
@example(changed(protocol.Answer(1, update()), seconds=10**400))
@example(changed(protocol.TrialProgress(0, 1, 2, {}), metrics={"loss": 10**400}))
def test_any_bytes_are_a_message_or_refused(bad: bytes) -> None:
    decoded_or_refused(bad)


@given(messages(), st.data())
def test_any_part_of_a_frame_is_refused(message: protocol.Message, data: st.DataObject) -> None:
    whole = raw(message)
    kept = data.draw(st.integers(0, len(whole) - 1))
    for length in (kept, len(whole)):
        with pytest.raises(wire.FrameError):
            decode(whole[:kept], length)


@settings(max_examples=30)
@given(
    bad_frames() | frames_with_another_header(), st.integers(0, 2 * SIZES.most) | st.integers(0, 2**64 - 1), st.data()
)
def test_lengths_that_lie_allocate_no_more_than_the_largest_frame(bad: bytes, length: int, data: st.DataObject) -> None:
    if len(bad) >= 8 and data.draw(st.booleans()):
        bad = bad[:4] + struct.pack("<I", data.draw(st.integers(0, 2**32 - 1))) + bad[8:]
    tracemalloc.start()
    try:
        decoded_or_refused(bad, length)
        assert tracemalloc.get_traced_memory()[1] < SIZES.most + 2**22
    finally:
        tracemalloc.stop()
