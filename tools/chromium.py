"""Installs Chromium, in which a slow test looks at the training page.

Does nothing where it is there. Elsewhere it needs Debian's apt-get and root; without them one line says what to install, and the
tests that need it are skipped. Standard library only.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

PACKAGES = ("chromium", "fonts-dejavu-core")
NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
BY_HAND = f"sudo apt-get install {' '.join(PACKAGES)}"


def program() -> str | None:
    """Where the browser is."""
    return next((found for found in map(shutil.which, NAMES) if found), None)


def problem() -> str | None:
    """What is missing, in words; None where nothing is."""
    return None if program() else f"not installed: chromium. {BY_HAND}"


def installed() -> str | None:
    """Install what is missing. Return what is still missing then, and why; None where nothing is."""
    said = problem()
    if said is None or shutil.which("apt-get") is None or os.geteuid() != 0:
        return said
    for arguments in (["update"], ["install", "--yes", "--no-install-recommends", *PACKAGES]):
        command = ["apt-get", "-qq", *arguments]
        environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            return f"{said}; {' '.join(command)} failed: {done.stderr.strip()[-300:]}"
    return problem()


if __name__ == "__main__":
    said = installed()
    if said:
        print(f"The tests of the training page in a browser are skipped: {said}", file=sys.stderr)
