"""What a row holds, as arrays: its parts, the names of its leaves, and the dtypes they are stored in."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import numpy as np

from elephas_like.core.checks import shortly
from elephas_like.core.types import Array, Structure

# bfloat16 is no NumPy dtype; float32 holds its values exactly.
FLOATS = {"float16": "float16", "bfloat16": "float32", "float32": "float32", "float64": "float64"}
_PARTS = ("x", "y", "sample_weight")
_SPELLED = {"x": "feature", "y": "label", "sample_weight": "sample weight"}


class BadRow(Exception):
    """What is wrong with a row, without its place."""


def point_parts(point: Any, expect_target: bool | None) -> tuple[object, ...]:
    """Return features and label of a LabeledPoint of Spark's MLlib; its features alone without `expect_target`."""
    features: object = point.features.toArray()
    return (features,) if expect_target is False else (features, point.label)


def row_parts(row: object, expect_target: bool | None) -> tuple[object, ...]:
    """Return x, y and sample weight of a row, as many as there are; with `expect_target` None, a tuple says how many."""
    if not expect_target and not (expect_target is None and isinstance(row, tuple) and len(row) in (2, 3)):
        return row if isinstance(row, tuple) and len(row) == 1 else (row,)
    if isinstance(row, tuple | list) and len(row) in (2, 3):
        return _without_none(tuple(row))
    got = type(row).__name__
    if isinstance(row, np.ndarray):
        got = f"ndarray of shape {row.shape}"
    elif isinstance(row, tuple | list | dict):
        got = f"{got} of {len(row)}"
    raise BadRow(
        f"expected a pair (features, label) or a triple (features, label, sample_weight), got {got}. "
        "Map the rows to pairs first, as in rdd.map(lambda row: (list(row[:-1]), row[-1])); several inputs go into a tuple or "
        "dict as features: ((a, b), label)."
    )


def block_parts(columns: tuple[object, ...], expect_target: bool | None) -> tuple[object, ...]:
    """Return xs, ys and sample weights of a block, as many as there are."""
    parts = _without_none(columns)
    if expect_target is None or len(parts) in ((2, 3) if expect_target else (1,)):
        return parts
    expected = "(features, labels) or (features, labels, sample_weights)" if expect_target else "(features,)"
    raise BadRow(f"expected a Block of {expected}, got {len(parts)} parts.")


def _without_none(parts: tuple[object, ...]) -> tuple[object, ...]:
    return parts[:2] if len(parts) == 3 and parts[2] is None else parts


def without_scalar_lists(tree: object) -> object:
    """Return the tree with lists of NumPy scalars as arrays: `flatten` would take their `shape` for that of inputs."""
    if isinstance(tree, list):
        if not (tree and isinstance(tree[0], np.generic)) or any(getattr(item, "shape", ()) for item in tree):
            return tree
        try:
            return np.asarray(tree)
        except ValueError as error:
            raise BadRow(f"expected numbers of one shape in a list, got {shortly(tree)}: {error}") from error
    if isinstance(tree, tuple):
        return tuple(map(without_scalar_lists, tree))
    if isinstance(tree, dict):
        if not all(isinstance(key, str) for key in tree):
            raise BadRow(f"expected the names of inputs as keys of a dict, got {list(tree)}.")
        return {key: without_scalar_lists(value) for key, value in tree.items()}
    return tree


def leaf_names(structure: Structure, *, absent: bool = False) -> list[str]:
    """Return the leaves' names for error messages, in order: x, x[1], x['image'], y, sample_weight.

    Args:
        absent: whether some of several inputs, targets or weights may be None: an optional input, an output without a loss.

    Raises:
        BadRow: for a None or an empty branch in the place of an array.
    """
    names: dict[int, str] = {}

    def visit(node: Structure, name: str) -> None:
        if isinstance(node, int):
            names[node] = name
        elif isinstance(node, list) and node:
            for index, item in enumerate(node):
                visit(item, f"{name}[{index}]")
        elif isinstance(node, dict) and node:
            for key, item in node.items():
                visit(item, f"{name}[{key!r}]")
        elif node is not None or not absent or "[" not in name:
            got = "None" if node is None else "an empty tuple or dict"
            raise BadRow(f"{spelled(name)} expected a number, text or an array, got {got}.")

    assert isinstance(structure, list)  # rows are flattened as tuples of their parts
    for part, name in zip(structure, _PARTS, strict=False):
        visit(part, name)
    return [names[number] for number in sorted(names)]  # dicts have an order of their own


def spelled(name: str) -> str:
    """Return a leaf\'s name with what it is: feature \'x[1]\', label \'y\'."""
    return f"{_SPELLED[name.split('[', 1)[0]]} {name!r}"


def listed(names: Sequence[str]) -> str:
    """Return names as a tuple would be written."""
    return f"({', '.join(names)})"


def as_array(value: object, name: str) -> Array:
    """Return a leaf as an array of numbers, or as an object array of UTF-8 bytes if it is text. Decimals, as Spark's, are doubles."""
    if isinstance(value, str | bytes):
        array: Array = np.array(value, dtype=object)
    elif np.ma.is_masked(value):
        raise BadRow(f"{spelled(name)} has masked values, which stand for nothing: fill them, as x.filled(0) does.")
    else:
        try:
            # A vector of Spark: NumPy would look up each element.
            array = np.asarray(value.toArray() if hasattr(value, "toArray") else value)
        except (ValueError, TypeError) as error:
            raise BadRow(
                f"{spelled(name)} expected numbers or text in an array, got {shortly(value)}: {error}"
            ) from error
        array = plain_numbers(array)
        if array.dtype.kind in "biuf":
            return array
        if array.dtype.kind in "SUT":  # NumPy makes text of [1, "a"], and drops zeros at the end of a value
            array = np.array(value, dtype=object)
    if array.dtype != object:
        raise BadRow(f"{spelled(name)} expected integers, floats, booleans or text, got dtype {array.dtype}.")
    encoded, items = np.empty(array.size, dtype=object), array.reshape(-1).tolist()
    try:
        encoded[:] = [_utf8(item, name) for item in items]
    except BadRow as error:
        raise BadRow(f"{error}{_advice(items)}") from error
    return encoded.reshape(array.shape)


def _advice(items: list[object]) -> str:
    """Return what to do with objects that would be no objects in an array of their own."""
    if all(isinstance(item, int | float) for item in items):
        return " Convert it: x.astype('float32')."
    return " Make one array of them: np.stack(x)." if all(isinstance(item, np.ndarray | list) for item in items) else ""


def plain_numbers(array: Array) -> Array:
    """Return an array of numbers in a dtype that every backend takes: decimals and long floats as doubles, bfloat16 and its like as float32."""
    if array.dtype.kind == "V" and "float" in array.dtype.name:
        return array.astype(np.float32)
    if array.dtype.kind == "f" and array.dtype.itemsize > np.dtype(np.float64).itemsize:
        return array.astype(np.float64)
    first = array.reshape(-1)[:1].tolist() if array.dtype == object else []
    if first and isinstance(first[0], Decimal | int | float) and _are_decimals(array.reshape(-1).tolist()):
        return array.astype(np.float64)
    return array


def _are_decimals(items: list[object]) -> bool:
    """Return whether there are decimals, and nothing but numbers beside them."""
    return all(isinstance(item, Decimal | int | float) for item in items) and any(
        isinstance(item, Decimal) for item in items
    )


def _utf8(value: object, name: str) -> bytes:
    try:
        if isinstance(value, str):
            return value.encode()
        if isinstance(value, bytes):
            return value.decode().encode()
    except UnicodeError as error:
        raise BadRow(f"{spelled(name)} expected UTF-8 text, got {shortly(value)}.") from error
    raise BadRow(
        f"{spelled(name)} expected integers, floats, booleans or text of one kind and length, got "
        f"{type(value).__name__} in an array of dtype object."
    )


def as_whole_array(value: object, name: str, rows: int) -> Array:
    """Return a leaf of a block as an array. Text is converted later, slice by slice."""
    array = np.asarray(value) if hasattr(value, "shape") and not np.ma.is_masked(value) else as_array(value, name)
    if array.ndim == 0 or len(array) != rows:
        raise BadRow(f"{spelled(name)} expected {rows} rows along the first axis, got shape {array.shape}.")
    return array


def stored_dtype(dtype: np.dtype[np.generic], floatx: np.dtype[np.generic]) -> np.dtype[np.generic]:
    """Return the dtype in which a column of this dtype is stored: floats as `floatx`, others as they are."""
    return floatx if dtype.kind == "f" else dtype.newbyteorder("=")


def common_dtype(
    one: np.dtype[np.generic], other: np.dtype[np.generic], floatx: np.dtype[np.generic]
) -> np.dtype[np.generic]:
    """Return the dtype that stores numbers of both. Floats, and integers that only a float can hold together, are `floatx`."""
    return stored_dtype(np.promote_types(one, other), floatx)
