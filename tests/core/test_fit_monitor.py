"""What a page is told of a fit, by numbers worked out by hand: 2 workers, 100 rows an epoch, a clock set by hand."""

from __future__ import annotations

import json

import pytest

from elephas_like.core.fit_monitor import FitMonitor, RoundTimes, WorkerSign, seconds_of
from elephas_like.core.types import EngineName, Joined, RoundRecord, WorkerRecord


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def monitored(engine: EngineName = EngineName.SERVER, **given: object) -> tuple[FitMonitor, Clock]:
    clock = Clock()
    monitor = FitMonitor(clock, lambda: 0.0)
    values = {"alone": False, "first_epoch": 0, "epochs": 4} | given
    monitor.describe(engine, model="mlp", workers=2, **values)
    monitor.joined([Joined(worker, 0, f"host-{worker}", 50, 0, "") for worker in range(2)])
    return monitor, clock


def done(*seconds: float, samples: int = 25, epoch: int = 0, **given: object) -> RoundRecord:
    """A round: seconds of each worker."""
    workers = tuple(WorkerRecord(worker, samples, 5, spent) for worker, spent in enumerate(seconds))
    return RoundRecord(0, epoch, workers, **given)


def test_the_seconds_of_a_round_and_their_sum() -> None:
    # The order goes out at 10; updates are waited for 4 s; the round is over at 15. Workers trained for 1 and 3 s.
    found = seconds_of(done(1.0, 3.0).workers, RoundTimes(10.0, 4.0), 15.0, in_turn=False)
    assert found == {"train": 2.0, "wait": 1.0, "transfer": 1.0, "aggregate": 1.0}
    assert sum(found.values()) == 15.0 - 10.0


def test_workers_that_train_in_turn_do_not_wait() -> None:
    found = seconds_of(done(1.0, 2.0).workers, RoundTimes(10.0, 3.5), 14.0, in_turn=True)
    assert found == {"train": 3.0, "wait": 0.0, "transfer": 0.5, "aggregate": 0.5}


@pytest.mark.parametrize("in_turn", [False, True])
@pytest.mark.parametrize("seconds", [(), (0.5,), (9.0, 9.0), (0.0, 5.0), (2.0, 9.0)])
def test_the_parts_are_never_negative_and_always_the_whole(seconds: tuple[float, ...], in_turn: bool) -> None:
    # A straggler's update may be of an earlier round, and its seconds more than this round took.
    found = seconds_of(done(*seconds).workers, RoundTimes(1.0, 4.0), 6.0, in_turn=in_turn)
    assert min(found.values()) >= 0.0
    assert sum(found.values()) == pytest.approx(5.0)


def test_a_fit_by_hand() -> None:
    monitor, clock = monitored()
    assert monitor.snapshot()["status"] == "starting"
    clock.now = 2.0
    monitor.epoch_begin(0)
    monitor.exchanged(RoundTimes(2.0, 4.0, up=100, down=200))
    clock.now = 7.0
    monitor.round_end(done(1.0, 3.0, loss=0.5, drift=0.1, cosine=0.7))
    found = monitor.snapshot()
    assert (found["status"], found["epoch"], found["epochs"], found["rounds"]) == ("training", 1, 4, 1)
    # 50 of 400 rows in 5 s: 10 rows a second, and 35 s to go.
    assert (found["samples"], found["rate"], found["left"]) == (50, 10.0, 35.0)
    assert found["totals"] == {"train": 2.0, "wait": 1.0, "transfer": 1.0, "aggregate": 1.0, "up": 100.0, "down": 200.0}
    assert found["curve"]["x"] == [0.5]
    assert found["curve"]["values"]["loss"] == [0.5]
    assert found["curve"]["values"]["drift"] == [0.1]
    clock.now = 10.0
    assert monitor.snapshot()["left"] == 32.0  # time passes, while a round lasts
    monitor.round_end(done(2.0, 3.0))
    monitor.epoch_end(0, {"loss": 0.4, "accuracy": 0.75, "confusion": [[1, 2]]})
    clock.now = 11.0
    found = monitor.snapshot()
    assert found["metrics"] == {"each": 1, "x": [1.0], "values": {"loss": [0.4], "accuracy": [0.75]}}
    assert found["last"] == {"loss": "0.4", "accuracy": "0.75"}
    first, second = found["workers"]
    assert (first["host"], first["rows"], first["rounds"], first["samples"]) == ("host-0", 50, 2, 50)
    assert (first["seconds"], first["seen"], second["rate"]) == (3.0, 1.0, 8.33333)


def test_staleness_and_what_was_dropped_are_counted() -> None:
    monitor, _ = monitored()
    for staleness, dropped in ((0, 0), (3, 1)):
        monitor.round_end(RoundRecord(0, 0, (WorkerRecord(1, 10, 2, 1.0, staleness, dropped),)))
    found = monitor.snapshot()["workers"][1]
    assert (found["staleness"], found["most_stale"], found["dropped"]) == (1.5, 3, 1)


def test_signs_of_life_come_before_anything_else_is_known() -> None:
    clock = Clock()
    monitor = FitMonitor(clock, lambda: 0.0)
    monitor.describe(EngineName.SERVER, alone=False, first_epoch=0, epochs=1)
    monitor.watch(signs=lambda: {3: WorkerSign("there", 1.5, 2)})
    (found,) = monitor.snapshot()["workers"]
    assert (found["worker"], found["host"], found["seen"], found["retries"]) == (3, "there", 1.5, 2)


def test_what_was_known_of_workers_at_the_end_stays() -> None:
    clock = Clock()
    monitor = FitMonitor(clock, lambda: 0.0)
    monitor.watch(signs=lambda: {0: WorkerSign("there", 0.5, 1)})
    clock.now = 7.0
    monitor.ended("finished")
    clock.now = 99.0
    monitor.watch(signs=lambda: {0: WorkerSign("elsewhere", 50.0, 4)})
    (found,) = monitor.snapshot()["workers"]
    assert (found["host"], found["seen"], found["retries"]) == ("there", 0.5, 1)


def test_retries_are_not_invented() -> None:
    monitor, _ = monitored(EngineName.JOBS)
    assert [row["retries"] for row in monitor.snapshot()["workers"]] == [None, None]


def test_workers_that_go_on_alone_are_seen_while_the_epoch_lasts() -> None:
    monitor, clock = monitored(alone=True)
    live: list[RoundRecord] = []
    monitor.watch(live=live)
    monitor.epoch_begin(0)
    clock.now = 5.0
    one = RoundRecord(0, 0, (WorkerRecord(1, 50, 5, 2.0, 1),))
    live.append(one)
    found = monitor.snapshot()
    assert [row["samples"] for row in found["workers"]] == [0, 50]
    assert (found["rate"], found["left"]) == (10.0, 35.0)
    monitor.round_end(one)  # told again at the end of the epoch, and counted once
    found = monitor.snapshot()
    assert [row["samples"] for row in found["workers"]] == [0, 50]
    assert found["samples"] == 50
    assert found["totals"] == {"train": 2.0}


def test_a_fit_that_goes_on_shows_what_was_before() -> None:
    monitor, clock = monitored()
    monitor.recall([done(1.0, 1.0), done(1.0, 1.0)], 100, [0], {"loss": [0.9]})
    monitor.recall([done(1.0, 1.0)], 100, [0], {"loss": [0.9]})  # shards were written again: nothing is counted twice
    clock.now = 1.0
    monitor.epoch_begin(1)
    clock.now = 6.0
    monitor.round_end(done(1.0, 1.0, epoch=1))
    found = monitor.snapshot()
    assert found["metrics"]["x"] == [1.0]
    assert found["curve"]["x"] == [0.5, 1.0, 1.5]
    # 50 rows in 5 s here; of 400 rows 150 are done.
    assert (found["rate"], found["left"]) == (10.0, 25.0)


@pytest.mark.parametrize("engine", EngineName)
@pytest.mark.parametrize("alone", [False, True])
def test_each_engine_says_what_is_not_known(engine: EngineName, alone: bool) -> None:
    monitor, _ = monitored(engine, alone=alone)
    said = " ".join(monitor.snapshot()["unknown"])
    assert (f"engine='{engine.value}'" in said) == (engine in (EngineName.GANG, EngineName.JOBS, EngineName.IN_PROCESS))
    assert ("only training is measured" in said) == alone


def test_numbers_that_are_none_are_plain_data_all_the_same() -> None:
    monitor, _ = monitored()
    monitor.round_end(done(1.0, loss=float("nan"), drift=float("inf")))
    monitor.epoch_end(0, {"loss": float("nan")})
    found = monitor.snapshot()
    assert json.dumps(found, allow_nan=False)
    assert found["curve"]["values"]["loss"] == [None]
    assert found["last"] == {"loss": "nan"}
