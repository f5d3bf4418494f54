"""What a session says of itself. Those of Spark Connect: tests/connect."""

from __future__ import annotations

import socket
from concurrent.futures import ThreadPoolExecutor

import keras
import numpy as np
import pyspark
import pytest

import elephas_like
from elephas_like import ElephasError, SparkModel
from elephas_like.core.errors import ElephasWarning
from elephas_like.core.findings import Level
from elephas_like.core.types import EngineName
from elephas_like.ml_model import ElephasEstimator
from elephas_like.spark.session import (
    active_context,
    active_remote,
    active_session,
    check_executors,
    conf_of,
    context_for,
    context_of,
    is_local,
    is_local_master,
    is_on,
    is_remote,
    settings_of,
    share_backend,
    started_context,
    task_tries,
)


@pytest.mark.parametrize(
    ("master", "local"),
    [("local", True), ("local[2]", True), ("local[*]", True), ("local-cluster[2,1,1024]", False), ("yarn", False)],
)
def test_which_masters_run_tasks_in_the_driver(master: str, local: bool) -> None:
    assert is_local_master(master) is local


def test_a_classic_session(spark, sc) -> None:
    assert not is_remote(spark)
    assert context_of(spark) is sc
    assert is_local(sc)
    assert conf_of(spark).get("spark.master", "") == "local[2]"
    assert active_session() is spark
    assert active_remote() is None
    assert active_context(EngineName.GANG) is sc
    assert active_context(EngineName.IN_PROCESS) is None


def test_a_time_out_of_all_sockets_ends_no_job(sc, request: pytest.FixtureRequest) -> None:
    client, parameters = sc._gateway._gateway_client, sc._gateway.gateway_parameters

    def time_out() -> float | None:
        sc.startTime  # noqa: B018  a call, for which a thread opens a connection
        return client.get_thread_connection().socket.gettimeout()

    request.addfinalizer(lambda: setattr(parameters, "read_timeout", None))
    request.addfinalizer(lambda: socket.setdefaulttimeout(None))
    socket.setdefaulttimeout(7.0)
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(time_out).result() == 7
        pool.submit(check_executors, sc).result()
        assert pool.submit(time_out).result() > 86_400
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(time_out).result() > 86_400


def test_a_context_is_asked_for_its_settings_once(sc, monkeypatch: pytest.MonkeyPatch) -> None:
    told = settings_of(sc)
    assert told["spark.master"] == "local[2]"
    assert told.items() <= dict(sc.getConf().getAll()).items()  # Spark SQL adds the place of its warehouse later
    monkeypatch.setattr(type(sc), "getConf", lambda context: pytest.fail("asked again"))
    assert settings_of(sc) is told


def test_any_thread_finds_the_session(spark, sc) -> None:
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(type(spark).getActiveSession).result() is None  # as threads are
        assert pool.submit(active_session).result() is spark
        assert pool.submit(active_remote).result() is None


def test_threads_without_groups_of_their_own_are_warned_of(sc, monkeypatch: pytest.MonkeyPatch) -> None:
    check_executors(sc)
    monkeypatch.setenv("PYSPARK_PIN_THREAD", "false")
    with pytest.warns(ElephasWarning, match="may not be cancelled by time limits"):
        check_executors(sc)


def test_executors_have_the_drivers_backend_whatever_their_environment_says(
    sc, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("KERAS_BACKEND", raising=False)
    monkeypatch.setattr(sc, "environment", {})
    set_there = {"spark.executorEnv.KERAS_BACKEND": "another"}
    monkeypatch.setattr("elephas_like.spark.session.settings_of", lambda context: set_there)
    share_backend(sc)
    assert sc.environment["KERAS_BACKEND"] == keras.backend.backend()


def test_a_setting_is_on_in_any_case_and_off_if_it_is_not_set() -> None:
    class Settings:
        def get(self, name: str, default: str) -> str:
            return {"a": "TRUE", "b": "false"}.get(name, default)

    assert [is_on(Settings(), name) for name in "abc"] == [True, False, False]


def test_the_context_of_the_data_comes_before_the_active_one(sc) -> None:
    assert context_for(sc, EngineName.JOBS) is sc
    assert context_for(None, EngineName.AUTO) is started_context()
    assert context_for(None, EngineName.IN_PROCESS) is None


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


if pyspark.__version__.startswith("3."):  # only then are there sessions of Spark Connect that are too old

    def test_spark_connect_of_spark_3_is_refused_in_a_sentence() -> None:
        """Before anything is sent: nobody listens at this session's address."""
        pytest.importorskip("grpc")
        from pyspark.sql.connect.session import SparkSession

        remote = SparkSession(connection="sc://127.0.0.1:1")
        df = remote.range(4).selectExpr("array(double(id)) AS features", "id AS label")
        model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
        spark_model = SparkModel(model, 2)
        refused = {
            "fit": lambda: spark_model.fit(df),
            "predict": lambda: spark_model.predict(df),
            "evaluate": lambda: spark_model.evaluate(df),
            "check": lambda: spark_model.check(df),
            "shard": lambda: elephas_like.shard(df, 2),
            "run_on_workers": lambda: elephas_like.run_on_workers(print, 2, session=remote),
            "estimator": lambda: ElephasEstimator(model).fit(df),
            "train_ensemble": lambda: elephas_like.train_ensemble(model, df, 2),
        }
        for call in refused.values():
            with pytest.raises(
                ElephasError, match=r"over Spark Connect elephas_like needs Spark 4.0 or later, .* pyspark is 3."
            ):
                call()
        remote.client.close()


@pytest.mark.parametrize(
    ("master", "settings", "tries"),
    [
        ("local", {}, 1),
        ("local[*]", {"spark.task.maxFailures": "8"}, 1),
        ("local[2, 8]", {}, 8),
        ("local-cluster[2,1,1024]", {}, 4),
        ("yarn", {"spark.task.maxFailures": "1"}, 1),
    ],
)
def test_how_often_spark_tries_a_task(master: str, settings: dict[str, str], tries: int) -> None:
    assert task_tries(master, settings) == tries
