"""Split one array into equal parts for a model with several inputs or outputs, as `np.hsplit` does."""

from __future__ import annotations

import numpy as np

from elephas_like.core.errors import DataError
from elephas_like.core.structure import flatten


def cut(tree: object, parts: int, *, axis: int, what: str = "inputs") -> object:
    """Return a single array as a tuple of `parts` equal arrays, cut along `axis`.

    Tuples, dicts and None are returned unchanged.

    Args:
        tree: the value for all inputs (or outputs) together.
        axis: 0 for a row, 1 for arrays with a leading axis of rows.
        what: what the parts are called in an error message.

    Raises:
        DataError: the array has no such axis, or cannot be cut into equal parts.
    """
    leaves, structure = flatten(tree)
    if parts < 2 or not isinstance(structure, int):
        return tree
    array = np.asarray(leaves[0])
    if array.ndim <= axis or array.shape[axis] % parts:
        raise DataError(
            f"the model has {parts} {what}; one array of shape {array.shape} cannot be cut into {parts} equal parts "
            f"along axis {axis}. Give a tuple or a dict of arrays, one for each."
        )
    return tuple(np.split(array, parts, axis=axis))


def cut_row(row: object, inputs: int, outputs: int) -> object:
    """Return a row `(x, y)` or `(x, y, sample_weight)` with x and y cut where they are single arrays."""
    if not (isinstance(row, tuple | list) and len(row) in (2, 3)):
        return row  # rejected later, where rows are written
    x, y, *weight = row
    return (cut(x, inputs, axis=0), cut(y, outputs, axis=0, what="outputs"), *weight)
