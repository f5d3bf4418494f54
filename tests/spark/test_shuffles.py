"""Files of shuffles, and what they are deleted with."""

from __future__ import annotations

import threading
import time
from pathlib import Path

from pyspark import StorageLevel

from elephas_like.spark.shuffles import delete_shuffles


def test_files_are_deleted_up_to_what_is_persisted(sc, scratch: Path) -> None:
    """What a user has persisted was computed through a shuffle, too: its files stay."""
    before = set(scratch.rglob("shuffle_*"))
    kept = sc.parallelize([(key, key) for key in range(8)], 2).partitionBy(2).persist(StorageLevel.MEMORY_ONLY)
    assert kept.count() == 8
    own = set(scratch.rglob("shuffle_*")) - before
    assert own
    shuffled = kept.map(lambda pair: (pair[0] + 1, pair[1])).partitionBy(2)
    assert shuffled.map(str).count() == 8
    assert set(scratch.rglob("shuffle_*")) - before > own  # Spark may delete files of earlier tests meanwhile
    delete_shuffles(sc, shuffled.map(str))
    ended = time.monotonic() + 30
    while (left := set(scratch.rglob("shuffle_*")) - before) != own and time.monotonic() < ended:
        threading.Event().wait(0.05)
    assert left == own
    assert shuffled.map(str).count() == 8  # computed again
    kept.unpersist()
