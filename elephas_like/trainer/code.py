"""User code by value: classes and functions of modules that workers may not have are sent inside the pickle.

cloudpickle sends what is defined in `__main__` by value, and everything else by name. The user's own modules (a file
beside the script, a notebook's helper) are not installed on workers, so they are sent by value too.
"""

from __future__ import annotations

import functools
import io
import pickle
import sys
import sysconfig
import threading
import types
import weakref
from collections import ChainMap
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import is_dataclass
from functools import cache
from pathlib import Path
from typing import Any, TypeVar, cast

import cloudpickle
from cloudpickle.cloudpickle import _class_setstate, _is_registered_pickle_by_value, _lookup_module_and_qualname

from elephas_like.core.errors import ElephasError
from elephas_like.core.own_classes import note_own_class, set_class_state

_FOREIGN = ("keras", "tensorflow", "numpy", "builtins", "jax", "torch", "ml_dtypes", "elephas_like")
_SPARK = ("pyspark", "py4j")
"""spark-submit has them beside Python's own packages."""
_PACKAGES = {"site-packages", "dist-packages"}
_SCRIPT = "__main__"
_DRIVERS_OWN = "ONLY_VALID_ON_DRIVER"
"""In what Spark says of a SparkContext, and of an RDD, that is pickled."""
_REMOTE_SESSION = ("pyspark.sql.connect.session", "SparkSession")
_CANNOT = "cannot pickle "
"""In what Python says of a lock, an open file or a connection that is pickled."""
_lock = threading.RLock()
_Result = TypeVar("_Result")


def pickle_by_value(thing: object) -> bytes:
    """Return a cloudpickle in which code of modules that are not installed is sent by value, as code of `__main__` is.

    Modules which that code imports are sent by value too if they are not installed, unless one holds something that
    cannot be pickled.

    Raises:
        RefersToSparkError: it refers to what only the driver has.
        UnsendableError: it refers to something else that cannot be pickled.
    """
    roots = _roots(thing)
    try:
        return with_code_by_value(roots, lambda: dumps(thing))
    except RuntimeError as error:  # pyspark's
        if _DRIVERS_OWN not in str(error):
            raise
        raise RefersToSparkError(with_code_by_value(roots, lambda: _refers(roots))) from error
    except TypeError as error:
        if _CANNOT in str(error):
            with_code_by_value(roots, lambda: _check_sendable(roots))
        raise


class RefersToSparkError(ElephasError):
    """Something to send refers to a session, a SparkContext, a DataFrame or an RDD."""


class UnsendableError(ElephasError, TypeError):
    """Something to send refers to what lives in this process only: a lock, an open file, a connection."""


def _check_sendable(roots: list[object]) -> None:
    """Do nothing if each of several things can be pickled.

    Raises:
        UnsendableError: one cannot; which, and what it refers to.
    """
    for root in roots:
        pickler = _WatchedPickler(io.BytesIO())
        try:
            pickler.dump(root)
        except TypeError as error:
            name = getattr(root, "__qualname__", type(root).__qualname__).rsplit(".", 1)[-1]
            place = next((f" as {called!r}" for called, value in _held(root) if value is pickler.met), "")
            kind = type(pickler.met)
            raise UnsendableError(
                f"{name} cannot be sent to workers: it refers to a {kind.__module__}.{kind.__qualname__}{place}, which lives in this process "
                f"only ({error}). Make it where it is used, or leave it out of pickles by a __getstate__ of the class that holds it."
            ) from error


def _held(root: Any) -> Iterator[tuple[str, object]]:
    """Yield (name, value) of what a function closes over and of its globals, or of an object's attributes."""
    function = getattr(root, "__func__", root)
    if not isinstance(function, types.FunctionType):
        yield from getattr(root, "__dict__", {}).items()
        return
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        with suppress(ValueError):  # empty yet
            yield name, cell.cell_contents
    yield from (
        (name, function.__globals__[name]) for name in function.__code__.co_names if name in function.__globals__
    )


def _refers(roots: list[object]) -> str:
    names = []
    for root in roots:
        try:
            dumps(root)
        except RuntimeError as error:
            if _DRIVERS_OWN in str(error):
                names.append(getattr(root, "__qualname__", type(root).__qualname__).rsplit(".", 1)[-1])
    return (
        f"{' and '.join(names) or 'it'} refers to Spark (a session, a SparkContext, a DataFrame or an RDD), which only the driver has, "
        "and is sent to workers. Get what it needs from Spark before, as plain objects: df.toPandas(), rdd.collect(), or the value of "
        "a broadcast. The callbacks of SparkModel.fit run on the driver, and may use Spark."
    )


def dumps(thing: object) -> bytes:
    """Return a cloudpickle whose code keeps the names of its files. One that refers to Spark's broadcasts is a `Pickled`."""
    file = io.BytesIO()
    pickler = CodePickler(file)
    pickler.dump(thing)
    return pickler.pickled(file.getvalue())


class Pickled(bytes):
    """A cloudpickle that refers to Spark's broadcasts.

    They are part of its state: so PySpark, which ships the broadcasts that it finds in what it pickles for a task, finds them.
    """

    broadcasts: tuple[object, ...]


def broadcasts_of(thing: object) -> tuple[object, ...]:
    """Return the broadcasts to which the pickles in what is pickled of an object, and of its fields, refer."""
    if isinstance(thing, Pickled):
        return thing.broadcasts
    if is_dataclass(thing) and not isinstance(thing, type):
        state = thing.__getstate__()
        thing = tuple(state.values()) if isinstance(state, dict) else state
    if not isinstance(thing, tuple | list):
        return ()
    return tuple(found for value in thing for found in broadcasts_of(value))


_met: weakref.WeakValueDictionary[int, object] = weakref.WeakValueDictionary()


def _named(broadcast: Any) -> tuple[Callable[[int], object], int]:
    """Return what finds a broadcast in a task that Spark has shipped it with, and its number.

    Its own `__reduce__` would have PySpark ship it with the next job of this thread, and raises in a task. So these are private names.
    """
    module: Any = sys.modules[type(broadcast).__module__]
    if broadcast._jbroadcast is not None:
        return module._from_id, broadcast._jbroadcast.id()
    return module._from_id, next(number for number, each in module._broadcastRegistry.items() if each is broadcast)


def _broadcast_of(number: int, loaded: Callable[[int], object]) -> object:
    """Return a broadcast: on the driver the one that was pickled, in a task the one that Spark has shipped with it."""
    found = _met.get(number)
    return loaded(number) if found is None else found


def is_broadcast(thing: object) -> bool:
    """Return whether an object is a broadcast of Spark's."""
    return type(thing).__name__ == "Broadcast" and type(thing).__module__.split(".")[0] == "pyspark"


_FILENAME, _NAME = 10, 11
"""Which arguments of `types.CodeType` are the names of the file and of the function, since Python 3.11."""


def _code_reduction(code: types.CodeType) -> tuple[Any, ...]:
    """Return cloudpickle's reduction of code, with the name of its file."""
    make, arguments = cloudpickle.Pickler.dispatch_table[types.CodeType](code)
    if (
        make is not types.CodeType or arguments[_NAME] != code.co_name
    ):  # a Python or a cloudpickle that is not known yet
        return make, arguments
    return make, (*arguments[:_FILENAME], "".join(code.co_filename), *arguments[_FILENAME + 1 :])


_set_state = functools.partial(set_class_state, _class_setstate)
"""How the attributes of a class are set that a pickle holds by value."""


_OF_TORCH_COMPILE = "_torchdynamo_orig_callable"
"""The attribute in which a function that `torch.compile` returns has the function that it was given."""


def _is_of_torch_compile(thing: object) -> bool:
    """Return whether `torch.compile` has made a function, and not `torch.compiler.disable`.

    What `functools.wraps` puts around one has its attributes, too.
    """
    if (
        type(thing) is not types.FunctionType
        or _OF_TORCH_COMPILE not in vars(thing)
        or "_torchdynamo_disable" in vars(thing)
    ):
        return False
    return str(thing.__globals__.get("__name__")).startswith("torch.")


_CACHING = type(functools.cache(int))
"""The class of what `functools.cache` and `functools.lru_cache` return."""


def _caching(function: Callable[..., object], maxsize: int | None, typed: bool) -> object:
    return functools.lru_cache(maxsize, typed)(function)


def _property_reduction(thing: Any) -> tuple[Any, ...]:
    """Return how to make a cached property again: before Python 3.12 it has a lock."""
    return (
        functools.cached_property,
        (thing.func,),
        {name: value for name, value in vars(thing).items() if name != "lock"},
    )


def _same(function: Callable[..., object]) -> Callable[..., object]:
    return function


class CodePickler(cloudpickle.Pickler):
    """cloudpickle's pickler, but code keeps the name of its file, and a process that reads its own classes keeps them as they are.

    Of what `torch.compile` returns, which computes the same and holds much that lives in one process only, the function is sent that it was
    made of, unless it goes by name. A function with a cache (`functools.cache`) goes as the function itself does; it begins with an empty one.

    Since version 3.1.3 cloudpickle leaves the name out. Tracebacks show the user's lines by it, and AutoGraph finds the source by it.
    """

    dispatch_table = ChainMap({types.CodeType: _code_reduction}, cloudpickle.Pickler.dispatch_table)

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file)
        self._broadcasts: list[object] = []

    def reducer_override(self, thing: object) -> Any:
        """Return how an object is written: broadcasts, and classes whose attributes are set in our own way; else as cloudpickle says.

        Raises:
            RuntimeError: it is a session of Spark Connect. That could be pickled, but not read by a worker; classic ones say so.
        """
        if (type(thing).__module__, type(thing).__name__) == _REMOTE_SESSION:
            raise RuntimeError(f"[SESSION_{_DRIVERS_OWN}] a session of Spark Connect is pickled.")
        if (
            _is_of_torch_compile(thing) and super().reducer_override(thing) is not NotImplemented
        ):  # else it goes by name
            return _same, (vars(thing)[_OF_TORCH_COMPILE],)
        if type(thing) is functools.cached_property:
            return _property_reduction(thing)
        if type(thing) is _CACHING and type(thing.__wrapped__) is types.FunctionType:
            found = _lookup_module_and_qualname(thing)  # of the function itself it finds the wrapper, and so nothing
            if found is not None and not _is_registered_pickle_by_value(found[0]):
                return NotImplemented  # by name
            return _caching, (thing.__wrapped__, *thing.cache_parameters().values())
        if not is_broadcast(thing):
            found = super().reducer_override(thing)
            if not isinstance(found, tuple) or found[-1] is not _class_setstate:
                return found
            note_own_class(cast("type", thing))
            return (*found[:-1], _set_state)
        loaded, number = _named(thing)
        self._broadcasts.append(thing)
        _met[number] = thing
        return _broadcast_of, (number, loaded)

    def pickled(self, content: bytes) -> bytes:
        """Return what was written, with the broadcasts that were met."""
        if not self._broadcasts:
            return content
        found = Pickled(content)
        found.broadcasts = tuple(self._broadcasts)
        return found


class _WatchedPickler(CodePickler):
    """Knows which object it has met last."""

    met: object = None

    def reducer_override(self, thing: object) -> Any:
        """Note the object."""
        self.met = thing
        return super().reducer_override(thing)


def with_code_by_value(roots: list[object], dump: Callable[[], _Result]) -> _Result:
    """Call `dump` while cloudpickle sends the modules of `roots`, and the modules which those import, by value.

    If a module holds something that cannot be pickled, `dump` is called again without packages which pip put into a folder of its own,
    then with the modules of `roots` only, and then with those without such packages.

    Args:
        roots: classes, functions, or objects of them.
        dump: pickles something.

    Returns:
        What `dump` returns.
    """
    homes = _homes(roots)
    direct = [module for module in homes if _is_users_file(module)]
    imported = _with_imports(direct, [module for module in homes if module.__name__ == _SCRIPT])
    attempts = [imported, _unpackaged(imported), direct, _unpackaged(direct)]
    attempts = [modules for number, modules in enumerate(attempts) if modules not in attempts[:number]]
    with _lock:
        for modules in attempts[:-1]:
            with suppress(*_REFUSALS), _sent_by_value(modules):
                return dump()
        with _sent_by_value(attempts[-1]):
            return dump()


_REFUSALS = (TypeError, ValueError, AttributeError, pickle.PickleError, RuntimeError)
"""What pickling raises; pyspark's are RuntimeErrors."""


def is_foreign(thing: object) -> bool:
    """Return whether a class or function belongs to Keras, a backend or this package, and is no user code."""
    return (getattr(thing, "__module__", None) or "").split(".")[0] in _FOREIGN


def is_in_users_file(thing: object) -> bool:
    """Return whether a class or function is in a file of the user's, a script or a notebook, and not in an installed package."""
    name = getattr(thing, "__module__", None) or ""
    module = sys.modules.get(name)
    return name == _SCRIPT or (module is not None and _is_users_file(module))


def _roots(thing: object) -> list[object]:
    return list(thing.values()) if isinstance(thing, dict) else thing if isinstance(thing, list) else [thing]


def _homes(roots: list[object]) -> list[types.ModuleType]:
    """Return the modules in which the roots, or their classes, are defined."""
    found: dict[str, types.ModuleType] = {}
    for value in roots:
        for owner in [*getattr(value, "__mro__", ()), value, *type(value).__mro__]:
            module = sys.modules.get(getattr(owner, "__module__", None) or "")
            if module is not None:
                found[module.__name__] = module
    return list(found.values())


def _with_imports(modules: list[types.ModuleType], script: list[types.ModuleType]) -> list[types.ModuleType]:
    """Return the modules, and the user's own ones among their imports and those of the script, transitively."""
    found = {module.__name__: module for module in modules}
    queue = [*modules, *script]
    while queue:
        for value in list(vars(queue.pop()).values()):
            # Not `isinstance`, which asks proxies for what they stand for.
            is_module = issubclass(type(value), types.ModuleType)
            try:
                name = value.__name__ if is_module else getattr(value, "__module__", None)
            except Exception:  # a proxy of what is gone
                continue
            module = sys.modules.get(name) if isinstance(name, str) else None
            if module is not None and module.__name__ not in found and _is_users_file(module):
                found[module.__name__] = module
                queue.append(module)
    return list(found.values())


@cache
def _is_users_file(module: types.ModuleType) -> bool:
    """Return whether a module is the user's own file, which workers may not have."""
    file = getattr(module, "__file__", None)
    if file is None or module.__name__.split(".")[0] in (*_FOREIGN, *_SPARK, _SCRIPT):
        return False
    path = Path(file).resolve()
    return not _PACKAGES & set(path.parts) and not any(path.is_relative_to(folder) for folder in _installed())


def _unpackaged(modules: list[types.ModuleType]) -> list[types.ModuleType]:
    return [module for module in modules if not _is_packaged(module)]


@cache
def _is_packaged(module: types.ModuleType) -> bool:
    """Return whether pip put a module into a folder of its own (`pip install --target`), beside what it says of the package."""
    top = sys.modules.get(module.__name__.split(".")[0])
    file = getattr(top, "__file__", None)
    if file is None:
        return False
    path = Path(file)
    folder = path.parent.parent if path.name == "__init__.py" else path.parent
    return any(folder.glob("*.dist-info"))


@cache
def _installed() -> list[Path]:
    return [Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "platstdlib", "purelib", "platlib")]


@contextmanager
def _sent_by_value(modules: list[types.ModuleType]) -> Iterator[None]:
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
