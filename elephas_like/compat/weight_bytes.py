"""Lists of arrays as bytes, in the format of Elephas 7.3.

    u32 number of arrays; for each: u8 ndim, i64 shape[ndim], u16 length and ASCII name of the dtype, u64 bytes, raw
        data
                                                                                                       (little-endian)

The reader trusts no number in the bytes: it never allocates more than it received.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence

import numpy as np

from elephas_like.core.types import Array

DTYPES = frozenset(
    ["bool", "float16", "float32", "float64", "bfloat16"]
    + [f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)]
)
LARGEST_NDIM = 32
_COUNT, _NDIM, _NAME, _BYTES = struct.Struct("<I"), struct.Struct("<B"), struct.Struct("<H"), struct.Struct("<Q")


def weights_to_bytes(weights: Sequence[Array]) -> bytes:
    """Return a list of arrays as bytes, each with its shape and dtype.

    Raises:
        TypeError: an array's dtype is not supported, such as objects and text.
    """
    parts = [_COUNT.pack(len(weights))]
    for index, weight in enumerate(weights):
        array = np.asarray(weight, order="C")
        name = array.dtype.name
        if name not in DTYPES:
            raise TypeError(f"array {index} has dtype {name!r}; expected one of {', '.join(sorted(DTYPES))}.")
        little = array.astype(array.dtype.newbyteorder("<"), copy=False)
        parts += [
            _NDIM.pack(array.ndim),
            struct.pack(f"<{array.ndim}q", *array.shape),
            _NAME.pack(len(name)),
            name.encode("ascii"),
            _BYTES.pack(array.nbytes),
            little.tobytes(),
        ]
    return b"".join(parts)


def bytes_to_weights(data: bytes | bytearray | memoryview, like: Sequence[Array] | None = None) -> list[Array]:
    """Return the arrays that `weights_to_bytes` wrote, 0-d ones included, each owning its memory.

    Args:
        like: arrays whose number, shapes and dtypes the bytes must have.

    Raises:
        ValueError: the bytes have another format, are cut short, too long, or unlike `like`; the message says where.
    """
    reader = _Reader(memoryview(data).cast("B"))
    (count,) = reader.numbers(_COUNT, "the number of arrays")
    if like is not None and count != len(like):
        raise ValueError(f"expected {len(like)} arrays, got {count}.")
    arrays = []
    for index in range(count):
        array = _array(reader, f"array {index}")
        if like is not None and (array.shape, array.dtype) != (like[index].shape, like[index].dtype):
            raise ValueError(
                f"array {index}: expected shape {like[index].shape} and dtype {like[index].dtype}, got {array.shape} and "
                f"{array.dtype}. Does it come from the same architecture?"
            )
        arrays.append(array)
    if reader.left:
        raise ValueError(f"{reader.left} bytes follow after the last array.")
    return arrays


class _Reader:
    """Reads bytes from front to back."""

    def __init__(self, data: memoryview) -> None:
        self._data = data

    @property
    def left(self) -> int:
        return len(self._data)

    def take(self, count: int, what: str) -> memoryview:
        if count > self.left:
            raise ValueError(f"the bytes end in {what}: expected {count} more, got {self.left}.")
        taken, self._data = self._data[:count], self._data[count:]
        return taken

    def numbers(self, form: struct.Struct, what: str) -> tuple[int, ...]:
        return form.unpack(self.take(form.size, what))


def _array(reader: _Reader, place: str) -> Array:
    (ndim,) = reader.numbers(_NDIM, place)
    if ndim > LARGEST_NDIM:
        raise ValueError(f"{place}: expected at most {LARGEST_NDIM} axes, got {ndim}.")
    shape = reader.numbers(struct.Struct(f"<{ndim}q"), place)
    (letters,) = reader.numbers(_NAME, place)
    name = bytes(reader.take(letters, place)).decode("ascii", "replace")
    dtype = _dtype(name, place)
    (length,) = reader.numbers(_BYTES, place)
    if min(shape, default=0) < 0 or length != math.prod(shape) * dtype.itemsize:
        raise ValueError(f"{place}: {length} bytes are not shape {shape} of {name}.")
    return np.frombuffer(reader.take(length, place), dtype.newbyteorder("<")).reshape(shape).astype(dtype)


def _dtype(name: str, place: str) -> np.dtype[np.generic]:
    if name in DTYPES:
        try:
            return np.dtype(name)
        except TypeError:  # NumPy knows bfloat16 once ml_dtypes is imported, which Keras does
            pass
    raise ValueError(f"{place}: dtype {name!r} is none of {', '.join(sorted(DTYPES))}.")
