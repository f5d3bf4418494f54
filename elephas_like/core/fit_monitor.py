"""What is known of a fit while it runs: epochs, metrics, workers, and where the seconds of its rounds went."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from elephas_like.core.monitoring import Curve, Monitor, Snapshot, plain_number, plain_text
from elephas_like.core.types import EngineName, Joined, RoundRecord, WorkerRecord

PARTS = ("train", "wait", "transfer", "aggregate")
"""What the seconds of a round are spent on, in the order in which they are shown."""


class WorkerSign(NamedTuple):
    """A worker's last sign of life. silent: seconds since. retries: attempts that have lost its place."""

    host: str
    silent: float
    retries: int


@dataclass(frozen=True)
class RoundTimes:
    """What the driver measured of one synchronous round.

    began: when the order went out. waited: seconds in which the driver had nothing but to wait for updates.
    up, down: bytes of updates and states; None where none moved, or nobody counted.
    """

    began: float
    waited: float
    up: int | None = None
    down: int | None = None


@dataclass
class _Tally:
    """What a worker has done so far. heard: when its last sign of life came. retries: None where nobody counts them."""

    host: str = ""
    rows: int | None = None
    samples: int = 0
    rounds: int = 0
    seconds: float = 0.0
    staleness: int = 0
    most_stale: int = 0
    dropped: int = 0
    heard: float | None = None
    retries: int | None = None

    def add(self, record: WorkerRecord, now: float) -> None:
        self.samples += record.samples
        self.rounds += 1
        self.seconds += record.seconds
        self.staleness += record.staleness
        self.most_stale = max(self.most_stale, record.staleness)
        self.dropped += record.dropped
        self.heard = now


def seconds_of(workers: Sequence[WorkerRecord], times: RoundTimes, now: float, *, in_turn: bool) -> dict[str, float]:
    """Return the seconds of a synchronous round by what they were spent on. Their sum is the time that the round took.

    train: a worker's training, the mean of them. wait: until the slowest had trained, too. transfer: the rest of the time that
    the driver waited for updates: states and updates on their way, and Spark's scheduling. aggregate: the driver's own work.

    Args:
        in_turn: whether workers train one after the other. Then the sum of their seconds is training, and nobody waits.
    """
    spent = [record.seconds for record in workers if record.steps]
    busy = (sum(spent) if in_turn else max(spent)) if spent else 0.0
    busy = min(busy, times.waited)
    train = busy if in_turn or not spent else min(sum(spent) / len(spent), busy)
    return {
        "train": train,
        "wait": busy - train,
        "transfer": times.waited - busy,
        "aggregate": max(0.0, now - times.began - times.waited),
    }


class FitMonitor(Monitor):
    """What is known of one fit. The driver's thread tells it; others take snapshots. Its size is bounded, however long the fit."""

    def __init__(self, clock: Callable[[], float], wall: Callable[[], float]) -> None:
        super().__init__(clock, wall)
        self._about: dict[str, str] = {}
        self._engine: EngineName | None = None
        self._alone = False
        self._rows = self._epochs = self._first_epoch = self._epoch = 0
        self._samples = self._earlier = self._rounds = 0
        self._training_since: float | None = None
        self._last_round: float | None = None
        self._metrics, self._curve = Curve(), Curve()
        self._last: dict[str, str] = {}
        self._workers: dict[int, _Tally] = {}
        self._totals: dict[str, float] = {}
        self._times: RoundTimes | None = None
        self._signs: Callable[[], Mapping[int, WorkerSign]] = dict
        self._live: Sequence[RoundRecord] | None = None
        self._tallied = 0

    # Told by the driver.

    def describe(self, engine: EngineName, *, alone: bool, first_epoch: int, epochs: int, **about: object) -> None:
        """Say what the fit is. alone: whether workers go on without waiting for each other."""
        with self._changed:
            self._engine, self._alone = engine, alone
            self._first_epoch, self._epoch, self._epochs = first_epoch, first_epoch, epochs
            self._about = {"engine": engine.value} | {name: plain_text(value) for name, value in about.items()}
            self._note()

    def recall(
        self, rounds: Iterable[RoundRecord], rows: int, epochs: Sequence[int], history: Mapping[str, Sequence[Any]]
    ) -> None:
        """Take what a fit had done before it was interrupted: its rounds, without times, and its History.

        Args:
            rows: of an epoch. epochs: whose logs the History has.
        """
        with self._changed:
            self._rows = rows
            if self._rounds:  # they are known: the shards were written again, and workers have joined anew
                return
            for record in rounds:
                self._add(record, {})
            self._earlier = self._samples
            for index, epoch in enumerate(epochs):
                self._add_epoch(epoch, {name: values[index] for name, values in history.items() if index < len(values)})
            self._note()

    def watch(
        self,
        signs: Callable[[], Mapping[int, WorkerSign]] | None = None,
        live: Sequence[RoundRecord] | None = None,
    ) -> None:
        """Say where more is known at any moment.

        Args:
            signs: the workers' signs of life. live: a growing list of the rounds of workers that go on alone, which callbacks
                are told of at the end of an epoch.
        """
        with self._changed:
            if signs is not None:
                self._signs = signs
            if live is not None:
                self._live, self._tallied = live, 0

    def joined(self, workers: Sequence[Joined]) -> None:
        """Take who has joined."""
        with self._changed:
            for worker in workers:
                tally = self._workers.setdefault(worker.worker, _Tally())
                tally.host, tally.rows = plain_text(worker.host), worker.rows
            self._rows = sum(worker.rows for worker in workers)
            self._note()

    def epoch_begin(self, epoch: int) -> None:
        """An epoch begins."""
        with self._changed:
            self.status, self._epoch = "training", epoch
            if self._training_since is None:
                self._training_since = self.clock()
            self._note()

    def exchanged(self, times: RoundTimes) -> None:
        """Take what was measured of the round that `round_end` is called for next."""
        with self._changed:
            self._times = times

    def round_end(self, record: RoundRecord) -> None:
        """A round has ended."""
        with self._changed:
            now, times, self._times = self.clock(), self._times, None
            values: dict[str, float | None] = {}
            if times is not None:
                in_turn = self._engine is EngineName.IN_PROCESS
                values |= seconds_of(record.workers, times, now, in_turn=in_turn)
                values |= {"up": times.up, "down": times.down}
            else:
                spent = [worker.seconds for worker in record.workers if worker.steps]
                if spent:
                    values["train"] = sum(spent) / len(spent)
            for name, value in values.items():
                if value is not None:
                    self._totals[name] = self._totals.get(name, 0.0) + value
            self._add(record, values)
            if self._live is None:
                for worker in record.workers:
                    self._workers.setdefault(worker.worker, _Tally()).add(worker, now)
            self._last_round = now
            self._note()

    def moved(self, up: int, down: int) -> None:
        """Take how many bytes workers that go on alone have moved so far."""
        with self._changed:
            self._totals |= {"up": up, "down": down}

    def epoch_end(self, epoch: int, logs: Mapping[str, Any]) -> None:
        """An epoch has ended, with these logs."""
        with self._changed:
            self._add_epoch(epoch, logs)
            self._note()

    def _add(self, record: RoundRecord, values: Mapping[str, float | None]) -> None:
        self._samples += record.samples
        self._rounds += 1
        place = self._first_epoch + self._samples / self._rows if self._rows else float(self._rounds)
        stale = [worker.staleness for worker in record.workers]
        known = {"loss": record.loss, "drift": record.drift, "cosine": record.cosine}
        self._curve.add(place, {**known, **values, "staleness": sum(stale) / len(stale) if stale else None})

    def _add_epoch(self, epoch: int, logs: Mapping[str, Any]) -> None:
        numbers = {str(name): float(value) for name, value in logs.items() if isinstance(value, int | float)}
        self._metrics.add(epoch + 1, numbers)
        self._last = {plain_text(name): plain_text(value) for name, value in numbers.items()}

    def ended(self, status: str, error: str = "") -> None:
        """Note how it ended, and what is known of the workers by then."""
        if not self.over:
            self._look()
        super().ended(status, error)

    # Asked by whoever looks.

    def snapshot(self) -> Snapshot:
        """Return all that is known now, as plain data."""
        if not self.over:
            self._look()
        return super().snapshot()

    def _known(self, now: float) -> Snapshot:
        self._take_live(now)
        return {
            "kind": "fit",
            "about": self._about,
            "epoch": min(self._epoch + 1, self._epochs),
            "epochs": self._epochs,
            "rows": self._rows,
            "samples": self._samples,
            "rate": self._rate(now),
            "left": self._left(now),
            "rounds": self._rounds,
            "last": self._last,
            "metrics": self._metrics.columns(),
            "curve": self._curve.columns(),
            "totals": {name: plain_number(value) for name, value in self._totals.items()},
            "workers": [self._row(worker, now) for worker in sorted(self._workers)],
            "unknown": self._unknown(),
        }

    def _take_live(self, now: float) -> None:
        """Take what workers that go on alone have done since the last look."""
        if self._live is None:
            return
        new = self._live[self._tallied : len(self._live)]
        self._tallied += len(new)
        for record in new:
            for worker in record.workers:
                self._workers.setdefault(worker.worker, _Tally()).add(worker, now)

    def _done(self) -> int:
        """Rows trained on in this run of the program."""
        if self._live is not None:
            return sum(tally.samples for tally in self._workers.values())
        return self._samples - self._earlier

    def _rate(self, now: float) -> float | None:
        """Return rows per second since training began."""
        until = now if self._live is not None else self._last_round
        if self._training_since is None or until is None or until <= self._training_since or not self._done():
            return None
        return plain_number(self._done() / (until - self._training_since))

    def _left(self, now: float) -> float | None:
        """Return about how many seconds are left, as if all epochs were trained at the pace so far."""
        rate = self._rate(now)
        if self.over or not rate:
            return None
        total = self._rows * (self._epochs - self._first_epoch) - self._earlier
        since = 0.0 if self._live is not None or self._last_round is None else now - self._last_round
        return plain_number(max(0.0, (total - self._done()) / rate - since))

    def _look(self) -> None:
        """Take the workers' signs of life. Whoever knows of them has a lock, which is not waited for under ours."""
        signs = self._signs()
        with self._changed:
            now = self.clock()
            for worker, sign in signs.items():
                tally = self._workers.setdefault(worker, _Tally())
                tally.host, tally.retries, tally.heard = plain_text(sign.host), sign.retries, now - sign.silent

    def _row(self, worker: int, now: float) -> Snapshot:
        tally = self._workers[worker]
        return {
            "worker": worker,
            "host": tally.host,
            "rows": tally.rows,
            "samples": tally.samples,
            "rate": plain_number(tally.samples / tally.seconds) if tally.seconds else None,
            "rounds": tally.rounds,
            "seconds": plain_number(tally.seconds),
            "staleness": plain_number(tally.staleness / tally.rounds) if tally.rounds else None,
            "most_stale": tally.most_stale,
            "dropped": tally.dropped,
            "seen": None if tally.heard is None else plain_number(max(0.0, now - tally.heard)),
            "retries": tally.retries,
        }

    def _unknown(self) -> list[str]:
        """Return what is not known of this fit, in sentences."""
        found = []
        if self._alone:
            found.append(
                "Workers go on alone: wait, transfer and aggregation overlap, so only training is measured. Losses of rounds "
                "are known at the end of an epoch."
            )
        if self._engine is EngineName.GANG:
            found.append(
                "engine='gang' trains in Spark's tasks: this page learns of rounds when their job is over. Wait, transfer, "
                "aggregation, bytes and retries are not known here, and a worker was last seen when its job ended."
            )
        elif self._engine is EngineName.JOBS:
            found.append(
                "engine='jobs': transfer has Spark's scheduling in it. A worker's host is that of its first task, and it was last seen "
                "at its last answer. Retries of tasks are in Spark's own page. A state is counted once a round."
            )
        elif self._engine is EngineName.IN_PROCESS:
            found.append(
                "engine='in_process': workers train in turn in this process, nothing is sent, nobody is retried."
            )
        return found
