"""Classes of this process that it sends by value, and reads again: reading leaves them as they are.

A pickle by value has copies of a class' methods, and the globals that they use as they were then. Whoever reads it where the class
comes from finds the class itself, and would put the copies into it: a helper that a notebook defines again after a fit would be
the old one for every later model of the class.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable

from elephas_like.core.quiet import is_worker

_own: weakref.WeakSet[type] = weakref.WeakSet()
_read: weakref.WeakSet[type] = weakref.WeakSet()


def note_own_class(kind: type) -> None:
    """Note that a class is pickled by value here. One that was read here is another process's, and so is any on a worker of Spark's."""
    if kind not in _read and not is_worker(os.environ):
        _own.add(kind)


def set_class_state(set_state: Callable[[type, object], type], kind: type, state: object) -> type:
    """Give a class that a pickle brings its attributes, unless it is this process's own. Return it.

    Args:
        set_state: sets them.
    """
    if kind in _own:
        return kind
    _read.add(kind)
    return set_state(kind, state)
