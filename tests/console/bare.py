"""Runs the command line in a process of its own, where packages, Java and settings are missing."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
_WITHOUT = """
import sys
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {names!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Missing())
from elephas_like.console.command import main
sys.exit(main({arguments!r}))
"""


def command(
    *arguments: str, without: Iterable[str] = (), environment: Mapping[str, str | None] | None = None
) -> subprocess.CompletedProcess[str]:
    """The finished process of `python -m elephas_like` with these arguments.

    without: modules that cannot be imported there. environment: variables that differ; None takes one away.
    """
    changed = {**os.environ, "PYTHONPATH": str(ROOT), **(environment or {})}
    names = set(without)
    program = (
        ["-c", _WITHOUT.format(names=names, arguments=list(arguments))] if names else ["-m", "elephas_like", *arguments]
    )
    return subprocess.run(
        [sys.executable, *program],
        env={name: value for name, value in changed.items() if value is not None},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
