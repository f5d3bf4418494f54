"""Codecs: bytes by hand, how far off they may be, and that error feedback loses nothing."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from plain_numpy import LAYOUT, floats, state, update

from elephas_like.core.averaging import Round
from elephas_like.core.center import HogwildCenter, LockedCenter
from elephas_like.core.errors import ElephasError, NonFiniteError
from elephas_like.core.messages import Sender
from elephas_like.core.strategies import (
    CODECS,
    Average,
    Codec,
    Context,
    DownPour,
    Float16,
    Float32,
    Int4,
    Int8,
    Nesterov,
    OneBit,
    TopK,
)
from elephas_like.core.strategies.codecs import opened, resolve_codec

CONTEXT = Context(0, 2)
ALL = [*(kind() for kind in CODECS.values()), Int8(block=3), Int4(block=3), OneBit(block=3), TopK(0.3)]


def there_and_back(codec: Codec, *values: float) -> list[float]:
    return codec.opened(codec.pack(floats(*values)), len(values)).tolist()


@pytest.mark.parametrize("codec", ALL)
@pytest.mark.parametrize("size", [0, 1, 2, 3, 7, 8, 255, 256, 257, 1000])
def test_as_many_bytes_as_said(codec: Codec, size: int) -> None:
    vector = np.random.default_rng(size).normal(size=size).astype(np.float32)
    packed = codec.pack(vector)
    assert packed.dtype == np.uint8
    assert packed.ndim == 1
    assert packed.size == codec.nbytes(size)
    back = codec.opened(packed, size)
    assert back.dtype == np.float32
    assert back.shape == (size,)
    assert np.isfinite(back).all()


def test_bytes_of_a_thousand_numbers() -> None:
    # 4 blocks of 256, or 16 of 64, have scales of 4 bytes
    sizes = {codec.name: codec.nbytes(1000) for codec in ALL[:6]}
    assert sizes == {
        "fp32": 4000,
        "fp16": 2000,
        "int8": 16 + 1000,
        "int4": 16 + 500,
        "one_bit": 64 + 125,
        "top_k": 10 * 8,
    }


def test_fp32_is_the_identity() -> None:
    vector = np.random.default_rng(0).normal(size=99).astype(np.float32)
    np.testing.assert_array_equal(Float32().opened(Float32().pack(vector), 99), vector)


def test_fp16() -> None:
    assert there_and_back(Float16(), 1.5, -0.25, 2049.0, 1e6, -1e6) == [1.5, -0.25, 2048, 65504, -65504]


def test_int8() -> None:
    # s = 127/127 = 1: rounded to whole numbers, halves to even
    assert there_and_back(Int8(), 127, 1.4, -1.6, 2.5, 0) == [127, 1, -2, 2, 0]
    # s = 0.5 for the first block, 2 for the second
    assert there_and_back(Int8(block=2), -63.5, 0.7, 254, 3.1) == [-63.5, 0.5, 254, 4]
    packed = Int8().pack(floats(127, -2))
    assert packed.tolist() == [*np.array([1.0], "<f4").tobytes(), 127, 254]


def test_int4() -> None:
    # s = 7/7 = 1: nibbles are 8 more: 15, 9, 6 and, to fill up, 8
    assert there_and_back(Int4(), 7, 1.4, -1.6) == [7, 1, -2]
    assert Int4().pack(floats(7, 1.4, -1.6)).tolist() == [*np.array([1.0], "<f4").tobytes(), 15 | 9 << 4, 6 | 8 << 4]
    assert there_and_back(Int4(block=2), 14, -3, 0.7, 0.1) == pytest.approx([14, -4, 0.7, 0.1])


@pytest.mark.parametrize(("codec", "most"), [(Int8(), 127), (Int4(), 7), (Int8(block=16), 127), (Int4(block=16), 7)])
def test_no_number_is_off_by_more_than_half_a_step(codec: Int8 | Int4, most: int) -> None:
    vector = np.random.default_rng(1).normal(size=700).astype(np.float32)
    back = codec.opened(codec.pack(vector), 700)
    for begin in range(0, 700, codec.block):
        block = vector[begin : begin + codec.block]
        off = np.abs(back[begin : begin + codec.block] - block).max()
        assert off <= np.abs(block).max() / most / 2 * 1.0001


def test_one_bit() -> None:
    # mean |v| = (1 + 2 + 3 + 6)/4 = 3; of the second block (1 + 0)/2, where 0 counts as positive
    assert there_and_back(OneBit(block=4), 1, -2, 3, -6, -1, 0) == [3, -3, 3, -3, -0.5, 0.5]


def test_top_k() -> None:
    # 0.4 of 5 are 2; of equal ones the first
    assert there_and_back(TopK(0.4), 1, -5, 2, 4, 3) == [0, -5, 0, 4, 0]
    assert there_and_back(TopK(0.4), 2, -2, 2, 2, 2) == [2, -2, 0, 0, 0]
    assert there_and_back(TopK(0.01), 1, -5, 2) == [0, -5, 0]  # one at least
    assert there_and_back(TopK(1.0), 1, -5, 2) == [1, -5, 2]
    assert TopK(0.34).count(3) == 2  # ceil(1.02)
    assert TopK(0.28).count(25) == 7  # 7.000000000000001 in floats


@pytest.mark.parametrize("codec", ALL)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_stays_so(codec: Codec, bad: float) -> None:
    vector = np.random.default_rng(1).normal(size=700).astype(np.float32)
    vector[300] = bad
    assert not np.isfinite(codec.opened(codec.pack(vector), 700)).all()


@pytest.mark.parametrize("codec", ALL)
def test_zeros_stay_zeros(codec: Codec) -> None:
    assert there_and_back(codec, 0, 0, 0, 0, 0) == [0, 0, 0, 0, 0]


@pytest.mark.parametrize("codec", ALL)
def test_packing_changes_nothing(codec: Codec) -> None:
    vector = floats(1, -5, 2, 4, 3)
    codec.unpack(codec.pack(vector), 5)
    assert vector.tolist() == [1, -5, 2, 4, 3]


def test_a_step_is_added_as_single_precision_whatever_a_codec_unpacks_to() -> None:
    class Double(Int8):
        def unpack(self, packed: np.ndarray, size: int) -> np.ndarray:
            return super().unpack(packed, size).astype(np.float64)

    base, step = np.linspace(-1, 1, 300, dtype=np.float32), np.geomspace(1e-3, 1, 300, dtype=np.float32)
    packed = Int8().pack(step)
    expected = base + Int8().unpack(packed, 300)
    for codec in (Int8(), Double()):
        found = codec.applied(packed, base)
        assert found.dtype == np.float32
        np.testing.assert_array_equal(found, expected)
    wide = base / np.float64(3)  # weights of float64 keep their bits
    np.testing.assert_array_equal(Int8().applied(packed, wide), wide + Int8().unpack(packed, 300))
    with pytest.raises(ElephasError, match="expected 308 bytes for 300 numbers, got 307"):
        Int8().applied(packed[1:], base)


@pytest.mark.parametrize("codec", ALL)
def test_other_bytes_are_refused(codec: Codec) -> None:
    packed = codec.pack(floats(1, -5, 2, 4, 3))
    for wrong in (packed[:-1], np.append(packed, np.uint8(0)), packed.astype(np.float32)):
        with pytest.raises(ElephasError, match=f"codec '{codec.name}': expected {codec.nbytes(5)} bytes for 5 numbers"):
            codec.opened(wrong, 5)


def test_places_outside_are_refused() -> None:
    packed = TopK(0.4).pack(floats(1, -5, 2, 4, 3))
    packed[4:8] = np.array([5], "<u4").view(np.uint8)
    with pytest.raises(ElephasError, match="expected places below 5, got 5"):
        TopK(0.4).opened(packed, 5)


@pytest.mark.parametrize("codec", [replace(codec, error_feedback=True) for codec in ALL])
def test_error_feedback_loses_nothing(codec: Codec) -> None:
    # sum(sent) + e = sum(delta)
    rng = np.random.default_rng(4)
    sender, served = Sender(Average(), codec), np.zeros(600, np.float32)
    sent, went = np.zeros(600), np.zeros(600)
    for _ in range(30):
        delta = rng.normal(size=600).astype(np.float32)
        went += delta
        sent += codec.opened(sender.message(served, served + delta, 1, CONTEXT), 600)
    np.testing.assert_allclose(sent + sender.residual, went, atol=1e-4)


@pytest.mark.parametrize("codec", [OneBit(), TopK(0.1)])
def test_error_feedback_is_what_keeps_them_near(codec: Codec) -> None:
    # the same small delta again and again: without feedback its smallest number is never sent as it is
    delta = np.linspace(0.001, 1, 50).astype(np.float32)
    off = {}
    for feedback in (True, False):
        sender, served = Sender(Average(), replace(codec, error_feedback=feedback)), np.zeros(50, np.float32)
        sent = sum(codec.opened(sender.message(served, delta, 1, CONTEXT), 50) for _ in range(200))
        off[feedback] = np.abs(sent / 200 - delta).max()
    assert off[True] < 0.1 < 0.4 < off[False]


def test_who_feeds_back() -> None:
    assert {name: kind().error_feedback for name, kind in CODECS.items()} == {
        "fp32": False,
        "fp16": False,
        "int8": False,
        "int4": False,
        "one_bit": True,
        "top_k": True,
    }
    plain = Sender(Average(), Int8())
    plain.message(floats(0, 0), floats(1, 0.3), 1, CONTEXT)
    assert plain.residual is None


def test_the_identity_codec_is_none() -> None:
    plain, packed = Sender(Nesterov()), Sender(Nesterov(), Float32())
    ends = floats(1.1, -2.2)
    sent = packed.message(floats(0.3, 0.4), ends, 1, CONTEXT)
    assert Float32().unpack(sent, 2).tolist() == plain.message(floats(0.3, 0.4), ends, 1, CONTEXT).tolist()


def packed_update(codec: Codec, worker: int, *delta: float, **other: object) -> object:
    return replace(update(worker, **other), delta=codec.pack(floats(*delta)))


def test_rounds_and_centers_see_the_opened_delta() -> None:
    # s = 127/127 in both: (127, 1.4) arrives as (127, 1)
    codec = Int8()
    exchange = Round(state(0, 0), {}, LAYOUT, Average(), CONTEXT, codec=codec)
    exchange.add(packed_update(codec, 0, 127, 1.4))
    exchange.add(replace(update(1, samples=0), delta=np.zeros(0, np.uint8)))
    assert exchange.finish()[0].weights.tolist() == [127, 1]
    for kind in (LockedCenter, HogwildCenter):
        center = kind(state(0, 0), LAYOUT, DownPour(), 2, codec=codec)
        assert center.commit(packed_update(codec, 0, 127, 1.4)).applied
        assert center.commit(replace(update(1, samples=0), delta=np.zeros(0, np.uint8))).applied
        assert center.snapshot().weights.tolist() == [127, 1]


@pytest.mark.parametrize("codec", ALL)
def test_the_guard_sees_through_codecs(codec: Codec) -> None:
    exchange = Round(state(0, 0), {}, LAYOUT, Average(), CONTEXT, codec=codec)
    with pytest.raises(NonFiniteError, match="worker 1 brought NaN or infinity"):
        exchange.add(packed_update(codec, 1, np.nan, 1.0))


def test_nothing_to_open() -> None:
    same = update(0, 1, 2)
    assert opened(same, None, 2) is same


def test_names() -> None:
    assert resolve_codec(None) is None
    assert resolve_codec("int8") == Int8()
    mine = TopK(0.5)
    assert resolve_codec(mine) is mine
    with pytest.raises(
        ValueError, match=r"codec must be one of \['fp16', 'fp32', 'int4', 'int8', 'one_bit', 'top_k'\]"
    ):
        resolve_codec("zip")
    with pytest.raises(TypeError, match="codec must be a name or a Codec object; got 8"):
        resolve_codec(8)
    for bad in (0, 1.5, -1):
        with pytest.raises(ValueError, match="share must be above 0"):
            TopK(bad)
    for kind in (Int8, Int4, OneBit):
        with pytest.raises(ValueError, match="block"):
            kind(block=0)
