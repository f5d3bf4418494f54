"""Looks for what pip cannot install, before anything else runs: a Python and a Java that Spark 4 works with.

Says nothing and exits 0 where both are there; otherwise one line says what to install. Standard library only.
"""

from __future__ import annotations

import sys
from pathlib import Path

LEAST_PYTHON = (3, 11)


def problem() -> str | None:
    """What is missing and how to install it, in one line; None where nothing is."""
    if sys.version_info < LEAST_PYTHON:
        return f"Python {LEAST_PYTHON[0]}.{LEAST_PYTHON[1]} or newer is needed; {sys.executable} is {sys.version.split()[0]}. Set PYTHON=..."
    sys.path.insert(0, str(Path(__file__).parent.parent))
    from elephas_like.console.java import java_problem

    return java_problem()


if __name__ == "__main__":
    said = problem()
    if said:
        sys.exit(said)
