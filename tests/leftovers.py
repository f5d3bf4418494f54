"""What must be gone when a test with Spark is over. Where `nothing_left` is imported, every test is looked after."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

GONE_WITHIN = 10.0
"""Seconds that the last threads of a test have to end, on a machine that does much else."""


def ours(scratch: Path) -> set[str]:
    """Directories of ours that are there, but for that of the locks of cards, which a host keeps."""
    return {str(path) for path in scratch.rglob("elephas_like-*") if not path.name.startswith("elephas_like-gpus-")}


def threads() -> set[threading.Thread]:
    """Threads of this process that we started, or a bar of somebody's."""
    return {thread for thread in threading.enumerate() if thread.name.startswith(("elephas", "tqdm"))}


def ports() -> set[int]:
    """Ports on which this process listens."""
    return {c.laddr.port for c in psutil.Process().net_connections("inet") if c.status == psutil.CONN_LISTEN}


def eventually(holds: Callable[[], bool], within: float = GONE_WITHIN) -> bool:
    """Whether something came true in time."""
    deadline = time.monotonic() + within
    while not holds():
        if time.monotonic() > deadline:
            return False
        threading.Event().wait(0.05)
    return True


@pytest.fixture(autouse=True)
def nothing_left(request: pytest.FixtureRequest) -> Iterator[None]:
    """After every test with Spark no directory, thread or listening port of ours is left."""
    if "spark" not in request.fixturenames:
        yield
        return
    scratch = request.getfixturevalue("scratch")
    request.getfixturevalue("spark")
    listening, was_there, running = ports(), ours(scratch), threads()
    yield
    left = ours(scratch) - was_there
    assert not left
    assert eventually(lambda: threads() <= running), threads() - running
    assert ports() <= listening
