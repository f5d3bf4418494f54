"""Codecs: compression of what is sent. Flat vectors in, bytes out, and back as float32: no codec keeps more bits.

A worker sends `codec.pack(message)`; admission and averaging see `codec.unpack` of it. The server sends the steps of the weights
that workers begin with likewise (core/loop.py). The number of bytes depends only on the number of values, so that who reads knows what to
expect.

Error feedback (Seide et al., Interspeech 2014; Karimireddy, Rebjock, Stich and Jaggi, "Error Feedback Fixes SignSGD and
other Gradient Compression Schemes", ICML 2019, arXiv:1901.09847): a worker adds what its last messages lost to its next
one, v = d + e;  send C(v);  e <- v - C(v). Together they lose nothing: sum(sent) + e = sum(d).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from elephas_like.core.checks import positive_int
from elephas_like.core.errors import ElephasError
from elephas_like.core.pieces import PIECE
from elephas_like.core.types import Bytes, Update, Vector

_HALF_MAX = np.float32(65504.0)
"""The largest finite half-precision number."""


@dataclass(frozen=True)
class Codec:
    """Base class of codecs.

    A vector that holds a NaN or infinity must unpack to one that does too: the NaN check comes after.

    error_feedback: whether workers add what their messages lost to the next one. They keep one vector for it.
    """

    name: ClassVar[str] = "codec"
    error_feedback: bool = field(default=False, kw_only=True)

    def nbytes(self, size: int) -> int:
        """Return the bytes of `size` packed numbers."""
        raise NotImplementedError

    def pack(self, vector: Vector) -> Bytes:
        """Return the bytes of a vector: `nbytes(vector.size)` of them."""
        raise NotImplementedError

    def unpack(self, packed: Bytes, size: int) -> Vector:
        """Return a new vector of `size` numbers, the codec's approximation of the packed one: the same bits on every machine."""
        raise NotImplementedError

    def opened(self, packed: Bytes, size: int) -> Vector:
        """Unpack after checking the number of bytes.

        Raises:
            ElephasError: there are more or fewer.
        """
        if packed.dtype != np.uint8 or packed.size != self.nbytes(size):
            raise ElephasError(
                f"codec {self.name!r}: expected {self.nbytes(size)} bytes for {size} numbers, got {packed.size} of "
                f"{packed.dtype}. Does the worker use another codec?"
            )
        return self.unpack(packed, size)

    def applied(self, packed: Bytes, base: Vector) -> Vector:
        """Return a vector plus a packed step, the same bits wherever it is computed. Checks the number of bytes as `opened` does."""
        step: Vector = np.require(self.opened(packed, base.size), base.dtype, "W")
        step += base
        return step


@dataclass(frozen=True)
class Float32(Codec):
    """32 bits, for float32 as without a codec. 4 bytes a number."""

    name: ClassVar[str] = "fp32"

    def nbytes(self, size: int) -> int:
        """Return 4 bytes a number."""
        return 4 * size

    def pack(self, vector: Vector) -> Bytes:
        """Return the numbers, little-endian."""
        return _raw(vector, "<f4")

    def unpack(self, packed: Bytes, size: int) -> Vector:
        """Return the same numbers."""
        return _numbers(packed, "<f4")


@dataclass(frozen=True)
class Float16(Codec):
    """Half precision: 2 bytes a number. Numbers beyond 65504 become 65504.

    Used for outer gradients by Jaghouar, Ong and Hagemann, "OpenDiLoCo", arXiv:2407.07852.
    """

    name: ClassVar[str] = "fp16"

    def nbytes(self, size: int) -> int:
        """Return 2 bytes a number."""
        return 2 * size

    def pack(self, vector: Vector) -> Bytes:
        """Return the nearest half-precision numbers."""
        inside = np.where(np.isfinite(vector), np.clip(vector, -_HALF_MAX, _HALF_MAX), vector)
        return _raw(inside, "<f2")

    def unpack(self, packed: Bytes, size: int) -> Vector:
        """Return the half-precision numbers as float32."""
        return _numbers(packed, "<f2")


@dataclass(frozen=True)
class Int8(Codec):
    """8 bits a number and a float32 scale per block: q = round(v / s), s = max|v| / 127 of the block.

    1.02 bytes a number.

    Blockwise as in Dettmers, Lewis, Shleifer and Zettlemoyer, "8-bit Optimizers via Block-wise Quantization", ICLR
    2022, arXiv:2110.02861, with evenly spaced steps. The error of a number is at most s / 2.

    block: numbers that share a scale; default 256.
    """

    name: ClassVar[str] = "int8"
    block: int = 256

    def __post_init__(self) -> None:
        """Check `block`."""
        positive_int("block", self.block)

    def nbytes(self, size: int) -> int:
        """Return 1 byte a number and 4 a block."""
        return 4 * _blocks(size, self.block) + size

    def pack(self, vector: Vector) -> Bytes:
        """Return the scales, then the integers."""
        steps, scales = _quantized(vector, self.block, 127)
        return np.concatenate([_raw(scales, "<f4"), steps.view(np.uint8)])

    def unpack(self, packed: Bytes, size: int) -> Vector:
        """Return integers times scales."""
        scales, rest = _scales(packed, size, self.block)
        return _scaled(rest.view(np.int8).astype(np.float32), scales, self.block)


@dataclass(frozen=True)
class Int4(Codec):
    """4 bits a number and a float32 scale per block: q = round(v / s), s = max|v| / 7 of the block.

    0.52 bytes a number.

    block: numbers that share a scale; default 256.
    """

    name: ClassVar[str] = "int4"
    block: int = 256

    def __post_init__(self) -> None:
        """Check `block`."""
        positive_int("block", self.block)

    def nbytes(self, size: int) -> int:
        """Return 1 byte for two numbers and 4 a block."""
        return 4 * _blocks(size, self.block) + (size + 1) // 2

    def pack(self, vector: Vector) -> Bytes:
        """Return the scales, then two integers a byte, the first in the lower half."""
        steps, scales = _quantized(vector, self.block, 7)
        nibbles = (np.pad(steps, (0, steps.size % 2)) + np.int8(8)).view(np.uint8)
        return np.concatenate([_raw(scales, "<f4"), nibbles[0::2] | (nibbles[1::2] << np.uint8(4))])

    def unpack(self, packed: Bytes, size: int) -> Vector:
        """Return integers times scales."""
        scales, rest = _scales(packed, size, self.block)
        steps = np.empty(2 * rest.size, np.float32)
        steps[0::2] = rest & np.uint8(15)
        steps[1::2] = rest >> np.uint8(4)
        return _scaled(steps[:size] - np.float32(8), scales, self.block)


@dataclass(frozen=True)
class OneBit(Codec):
    """The sign of each number and the mean magnitude of each block: C(v) = mean|v| sign(v). 0.19 bytes a number.

    Seide, Fu, Droppo, Li and Yu, "1-Bit Stochastic Gradient Descent and its Application to Data-Parallel Distributed
    Training of Speech DNNs", Interspeech 2014. Needs its error feedback.

    block: numbers that share a magnitude; default 64. The paper has one for each column of a matrix: weights that
        hardly move (those of a pixel that is always black) must not get the magnitude of others. With 256, digits lost
        0.3 points more.
    """

    name: ClassVar[str] = "one_bit"
    block: int = 64
    error_feedback: bool = field(default=True, kw_only=True)

    def __post_init__(self) -> None:
        """Check `block`."""
        positive_int("block", self.block)

    def nbytes(self, size: int) -> int:
        """Return 1 byte for eight numbers and 4 a block."""
        return 4 * _blocks(size, self.block) + (size + 7) // 8

    def pack(self, vector: Vector) -> Bytes:
        """Return the magnitudes, then the signs."""
        blocks = _in_blocks(np.abs(vector), self.block)
        full = np.full(len(blocks), self.block, np.float32)
        if len(blocks):
            full[-1] = vector.size - self.block * (len(blocks) - 1)
        sizes = blocks.sum(axis=1, dtype=np.float32) / full
        return np.concatenate([_raw(sizes, "<f4"), np.packbits(vector >= 0)])

    def unpack(self, packed: Bytes, size: int) -> Vector:
        """Return the magnitudes with the signs."""
        sizes, rest = _scales(packed, size, self.block)
        signs = np.unpackbits(rest, count=size).astype(np.float32)
        return _scaled(2 * signs - 1, sizes, self.block)


@dataclass(frozen=True)
class TopK(Codec):
    """The largest numbers with their positions, 8 bytes each; all others become 0.

    Stich, Cordonnier and Jaggi, "Sparsified SGD with Memory", NeurIPS 2018, arXiv:1809.07599. Needs its error feedback.

    share: share of the numbers that are sent, above 0 to 1; at least one number is sent. Default 0.01.
    """

    name: ClassVar[str] = "top_k"
    share: float = 0.01
    error_feedback: bool = field(default=True, kw_only=True)

    def __post_init__(self) -> None:
        """Check `share`."""
        if not 0 < self.share <= 1:
            raise ValueError(f"share must be above 0 and at most 1; got {self.share!r}.")

    def count(self, size: int) -> int:
        """Return how many of `size` numbers are sent."""
        return min(size, max(1, math.ceil(self.share * size - 1e-9)))  # a product such as 7.000000000000001 is 7

    def nbytes(self, size: int) -> int:
        """Return 8 bytes for each number that is sent."""
        return 8 * self.count(size)

    def pack(self, vector: Vector) -> Bytes:
        """Return the positions in ascending order, then the numbers. Among equal magnitudes the first are sent."""
        count = self.count(vector.size)
        if count == 0:
            return np.zeros(0, np.uint8)
        sizes = np.abs(vector)
        sizes[np.isnan(sizes)] = np.inf  # NaN is sent first: the check for NaN must see it
        least = np.partition(sizes, vector.size - count)[vector.size - count]
        over, equal = np.flatnonzero(sizes > least), np.flatnonzero(sizes == least)
        places = np.sort(np.concatenate([over, equal[: count - over.size]]))
        return np.concatenate([_raw(places, "<u4"), _raw(vector[places], "<f4")])

    def unpack(self, packed: Bytes, size: int) -> Vector:
        """Return a vector with the numbers at their positions.

        Raises:
            ElephasError: a position is outside the vector.
        """
        half = packed.size // 2
        places = packed[:half].copy().view("<u4").astype(np.int64)
        if places.size and places.max() >= size:
            raise ElephasError(f"codec 'top_k': expected places below {size}, got {places.max()}.")
        out = np.zeros(size, np.float32)
        out[places] = _numbers(packed[half:], "<f4")
        return out


CODECS: dict[str, type[Codec]] = {kind.name: kind for kind in (Float32, Float16, Int8, Int4, OneBit, TopK)}


def resolve_codec(codec: Codec | str | None, name: str = "codec") -> Codec | None:
    """Return the codec of a name; a codec or None is returned unchanged.

    Raises:
        ValueError: an unknown name; the message lists the known ones.
        TypeError: neither a name, a codec nor None.
    """
    if codec is None or isinstance(codec, Codec):
        return codec
    if not isinstance(codec, str):
        raise TypeError(f"{name} must be a name or a Codec object; got {codec!r}.")
    if codec not in CODECS:
        raise ValueError(f"{name} must be one of {sorted(CODECS)}, a Codec object, or None; got {codec!r}.")
    return CODECS[codec]()


def opened(update: Update, codec: Codec | None, size: int) -> Update:
    """Return an update with its delta unpacked. An update that trained nothing has an empty delta.

    Raises:
        ElephasError: the bytes do not fit this codec.
    """
    if codec is None:
        return update
    packed: Bytes = update.delta  # type: ignore[assignment]  # a codec's messages are bytes
    return replace(update, delta=codec.opened(packed, size) if packed.size else np.zeros(0, np.float32))


def _raw(values: npt.NDArray[np.generic], dtype: str) -> Bytes:
    return np.ascontiguousarray(values.astype(dtype)).view(np.uint8)


def _numbers(packed: Bytes, dtype: str) -> Vector:
    return packed.copy().view(dtype).astype(np.float32)


def _blocks(size: int, block: int) -> int:
    return -(-size // block)


def _in_blocks(vector: Vector, block: int) -> Vector:
    """Return the vector in rows of `block`, the last one padded with zeros."""
    return np.pad(vector, (0, -vector.size % block)).reshape(-1, block)


def _quantized(vector: Vector, block: int, most: int) -> tuple[npt.NDArray[np.int8], Vector]:
    """Return integers from -most to most, and the scale of each block."""
    whole = np.empty(vector.size, np.int8)
    scales = np.empty(_blocks(vector.size, block), np.float32)
    for place, places in _whole_blocks(vector.size, block):
        blocks = _in_blocks(vector[place], block)
        found = np.abs(blocks).max(axis=1, initial=0.0) / np.float32(most)
        # A number that is not finite gives a scale that is not finite either.
        with np.errstate(invalid="ignore", over="ignore"):
            steps = np.rint(blocks / np.where(found == 0, np.float32(1), found)[:, None])
            numbers = np.clip(np.nan_to_num(steps), -most, most).astype(np.int8).ravel()
        whole[place], scales[places] = numbers[: whole[place].size], found
    return whole, scales


def _whole_blocks(size: int, block: int) -> Iterator[tuple[slice, slice]]:
    """Yield the places of some numbers, and those of their blocks: a piece at a time, which the processor's cache holds."""
    at_once = max(1, PIECE // block)
    for begin in range(0, _blocks(size, block), at_once):
        yield slice(begin * block, min((begin + at_once) * block, size)), slice(begin, begin + at_once)


def _scales(packed: Bytes, size: int, block: int) -> tuple[Vector, Bytes]:
    """Return the scales of the blocks and the bytes that follow."""
    end = 4 * _blocks(size, block)
    return _numbers(packed[:end], "<f4"), packed[end:]


def _scaled(steps: Vector, scales: Vector, block: int) -> Vector:
    """Return integers times the scales of their blocks, in place."""
    with np.errstate(invalid="ignore"):  # 0 times infinity
        for place, places in _whole_blocks(steps.size, block):
            steps[place] *= np.repeat(scales[places], block)[: steps[place].size]
    return steps
