"""What of a run one process does. All that shares a Spark session is for one, the rest goes by files.

The tests of Spark also wait: for jobs, and for what is killed or hangs to be noticed. So there are two sessions, and more processes than
cores.

xdist's own groups are marks on tests; since pytest 9.2 they do not reach it, and every test goes where there is room.
"""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

import pytest
from xdist.scheduler import LoadScopeScheduling

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


class Lanes(LoadScopeScheduling):
    """Begins with the groups of most tests, those of the sessions among them, and gives a process the next when it is done."""

    def __init__(self, config: pytest.Config, log: object = None) -> None:
        super().__init__(config, log)
        self._slow = config.option.markexpr == "slow"

    def _split_scope(self, nodeid: str) -> str:
        """The group of a test. Slow tests without the session are scripts: each is a group of its own."""
        file, _, test = nodeid.partition("::")
        if test.partition("[")[0] in asking(self.config.rootpath / file):
            return "spark, integration" if file.startswith("tests/integration/") else "spark"
        return nodeid if self._slow else file
