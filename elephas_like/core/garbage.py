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
def collection_paused(*, all_stay: bool = False) -> Iterator[None]:
    """Make many thousands of objects without looking for garbage among them again and again as their number grows.

    The last of several threads puts back what the first has found.

    Args:
        all_stay: whether all of them are kept for good, as what an import makes. They are old then: only full collections look at
            them. Python does not count what becomes old so, and would not begin such a collection for garbage among it.
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
                if all_stay and not gc.get_freeze_count():  # else it would be undone
                    gc.freeze()
                    gc.unfreeze()  # into the oldest generation
                gc.enable()
