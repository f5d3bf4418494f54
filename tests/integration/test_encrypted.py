"""Fits on Spark whose server speaks TLS, and what is refused where Spark's own settings encrypt."""

from __future__ import annotations

import pickle
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from weakref import WeakKeyDictionary

import keras
import numpy as np
import pytest
from leftovers import ours
from pyspark import RDD, SparkContext
from scripts import Script
from small import line, points

import elephas_like
from elephas_like import ElephasError, PlainTextError, SparkModel, VotingModel, search, train_ensemble
from elephas_like.ensembles.soups import recalibrate_batch_norm
from elephas_like.exchange.client import ClientSettings
from elephas_like.ml_ensemble import EnsembleEstimator
from elephas_like.ml_model import ElephasEstimator
from elephas_like.spark import session

NETWORK, DISKS = "spark.network.crypto.enabled", "spark.io.encryption.enabled"


@pytest.fixture
def rdd(sc) -> RDD:
    return sc.parallelize(points(20), 2)


@pytest.fixture
def settings(monkeypatch: pytest.MonkeyPatch) -> list[ClientSettings]:
    """What the workers of each fit, or the trials of each search, were told."""
    found: list[ClientSettings] = []

    def watched(*given: object, **named: object) -> ClientSettings:
        found.append(ClientSettings(*given, **named))  # type: ignore[arg-type]
        return found[-1]

    for place in ("model.launch", "tuning.trial_runs"):
        monkeypatch.setattr(f"elephas_like.{place}.ClientSettings", watched)
    return found


def encrypt(monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    """Have the session's settings say that Spark encrypts."""
    given = SparkContext.getConf
    monkeypatch.setattr(SparkContext, "getConf", lambda context: given(context).setAll([(n, "true") for n in names]))
    monkeypatch.setattr(session, "_settings", WeakKeyDictionary())  # a context is asked once


def weights(rdd: RDD, **options: object) -> list[np.ndarray]:
    model = line()
    SparkModel(model, 2, seed=1, engine="server", **options).fit(rdd, epochs=2, verbose=0)  # type: ignore[arg-type]
    return model.get_weights()


@pytest.mark.parametrize("kind", ["http", "socket"])
def test_a_fit_over_tls_ends_with_the_same_bits(rdd, settings, kind: str) -> None:
    plain = weights(rdd, parameter_server_mode=kind)
    encrypted = weights(rdd, parameter_server_mode=kind, tls=True)
    assert settings[0].fingerprint is None
    assert re.fullmatch("[0-9a-f]{64}", str(settings[1].fingerprint))
    assert b"PRIVATE" not in pickle.dumps(settings[1])
    for one, other in zip(plain, encrypted, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.slow
def test_asynchronous_workers_train_over_tls(rdd, settings) -> None:
    assert all(np.isfinite(one).all() for one in weights(rdd, mode="asynchronous", tls=True))
    assert settings[0].fingerprint


def test_a_fit_whose_workers_meet_another_certificate_says_so(rdd, monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[str] = []

    def elsewhere(**named: object) -> ClientSettings:
        made = ClientSettings(**named)  # type: ignore[arg-type]
        shown.append(str(made.fingerprint))
        return replace(made, fingerprint="0" * 64)

    monkeypatch.setattr("elephas_like.model.launch.ClientSettings", elsewhere)
    with pytest.raises(
        ElephasError, match=f"fingerprint {'0' * 64}, got [0-9a-f]{{64}}; nothing was sent to it"
    ) as caught:
        weights(rdd, tls=True)
    assert shown[0] in str(caught.value)


def test_where_spark_encrypts_its_network_the_server_speaks_tls(rdd, settings, monkeypatch: pytest.MonkeyPatch) -> None:
    encrypt(monkeypatch, NETWORK)
    weights(rdd)
    weights(rdd, tls=False, allow_plain_text=True)
    assert [one.fingerprint is not None for one in settings] == [True, False]


@pytest.mark.parametrize("engine", ["server", pytest.param("auto", marks=pytest.mark.slow)])
def test_plain_text_is_refused_where_spark_encrypts_its_network(
    rdd, settings, engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    encrypt(monkeypatch, NETWORK)
    model = line()
    before = model.get_weights()
    with pytest.raises(PlainTextError, match=rf"{NETWORK} is on, and with tls=False .*allow_plain_text=True"):
        SparkModel(model, 2, engine=engine, tls=False).fit(rdd, verbose=0)
    assert settings == []
    assert all((a == b).all() for a, b in zip(before, model.get_weights(), strict=True))
    SparkModel(model, 2, engine="jobs", tls=False).fit(rdd, verbose=0)
    assert settings == []


def test_a_search_s_reports_are_encrypted_where_spark_s_network_is(
    sc, settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    encrypt(monkeypatch, NETWORK)
    x, y = np.zeros((8, 2), np.float32), np.zeros(8, np.float32)

    def run(**options: object) -> None:
        search(lambda params: line(), {"a": [1]}, (x, y), max_evals=1, objective="loss", epochs=2, verbose=0, **options)

    run()
    assert [one.fingerprint is not None for one in settings] == [True]
    with pytest.raises(PlainTextError, match="tls=False"):
        run(tls=False)
    with pytest.raises(PlainTextError, match="tls=False"):
        run(tls=False, trial_workers=2)
    run(tls=False, pruning=None)  # nobody reports
    run(tls=False, allow_plain_text=True)
    assert [one.fingerprint is not None for one in settings] == [True, False]


def normalized() -> keras.Model:
    model = keras.Sequential([keras.Input((2,)), keras.layers.BatchNormalization(), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    return model


def frame(rdd: RDD) -> object:
    from pyspark.sql import SparkSession

    return SparkSession.active().createDataFrame(rdd, "features array<double>, label double")


Call = Callable[[RDD, bool], object]
WRITES: dict[str, Call] = {
    "fit, server": lambda rdd, ok: SparkModel(line(), 2, engine="server", allow_plain_text=ok).fit(rdd, verbose=0),
    "fit, jobs": lambda rdd, ok: SparkModel(line(), 2, engine="jobs", allow_plain_text=ok).fit(rdd, verbose=0),
    "fit, arrays": lambda rdd, ok: SparkModel(line(), 2, allow_plain_text=ok).fit(
        np.zeros((4, 2)), np.zeros(4), verbose=0
    ),
    "evaluate": lambda rdd, ok: SparkModel(line(), 2, allow_plain_text=ok).evaluate(rdd),
    "predict": lambda rdd, ok: SparkModel(line(), 2, allow_plain_text=ok).predict(rdd.keys()),
    "predict, a DataFrame": lambda rdd, ok: SparkModel(line(), 2, allow_plain_text=ok).predict(frame(rdd)),
    "statistics": lambda rdd, ok: recalibrate_batch_norm(SparkModel(normalized(), allow_plain_text=ok), rdd),
    "ensemble": lambda rdd, ok: train_ensemble(line, rdd, 2, verbose=0, allow_plain_text=ok),
    "ensemble, arrays": lambda rdd, ok: train_ensemble(
        line, (np.zeros((4, 2)), np.zeros(4)), 2, verbose=0, allow_plain_text=ok
    ),
    "ensemble by partition": lambda rdd, ok: train_ensemble(
        line, rdd, 2, bagging="partition", verbose=0, allow_plain_text=ok
    ),
    "wide ensemble": lambda rdd, ok: train_ensemble(line, rdd, 1, workers_per_member=2, verbose=0, allow_plain_text=ok),
    "votes": lambda rdd, ok: VotingModel([line()], "mean", allow_plain_text=ok).predict(rdd.keys()),
    "evaluated votes": lambda rdd, ok: VotingModel([line()], "mean", allow_plain_text=ok).evaluate(rdd),
    "search": lambda rdd, ok: search(
        lambda params: line(), {"a": [1]}, rdd, max_evals=1, objective="loss", epochs=1, verbose=0, allow_plain_text=ok
    ),
    "wide search": lambda rdd, ok: search(
        lambda params: line(),
        {"a": [1]},
        rdd,
        max_evals=1,
        objective="loss",
        epochs=1,
        verbose=0,
        trial_workers=2,
        allow_plain_text=ok,
    ),
    "estimator": lambda rdd, ok: ElephasEstimator(
        line(), num_workers=2, epochs=1, validation_split=0.0, allow_plain_text=ok
    ).fit(frame(rdd)),
    "ensemble estimator": lambda rdd, ok: EnsembleEstimator(
        line(), num_members=1, epochs=1, validation_split=0.0, allow_plain_text=ok
    ).fit(frame(rdd)),
}


@pytest.mark.parametrize("call", WRITES.values(), ids=WRITES)
def test_no_row_is_read_or_written_where_spark_encrypts_its_files(
    rdd, scratch, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = rdd.context.accumulator(0)

    def counted(row: object) -> object:
        seen.add(1)
        return row

    encrypt(monkeypatch, DISKS)
    there = ours(scratch)
    with pytest.raises(PlainTextError, match=f"{DISKS} is on, and rows would be written .*allow_plain_text=True"):
        call(rdd.map(counted), False)
    assert (seen.value, ours(scratch)) == (0, there)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "call"), WRITES.items(), ids=WRITES)
def test_rows_are_written_where_that_is_allowed(rdd, name: str, call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = rdd.context.accumulator(0)

    def counted(row: object) -> object:
        seen.add(1)
        return row

    encrypt(monkeypatch, DISKS)
    call(rdd.map(counted), True)
    assert seen.value >= 1 or "arrays" in name  # which come from the driver


def test_rows_that_are_written_once_are_refused_too(rdd, monkeypatch: pytest.MonkeyPatch) -> None:
    encrypt(monkeypatch, DISKS)
    with elephas_like.shard(rdd, 2) as rows:
        with pytest.raises(PlainTextError, match=DISKS):
            SparkModel(line(), 2).fit(rows, verbose=0)
        SparkModel(line(), 2, allow_plain_text=True).fit(rows, verbose=0)


def test_without_executors_nothing_is_refused(rdd, monkeypatch: pytest.MonkeyPatch) -> None:
    encrypt(monkeypatch, DISKS, NETWORK)
    SparkModel(line(), 2, engine="in_process", tls=False).fit(rdd, verbose=0)
    assert SparkModel(line()).predict(np.zeros((3, 2)), verbose=0).shape == (3, 1)


@pytest.mark.slow
def test_where_spark_really_encrypts_a_fit_does(tmp_path: Path) -> None:
    with Script("run_encrypted.py", "local[2]", scratch=tmp_path) as script:
        answer = script.answer()
    assert answer["rows"].startswith(f"PlainTextError: {DISKS} is on")
    assert answer["network"].startswith(f"PlainTextError: {NETWORK} is on")
    assert answer["fingerprints"] == 1
    assert answer["rounds"] >= 2
    assert np.isfinite(answer["loss"])
