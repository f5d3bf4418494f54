"""Fixtures of these tests: where shards are written, and a table of many kinds of columns."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.ml.linalg import Vectors
from pyspark.mllib.linalg import Vectors as OldVectors
from pyspark.sql import Row
from spooling import Spool

from elephas_like.core.types import ShardRef
from elephas_like.rows.spool import spool


@pytest.fixture
def spooled(tmp_path: Path) -> Iterator[Spool]:
    """spool into tmp_path; whatever happens, no draft may be left there."""

    def into_tmp_path(rows: Iterable[object], **options: Any) -> ShardRef:
        return spool(rows, **{"dataset": "d", "worker": 0, "base": str(tmp_path), **options})

    yield into_tmp_path
    assert not list(tmp_path.rglob(".worker*"))


@pytest.fixture(scope="session")
def table(spark):
    """Four rows of many kinds of columns in two partitions."""
    rows = [
        Row(
            id=i,
            small=float(i) / 2,
            flag=i % 2 == 0,
            text=f"t{i}",
            dense=Vectors.dense([i, i + 1.0]),
            sparse=Vectors.sparse(2, [1], [float(i)]),
            old=OldVectors.dense([i, -i]),
            grid=[[i, 1], [2, 3]],
            raw=bytes([i, i + 1]),
            both=Row(a=float(i), b=[1.0, float(i)]),
            label=float(i % 2),
        )
        for i in range(4)
    ]
    return spark.createDataFrame(rows).repartition(1).sortWithinPartitions("id").cache()
