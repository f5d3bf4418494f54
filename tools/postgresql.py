"""Installs PostgreSQL and its JDBC driver, with which the slow tests read and write a real database.

Does nothing where both are there. Elsewhere it needs Debian's or Ubuntu's apt-get and root; without them one line says what to
install, and the tests that need it are skipped. Standard library only.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import apt_packages

PACKAGES = ("postgresql", "libpostgresql-jdbc-java")


def programs() -> Path | None:
    """Where initdb and pg_ctl are: on the PATH, or where Debian has them, the newest version first."""
    found = shutil.which("initdb")
    if found:
        return Path(found).resolve().parent
    places = [path.parent for path in Path("/usr/lib/postgresql").glob("*/bin/initdb")]
    return max(places, key=lambda place: float(place.parent.name), default=None)


def driver() -> Path | None:
    """The jar of the JDBC driver."""
    return max(Path("/usr/share/java").glob("postgresql-[0-9]*.jar"), default=None)


def problem() -> str | None:
    """What is missing, in words; None where nothing is."""
    missing = [name for name, there in zip(PACKAGES, (programs(), driver()), strict=True) if there is None]
    return f"not installed: {', '.join(missing)}. {apt_packages.by_hand(PACKAGES)}" if missing else None


def installed() -> str | None:
    """Install what is missing. Return what is still missing then, and why; None where nothing is."""
    return apt_packages.installed(PACKAGES, problem)


if __name__ == "__main__":
    said = installed()
    if said:
        print(f"The tests of databases are skipped: {said}", file=sys.stderr)
