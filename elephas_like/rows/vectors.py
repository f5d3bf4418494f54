"""Arrow columns as NumPy arrays with the rows along their first axis: numbers, text, vectors, nested arrays, bytes, images.

Each function takes a whole batch at once; sparse vectors become dense here, so that it is a batch of them and no more.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from elephas_like.core.types import Array, Integers

# OpenCV's codes of pixel types, which Spark's image source uses: the lowest three bits are the depth.
_DEPTHS = ("uint8", "int8", "uint16", "int16", "int32", "float32", "float64")


class Unfit(Exception):
    """What is wrong with a row of a column, without the column's name.

    row: its number in the batch.
    """

    def __init__(self, row: int, message: str) -> None:
        super().__init__(message)
        self.row = row


WHOLE_DIGITS = 18
"""Digits of the longest decimals without a fraction that whole numbers of 64 bits hold."""


def without_decimals(array: pa.Array) -> pa.Array:
    """Return a column with doubles in place of decimals, or whole numbers, as Spark's are read; also in lists and structs. SQL's literals are decimals."""
    kind = _without_decimals(array.type)
    return array if kind == array.type else array.cast(kind)


def _without_decimals(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_decimal(kind):
        if kind.scale or kind.precision > WHOLE_DIGITS:
            return pa.float64()
        return pa.int32() if kind.bit_width == 32 else pa.int64()  # PyArrow casts decimal32 to no longer ones
    if pa.types.is_fixed_size_list(kind):
        return pa.list_(_without_decimals(kind.value_type), kind.list_size)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return (pa.list_ if pa.types.is_list(kind) else pa.large_list)(_without_decimals(kind.value_type))
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_without_decimals(field.type)) for field in kind])
    return kind


def numbers(array: pa.Array) -> Array:
    """(rows,) numbers or booleans, in the column's own dtype."""
    filled(array)
    return np.asarray(array.to_numpy(zero_copy_only=False))


def texts(array: pa.Array) -> Array:
    """(rows,) strings, as objects."""
    filled(array)
    return np.array(array.to_pylist(), dtype=object)


def nested(array: pa.Array) -> Array:
    """(rows, ...) of lists, or lists of lists, of one length each: numbers, or strings as objects."""
    shape, values = [len(array)], array
    while _is_list(values.type):
        per_row = max(1, int(np.prod(shape[1:])))
        filled(values, per_row)
        fixed = pa.types.is_fixed_size_list(values.type)
        shape.append(values.type.list_size if fixed else _one_length(_lengths(values), per_row))
        values = values.flatten()
    filled(values, max(1, int(np.prod(shape[1:]))))
    flat = texts(values) if _is_text(values.type) else numbers(values)
    return flat.reshape(shape)


def vectors(array: pa.Array, dtype: str) -> Array:
    """(rows, size) of Spark vectors, ml or mllib, dense and sparse mixed."""
    filled(array)
    dense = numbers(array.field("type")) == 1
    values, counts = array.field("values"), _lengths(array.field("values"))
    sizes = np.where(dense, counts, array.field("size").fill_null(0).to_numpy(zero_copy_only=False)).astype(np.int64)
    size = _one_length(sizes)
    flat = values.flatten().to_numpy(zero_copy_only=False)
    if dense.all():
        return np.asarray(flat, dtype).reshape(len(array), size)
    out = np.zeros((len(array), size), dtype)
    of_dense = np.repeat(dense, counts)
    out[dense] = flat[of_dense].reshape(-1, size)
    rows = np.repeat(np.arange(len(array)), counts)[~of_dense]
    out[rows, array.field("indices").flatten().to_numpy(zero_copy_only=False)] = flat[~of_dense]
    return out


def binaries(array: pa.Array, dtype: str) -> Array:
    """(rows, count) of byte strings of one length, read as `dtype`, little-endian."""
    filled(array)
    parts = array.to_pylist()
    lengths = np.array([len(part) for part in parts], np.int64)
    size = _one_length(lengths)
    kind = np.dtype(dtype).newbyteorder("<")
    if size % kind.itemsize:
        raise Unfit(0, f"expected bytes of whole {dtype} values of {kind.itemsize} bytes, got {size} bytes.")
    return np.frombuffer(b"".join(parts), kind).astype(dtype, copy=False).reshape(len(parts), -1)


def images(array: pa.Array) -> Array:
    """(rows, height, width, channels) of Spark's image structs, channels in the order in which Spark keeps them (BGR)."""
    filled(array)
    fields = [numbers(array.field(name)) for name in ("height", "width", "nChannels", "mode")]
    shapes = np.stack(fields, axis=1).astype(np.int64)
    if (shapes < 0).any():
        raise Unfit(
            int(np.flatnonzero((shapes < 0).any(axis=1))[0]), "expected an image, got one that was not decoded."
        )
    others = np.flatnonzero((shapes != shapes[:1]).any(axis=1))
    if len(others):
        got, first = shapes[others[0]].tolist(), shapes[0].tolist()
        raise Unfit(
            int(others[0]),
            "expected an image of (height, width, channels, mode) "
            f"{tuple(first)}, got {tuple(got)}. Resize the images to one size first.",
        )
    height, width, channels, mode = shapes[0].tolist()
    if mode & 7 >= len(_DEPTHS):
        raise Unfit(0, f"expected an image of a known OpenCV mode, got mode {mode}.")
    return binaries(array.field("data"), _DEPTHS[mode & 7]).reshape(len(array), height, width, channels)


def as_arrow(values: Array, kind: pa.DataType) -> pa.Array:
    """A NumPy array with a leading axis of rows as an Arrow array of exactly `kind`: lists for further axes."""
    if pa.types.is_list(kind):
        count = int(values.shape[0])
        width = int(values.shape[1])
        offsets = pa.array(np.arange(count + 1, dtype=np.int32) * width)
        return pa.ListArray.from_arrays(
            offsets, as_arrow(values.reshape(count * width, *values.shape[2:]), kind.value_type), type=kind
        )
    if values.dtype == object:
        return pa.array(values.tolist(), kind)
    return pa.array(np.ascontiguousarray(values, kind.to_pandas_dtype()), kind)


def _is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _lengths(array: pa.Array) -> Integers:
    return np.diff(array.offsets.to_numpy(zero_copy_only=False)).astype(np.int64)


def filled(array: pa.Array, per_row: int = 1) -> None:
    """Raise Unfit at the first null; `per_row` values of the array make up a row."""
    if array.null_count:
        place = int(np.flatnonzero(array.is_null().to_numpy(zero_copy_only=False))[0])
        where = "null" if per_row == 1 else "an array with a null in it"
        raise Unfit(place // max(1, per_row), f"expected a value, got {where}. Fill or drop nulls first (df.na).")


def first_null(column: pa.ChunkedArray) -> int | None:
    """Return the first row that is null, or a list with a null in it; None if there is none."""
    if not _has_null(column):
        return None
    begin = 0
    for chunk in column.chunks:
        values, rows, found = chunk, np.arange(len(chunk)), []
        while True:
            if values.null_count:
                null = values.is_null().to_numpy(zero_copy_only=False)
                found.append(begin + int(rows[null][0]))
                values, rows = values.drop_null(), rows[~null]
            if not _is_list(values.type):
                break
            rows = rows[pc.list_parent_indices(values).to_numpy(zero_copy_only=False)]
            values = values.flatten()
        if found:
            return min(found)
        begin += len(chunk)
    return None


def _has_null(column: pa.ChunkedArray) -> bool:
    for values in column.chunks:
        while not values.null_count and _is_list(values.type):
            values = values.flatten()
        if values.null_count:
            return True
    return False


def _one_length(lengths: Integers, per_row: int = 1) -> int:
    """The length that all values have; `per_row` of them make up a row."""
    if len(lengths) == 0:
        return 0
    others = np.flatnonzero(lengths != lengths[0])
    if len(others):
        place = int(others[0])
        raise Unfit(
            place // per_row,
            f"expected {int(lengths[0])} values, as in the rows before, got {int(lengths[place])}. "
            "All rows must have one shape.",
        )
    return int(lengths[0])
