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


@pytest.mark.classic
def test_workers_read_archives_once_and_pyspark_from_its_directory(sc) -> None:
    """Spark puts a jar and two archives on their path, one of which PySpark's environment has as a directory."""

    def seen(rows):
        from zipimport import zipimporter

        import pyspark

        importers = {type(each).__name__ for each in sys.path_importer_cache.values() if isinstance(each, zipimporter)}
        return [(importers, pyspark.__file__, any(each.endswith("pyspark.zip") for each in sys.path))]

    import pyspark

    if not Path(pyspark.__file__).with_name("python").exists():
        pytest.skip("Spark is a distribution: there is no PySpark that pip has installed")
    found = sc.parallelize(range(2), 2).mapPartitions(seen).collect()
    assert found == [({"KnownArchive"}, pyspark.__file__, False)] * 2


WORKER = """
import gc, importlib, sys
from elephas_like.core.archives import KnownArchive
import elephas_like.trainer.backends.chosen as chosen
assert gc.get_freeze_count() == 0, "a driver's objects are its own"
assert KnownArchive not in sys.path_hooks, "and so are its importers"
import pyspark.worker
importlib.reload(chosen)
assert KnownArchive in sys.path_hooks
print(gc.get_freeze_count())
"""


def test_workers_do_not_look_for_garbage_among_what_they_have_imported() -> None:
    """Spark has its workers collect garbage after every task; without the daemon, too, that takes no time. Nor do they read archives again."""
    done = run(["-c", WORKER])
    assert done.returncode == 0, done.stderr[-2000:]
    assert int(done.stdout.split()[-1]) > 100_000
