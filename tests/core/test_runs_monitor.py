"""What a page is told of a search or an ensemble, worked out by hand."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from elephas_like.core import runs_monitor
from elephas_like.core.runs_monitor import RunsMonitor


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def search(total: int = 4, *, maximize: bool = True) -> tuple[RunsMonitor, Clock]:
    clock = Clock()
    return RunsMonitor("search", "accuracy", total, clock, lambda: 0.0, maximize=maximize), clock


def test_a_search_by_hand() -> None:
    monitor, clock = search()
    monitor.begin(0, {"rate": 0.1, "act": "relu"})
    monitor.begin(1, {"rate": np.float32(0.5), "act": "tanh"})
    monitor.report(0, 0, 0.5)
    monitor.report(0, 1, 0.6)
    found = monitor.snapshot()
    assert [run["status"] for run in found["runs"]] == ["running", "running"]
    assert (found["runs"][0]["x"], found["runs"][0]["y"]) == ([1.0, 2.0], [0.5, 0.6])
    assert (found["best"], found["left"], found["done"]) == (None, None, 0)
    clock.now = 10.0
    monitor.end(1, "pruned", 0.9, counts=False, values=[0.9], best_epoch=0, seconds=3.0, host="there")
    monitor.end(0, "ok", 0.6, values=[0.5, 0.6], best_epoch=1)
    found = monitor.snapshot()
    assert found["best"] == [0, "0.6"]  # a pruned trial is never the best
    assert (found["best_values"]["x"], found["best_values"]["values"]) == ([1.0, 2.0], {"best": [None, 0.6]})
    assert found["counts"] == {"pruned": 1, "ok": 1}
    assert found["left"] == 10.0  # two of four in ten seconds
    one = found["runs"][1]
    assert (one["params"], one["best_epoch"], one["seconds"], one["host"]) == (
        {"rate": 0.5, "act": "tanh"},
        1,
        3.0,
        "there",
    )


@pytest.mark.parametrize(("maximize", "best"), [(True, 1), (False, 2)])
def test_the_best_is_by_the_direction_and_of_equals_the_first(maximize: bool, best: int) -> None:
    monitor, _ = search(maximize=maximize)
    for number, value in enumerate((2.0, 3.0, 1.0, 3.0, 1.0, math.nan)):
        monitor.end(number, "ok", value)
    assert monitor.snapshot()["best"][0] == best


def test_an_attempt_that_begins_again_has_a_new_curve() -> None:
    monitor, _ = search()
    for epoch, value in ((0, 0.1), (1, 0.2), (0, 0.3)):
        monitor.report(5, epoch, value)
    (run,) = monitor.snapshot()["runs"]
    assert (run["x"], run["y"], run["epochs"]) == ([1.0], [0.3], 1)


def test_trials_of_an_earlier_session_say_nothing_of_the_time_left() -> None:
    monitor, clock = search(total=10)
    for number in range(4):
        monitor.end(number, "ok", 0.5, earlier=True)
    clock.now = 6.0
    assert monitor.snapshot()["left"] is None
    monitor.end(4, "ok", 0.5)
    assert monitor.snapshot()["left"] == 30.0


def test_the_best_and_the_newest_runs_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs_monitor, "MOST_RUNS", 3)
    monitor, _ = search()
    for number, value in enumerate((1.0, 9.0, 2.0, 3.0, 4.0)):
        monitor.end(number, "ok", value)
    found = monitor.snapshot()
    assert [run["number"] for run in found["runs"]] == [1, 3, 4]
    assert (found["left_out"], found["done"]) == (2, 5)


def test_whatever_was_tried_is_plain_data() -> None:
    monitor, _ = search()
    monitor.end(
        0, "failed", None, params={"a": None, "b": True, "c": [1, 2], "d": math.inf, "e": np.int64(3)}, error="no"
    )
    monitor.end(1, "ok", math.inf, values=[math.nan])
    found = monitor.snapshot()
    assert json.loads(json.dumps(found, allow_nan=False)) == found
    assert found["runs"][0]["params"] == {"a": None, "b": "True", "c": "[1, 2]", "d": "inf", "e": 3.0}
