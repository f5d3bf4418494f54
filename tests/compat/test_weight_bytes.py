"""Lists of arrays as bytes: round trips, the format to the byte, and what is refused."""

from __future__ import annotations

import struct

import numpy as np
import pytest

from elephas_like.compat.weight_bytes import bytes_to_weights, weights_to_bytes

WEIGHTS = [
    np.arange(6, dtype="float32").reshape(2, 3),
    np.array(7.5),
    np.array([], dtype="int64"),
    np.zeros((0, 4), "float16"),
    np.array([True, False]),
    np.asfortranarray(np.arange(6, dtype="uint8").reshape(3, 2)),
    np.arange(3, dtype=">f8"),
]


def test_what_is_written_is_read() -> None:
    found = bytes_to_weights(weights_to_bytes(WEIGHTS))
    assert len(found) == len(WEIGHTS)
    for ours, theirs in zip(found, WEIGHTS, strict=True):
        np.testing.assert_array_equal(ours, theirs)
        assert ours.shape == theirs.shape
        assert ours.dtype == theirs.dtype.newbyteorder("=")
        assert ours.flags.writeable
    assert bytes_to_weights(weights_to_bytes([])) == []


def test_the_format_is_elephas_7_3_s() -> None:
    name = b"float32"
    expected = struct.pack("<IB1qH", 1, 1, 2, len(name)) + name + struct.pack("<Q2f", 8, 1.0, 2.0)
    assert weights_to_bytes([np.array([1.0, 2.0], "float32")]) == expected


def test_bfloat16_travels_where_it_is_known() -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    array = np.array([1.5, -2.0], ml_dtypes.bfloat16)
    (found,) = bytes_to_weights(weights_to_bytes([array]))
    assert found.dtype == array.dtype
    np.testing.assert_array_equal(found, array)


def test_objects_are_not_written() -> None:
    with pytest.raises(TypeError, match="array 1 has dtype 'object'"):
        weights_to_bytes([np.zeros(1), np.array([{}])])


GOOD = weights_to_bytes([np.zeros((2, 3), "float32")])


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "the bytes end in the number of arrays"),
        (GOOD[:-1], "the bytes end in array 0: expected 24 more, got 23"),
        (GOOD + b"x", "1 bytes follow"),
        (struct.pack("<I", 2**32 - 1), "the bytes end in array 0"),
        (struct.pack("<IB", 1, 200), "expected at most 32 axes, got 200"),
        (struct.pack("<IB1qH", 1, 1, 2**62, 5) + b"uint8" + struct.pack("<Q", 2**62), "the bytes end in array 0"),
        (struct.pack("<IB1qH", 1, 1, -1, 5) + b"uint8" + struct.pack("<Q", 0), r"0 bytes are not shape \(-1,\)"),
        (struct.pack("<IB1qH", 1, 1, 3, 5) + b"uint8" + struct.pack("<Q", 2) + b"ab", r"2 bytes are not shape \(3,\)"),
        (struct.pack("<IB0qH", 1, 0, 6) + b"object" + struct.pack("<Q", 0), "dtype 'object' is none of"),
        (struct.pack("<IB0qH", 1, 0, 2) + b"\xff\xfe" + struct.pack("<Q", 0), "dtype"),
    ],
)
def test_bytes_that_are_off_are_refused(data: bytes, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        bytes_to_weights(data)


def test_only_what_is_like_is_read() -> None:
    like = [np.zeros((2, 3), "float32")]
    bytes_to_weights(GOOD, like)
    for other in ([], [np.zeros((3, 2), "float32")], [np.zeros((2, 3))]):
        with pytest.raises(ValueError, match="expected"):
            bytes_to_weights(GOOD, other)
