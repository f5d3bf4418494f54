"""Objects as text that is the same in every process: what an identity of a fit or a search is compared by."""

from __future__ import annotations

import re


def without_addresses(value: object) -> str:
    """Return what an object says of itself, without the addresses of what it names."""
    return re.sub(r" at 0x[0-9a-f]+", "", str(value))
