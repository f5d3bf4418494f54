"""What of a run one process does: files of fast tests, single slow ones. Each process starts a Spark session if it needs one.

Much of the time of a test with Spark is waiting, so that three processes keep two cores busy. (xdist's own groups are marks
on tests; since pytest 9.2 they do not reach it.)
"""

from __future__ import annotations

import pytest
from xdist.scheduler import LoadScopeScheduling


class Lanes(LoadScopeScheduling):
    """Begins with the groups of most tests, and gives a process the next when it is done."""

    def __init__(self, config: pytest.Config, log: object = None) -> None:
        super().__init__(config, log)
        self._slow = config.option.markexpr == "slow"

    def _split_scope(self, nodeid: str) -> str:
        """The group of a test: its file, or itself if it is slow."""
        return nodeid if self._slow else nodeid.partition("::")[0]
