"""What each message may hold: sizes of a model's parts, packed deltas, and metrics with a bound."""

from __future__ import annotations

import io
from dataclasses import replace

import numpy as np
import pytest
from small_world import LAYOUT, SIZES, floats, update
from wire_frames import decode, frame, raw

from elephas_like.core.layout import Layout, LayoutEntry
from elephas_like.core.strategies import CODECS, Codec, Int8
from elephas_like.core.types import ASIDE, Recollection, Role
from elephas_like.exchange import protocol, wire


def test_sizes_are_the_lengths_of_the_roles() -> None:
    assert protocol.Sizes.of(LAYOUT).parts == {
        "weights": 2,
        "statistics": 1,
        "frozen": 3,
        "slots": 2,
        "counters": 1,
        "learning_rate": 1,
        "loss_scale": 0,
        "seeds": 2,
    }


def test_an_order_to_a_worker_who_has_the_last_weights_is_as_large_as_the_step() -> None:
    # weights 8, statistics 4, frozen 12, slots 8, counters 8, learning rate 4, seeds 16; int8 packs two numbers as 2 + 4 bytes
    plain, packed = protocol.Sizes.of(LAYOUT), protocol.Sizes.of(LAYOUT, state_codec=Int8())
    assert (plain.step, plain.order(), plain.order(Role.SLOT, Role.FROZEN)) == (None, 60, 40)
    assert (packed.step, packed.order(), packed.order(Role.SLOT, Role.FROZEN)) == (6, 58, 38)
    assert packed.state() == 60


def test_metrics_have_a_bound_that_costs_no_memory() -> None:
    many = protocol.METRIC_NUMBERS + 1
    fields = {"attempt": 1, "worker": 0, "number": 0, "samples": 1, "seconds": 0}
    header = {"message": "evaluation", "fields": fields, "arrays": [["metrics", "float64", many]]}
    with pytest.raises(wire.FrameError, match="at most 16777216"):
        decode(frame(header))
    with pytest.raises(wire.FrameError, match="expected a frame of 8 to"):
        decode(b"", SIZES.most + 1)


def remembering(**memory: np.ndarray) -> bytes:
    return raw(protocol.Answer(1, Recollection(0, ASIDE, memory)))


def test_what_a_worker_remembers_has_a_bound() -> None:
    most = 2 + 16 * 2  # slots, and vectors of as many numbers as weights
    assert SIZES.memory == most
    assert protocol.Sizes.of(LAYOUT).memory == 0
    assert protocol.Sizes.of(LAYOUT).most == SIZES.most  # metrics may be larger
    back = decode(remembering(own=np.arange(most - 1.0), count=np.ones(1, np.uint8)))
    assert {name: array.size for name, array in back.result.memory.items()} == {"own": most - 1, "count": 1}
    with pytest.raises(wire.FrameError, match=r"at most 34 numbers, got 33 and then 'count' of 2.*16 vectors"):
        decode(remembering(own=np.arange(most - 1.0), count=np.ones(2, np.uint8)))
    whole = remembering(own=floats(1))
    with pytest.raises(wire.FrameError, match="at most 0 numbers, got 0 and then 'own' of 1"):
        wire.decode(io.BytesIO(whole), len(whole), protocol.Sizes.of(LAYOUT))
    large = Layout((LayoutEntry("kernel", Role.WEIGHT, (2**21,), "float32"),))
    assert protocol.Sizes.of(large, workers_remember=True).most > 16 * 2**21 * 8


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (["own", "float32"], "expected .name, dtype, length."),
        (["own", "object", 1], "expected 'own' as one of"),
        (["own", [], 1], "expected 'own' as one of"),
        ([["own"], "float32", 1], "expected names of up to 256 letters, got .*own"),
        (["x" * 257, "float32", 1], "expected names of up to 256 letters"),
        (["first", "float32", 1], "expected names of up to 256 letters, got 'first'"),  # twice
        (["own", "float32", -1], "and then 'own' of -1"),
        (["own", "float32", True], "and then 'own' of True"),
        (["own", "float32", int("9" * 4300)], "and then 'own' of 999"),
    ],
)
def test_memory_of_another_form_is_refused(array: list[object], message: str) -> None:
    header = {"message": "recollection", "fields": {"worker": 0, "attempt": 1, "number": 2}}
    with pytest.raises(wire.FrameError, match=message):
        decode(frame(header | {"arrays": [["first", "uint8", 0], array]}))


@pytest.mark.parametrize("codec", [kind() for kind in CODECS.values()])
def test_packed_deltas_have_exactly_the_bytes_that_the_codec_gives_them(codec: Codec) -> None:
    sizes = protocol.Sizes.of(LAYOUT, codec)
    packed = codec.pack(floats(1.5, -2.5))
    answer = protocol.Answer(1, replace(update(), delta=packed))
    back = wire.decode(io.BytesIO(raw(answer)), len(raw(answer)), sizes)
    assert isinstance(back, protocol.Answer)
    assert back.result.delta.dtype == np.uint8
    assert back.result.delta.tolist() == packed.tolist()
    for wrong, message in [
        (np.append(packed, np.uint8(0)), f"delta to have {packed.size} numbers, got {packed.size + 1}"),
        (packed[:-1], f"delta to have {packed.size} numbers, got {packed.size - 1}"),
        (floats(1.5, -2.5), "delta as uint8, got delta as float32"),
    ]:
        bad = raw(protocol.Answer(1, replace(update(), delta=wrong)))
        with pytest.raises(wire.FrameError, match=message):
            wire.decode(io.BytesIO(bad), len(bad), sizes)


def test_an_unpacked_run_takes_no_packed_delta() -> None:
    with pytest.raises(wire.FrameError, match="delta as float32, got delta as uint8"):
        decode(raw(protocol.Answer(1, replace(update(), delta=np.zeros(2, np.uint8)))))


def test_who_trained_nothing_may_leave_a_packed_delta_out() -> None:
    sizes = protocol.Sizes.of(LAYOUT, Int8())
    empty = raw(protocol.Answer(1, replace(update(samples=0), delta=np.zeros(0, np.uint8))))
    back = wire.decode(io.BytesIO(empty), len(empty), sizes)
    assert back.result.delta.size == 0
