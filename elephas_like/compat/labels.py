"""Class labels as arrays: one-hot rows, padded sequences."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from elephas_like.core.types import Array, Floats


def encode_label(label: float, nb_classes: int) -> Floats:
    """Return the one-hot row of a class, shape (nb_classes,), float64.

    Raises:
        ValueError: the label is no class from 0 to nb_classes - 1.
    """
    number = int(label)
    if number != label or not 0 <= number < nb_classes:
        raise ValueError(f"a label must be a class from 0 to {nb_classes - 1}; got {label!r}.")
    row = np.zeros(nb_classes)
    row[number] = 1.0
    return row


def pad_labels(labels: Sequence[Sequence[int]], max_length: int, pad_token_label_id: int) -> Array:
    """Return sequences of labels padded to one length, shape (len(labels), max_length).

    Raises:
        ValueError: a sequence is longer than `max_length`.
    """
    longest = max(map(len, labels), default=0)
    if longest > max_length:
        raise ValueError(f"max_length={max_length} is shorter than the longest sequence of labels, {longest}.")
    return np.array([[*row, *[pad_token_label_id] * (max_length - len(row))] for row in labels])
