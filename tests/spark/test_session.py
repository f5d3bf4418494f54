"""The SparkContext that a fit uses, and that it fits this process' pyspark."""

from __future__ import annotations

import numpy as np
import pyspark
import pytest

import elephas_like
from elephas_like import ElephasError, SparkModel
from elephas_like.core.findings import Level
from elephas_like.core.types import EngineName
from elephas_like.spark.session import context_of, is_local, started_context


def test_the_context_of_the_data_comes_before_the_active_one(sc) -> None:
    assert context_of(sc, EngineName.JOBS) is sc
    assert context_of(None, EngineName.AUTO) is started_context()
    assert context_of(None, EngineName.IN_PROCESS) is None
    assert is_local(sc)


def test_spark_connect_is_refused(sc, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_REMOTE", "sc://somewhere")
    with pytest.raises(TypeError, match="Spark Connect is not supported yet"):
        context_of(None, EngineName.AUTO)
    assert context_of(sc, EngineName.AUTO) is sc


def test_another_pyspark_than_spark_is_said_by_whatever_trains(sc, monkeypatch: pytest.MonkeyPatch) -> None:
    import keras

    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    rows = sc.parallelize([(np.ones(2), 1.0)] * 4, 2)
    monkeypatch.setattr(pyspark, "__version__", "99.1.2")
    said = f"Spark is {sc.version} and the driver's pyspark 99.1.2 "
    for start in (
        lambda: SparkModel(model, num_workers=2).fit(rows, epochs=1),
        lambda: SparkModel(model, num_workers=2, engine="jobs").fit(np.ones((4, 2)), np.ones(4), epochs=1),
        lambda: elephas_like.shard(rows, 2),
        lambda: elephas_like.train_ensemble(lambda: model, rows, 2, epochs=1),
    ):
        with pytest.raises(ElephasError, match=said):
            start()
    findings = SparkModel(model, num_workers=2).check(rows, verbose=False).findings
    (spark,) = [one for one in findings if one.name == "spark"]
    assert spark.level is Level.PROBLEM
    assert spark.text.startswith(said)
