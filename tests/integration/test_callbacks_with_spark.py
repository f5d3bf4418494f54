"""Callbacks of the driver that run Spark jobs, while the workers' long tasks hold every slot."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
from small import digits

from elephas_like import CapacityError, SparkModel
from elephas_like import shard as shard_rows
from elephas_like.engine.server_rounds import ServerRun


class Reports(keras.callbacks.Callback):
    """Uses Spark as users do: counts rows, writes a table, predicts."""

    def __init__(self, use: Callable[[SparkModel], object]) -> None:
        super().__init__()
        self.fitted: SparkModel | None = None
        self.use, self.got = use, []

    def on_epoch_end(self, epoch: int, logs: dict[str, float] | None = None) -> None:
        if epoch == 0:
            assert self.fitted is not None
            self.got.append(self.use(self.fitted))


def model() -> keras.Model:
    keras.utils.set_random_seed(4)
    made = keras.Sequential(
        [
            keras.Input((64,)),
            keras.layers.Dense(8, "relu"),
            keras.layers.Dropout(0.2),
            keras.layers.Dense(10, "softmax"),
        ]
    )
    made.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
    return made


def fitted(sc: Any, use: Callable[[SparkModel], object] | None, **options: Any) -> tuple[SparkModel, Any, list[object]]:
    """A fit of three epochs on two workers, on the two slots that there are; with what the callback got."""
    x, y = digits()
    shard, held = options.pop("shard", False), options.pop("validation_rdd", False)
    spark_model = SparkModel(model(), num_workers=2, batch_size=32, seed=3, engine="server", **options)
    rows: Any = sc.parallelize(list(zip(x[:200], y[:200], strict=True)), 2)
    if shard:
        rows = shard_rows(rows, num_workers=2)
    validation: Any = {"validation_split": 0.2}
    if held:
        validation = {"validation_data": sc.parallelize(list(zip(x[200:240], y[200:240], strict=True)), 2)}
    reports = Reports(use or (lambda _: None))
    reports.fitted = spark_model
    history = spark_model.fit(rows, epochs=3, verbose=0, callbacks=[reports], **validation)
    if shard:
        rows.release()
    return spark_model, history, reports.got


def same(one: SparkModel, other: SparkModel) -> bool:
    """Whether weights and optimizers are equal to the last bit."""
    pairs = zip(one.master_network.get_weights(), other.master_network.get_weights(), strict=True)
    mine, yours = (each.master_network.optimizer.variables for each in (one, other))
    slots = zip(mine, yours, strict=True)
    return all(np.array_equal(a, b) for a, b in pairs) and all(np.array_equal(a.numpy(), b.numpy()) for a, b in slots)


KINDS = [
    pytest.param({"optimizer_state": "per_worker"}, id="own-slots"),
    pytest.param({"strategy": "easgd"}, id="elastic", marks=pytest.mark.slow),
    pytest.param({"shard": True, "validation_rdd": True}, id="sharded", marks=pytest.mark.slow),
    pytest.param({"validation_rdd": True, "parameter_server_mode": "socket"}, id="socket", marks=pytest.mark.slow),
]


@pytest.mark.fault(
    "A callback runs a Spark job while workers hold every slot",
    "after about 2 seconds the workers end their tasks, and carry on with new ones when the callback returns",
    "a few seconds for each such callback; the weights are equal to the last bit",
)
@pytest.mark.parametrize("options", KINDS)
def test_workers_step_aside_and_come_back_with_the_same_bits(
    sc, spark, tmp_path: Path, options: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    x, _ = digits()

    def use(spark_model: SparkModel) -> object:
        spark.range(10).write.parquet(str(tmp_path / "table"))
        predicted = spark_model.predict(sc.parallelize(list(x[:6]), 2))
        return sc.parallelize(range(7), 2).sum(), predicted.shape

    with caplog.at_level(logging.WARNING):
        one, history, got = fitted(sc, use, **options)
    assert got == [(21, (6, 10))]
    assert "a Spark job waits for a slot while a callback runs" in caplog.text
    other, plain, _ = fitted(sc, None, **options)
    assert history.history == plain.history
    assert same(one, other)


@pytest.mark.slow
def test_asynchronous_workers_step_aside_and_every_update_counts_once(sc) -> None:
    _, history, got = fitted(sc, lambda _: sc.parallelize(range(7), 2).sum(), mode="asynchronous")
    assert got == [21]
    assert sum(record.samples for record in history.rounds) == 3 * 160
    assert all(not worker.dropped for record in history.rounds for worker in record.workers)


def test_a_callback_without_spark_costs_no_worker_its_slot(sc, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        _, _, got = fitted(sc, lambda _: sc.statusTracker().getActiveJobsIds())
    assert len(got[0]) == 1  # the fit's own job still runs
    assert "waits for a slot" not in caplog.text


@pytest.mark.fault(
    "A callback runs a Spark job, and the workers have `worker_callbacks`, so that they cannot be suspended",
    "`CapacityError`, which says what to do",
    "the fit",
)
def test_workers_with_callbacks_of_their_own_are_an_error_and_no_hang(sc, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("elephas_like.engine.server_rounds.PATIENCE_SECONDS", 1.0)
    x, y = digits()
    spark_model = SparkModel(model(), num_workers=2, batch_size=32, engine="server")
    count = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: sc.parallelize(range(7), 2).count())
    with pytest.raises(CapacityError, match=r"worker_callbacks cannot be suspended .*num_workers="):
        spark_model.fit(
            sc.parallelize(list(zip(x[:60], y[:60], strict=True)), 2),
            epochs=2,
            verbose=0,
            callbacks=[count],
            worker_callbacks=[keras.callbacks.Callback()],
        )


def test_a_job_of_another_thread_ends_no_fit_whose_workers_have_callbacks(sc, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("elephas_like.engine.server_rounds.PATIENCE_SECONDS", 1.0)
    make_room, patient = ServerRun._make_room, threading.Event()

    def seen(run: ServerRun, waited: dict[int, float]) -> None:
        make_room(run, waited)
        if max(waited.values()) > 1:
            patient.set()

    monkeypatch.setattr(ServerRun, "_make_room", seen)
    found: list[int] = []
    count = threading.Thread(target=lambda: found.append(sc.parallelize(range(7), 2).count()))

    def wait(epoch: int, logs: dict[str, float]) -> None:
        if epoch == 0:
            count.start()
            assert patient.wait(60)

    x, y = digits()
    history = SparkModel(model(), num_workers=2, batch_size=32, engine="server").fit(
        sc.parallelize(list(zip(x[:60], y[:60], strict=True)), 2),
        epochs=2,
        verbose=0,
        callbacks=[keras.callbacks.LambdaCallback(on_epoch_end=wait)],
        worker_callbacks=[keras.callbacks.Callback()],
    )
    assert history.epoch == [0, 1]
    count.join(60)
    assert found == [7]
