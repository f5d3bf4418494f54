"""Runs on executors: what is shipped is read where it is seen, and written once on each host where it is not."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from trial_jobs import ended, jobs, shard

from elephas_like.core.trials import TrialOrder, TrialResult, TrialStatus
from elephas_like.engine.runs import Shipment
from elephas_like.rows.shard_files import read_ref, remove


def test_an_executor_that_does_not_see_the_drivers_files_writes_them_once(sc, tmp_path: Path) -> None:
    ref = shard(tmp_path, "elsewhere")

    def rows_of(order, shards, report):
        column = shards[0].columns[0]
        return TrialResult(order.number, TrialStatus.OK, loss=float(os.stat(column.path).st_ino), host=column.path)

    with jobs(sc, rows_of, [ref]) as slots:
        remove(ref)
        for number in range(4):
            slots.start(TrialOrder(number, None))
        results = list(ended(slots, 4).values())
    assert all(result.status is TrialStatus.OK for result in results), results
    assert len({(result.host, result.loss) for result in results}) == 1  # one file for all processes
    home = Path(next(iter(results)).host).parent
    copied = read_ref(str(home))
    assert (copied.rows, copied.checksum) == (ref.rows, ref.checksum)
    shutil.rmtree(home.parent)  # a search on a cluster sweeps its executors


@pytest.mark.fault(
    "Rows that were shipped to an executor for a search or an ensemble vanish there",
    "the next run on that executor writes them again",
    "the time to write them",
)
def test_copies_that_vanish_are_written_again(sc, tmp_path: Path) -> None:
    """As where something tidies the executors' disks: each process has let go of the rows that it has written down."""
    ref = shard(tmp_path, "vanishing")

    def rows_of(order, shards, report):
        copied = shards[0].directory
        shutil.rmtree(os.path.dirname(copied))
        return TrialResult(order.number, TrialStatus.OK, loss=float(shards[0].checksum), host=copied)

    with jobs(sc, rows_of, [ref]) as slots:
        remove(ref)
        for number in range(3):  # in turn
            slots.start(TrialOrder(number, None))
            (result,) = ended(slots, 1).values()
            assert (result.status, result.loss) == (TrialStatus.OK, ref.checksum), result


def test_the_drivers_own_files_are_used_where_they_are_seen(tmp_path: Path) -> None:
    ref = shard(tmp_path)
    assert Shipment(ref, None).open() is ref  # type: ignore[arg-type]
