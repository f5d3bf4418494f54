"""What people are told of work that runs, as plain data: curves of bounded length, and a snapshot that a page shows."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

MOST_POINTS = 2000
"""Points of a curve. With more of them neighbours become their mean."""
_LETTERS = 300

Snapshot = dict[str, Any]
"""Plain data: what `json.dumps` takes, without NaN and infinity."""


@dataclass
class _Point:
    """The sums of so many neighbours. values: by name, (sum, how many of them knew it)."""

    x: float = 0.0
    count: int = 0
    values: dict[str, tuple[float, int]] = field(default_factory=dict)
    _means: tuple[float | None, dict[str, float | None]] | None = None

    def means(self) -> tuple[float | None, dict[str, float | None]]:
        """Return x and the values as they are shown. A page asks for them again and again, and most points do not change."""
        if self._means is None:
            values = {name: plain_number(value / known) for name, (value, known) in self.values.items()}
            self._means = plain_number(self.x / self.count), values
        return self._means

    def add(self, other: _Point) -> None:
        self._means = None
        self.x, self.count = self.x + other.x, self.count + other.count
        for name, (value, known) in other.values.items():
            before = self.values.get(name, (0.0, 0))
            self.values[name] = before[0] + value, before[1] + known


class Curve:
    """Values by name over x, in order. With more than `most` points two neighbours each become one, which is their mean."""

    def __init__(self, most: int = MOST_POINTS) -> None:
        self._most = max(2, most)
        self._each = 1
        self._points: list[_Point] = []

    def add(self, x: float, values: Mapping[str, float | None]) -> None:
        """Add a point. None is a value that is not known."""
        new = _Point(x, 1, {name: (value, 1) for name, value in values.items() if value is not None})
        if self._points and self._points[-1].count < self._each:
            self._points[-1].add(new)
            return
        self._points.append(new)
        if len(self._points) > self._most:
            self._each *= 2
            merged = self._points[::2]
            for one, other in zip(merged, self._points[1::2], strict=False):
                one.add(other)
            self._points = merged

    def columns(self) -> Snapshot:
        """Return x, the values by name, and how many points each one of them is the mean of."""
        names = dict.fromkeys(name for point in self._points for name in point.values)
        means = [point.means() for point in self._points]
        return {
            "each": self._each,
            "x": [x for x, _ in means],
            "values": {name: [values.get(name) for _, values in means] for name in names},
        }


def plain_number(value: float) -> float | None:
    """Return a number with six digits, which is enough to show; None where it is not finite, which JSON cannot say."""
    return float(f"{value:.6g}") if math.isfinite(value) else None


def plain_text(value: object) -> str:
    """Return a value as text of bounded length. A number has four digits."""
    text = f"{value:.4g}" if isinstance(value, float) else str(value)
    return text if len(text) <= _LETTERS else f"{text[: _LETTERS - 1]}…"


class Monitor:
    """What runs, and whoever looks at it from another thread.

    Args:
        clock: seconds since any moment. wall: seconds since 1970.
    """

    def __init__(self, clock: Callable[[], float], wall: Callable[[], float]) -> None:
        self.clock = clock
        self._wall = wall
        self._changed = threading.Condition()
        self._version = 0
        self._began, self._began_at = clock(), wall()
        self._ended_at: float | None = None
        self.status = "starting"
        self.error = ""

    @property
    def over(self) -> bool:
        """Whether nothing will change any more."""
        return self._ended_at is not None

    def ended(self, status: str, error: str = "") -> None:
        """Note how it ended: "finished", "interrupted" or "failed". The first call counts."""
        with self._changed:
            if not self.over:
                self.status, self.error, self._ended_at = status, plain_text(error), self.clock()
            self._note()

    def wait(self, after: int, seconds: float) -> bool:
        """Wait until there is something newer than version `after`, at most so many seconds. Return whether there is."""
        with self._changed:
            return self._changed.wait_for(lambda: self._version > after or self.over, seconds)

    def snapshot(self) -> Snapshot:
        """Return all that is known now, as plain data."""
        with self._changed:
            now = self.clock() if self._ended_at is None else self._ended_at
            return {
                "version": self._version,
                "status": self.status,
                "error": self.error,
                "began_at": self._began_at,
                "now_at": self._began_at + now - self._began,
                "elapsed": plain_number(now - self._began),
                **self._known(now),
            }

    def _known(self, now: float) -> Snapshot:
        """Return what this kind of work knows. Called under the lock."""
        raise NotImplementedError

    def _note(self) -> None:
        """Note, under the lock, that something has changed."""
        self._version += 1
        self._changed.notify_all()
