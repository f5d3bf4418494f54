"""Numbers of rounds: by hand, of whole fits, and as the real OpenTelemetry SDK reads them."""

from __future__ import annotations

import logging
from dataclasses import replace

import keras
import numpy as np
import pytest

from elephas_like import Metrics, SparkModel
from elephas_like.core.types import EngineName, OptimizerState, RoundRecord, WorkerRecord
from elephas_like.model.fit import exchanged_bytes
from elephas_like.model.options import Options
from elephas_like.trainer.state import Variables

X = np.arange(80, dtype=np.float32).reshape(40, 2) / 80
Y = X.sum(axis=1, keepdims=True)


def line(optimizer: str = "sgd") -> keras.Model:
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile(optimizer, "mse")
    return model


def record(*workers: WorkerRecord, drift: float | None = None) -> RoundRecord:
    return RoundRecord(0, 0, workers, drift=drift)


def told(metrics: Metrics, *records: RoundRecord) -> None:
    metrics.on_train_begin()
    metrics.on_epoch_begin(0)
    for each in records:
        metrics.on_round_end(each)
    metrics.on_epoch_end(0, {"loss": 0.5, "confusion": [[1, 2]]})


def test_an_epoch_is_the_sum_of_its_rounds() -> None:
    metrics = Metrics(meter=False)
    metrics.set_params({"update_bytes": 10, "state_bytes": 30})
    told(
        metrics,
        record(WorkerRecord(0, 8, 4, 1.0), WorkerRecord(1, 8, 4, 3.0), drift=0.1),
        record(WorkerRecord(0, 8, 4, 2.0), WorkerRecord(1, 0, 0, 0.0)),  # worker 1 has no rows left
        record(WorkerRecord(1, 4, 2, 1.0, staleness=3, dropped=1)),
    )
    (epoch,) = metrics.epochs
    assert (epoch.rounds, epoch.samples, epoch.dropped) == (3, 28, 1)
    assert (epoch.training, epoch.wait) == (7.0, 4.0)  # 2 s in the first round, 2 in the second
    assert (epoch.bytes_up, epoch.bytes_down) == (40, 120)  # four updates
    assert epoch.drift == 0.1
    assert epoch.staleness == 1.0
    assert epoch.wait_share == 4 / 11
    assert epoch.rounds_per_second == 3 / epoch.seconds


def test_a_fit_logs_a_line_for_each_epoch(caplog: pytest.LogCaptureFixture) -> None:
    metrics = Metrics(meter=False)
    with caplog.at_level(logging.INFO, "elephas_like.model.metrics"):
        SparkModel(line(), 2, engine="in_process", frequency=5).fit(
            X, Y, epochs=2, batch_size=2, callbacks=[metrics], verbose=0
        )
    lines = [entry.getMessage() for entry in caplog.records if entry.name == "elephas_like.model.metrics"]
    assert len(lines) == 2
    assert lines[1].startswith("epoch 2: 2 rounds, ")  # 20 rows a worker, batches of 2, rounds of 5 steps
    assert "0 bytes up" in lines[1]
    assert [(epoch.rounds, epoch.samples) for epoch in metrics.epochs] == [(2, 40), (2, 40)]


@pytest.mark.spark
def test_bytes_of_a_fit_on_spark(sc) -> None:
    metrics = Metrics(meter=False)
    model = line("sgd")
    SparkModel(model, 2, engine="server", frequency=5).fit(X, Y, batch_size=2, callbacks=[metrics], verbose=0)
    # 3 weights, learning rate: 4 bytes each; the optimizer's count of steps: 8. Two rounds of two workers.
    assert (metrics.epochs[0].bytes_up, metrics.epochs[0].bytes_down) == (4 * 24, 4 * 24)


def test_bytes_by_optimizer_state_and_codec() -> None:
    model = line("adam")
    model.optimizer.build(model.trainable_variables)
    layout = Variables(model).layout
    # 3 weights and 6 slots and the learning rate as float32, one count of steps as int64
    for engine in (EngineName.SERVER, EngineName.GANG, EngineName.JOBS):
        assert exchanged_bytes(layout, Options(), engine) == {"update_bytes": 48, "state_bytes": 48}
    kept = replace(Options(), optimizer_state=OptimizerState.PER_WORKER)
    assert exchanged_bytes(layout, kept, EngineName.SERVER) == {"update_bytes": 24, "state_bytes": 24}
    third = replace(Options(), optimizer_state_every=3)
    assert exchanged_bytes(layout, third, EngineName.SERVER) == {"update_bytes": 32, "state_bytes": 32}
    # A round of the jobs engine broadcasts all of the state but frozen layers.
    anew = replace(Options(), optimizer_state=OptimizerState.RESET)
    assert exchanged_bytes(layout, anew, EngineName.SERVER) == {"update_bytes": 24, "state_bytes": 24}
    assert exchanged_bytes(layout, anew, EngineName.JOBS) == {"update_bytes": 24, "state_bytes": 48}


def test_opentelemetry_reads_what_the_rounds_were() -> None:
    pytest.importorskip("opentelemetry.sdk")
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import InMemoryMetricReader

    reader = InMemoryMetricReader()
    metrics = Metrics(meter=MeterProvider([reader]).get_meter("test"), attributes={"job": "nightly"})
    metrics.set_params({"update_bytes": 10, "state_bytes": 30})
    told(metrics, record(WorkerRecord(0, 8, 4, 1.0), WorkerRecord(1, 8, 4, 3.0), drift=0.25))
    data = reader.get_metrics_data()
    assert data is not None
    found = {each.name: list(each.data.data_points) for each in data.resource_metrics[0].scope_metrics[0].metrics}
    values = {name: points[0].value for name, points in found.items() if hasattr(points[0], "value")}
    assert values == {
        "elephas_like.rounds": 1,
        "elephas_like.samples": 16,
        "elephas_like.bytes": 20,
        "elephas_like.updates.dropped": 0,
        "elephas_like.drift": 0.25,
        "elephas_like.metric": 0.5,
    }
    down = found["elephas_like.bytes"][1]
    assert (down.value, dict(down.attributes)) == (60, {"job": "nightly", "direction": "down"})
    assert (found["elephas_like.round.training"][0].sum, found["elephas_like.round.training"][0].count) == (3.0, 1)
    assert (found["elephas_like.round.wait"][0].sum, found["elephas_like.round.wait"][0].count) == (2.0, 2)


def test_a_program_s_own_provider_is_taken() -> None:
    """The one that `set_meter_provider` names, which a process can set once: without any, measurements go nowhere."""
    metrics = Metrics()
    told(metrics, record(WorkerRecord(0, 8, 4, 1.0)))
    assert metrics.epochs[0].rounds == 1


def test_any_callback_may_ask_for_rounds() -> None:
    class Rounds(keras.callbacks.Callback):
        def __init__(self) -> None:
            super().__init__()
            self.seen: list[int] = []

        def on_round_end(self, record: RoundRecord) -> None:
            self.seen.append(record.round)

    for mode in ("synchronous", "asynchronous"):
        rounds = Rounds()
        history = SparkModel(line(), 2, mode=mode, engine="in_process", frequency=5).fit(
            X, Y, epochs=2, batch_size=2, callbacks=[rounds], verbose=0
        )
        assert (
            rounds.seen
            == [each.round for each in history.rounds]
            == [0, 1, 2, 3] + [4, 5, 6, 7] * (mode == "asynchronous")
        )
