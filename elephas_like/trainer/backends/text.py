"""Columns of text, which reach a model in a form of the backend's own."""

from __future__ import annotations

import numpy as np


def is_text(array: object) -> bool:
    """Return whether an array holds Python or NumPy strings."""
    if not isinstance(array, np.ndarray) or array.dtype.kind not in "OUS":
        return False
    return array.dtype.kind in "US" or (array.size > 0 and all(isinstance(item, str | bytes) for item in array.flat))
