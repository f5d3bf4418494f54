"""The driver's Keras settings around functions of the user's, which may do without Keras."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field

import cloudpickle

from elephas_like.core.quiet import quiet_import


@dataclass(frozen=True)
class FunctionSettings:
    """Settings that travel with a function.

    pickled: a function that returns the context in which they hold.
    plain: whether they are those that Keras begins with. A process that has not imported Keras needs none then, and is spared
        the seconds that the import takes.
    """

    pickled: bytes = field(repr=False)
    plain: bool

    def applied(self) -> AbstractContextManager[None]:
        """Return the context to call the function in."""
        if self.plain and "keras" not in sys.modules:
            return nullcontext()
        applied: Callable[[], AbstractContextManager[None]]
        with quiet_import():
            applied = cloudpickle.loads(self.pickled)  # our driver's own bytes
        return applied()
