"""Names of another library that are not here: an import says what to use in their place."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NoReturn


def instead_of(names: Mapping[str, str]) -> Callable[[str], NoReturn]:
    """Return the `__getattr__` of a module that has none of these names, each with what replaces it.

    `from module import name` raises ImportError with that, and so does `from module import *` where they are in its `__all__`.
    """

    def __getattr__(name: str) -> NoReturn:
        if name in names:
            raise ImportError(f"elephas_like has no {name}: use {names[name]} (docs/migration.md).")
        raise AttributeError(name)

    return __getattr__
