"""Print the lowest version of every dependency as pip's pins, read from the `>=` of pyproject.toml; `make test-lowest` installs them.

Of this project's own extras it follows those that the extra named on the command line includes. Standard library only.
"""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

PROJECT = Path(__file__).parent.parent / "pyproject.toml"
REQUIREMENT = re.compile(r"^(?P<name>[\w.-]+)(?:\[(?P<extras>[\w,-]+)\])?(?P<limits>[^;]*)$")


def pins(project: dict[str, object], extra: str) -> list[str]:
    """Return `name==floor` for each dependency with a floor: the project's, and those of an extra and what it includes.

    Raises:
        ValueError: an entry has no floor anywhere, or cannot be read.
    """
    floors: dict[str, str] = {}
    limited: set[str] = set()
    for entry in _entries(project, extra):
        found = REQUIREMENT.match(entry.replace(" ", ""))
        if found is None:
            raise ValueError(f"{entry!r} is no plain requirement")
        name = found["name"].lower()
        limited.add(name)
        floor = re.search(r">=([\w.]+)", found["limits"])
        if floor is not None:
            if floors.get(name, floor[1]) != floor[1]:
                raise ValueError(f"{name} has two floors, {floors[name]} and {floor[1]}")
            floors[name] = floor[1]
    without = sorted(limited - set(floors))
    if without:
        raise ValueError(f"no lowest version is stated for {', '.join(without)}")
    return [f"{name}=={floor}" for name, floor in sorted(floors.items())]


def _entries(project: dict[str, object], extra: str) -> list[str]:
    """The requirements of the project and of an extra, with the extras of the project that it names."""
    name, optional = str(project["name"]), project["optional-dependencies"]
    entries, found, seen = [*project["dependencies"], f"{name}[{extra}]"], [], set()  # type: ignore[misc]
    while entries:
        entry = entries.pop(0)
        if not entry.startswith(f"{name}["):
            found.append(entry)
            continue
        for one in entry[len(name) + 1 : entry.index("]")].split(","):
            if one not in seen:
                seen.add(one)
                entries += optional[one]  # type: ignore[index]
    return found


HINTS = ("protobuf<6", "grpcio-status<1.70")
"""What follows from TensorFlow 2.18. pip finds it out after ten minutes and a hundred versions of packages that have no part in it."""

if __name__ == "__main__":
    found = pins(tomllib.loads(PROJECT.read_text())["project"], sys.argv[1] if len(sys.argv) > 1 else "dev")
    print("\n".join([*found, *HINTS]))
