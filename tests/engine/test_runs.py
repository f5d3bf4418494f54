"""Runs on executors: what is shipped is read where it is seen, and written once on each host where it is not."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

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


def test_the_drivers_own_files_are_used_where_they_are_seen(tmp_path: Path) -> None:
    ref = shard(tmp_path)
    assert Shipment(ref, None).open() is ref  # type: ignore[arg-type]
