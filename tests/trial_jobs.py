"""Trials on Spark's slots, with plain functions in place of models. Only the driver imports this."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from elephas_like.core.trials import TrialResult
from elephas_like.rows.spool import Block, spool
from elephas_like.tuning.trial_runs import opened


def shard(folder: Path, dataset: str = "trials-data"):
    x = np.arange(12, dtype="float32").reshape(6, 2)
    return spool([Block((x,), 6)], dataset=dataset, worker=0, base=str(folder), expect_target=False)


def jobs(sc, evaluate, shards=(), parallelism: int = 2):
    return opened(sc, evaluate, shards, lambda *report: True, parallelism=parallelism, reports=False, name="test")


def ended(slots, count: int) -> dict[int, TrialResult]:
    found = [slots.finished(60.0) for _ in range(count)]
    assert all(result is not None for result in found)
    return {result.number: result for result in found}
