"""Python's search for garbage, left out where nothing is garbage."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_pausing = 0
_paused = False
_lock = threading.Lock()


@contextmanager
def collection_paused() -> Iterator[None]:
    """Make many thousands of objects that all stay, without looking for garbage among them again and again as their number grows.

    Afterwards they are old: only full collections look at them. The last of several threads puts back what the first has found.
    """
    global _pausing, _paused
    with _lock:
        if not _pausing:
            _paused = gc.isenabled()
            gc.disable()
        _pausing += 1
    try:
        yield
    finally:
        with _lock:
            _pausing -= 1
            if not _pausing and _paused:
                if not gc.get_freeze_count():  # else it would be undone
                    gc.freeze()
                    gc.unfreeze()  # into the oldest generation
                gc.enable()
