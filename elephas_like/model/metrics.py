"""Numbers of a fit's rounds, to logging and to OpenTelemetry: a callback of the driver. The one file that imports OpenTelemetry."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import keras

from elephas_like.core.findings import size_text
from elephas_like.core.timelines import waits
from elephas_like.core.types import RoundRecord
from elephas_like.core.version import __version__

log = logging.getLogger(__name__)


@dataclass
class EpochMetrics:
    """What the rounds of one epoch were.

    seconds: from its begin to its end, validation included. training: of all workers together. wait: seconds that workers
    waited for slower ones, together. bytes_up, bytes_down: of updates and states, without headers. drift: of the last round
    that has one. dropped: updates that were not applied. staleness: the mean of asynchronous updates.
    """

    epoch: int
    rounds: int = 0
    samples: int = 0
    seconds: float = 0.0
    training: float = 0.0
    wait: float = 0.0
    bytes_up: int = 0
    bytes_down: int = 0
    drift: float | None = None
    dropped: int = 0
    staleness: float = 0.0

    @property
    def rounds_per_second(self) -> float:
        """Rounds in a second of the epoch."""
        return self.rounds / self.seconds if self.seconds else 0.0

    @property
    def wait_share(self) -> float:
        """The part of workers' time, waiting and training, that was waiting."""
        whole = self.wait + self.training
        return self.wait / whole if whole else 0.0

    def __str__(self) -> str:
        """The line for the log."""
        rate = self.samples / self.seconds if self.seconds else 0.0
        drift = "" if self.drift is None else f", drift {self.drift:.2f}"
        stale = f", staleness {self.staleness:.1f}" if self.staleness else ""
        dropped = f", {self.dropped} updates dropped" if self.dropped else ""
        return (
            f"epoch {self.epoch + 1}: {self.rounds} rounds, {self.rounds_per_second:.3g} rounds/s, {rate:,.0f} samples/s, "
            f"waiting {100 * self.wait_share:.0f} %, {size_text(self.bytes_up)} up, {size_text(self.bytes_down)} down"
            f"{drift}{stale}{dropped}"
        )


class Metrics(keras.callbacks.Callback):
    """Logs a line for each epoch, and gives OpenTelemetry the numbers of each round if it is installed.

        logging.basicConfig(level=logging.INFO)
        metrics = Metrics()
        spark_model.fit(data, callbacks=[metrics])
        metrics.epochs[-1].rounds_per_second

    Instruments: the counters `elephas_like.rounds`, `.samples`, `.bytes` (attribute direction: up or down), `.updates.dropped`; the
    histograms `elephas_like.round.training` and `elephas_like.round.wait`, in seconds; the gauges `elephas_like.drift` and
    `elephas_like.metric` (attribute name: loss, val_loss, ...), at the end of each epoch.

    Rounds of asynchronous fits, and those of engine="gang", are told at the end of their epoch.

    Args:
        meter: an OpenTelemetry Meter. None takes that of the program's own provider, if OpenTelemetry's API is installed
            (`pip install 'elephas-like[metrics]'`); False is for the log alone.
        attributes: of every measurement, such as {"job": "nightly"}.
        logger: where the lines go; the logger of this module if left out. level: of the lines.

    Attributes:
        epochs: an EpochMetrics for each epoch of the last fit.
    """

    def __init__(
        self,
        *,
        meter: Any = None,
        attributes: Mapping[str, str] | None = None,
        logger: logging.Logger | None = None,
        level: int = logging.INFO,
    ) -> None:
        super().__init__()
        self._instruments = None if meter is False else _instruments(meter)
        self._attributes = dict(attributes or {})
        self._logger, self._level = logger or log, level
        self._began = time.perf_counter()
        self._current: EpochMetrics | None = None
        self.epochs: list[EpochMetrics] = []

    def on_train_begin(self, logs: Mapping[str, Any] | None = None) -> None:
        """Forget an earlier fit."""
        self.epochs, self._current = [], None

    def on_epoch_begin(self, epoch: int, logs: Mapping[str, Any] | None = None) -> None:
        """Start the epoch's clock."""
        self._began, self._current = time.perf_counter(), EpochMetrics(epoch)

    def on_round_end(self, record: RoundRecord) -> None:
        """Count a round. SparkModel calls it; Keras' own fit has no rounds."""
        current = self._current or EpochMetrics(record.epoch)
        self._current = current
        active = [worker for worker in record.workers if worker.steps]
        up, down = self._bytes("update_bytes", len(active)), self._bytes("state_bytes", len(active))
        earlier = current.staleness * current.rounds
        current.rounds += 1
        current.samples += record.samples
        current.training += sum(worker.seconds for worker in active)
        current.wait += sum(waits(record))
        current.bytes_up += up
        current.bytes_down += down
        current.drift = current.drift if record.drift is None else record.drift
        current.dropped += sum(worker.dropped for worker in record.workers)
        mean = sum(worker.staleness for worker in record.workers) / max(1, len(record.workers))
        current.staleness = (earlier + mean) / current.rounds
        if self._instruments is not None:
            self._instruments.add_round(record, up, down, self._attributes)

    def on_epoch_end(self, epoch: int, logs: Mapping[str, Any] | None = None) -> None:
        """Log the epoch's line."""
        current = self._current or EpochMetrics(epoch)
        current.seconds = time.perf_counter() - self._began
        self._current = None
        self.epochs.append(current)
        self._logger.log(self._level, "%s", current)
        if self._instruments is not None:
            self._instruments.add_epoch(logs or {}, self._attributes)

    def _bytes(self, name: str, workers: int) -> int:
        return workers * int((self.params or {}).get(name, 0))


@dataclass(frozen=True)
class _Instruments:
    """OpenTelemetry's instruments of one meter."""

    rounds: Any
    samples: Any
    bytes: Any
    dropped: Any
    training: Any
    wait: Any
    drift: Any
    metric: Any

    def add_round(self, record: RoundRecord, up: int, down: int, attributes: Mapping[str, str]) -> None:
        self.rounds.add(1, attributes)
        self.samples.add(record.samples, attributes)
        for direction, count in (("up", up), ("down", down)):
            self.bytes.add(count, {**attributes, "direction": direction})
        self.dropped.add(sum(worker.dropped for worker in record.workers), attributes)
        self.training.record(max((worker.seconds for worker in record.workers), default=0.0), attributes)
        for seconds in waits(record):
            self.wait.record(seconds, attributes)
        if record.drift is not None:
            self.drift.set(record.drift, attributes)

    def add_epoch(self, logs: Mapping[str, Any], attributes: Mapping[str, str]) -> None:
        for name, value in logs.items():
            if isinstance(value, int | float):
                self.metric.set(value, {**attributes, "name": name})


def _instruments(meter: Any) -> _Instruments | None:
    """Return the instruments of a meter, or of the program's own; None if OpenTelemetry is not installed."""
    if meter is None:
        try:
            from opentelemetry import metrics
        except ModuleNotFoundError:
            return None
        meter = metrics.get_meter("elephas_like", __version__)
    return _Instruments(
        rounds=meter.create_counter("elephas_like.rounds", "{round}", "rounds trained"),
        samples=meter.create_counter("elephas_like.samples", "{row}", "rows trained"),
        bytes=meter.create_counter(
            "elephas_like.bytes", "By", "updates to the driver (up) and states to workers (down)"
        ),
        dropped=meter.create_counter("elephas_like.updates.dropped", "{update}", "updates that were not applied"),
        training=meter.create_histogram("elephas_like.round.training", "s", "training of a round's slowest worker"),
        wait=meter.create_histogram("elephas_like.round.wait", "s", "a worker's wait for the slowest one of a round"),
        drift=meter.create_gauge("elephas_like.drift", "1", "how far the updates of workers drift apart"),
        metric=meter.create_gauge("elephas_like.metric", "1", "loss and metrics at the end of an epoch"),
    )
