"""What training has changed in Keras callbacks: how long EarlyStopping has waited, its best weights."""

from __future__ import annotations

import hashlib
import inspect
import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager

import keras

from elephas_like.core import plain_data
from elephas_like.core.types import Array

_OF_KERAS = ("_model", "params", "validation_data")


class CallbackStates:
    """The attributes of callbacks that training changes. Keras has no interface for a callback's state but these.

    Attributes that are no plain data (open files, functions, models) are left alone. So are those that are as `on_train_begin`
    left them, and `min_delta` of Keras' own, whose sign these change when they are first called.

    Args:
        callbacks: after their `on_train_begin`.
    """

    def __init__(self, callbacks: Sequence[keras.callbacks.Callback]) -> None:
        self._callbacks = _named(callbacks)
        self._before = {
            name: {key: _digest(value) for key, value in _plain(callback).items()}
            for name, callback in self._callbacks.items()
        }

    def changed(self) -> dict[str, dict[str, object]]:
        """Return the attributes that have changed, by callback and name."""
        found = {}
        for name, callback in self._callbacks.items():
            before = self._before[name]
            found[name] = {key: value for key, value in _plain(callback).items() if _digest(value) != before.get(key)}
        return found

    def restore(self, states: Mapping[str, Mapping[str, object]]) -> list[str]:
        """Set the attributes that `changed` returned. Return the names of callbacks that are not there any more."""
        for name, state in states.items():
            if name in self._callbacks:
                for attribute, value in state.items():
                    setattr(self._callbacks[name], attribute, value)
        return [name for name, state in states.items() if state and name not in self._callbacks]


def _named(callbacks: Sequence[keras.callbacks.Callback]) -> dict[str, keras.callbacks.Callback]:
    """Return callbacks by kind and number, as "EarlyStopping 1"."""
    kinds = [type(callback).__name__ for callback in callbacks]
    names = [f"{kind} {kinds[:place].count(kind) + 1}" for place, kind in enumerate(kinds)]
    return dict(zip(names, callbacks, strict=True))


@contextmanager
def logs_are_kept(callbacks: Sequence[keras.callbacks.Callback], before: Collection[str]) -> Iterator[None]:
    """Within it, `on_train_begin` of a CSVLogger adds to its file if the fit that goes on had it; by default the file begins anew.

    Args:
        before: names of the callbacks of the fit that goes on; none if none does.
    """
    loggers = {
        name: each
        for name, each in _named(callbacks).items()
        if isinstance(each, keras.callbacks.CSVLogger) and not each.append
    }
    for name, logger in loggers.items():
        logger.append = name in before
        logger.append_header = True  # Keras sets it to False where there is a file, and never back
    try:
        yield
    finally:
        for logger in loggers.values():
            logger.append = False


def _plain(callback: keras.callbacks.Callback) -> dict[str, object]:
    """Return the attributes of a callback that are plain data."""
    found = {}
    kinds = [kind for kind in type(callback).__mro__ if kind.__module__.startswith("keras.")]
    turned = ("min_delta",) if any("min_delta" in inspect.signature(kind).parameters for kind in kinds) else ()
    for name, value in vars(callback).items():
        if name not in (*_OF_KERAS, *turned):
            try:
                json.dumps(plain_data.encode(value, {}, ""))
            except (TypeError, RecursionError):  # the second of what holds itself, or is nested too deep for JSON
                continue
            found[name] = value
    return found


def _digest(value: object) -> bytes:
    arrays: dict[str, Array] = {}
    digest = hashlib.blake2b(json.dumps(plain_data.encode(value, arrays, "")).encode(), digest_size=16)
    for array in arrays.values():
        digest.update(f"{array.dtype}{array.shape}".encode())
        digest.update(array.tobytes())
    return digest.digest()
