"""The daemon that has imported Keras before it forks Spark's Python workers: the session of these tests has it."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest


@pytest.mark.classic
def test_workers_have_tensorflow_before_their_first_line(sc) -> None:
    """They are forks of a process that has it."""

    def seen(rows):
        imported = {"tensorflow", "keras"} <= set(sys.modules)
        parent = Path(f"/proc/{os.getppid()}/cmdline").read_bytes().split(b"\0")
        return [(imported, b"elephas_like.daemon" in parent)]

    assert sc.parallelize(range(2), 2).mapPartitions(seen).collect() == [(True, True)] * 2
