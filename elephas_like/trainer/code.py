"""User code by value: classes and functions of files that workers may not have travel inside a pickle.

cloudpickle ships what is defined in `__main__` by value, and everything else by name. Modules of the user's own (a file
beside the script, a notebook's helper) are not installed on workers, so they are shipped by value too.
"""

from __future__ import annotations

import pickle
import sys
import sysconfig
import threading
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import TypeVar

import cloudpickle

_FOREIGN = ("keras", "tensorflow", "numpy", "builtins", "jax", "torch", "ml_dtypes", "elephas_like")
_lock = threading.RLock()
_Result = TypeVar("_Result")


def pickle_by_value(thing: object) -> bytes:
    """A cloudpickle in which code of modules that are not installed travels by value, as code of `__main__` does.

    So does what that code imports from other such modules, unless one of them holds what cannot be pickled.
    """
    return with_code_by_value(_parts(thing), lambda: cloudpickle.dumps(thing))


def with_code_by_value(roots: list[object], dump: Callable[[], _Result]) -> _Result:
    """What `dump` returns while cloudpickle ships the modules of `roots` by value, and the modules that those import.

    Where an imported module holds what cannot be pickled, only the modules of the roots themselves are shipped.

    Args:
        roots: classes, functions, or objects of them.
    """
    direct = _own_modules(roots)
    imported = _with_imports(direct)
    with _lock:
        try:
            with _registered(imported):
                return dump()
        except (TypeError, ValueError, AttributeError, pickle.PicklingError, RecursionError):
            if len(imported) == len(direct):
                raise
            with _registered(direct):
                return dump()


def is_foreign(thing: object) -> bool:
    """Whether a class or function is of Keras, of its backends, or of this package: no code of the user's."""
    return (getattr(thing, "__module__", None) or "").split(".")[0] in _FOREIGN


def _parts(thing: object) -> list[object]:
    return list(thing.values()) if isinstance(thing, dict) else thing if isinstance(thing, list) else [thing]


def _own_modules(roots: list[object]) -> list[types.ModuleType]:
    """Modules of the user's own files in which the roots, or their classes, are defined."""
    found: dict[str, types.ModuleType] = {}
    for value in roots:
        for owner in [*getattr(value, "__mro__", ()), value, *type(value).__mro__]:
            module = sys.modules.get(getattr(owner, "__module__", None) or "")
            if module is not None and _is_own(module):
                found[module.__name__] = module
    return list(found.values())


def _with_imports(modules: list[types.ModuleType]) -> list[types.ModuleType]:
    """The modules, and the user's own ones among what they import, and so on."""
    found = {module.__name__: module for module in modules}
    queue = list(modules)
    while queue:
        for value in list(vars(queue.pop()).values()):
            name = value.__name__ if isinstance(value, types.ModuleType) else getattr(value, "__module__", None)
            module = sys.modules.get(name) if isinstance(name, str) else None
            if module is not None and module.__name__ not in found and _is_own(module):
                found[module.__name__] = module
                queue.append(module)
    return list(found.values())


@cache
def _is_own(module: types.ModuleType) -> bool:
    """Whether a module is a file of the user's, which workers may not have."""
    file = getattr(module, "__file__", None)
    if file is None or module.__name__.split(".")[0] in (*_FOREIGN, "__main__"):
        return False
    path = Path(file).resolve()
    return not any(path.is_relative_to(folder) for folder in _installed())


@cache
def _installed() -> list[Path]:
    return [Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "platstdlib", "purelib", "platlib")]


@contextmanager
def _registered(modules: list[types.ModuleType]) -> Iterator[None]:
    added = []
    for module in modules:
        if module.__name__ not in cloudpickle.list_registry_pickle_by_value():
            cloudpickle.register_pickle_by_value(module)
            added.append(module)
    try:
        yield
    finally:
        for module in added:
            cloudpickle.unregister_pickle_by_value(module)
