"""Which variable lies where in a `TrainState`: names, shapes, dtypes and offsets, and the hash that guards exchanges."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from functools import cached_property
from math import prod

import numpy as np

from elephas_like.core.types import Array, Role, TrainState

_FLAT_DTYPE = {
    Role.WEIGHT: np.float32,
    Role.STATISTIC: np.float32,
    Role.FROZEN: np.float32,
    Role.SLOT: np.float32,
    Role.COUNTER: np.int64,
    Role.LEARNING_RATE: np.float32,
    Role.LOSS_SCALE: np.float32,
    Role.SEED: np.int64,
}


@dataclass(frozen=True)
class LayoutEntry:
    """One variable. `dtype` is the variable's own; in the state it travels as float32 or int64.

    variance_of: index, among the entries of its role, of the mean whose spread this variance describes.
    """

    name: str
    role: Role
    shape: tuple[int, ...]
    dtype: str
    variance_of: int | None = None

    @property
    def size(self) -> int:
        """Numbers in the variable; 1 for a scalar."""
        return prod(self.shape)


@dataclass(frozen=True)
class Layout:
    """The variables of a compiled model in a fixed order; entries of one role lie one after the other in its vector."""

    entries: tuple[LayoutEntry, ...]

    def of(self, role: Role) -> list[LayoutEntry]:
        """The entries of one role, in order."""
        return [entry for entry in self.entries if entry.role is role]

    def size(self, role: Role) -> int:
        """Length of the flat vector of a role."""
        return sum(entry.size for entry in self.of(role))

    def slices(self, role: Role) -> list[slice]:
        """Where each entry of a role lies in that role's flat vector."""
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
        """(mean, variance) places in a role's flat vector for every BatchNorm-like pair."""
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

    def views(self, flat: Array, role: Role) -> list[Array]:
        """Views of a role's flat vector, one per variable, in the variable's shape."""
        return [
            flat[place].reshape(entry.shape) for place, entry in zip(self._slices[role], self.of(role), strict=True)
        ]

    def flatten(self, values: list[Array]) -> TrainState:
        """The state that holds `values`, one array per entry in the order of the entries."""
        parts: dict[str, Array] = {}
        for role in Role:
            mine = [
                np.asarray(value).astype(_FLAT_DTYPE[role], copy=False).ravel()
                for entry, value in zip(self.entries, values, strict=True)
                if entry.role is role
            ]
            parts[role.value] = np.concatenate(mine) if mine else np.zeros(0, _FLAT_DTYPE[role])
        return TrainState(**parts)  # type: ignore[arg-type]  # dtypes by _FLAT_DTYPE

    def unflatten(self, state: TrainState) -> list[Array]:
        """One array per entry, in the variable's own shape; still float32 or int64, as they travel."""
        by_role = {role: iter(self.views(state.part(role), role)) for role in Role}
        return [next(by_role[entry.role]) for entry in self.entries]

    @cached_property
    def hash(self) -> str:
        """Hex digest of roles, shapes and dtypes. Names stay out: Keras numbers them anew in each process."""
        plain = [[entry.role.value, list(entry.shape), entry.dtype] for entry in self.entries]
        return hashlib.blake2b(json.dumps(plain).encode(), digest_size=16).hexdigest()
