"""Looks for what pip cannot install, before anything else runs: a Python and a Java that Spark 4 works with.

Says nothing and exits 0 where both are there; otherwise one line says what to install. Standard library only.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys

LEAST_JAVA = 17
LEAST_PYTHON = (3, 11)
INSTALL = (
    "Debian/Ubuntu: sudo apt-get install openjdk-17-jre-headless | macOS: brew install openjdk@17 | "
    "conda: conda install -c conda-forge openjdk=17"
)


def java_command() -> str | None:
    """The Java that Spark would start: JAVA_HOME's, else the PATH's."""
    home = os.environ.get("JAVA_HOME")
    if home:
        return shutil.which("java", path=os.path.join(home, "bin"))
    return shutil.which("java")


def java_version(command: str) -> int | None:
    """The feature version, 17 for "17.0.15" and 8 for "1.8.0"; None where the command does not say one."""
    try:
        said = subprocess.run([command, "-version"], capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = re.search(r'version "(?:1\.)?(\d+)', said.stderr + said.stdout)
    return int(found.group(1)) if found else None


def problem() -> str | None:
    """What is missing and how to install it, in one line; None where nothing is."""
    if sys.version_info < LEAST_PYTHON:
        return f"Python {LEAST_PYTHON[0]}.{LEAST_PYTHON[1]} or newer is needed; {sys.executable} is {sys.version.split()[0]}. Set PYTHON=..."
    command = java_command()
    if command is None:
        where = "JAVA_HOME names none" if os.environ.get("JAVA_HOME") else "none was found on the PATH"
        return f"Spark needs Java {LEAST_JAVA} or newer, and {where}. {INSTALL}"
    found = java_version(command)
    if found is None or found < LEAST_JAVA:
        return f"Spark needs Java {LEAST_JAVA} or newer; {command} is {found or 'of no known version'}. {INSTALL}"
    return None


if __name__ == "__main__":
    said = problem()
    if said:
        sys.exit(said)
