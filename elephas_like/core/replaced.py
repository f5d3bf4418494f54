"""Names of another library that are not here: an import says what to use in their place."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NoReturn


def instead_of(names: Mapping[str, str]) -> Callable[[str], NoReturn]:
    """Return the `__getattr__` of a module that has none of these names, each with what replaces it.

    `from module import name` and `from module import *` raise ImportError with that.
    """

    def __getattr__(name: str) -> NoReturn:
        if name == "__all__":
            told = "; ".join(f"for {each} use {way}" for each, way in names.items())
            raise ImportError(f"elephas_like has none of these names: {told} (docs/migration.md).")
        if name in names:
            raise ImportError(f"elephas_like has no {name}: use {names[name]} (docs/migration.md).")
        raise AttributeError(name)

    return __getattr__
