"""Curves of bounded length, numbers that JSON can say, and looking from another thread."""

from __future__ import annotations

import math
import threading

from elephas_like.core.monitoring import Curve, Monitor, Snapshot, plain_number, plain_text


class Nothing(Monitor):
    """A monitor of nothing, with a clock that is set by hand."""

    def __init__(self) -> None:
        self.now = 10.0
        super().__init__(lambda: self.now, lambda: 1000.0)

    def _known(self, now: float) -> Snapshot:
        return {"now": now}

    def move(self) -> None:
        with self._changed:
            self._note()


def test_a_short_curve_has_each_point() -> None:
    curve = Curve(4)
    for x in range(4):
        curve.add(x, {"loss": 10.0 - x, "drift": None if x % 2 else 0.5})
    assert curve.columns() == {
        "each": 1,
        "x": [0.0, 1.0, 2.0, 3.0],
        "values": {"loss": [10.0, 9.0, 8.0, 7.0], "drift": [0.5, None, 0.5, None]},
    }


def test_neighbours_become_their_mean_and_what_is_not_known_counts_nothing() -> None:
    curve = Curve(4)
    for x in range(8):
        curve.add(x, {"loss": float(x), "drift": 1.0 if x == 3 else None})
    assert curve.columns() == {
        "each": 2,
        "x": [0.5, 2.5, 4.5, 6.5],
        "values": {"loss": [0.5, 2.5, 4.5, 6.5], "drift": [None, 1.0, None, None]},
    }


def test_a_curve_is_bounded_and_keeps_its_mean() -> None:
    curve = Curve(100)
    for x in range(12_800):
        curve.add(x, {"y": float(x % 7)})
    found = curve.columns()
    assert (found["each"], len(found["x"])) == (128, 100)
    mean = sum(x % 7 for x in range(12_800)) / 12_800
    assert math.isclose(sum(found["values"]["y"]) / 100, mean, rel_tol=1e-5)


def test_numbers_and_texts_that_json_can_say() -> None:
    assert [plain_number(value) for value in (1 / 3, math.nan, -math.inf, 0.0)] == [0.333333, None, None, 0.0]
    assert plain_text(0.123456) == "0.1235"
    assert plain_text(math.nan) == "nan"
    assert len(plain_text("x" * 1000)) == 300


def test_a_snapshot_says_when_it_was_taken_until_the_end() -> None:
    monitor = Nothing()
    monitor.now = 12.5
    assert monitor.snapshot()["elapsed"] == 2.5
    assert monitor.snapshot()["now_at"] == 1002.5
    monitor.ended("failed", "ValueError: no")
    monitor.now = 99.0
    monitor.ended("finished")  # the first one counts
    found = monitor.snapshot()
    assert (found["status"], found["error"], found["elapsed"]) == ("failed", "ValueError: no", 2.5)


def test_whoever_waits_is_told_of_what_is_new_and_of_the_end() -> None:
    monitor = Nothing()
    assert not monitor.wait(0, 0.0)
    found: list[bool] = []
    thread = threading.Thread(target=lambda: found.append(monitor.wait(0, 60.0)))
    thread.start()
    monitor.move()
    thread.join(60)
    assert found == [True]
    assert not monitor.wait(1, 0.0)
    monitor.ended("finished")
    assert monitor.wait(10, 60.0)
