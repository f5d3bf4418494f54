"""Installs Debian's packages for tests that need programs of the machine. Standard library only."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Sequence


def by_hand(packages: Sequence[str]) -> str:
    """The command that installs packages."""
    return f"sudo apt-get install {' '.join(packages)}"


def installed(packages: Sequence[str], problem: Callable[[], str | None]) -> str | None:
    """Install packages where something is missing, as root where there is Debian's apt-get.

    Args:
        problem: what is missing, in words; None where nothing is.

    Returns:
        What is still missing then, and why; None where nothing is.
    """
    said = problem()
    if said is None or shutil.which("apt-get") is None or os.geteuid() != 0:
        return said
    for arguments in (["update"], ["install", "--yes", "--no-install-recommends", *packages]):
        command = ["apt-get", "-qq", *arguments]
        environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            return f"{said}; {' '.join(command)} failed: {done.stderr.strip()[-300:]}"
    return problem()
