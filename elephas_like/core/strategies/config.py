"""Strategies, reductions, codecs and schedules as plain data, for files: the name of the class and its fields."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from elephas_like.core.schedules import EveryEpoch, FixedSteps, PostLocal, QuadraticSynchronization, Schedule
from elephas_like.core.strategies.algebra import Mean, Reduce, Strategy, Total
from elephas_like.core.strategies.codecs import CODECS, Codec
from elephas_like.core.strategies.registry import STRATEGIES
from elephas_like.core.strategies.robust import Clipped, Median, Radial, TrimmedMean

_CLASS = "class"
_KINDS: tuple[type, ...] = (
    *STRATEGIES.values(),
    *CODECS.values(),
    *(Mean, Total, Clipped, Median, Radial, TrimmedMean),
    *(EveryEpoch, FixedSteps, PostLocal, QuadraticSynchronization),
)
_KNOWN = {kind.__name__: kind for kind in _KINDS}


def to_config(value: object) -> Any:
    """Return `{"class": name, **fields}` for an object of this package.

    Other values, names included, are returned unchanged.

    Raises:
        ValueError: the class is the user's own, which could not be rebuilt from its name.
    """
    if not isinstance(value, Strategy | Reduce | Codec | Schedule):
        return value
    kind = type(value)
    if _KNOWN.get(kind.__name__) is not kind:
        raise ValueError(f"{kind.__name__} is no class of elephas_like.strategies")
    return {_CLASS: kind.__name__, **{field.name: to_config(getattr(value, field.name)) for field in fields(kind)}}


def from_config(value: object) -> Any:
    """Return the value that `to_config` was given."""
    if not (isinstance(value, Mapping) and value.get(_CLASS) in _KNOWN):
        return value
    return _KNOWN[value[_CLASS]](**{name: from_config(item) for name, item in value.items() if name != _CLASS})
