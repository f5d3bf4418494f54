"""The daemon that has imported Keras before it forks Spark's Python workers: the session of these tests has it."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from forked import run


@pytest.mark.classic
def test_workers_have_tensorflow_before_their_first_line(sc) -> None:
    """They are forks of a process that has it."""

    def seen(rows):
        imported = {"tensorflow", "keras"} <= set(sys.modules)
        parent = Path(f"/proc/{os.getppid()}/cmdline").read_bytes().split(b"\0")
        return [(imported, b"elephas_like.daemon" in parent)]

    assert sc.parallelize(range(2), 2).mapPartitions(seen).collect() == [(True, True)] * 2


WORKER = """
import gc, importlib
import elephas_like.trainer.backends.chosen as chosen
assert gc.get_freeze_count() == 0, "a driver's objects are its own"
import pyspark.worker
importlib.reload(chosen)
print(gc.get_freeze_count())
"""


def test_workers_do_not_look_for_garbage_among_what_they_have_imported() -> None:
    """Spark has its workers collect garbage after every task; without the daemon, too, that takes no time."""
    done = run(["-c", WORKER])
    assert done.returncode == 0, done.stderr[-2000:]
    assert int(done.stdout.split()[-1]) > 100_000
