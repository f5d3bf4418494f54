"""Spark runs the shuffles of some plans when it is only asked for partitions, and then again for whoever asks next."""

from __future__ import annotations

import pytest
from pyspark.sql import functions

from elephas_like.spark.plans import runs_when_planned

pytestmark = pytest.mark.classic


def test_plans_with_shuffles_cost_and_others_and_what_is_cached_do_not(spark, tmp_path) -> None:
    ids = spark.range(0, 10, 1, 2)
    path = str(tmp_path / "ids")
    ids.write.parquet(path)
    for plain in (ids, spark.read.parquet(path).filter("id > 1").select(functions.rand(1)), ids.union(ids)):
        assert not runs_when_planned(plain)
    assert runs_when_planned(ids.limit(5))
    shuffled = ids.groupBy((ids.id % 3).alias("key")).count()
    assert runs_when_planned(shuffled)
    cached = shuffled.cache()
    assert not runs_when_planned(cached)
    cached.unpersist()
    assert runs_when_planned(ids.groupBy((ids.id % 3).alias("key")).count())
