"""Installs Chromium, in which a slow test looks at the training page.

Does nothing where it is there. Elsewhere it needs Debian's apt-get and root; without them one line says what to install, and the
tests that need it are skipped. Standard library only.
"""

from __future__ import annotations

import shutil
import sys

import apt_packages

PACKAGES = ("chromium", "fonts-dejavu-core")
NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


def program() -> str | None:
    """Where the browser is."""
    return next((found for found in map(shutil.which, NAMES) if found), None)


def problem() -> str | None:
    """What is missing, in words; None where nothing is."""
    return None if program() else f"not installed: chromium. {apt_packages.by_hand(PACKAGES)}"


def installed() -> str | None:
    """Install what is missing. Return what is still missing then, and why; None where nothing is."""
    return apt_packages.installed(PACKAGES, problem)


if __name__ == "__main__":
    said = installed()
    if said:
        print(f"The tests of the training page in a browser are skipped: {said}", file=sys.stderr)
