"""What of a run one process does. All that shares a Spark session is for one, the rest goes by files.

The tests of Spark also wait: for jobs, and for what is killed or hangs to be noticed. So there are three sessions, two of them for the slow
tests, and more processes than cores.

xdist's own groups are marks on tests; since pytest 9.2 they do not reach it, and every test goes where there is room.
"""

from __future__ import annotations

import ast
from collections import Counter
from functools import cache
from pathlib import Path

import pytest
from xdist.scheduler import LoadScopeScheduling

SESSIONS = ("spark, integration", "spark, tables", "spark")
"""The groups of tests that share a session, of about the same length."""
OF_TABLES = ("stages", "rows", "engine", "spark")
"""The rooms whose tests are in the second one."""
SESSION = frozenset({"spark", "sc", "no_free_slot"})
"""The fixtures of conftest.py that are Spark's session, or need it."""


@cache
def asking(file: Path) -> frozenset[str]:
    """The functions of a file, tests and fixtures, that ask for Spark's session, themselves or through one another.

    The fixtures of a conftest.py beside it count as well.
    """
    places = [place for place in (file.with_name("conftest.py"), file) if place.exists()]
    body = [statement for place in places for statement in ast.parse(place.read_text()).body]
    arguments = {
        function.name: {each.arg for each in (*function.args.args, *function.args.kwonlyargs)}
        for function in body
        if isinstance(function, ast.FunctionDef)
    }
    found: set[str] = set(SESSION)
    while more := {name for name, given in arguments.items() if given & found} - found:
        found |= more
    return frozenset(found)


def group_of(nodeid: str, root: Path, *, slow: bool) -> str:
    """The group of a test, which one process runs. Slow tests without the session are scripts: each is a group of its own."""
    file, _, test = nodeid.partition("::")
    if test.partition("[")[0] in asking(root / file):
        room = Path(file).parts[1]
        return SESSIONS[0 if room == "integration" else 1 if room in OF_TABLES and not slow else 2]
    return nodeid if slow else file


def in_order(items: list[pytest.Item], config: pytest.Config) -> list[pytest.Item]:
    """Tests as the processes begin them: those of the sessions, which take longest; groups with one marked long; large groups."""
    slow = config.option.markexpr == "slow"
    groups = {item.nodeid: group_of(item.nodeid, config.rootpath, slow=slow) for item in items}
    sizes = Counter(groups[item.nodeid] for item in items if slow or not item.get_closest_marker("slow"))
    long = {groups[item.nodeid] for item in items if item.get_closest_marker("long")}

    def place(item: pytest.Item) -> tuple[bool, bool, int]:
        group = groups[item.nodeid]
        return group not in SESSIONS, group not in long, -sizes[group]

    return sorted(items, key=place)


class Lanes(LoadScopeScheduling):
    """Gives a process the next group when it is done, in the order of `in_order`."""

    def __init__(self, config: pytest.Config, log: object = None) -> None:
        super().__init__(config, log)
        config.option.loadscopereorder = False
        self._slow = config.option.markexpr == "slow"

    def _split_scope(self, nodeid: str) -> str:
        return group_of(nodeid, self.config.rootpath, slow=self._slow)
