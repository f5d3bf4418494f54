"""The slots of a small model: two features, one label."""

from __future__ import annotations

from elephas_like.core.types import Slot

X = Slot("x", (2,))
Y = Slot("y", (1,))
