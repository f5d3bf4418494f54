"""The Java that Spark would start. Standard library only: tools/check_machine.py asks before any package is installed."""

from __future__ import annotations

import os
import re
import shutil
import subprocess

LEAST_JAVA = 17
INSTALL = (
    "Debian/Ubuntu: sudo apt-get install openjdk-17-jre-headless | macOS: brew install openjdk@17 | "
    "conda: conda install -c conda-forge openjdk=17"
)


def java_command() -> str | None:
    """Return the Java that Spark would start: JAVA_HOME's, else the PATH's."""
    home = os.environ.get("JAVA_HOME")
    if home:
        return shutil.which("java", path=os.path.join(home, "bin"))
    return shutil.which("java")


def java_version(command: str) -> int | None:
    """Return the feature version, 17 for "17.0.15" and 8 for "1.8.0"; None where the command does not say one."""
    try:
        said = subprocess.run([command, "-version"], capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = re.search(r'version "(?:1\.)?(\d+)', said.stderr + said.stdout)
    return int(found.group(1)) if found else None


def java_problem() -> str | None:
    """Return what is wrong with this machine's Java and how to install one, in a line; None where nothing is."""
    command = java_command()
    if command is None:
        home, on_path = os.environ.get("JAVA_HOME"), shutil.which("java")
        if not home:
            return f"Spark needs Java {LEAST_JAVA} or newer, and none was found on the PATH. {INSTALL}"
        other = f" There is {on_path} on the PATH: unset JAVA_HOME to take that." if on_path else ""
        return f"Spark needs Java {LEAST_JAVA} or newer, and JAVA_HOME names none: it is {home!r}, which has no bin/java.{other} {INSTALL}"
    found = java_version(command)
    if found is None or found < LEAST_JAVA:
        return f"Spark needs Java {LEAST_JAVA} or newer; {command} is {found or 'of no known version'}. {INSTALL}"
    return None
