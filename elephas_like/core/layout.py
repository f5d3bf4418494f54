"""Where each variable lies in a `TrainState`: names, shapes, dtypes and offsets, and the hash that exchanges compare."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from math import prod

import numpy as np

from elephas_like.core.types import Array, Role, TrainState, Vector

_WHOLE = (Role.COUNTER, Role.SEED)
"""The roles whose numbers are integers."""


@dataclass(frozen=True)
class LayoutEntry:
    """One variable.

    dtype: the variable's own; `Layout.dtype` says as what a state stores it.
    variance_of: for a variance, the index of its mean among the entries of the same role.
    momentum: for a moving average, the share of it that a step keeps; 0 for what is none, or not known to be one.
    """

    name: str
    role: Role
    shape: tuple[int, ...]
    dtype: str
    variance_of: int | None = None
    momentum: float = 0.0

    @property
    def size(self) -> int:
        """Numbers in the variable; 1 for a scalar."""
        return prod(self.shape)


@dataclass(frozen=True)
class Layout:
    """The variables of a compiled model in a fixed order.

    Entries of one role are contiguous in that role's flat vector.
    """

    entries: tuple[LayoutEntry, ...]

    def of(self, role: Role) -> list[LayoutEntry]:
        """Return the entries of one role, in order."""
        return [entry for entry in self.entries if entry.role is role]

    def size(self, role: Role) -> int:
        """Return the length of the flat vector of a role."""
        return sum(entry.size for entry in self.of(role))

    def dtype(self, role: Role) -> str:
        """Return the dtype of the flat vector of a role: "int64" for integers; "float64" where a variable is that; else "float32"."""
        if role in _WHOLE:
            return "int64"
        return "float64" if role in self._of_float64 else "float32"

    @cached_property
    def _of_float64(self) -> frozenset[Role]:
        return frozenset(entry.role for entry in self.entries if entry.dtype == "float64")

    def slices(self, role: Role) -> list[slice]:
        """Return the slice of each entry of a role in that role's flat vector."""
        return list(self._slices[role])

    @cached_property
    def _slices(self) -> dict[Role, list[slice]]:
        found: dict[Role, list[slice]] = {}
        for role in Role:
            start, found[role] = 0, []
            for entry in self.of(role):
                found[role].append(slice(start, start + entry.size))
                start += entry.size
        return found

    def variances(self, role: Role = Role.STATISTIC) -> list[tuple[slice, slice]]:
        """Return the (mean, variance) slices of every BatchNorm-like pair in a role's flat vector."""
        return list(self._variances[role])

    @cached_property
    def _variances(self) -> dict[Role, list[tuple[slice, slice]]]:
        return {
            role: [
                (slices[entry.variance_of], slices[index])
                for index, entry in enumerate(self.of(role))
                if entry.variance_of is not None
            ]
            for role, slices in self._slices.items()
        }

    @cached_property
    def momenta(self) -> Vector:
        """The momentum of each number among the statistics."""
        entries = self.of(Role.STATISTIC)
        return np.repeat(np.array([entry.momentum for entry in entries], np.float32), [entry.size for entry in entries])

    def views(self, flat: Array, role: Role) -> list[Array]:
        """Return views of a role's flat vector, one per variable, in the variable's shape."""
        return [
            flat[place].reshape(entry.shape) for place, entry in zip(self._slices[role], self.of(role), strict=True)
        ]

    def flatten(self, values: Iterable[Array]) -> TrainState:
        """Return the state that holds `values`, one array per entry in the order of the entries. Each is asked for when it is needed."""
        parts = {role: np.empty(self.size(role), self.dtype(role)) for role in Role}
        places = {role: iter(self._slices[role]) for role in Role}
        for entry, value in zip(self.entries, values, strict=True):
            parts[entry.role][next(places[entry.role])] = np.asarray(value).ravel()
        return TrainState(**{role.value: part for role, part in parts.items()})

    def unflatten(self, state: TrainState) -> list[Array]:
        """Return one array per entry, in the variable's shape and in the dtype of the state."""
        by_role = {role: iter(self.views(state.part(role), role)) for role in Role}
        return [next(by_role[entry.role]) for entry in self.entries]

    @cached_property
    def hash(self) -> str:
        """Hex digest of roles, shapes and dtypes. Names are left out: Keras numbers them anew in each process."""
        plain = [[entry.role.value, list(entry.shape), entry.dtype] for entry in self.entries]
        return hashlib.blake2b(json.dumps(plain).encode(), digest_size=16).hexdigest()
