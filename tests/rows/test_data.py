"""A fit's rows: a job over shards whose files are missing runs once more, if they can be written again."""

from __future__ import annotations

import pytest

from elephas_like.core.errors import ShardMissing
from elephas_like.rows.data import Data


class Job:
    """Misses its files as often as is said."""

    def __init__(self, missing: int) -> None:
        self.missing, self.runs = missing, 0

    def __call__(self) -> int:
        self.runs += 1
        if self.runs <= self.missing:
            raise ShardMissing("x is not here")
        return self.runs


def test_missing_shards_that_are_kept_are_written_again_once(sc, caplog: pytest.LogCaptureFixture) -> None:
    written = []
    refs = sc.emptyRDD()
    data = Data(1, refs, sharded=refs, invalidate=lambda: written.append("again"))
    assert data.rewriting(Job(0)) == 1
    assert written == []
    assert data.rewriting(Job(1)) == 2
    assert written == ["again"]
    assert "x is not here; the shards are written again" in caplog.text
    job = Job(2)
    with pytest.raises(ShardMissing):
        data.rewriting(job)
    assert job.runs == 2


def test_others_are_not(sc) -> None:
    refs = sc.emptyRDD()
    for data, again in ((Data(1, refs), True), (Data(1, refs, sharded=refs), False)):
        job = Job(1)
        with pytest.raises(ShardMissing):
            data.rewriting(job, again=lambda again=again: again)
        assert job.runs == 1
