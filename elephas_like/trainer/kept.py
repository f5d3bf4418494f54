"""How much a Python process keeps of compiled models, to train and to predict, and how it frees those that it does not."""

from __future__ import annotations

import gc
from collections import OrderedDict
from typing import Protocol, TypeVar

BYTES_KEPT = 2**30
"""Maximum bytes of the variables of the models that are kept for one use. The last one stays whatever its size, until another is needed."""
_WORTH_FREEING = 2**26
"""Bytes of variables for which it is worth going through all of Python's objects, which takes some tenths of a second."""


class Dropped:
    """The models that a process no longer needs, by their size. They refer to themselves, and Python frees them some time later."""

    def __init__(self) -> None:
        self._nbytes = 0

    def add(self, nbytes: int) -> None:
        """Count a model in that nobody will use."""
        self._nbytes += nbytes

    def free(self) -> None:
        """Free them now if they are large: before another one is built, as memory may not hold both."""
        if self._nbytes >= _WORTH_FREEING:
            self._nbytes = 0
            gc.collect()


DROPPED = Dropped()
"""Of this process."""


class Sized(Protocol):
    """What is kept."""

    @property
    def nbytes(self) -> int:
        """Bytes of its variables."""


Kept = TypeVar("Kept", bound=Sized)


def drop_beyond(kept: OrderedDict[str, Kept], count: int, nbytes: int, spared: int) -> None:
    """Drop the least recently used models that are beyond the limits.

    Args:
        count: maximum number of them.
        nbytes: maximum size of all together.
        spared: how many stay whatever their size: 1 once there is a new one, and 0 before one is built.
    """
    while len(kept) > spared and (len(kept) > count or sum(each.nbytes for each in kept.values()) > nbytes):
        DROPPED.add(kept.popitem(last=False)[1].nbytes)
