"""Names of parametrized tests that are the same in every process: two of them collect the tests of one run."""

from __future__ import annotations

import re


def named(value: object) -> str:
    """What `str` says, without addresses."""
    return re.sub(r" at 0x[0-9a-f]+", "", str(value))
