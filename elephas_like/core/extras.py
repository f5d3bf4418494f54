"""Packages that pip installs only with an extra, so that a platform keeps its own Spark and its own TensorFlow.

Rooms that need one call `require` before anything of theirs is imported. So the error is written in one place, names the extra,
and comes before a fit begins.
"""

from __future__ import annotations

import importlib
import json
import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass

from elephas_like.core.errors import ElephasError, MissingExtraError
from elephas_like.core.garbage import collection_paused
from elephas_like.core.quiet import quiet_import


@dataclass(frozen=True)
class Extra:
    """What brings an optional package.

    name: of the extra in pyproject.toml. floor: the lowest version that works, as pyproject.toml has it. otherwise: what to do
    instead on a platform that has its own.
    """

    name: str
    floor: str
    otherwise: str


EXTRAS = {
    "pyspark": Extra(
        "spark",
        "3.5.0",
        "On a platform with its own Spark, run the Python that has it, or put $SPARK_HOME/python and the py4j archive in "
        "$SPARK_HOME/python/lib on the PYTHONPATH.",
    ),
    "tensorflow": Extra("tensorflow", "2.18.0", "tensorflow-cpu of that version will do, too."),
    "jax": Extra("jax", "0.10.0", "Or set KERAS_BACKEND=tensorflow before keras is imported."),
    "torch": Extra("torch", "2.6.0", "Or set KERAS_BACKEND=tensorflow before keras is imported."),
    "hyperopt": Extra("search", "0.3.0", "Only hyper-parameter search needs it."),
    "optuna": Extra("optuna", "3.6.0", "Only searches by its samplers, and what it says of a search, need it."),
}
"""By the module that is imported."""

BACKENDS = {"tensorflow": "TensorFlow", "jax": "JAX", "torch": "PyTorch"}
"""Keras' backends (trainer/backends), with the names that people use."""
_SETTINGS = {"torch": {"PYTORCH_NVML_BASED_CUDA_CHECK": "1"}}
"""Environment variables of a backend that are set before it is imported, unless they are set already.

Keras asks PyTorch for a card when it is imported. By default the answer starts CUDA: then no forked process can use a card, and none can
choose one by CUDA_VISIBLE_DEVICES.
"""
DEFAULT_BACKEND = "tensorflow"
"""Where neither KERAS_BACKEND nor Keras' configuration names one."""


X64 = "JAX_ENABLE_X64"
"""The environment variable by which JAX, when it is imported, keeps numbers of 64 bits."""


def keeps_64_bits() -> bool:
    """Return whether JAX keeps numbers of 64 bits in this process (`jax.config.update("jax_enable_x64", True)`); it is not imported."""
    config = getattr(sys.modules.get("jax"), "config", None)
    return bool(getattr(config, "jax_enable_x64", False))


def chosen_backend() -> str:
    """Return the backend that Keras runs on in this process, or will once it is imported: it is chosen as Keras does that."""
    keras = sys.modules.get("keras")
    loaded = getattr(keras, "backend", None)
    return str(loaded.backend()) if loaded is not None else os.environ.get("KERAS_BACKEND") or _configured_backend()


def keras_backend() -> str:
    """Return `chosen_backend`.

    Raises:
        ElephasError: workers train with none of that name.
    """
    name = chosen_backend()
    if name not in BACKENDS:
        raise ElephasError(another_backend(name, DEFAULT_BACKEND))
    return name


def _configured_backend() -> str:
    """Return the backend that Keras' configuration file names."""
    home = os.environ.get("KERAS_HOME") or os.path.join(os.path.expanduser("~"), ".keras")
    try:
        with open(os.path.join(home, "keras.json")) as file:
            return str(json.load(file).get("backend", DEFAULT_BACKEND))
    except (OSError, ValueError, AttributeError):  # no file, no JSON, or no object
        return DEFAULT_BACKEND


def another_backend(found: str, wanted: str) -> str:
    """Return what is said of a process whose Keras runs on another backend than it should."""
    *others, last = BACKENDS.values()
    return (
        f"elephas_like trains with Keras on {', '.join(others)} or {last}; this process' Keras runs on {found!r}. Set "
        f"KERAS_BACKEND={wanted} before keras is imported, here and on the executors."
    )


def require(*modules: str) -> None:
    """Import modules of `EXTRAS`, and check their versions.

    Raises:
        MissingExtraError: one is missing or too old; the message names the extra that brings it.
        ElephasError: Python runs without docstrings, and PySpark is asked for.
    """
    if "pyspark" in modules and len(modules) > 1 and sys.flags.optimize > 1:  # with Keras: workers need no pyspark.ml
        raise ElephasError(
            "python -OO (PYTHONOPTIMIZE=2) takes out docstrings, which pyspark.ml reads while it is imported. Run python -O, or without."
        )
    for module in modules:
        extra = EXTRAS[module]
        install = f"pip install 'elephas-like[{extra.name}]'"
        for name, value in _SETTINGS.get(module, {}).items():
            os.environ.setdefault(name, value)
        try:
            with _large_import() if module in BACKENDS else nullcontext():
                held = getattr(importlib.import_module(module), "__version__", None)
        except ModuleNotFoundError as error:
            if error.name != module:  # it is there, and lacks something else
                raise
            # In the words of Python's own error, by which a driver recognizes it in an executor's traceback.
            raise MissingExtraError(
                f"No module named {module!r}, which elephas_like needs here. Run {install}. {extra.otherwise}",
                name=module,
            ) from None
        if isinstance(held, str) and older(held, extra.floor):
            raise MissingExtraError(
                f"{module} {held} is too old: elephas_like needs {extra.floor} or later. Run {install}.", name=module
            )


@contextmanager
def _large_import() -> Iterator[None]:
    # A sixth of TensorFlow's seconds would go to garbage that is not there.
    with quiet_import(), collection_paused(all_stay=True):
        yield


def older(version: str, floor: str) -> bool:
    """Return whether a version is below another by its leading numbers: "3.5.2.dev0" and "3.5.2+vendor.1" are 3.5.2."""
    return _numbers(version) < _numbers(floor)


def _numbers(version: str) -> list[int]:
    found = re.match(r"\d+(\.\d+){0,2}", version)
    numbers = [int(number) for number in found.group().split(".")] if found else []
    return numbers + [0] * (3 - len(numbers))
