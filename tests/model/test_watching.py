"""Workers with a clock beside them: the same updates, and what the driver measured of them."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from elephas_like.core.fit_monitor import FitMonitor, WorkerSign
from elephas_like.core.types import EngineName, Joined, Order, RoundRecord, TrainState, Update, WorkerRecord
from elephas_like.core.workers import AsyncWorkers
from elephas_like.engine.job_rounds import JobRounds
from elephas_like.model.watching import WatchedAlone, WatchedRounds, watched

FLOATS, INTEGERS = np.zeros(3, np.float32), np.zeros(1, np.int64)
STATE = TrainState(FLOATS, FLOATS, FLOATS, INTEGERS, FLOATS[:1], FLOATS[:0], INTEGERS, np.zeros(5, np.float32))


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def monitor(clock: Clock) -> FitMonitor:
    found = FitMonitor(clock, lambda: 0.0)
    found.describe(EngineName.SERVER, alone=False, first_epoch=0, epochs=1)
    return found


class Workers:
    """Two workers that take 3 and 2 seconds on a clock that is set by hand."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.made: list[weakref.ref[np.ndarray]] = []

    def joined(self) -> list[Joined]:
        return [Joined(worker, 0, f"host-{worker}", 10, 0, "") for worker in range(2)]

    def train(self, order: Order) -> Iterator[Update]:
        for worker, seconds in enumerate((3.0, 2.0)):
            self.clock.now += seconds
            yield self._update(worker)

    def _update(self, worker: int) -> Update:
        delta = np.ones(3, np.float32)
        self.made.append(weakref.ref(delta))
        metrics = np.zeros(2)
        return Update(worker, 0, 0, 10, 1, delta, FLOATS, FLOATS, INTEGERS, FLOATS[:0], INTEGERS, metrics, 2.0)


class Served(Workers):
    """The same behind a server."""

    moved = (1000, 5000)

    def signs(self) -> dict[int, WorkerSign]:
        return {0: WorkerSign("there", 4.0, 1)}

    def traffic(self) -> tuple[int, int]:
        self.moved = (self.moved[0] + 7, self.moved[1] + 11)
        return self.moved


class Jobs(Workers, JobRounds):
    """The same, as the jobs engine."""


def trained(workers: Any, monitor: FitMonitor, clock: Clock) -> dict[str, float]:
    """One round, in which each update takes a second to add and the step half a second. Returns the totals."""
    found = []
    for update in watched(workers, monitor).train(Order("train", state=STATE)):  # type: ignore[union-attr]
        clock.now += 1.0
        found.append(WorkerRecord(update.worker, update.samples, update.steps, update.seconds))
    clock.now += 0.5
    monitor.round_end(RoundRecord(0, 0, tuple(found)))
    return monitor.snapshot()["totals"]


def test_the_seconds_of_a_round_are_measured(monitor: FitMonitor, clock: Clock) -> None:
    totals = trained(Workers(clock), monitor, clock)
    # Waited for 3 + 2 s, of which each worker trained for 2 s; 2 s of adding and 0.5 s of stepping are the driver's.
    assert totals == {"train": 2.0, "wait": 0.0, "transfer": 3.0, "aggregate": 2.5}


def test_bytes_are_those_that_the_server_counted(monitor: FitMonitor, clock: Clock) -> None:
    totals = trained(Served(clock), monitor, clock)
    assert (totals["up"], totals["down"]) == (7.0, 11.0)
    assert monitor.snapshot()["workers"][0]["retries"] == 1


def test_the_jobs_engine_ships_a_state_once_and_frozen_layers_when_they_change(
    monitor: FitMonitor, clock: Clock
) -> None:
    # An update: 12 + 12 + 12 + 8 + 0 + 8 + 16 and no frozen layers. A state: 12 + 12 + 12 + 8 + 4 + 0 + 8 and 20 of frozen ones.
    jobs = Jobs(clock)
    rounds = WatchedRounds(jobs, monitor)
    assert [sum(1 for _ in rounds.train(Order("train", state=STATE))) for _ in range(2)] == [2, 2]
    assert monitor._times is not None
    assert (monitor._times.up, monitor._times.down) == (2 * 68, 56)
    assert rounds._bytes_of(STATE.but(frozen=np.zeros(5, np.float32))) == 76


def test_no_update_is_kept(monitor: FitMonitor, clock: Clock) -> None:
    workers = Workers(clock)
    updates = watched(workers, monitor).train(Order("train"))  # type: ignore[union-attr]
    for update in updates:
        del update
        gc.collect()
        assert [made() for made in workers.made] == [None] * len(workers.made)


class Alone(Served):
    """Workers that go on alone."""

    def begin(self, *given: object) -> None:
        self.given = given

    def next_epoch(self) -> None:
        return None

    def memories(self, last: object) -> None: ...

    def replace(self, parts: object, moved: object = None) -> None: ...


def test_workers_that_go_on_alone_stay_such(monitor: FitMonitor, clock: Clock) -> None:
    workers = Alone(clock)
    found = watched(workers, monitor)  # type: ignore[arg-type]
    assert isinstance(found, AsyncWorkers)
    assert isinstance(found, WatchedAlone)
    assert not isinstance(watched(Workers(clock), monitor), AsyncWorkers)  # type: ignore[arg-type]
    found.joined()
    progress: Any = SimpleNamespace(history=[RoundRecord(0, 0, (WorkerRecord(1, 8, 2, 1.0),))])
    found.begin("center", progress, "validates", "recalls", {})  # type: ignore[arg-type]
    assert workers.given == ("center", progress, "validates", "recalls", {})
    found.next_epoch()
    snapshot = monitor.snapshot()
    assert [row["samples"] for row in snapshot["workers"]] == [0, 8]
    assert snapshot["totals"] == {"up": 1007.0, "down": 5011.0}
