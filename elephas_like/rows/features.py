"""What a `tf.train.Example` holds, as far as columns need to know."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from elephas_like.core.types import Array, Integers

Kind = Literal["bytes", "float", "int64"]


@dataclass(frozen=True)
class Feature:
    """A feature by its name.

    single: one value a row, or none at all (null); otherwise an array of any length.
    """

    name: str
    kind: Kind
    single: bool


@dataclass(frozen=True)
class Values:
    """One feature of many rows: the values of row i are `flat[ends[i]:ends[i + 1]]`.

    flat: float32, int64, or objects that are bytes. ends: rows + 1 numbers from 0.
    """

    flat: Array
    ends: Integers
