"""What is known of a search or an ensemble while it runs: its trials or members, the best so far, what they tried."""

from __future__ import annotations

import numbers
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from elephas_like.core.monitoring import Curve, Monitor, Snapshot, plain_number, plain_text

MOST_RUNS = 2000
"""Runs that are shown: the best one and the newest. The others are counted."""
_MOST_EPOCHS = 100
"""Points of a run's own curve."""


@dataclass
class _Run:
    """A trial or a member. losses: what is plotted of it over its epochs."""

    number: int
    params: dict[str, float | str | None]
    status: str = "running"
    value: float | None = None
    epochs: int = 0
    best_epoch: int | None = None
    seconds: float | None = None
    host: str = ""
    error: str = ""
    counts: bool = False
    curve: Curve = field(default_factory=lambda: Curve(_MOST_EPOCHS))

    def row(self) -> Snapshot:
        known = self.curve.columns()
        plain = {name: value for name, value in vars(self).items() if name not in ("curve", "counts")}
        values = {name: plain_number(plain[name]) for name in ("value", "seconds") if plain[name] is not None}
        return {**plain, **values, "x": known["x"], "y": known["values"].get("value", [])}


class RunsMonitor(Monitor):
    """What is known of many runs: trials of a search, or members of an ensemble.

    Args:
        kind: "search" or "ensemble".
        objective: what runs are compared by; maximize: whether more of it is better.
        total: runs that there will be at most.
        about: what else is said of it, by name.
    """

    def __init__(
        self,
        kind: str,
        objective: str,
        total: int,
        clock: Callable[[], float],
        wall: Callable[[], float],
        *,
        maximize: bool = False,
        about: Mapping[str, object] | None = None,
    ) -> None:
        super().__init__(clock, wall)
        self._kind, self._objective, self._maximize, self._total = kind, plain_text(objective), maximize, total
        self._about = {name: plain_text(value) for name, value in (about or {}).items()}
        self._runs: dict[int, _Run] = {}
        self._best: int | None = None
        self._best_values = Curve()
        self._left_out = self._done = 0
        self._earlier = 0
        self._statuses: Counter[str] = Counter()

    def begin(self, number: int, params: Mapping[str, object] | None = None) -> None:
        """A run begins."""
        with self._changed:
            self.status = "training"
            self._run(number, params)
            self._note()

    def report(self, number: int, epoch: int, value: float) -> None:
        """A run has trained an epoch. One that begins again with epoch 0 has a new curve."""
        with self._changed:
            run = self._run(number)
            if epoch == 0:
                run.curve = Curve(_MOST_EPOCHS)
            run.epochs = epoch + 1
            run.curve.add(epoch + 1, {"value": value})
            self._note()

    def end(
        self,
        number: int,
        status: str,
        value: float | None = None,
        *,
        counts: bool = True,
        params: Mapping[str, object] | None = None,
        values: Sequence[float] = (),
        best_epoch: int | None = None,
        seconds: float | None = None,
        host: str = "",
        error: str = "",
        earlier: bool = False,
    ) -> None:
        """A run is over.

        Args:
            value: of the objective. counts: whether the run may be the best one.
            values: of the objective, by epoch.
            earlier: it ended before this program was run: its time says nothing of what is left.
        """
        with self._changed:
            self.status = "training"
            run = self._run(number, params)
            run.status, run.value, run.host, run.error = status, value, plain_text(host), plain_text(error)
            run.seconds, run.counts = seconds, counts and value is not None and value == value
            run.best_epoch = None if best_epoch is None else best_epoch + 1
            run.curve, run.epochs = Curve(_MOST_EPOCHS), len(values)
            for epoch, each in enumerate(values):
                run.curve.add(epoch + 1, {"value": each})
            self._done, self._earlier = self._done + 1, self._earlier + earlier
            self._statuses[status] += 1
            if run.counts and (self._best is None or self._is_better(run, self._runs[self._best])):
                self._best = number
            best = None if self._best is None else self._runs[self._best].value
            self._best_values.add(self._done, {"best": best})
            self._drop_oldest()
            self._note()

    def _run(self, number: int, params: Mapping[str, object] | None = None) -> _Run:
        if number not in self._runs:
            self._runs[number] = _Run(number, {})
        if params is not None:
            self._runs[number].params = {plain_text(name): _plain(value) for name, value in params.items()}
        return self._runs[number]

    def _is_better(self, one: _Run, other: _Run) -> bool:
        assert one.value is not None
        assert other.value is not None
        return one.value > other.value if self._maximize else one.value < other.value

    def _drop_oldest(self) -> None:
        if len(self._runs) > MOST_RUNS:
            over = (number for number, run in self._runs.items() if run.status != "running" and number != self._best)
            del self._runs[next(over)]
            self._left_out += 1

    def _known(self, now: float) -> Snapshot:
        done_here, elapsed = self._done - self._earlier, now - self._began
        left = None
        if not self.over and done_here:
            left = plain_number(max(0, self._total - self._done) * elapsed / done_here)
        best = None if self._best is None else self._runs[self._best]
        return {
            "kind": self._kind,
            "about": self._about,
            "objective": self._objective,
            "maximize": self._maximize,
            "total": self._total,
            "done": self._done,
            "left": left,
            "counts": dict(self._statuses),
            "best": None if best is None or best.value is None else [best.number, plain_text(float(best.value))],
            "best_values": self._best_values.columns(),
            "left_out": self._left_out,
            "runs": [self._runs[number].row() for number in sorted(self._runs)],
        }


def _plain(value: object) -> float | str | None:
    """Return a parameter as a number or as text."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        return plain_text(value)
    number = plain_number(float(value))
    return plain_text(value) if number is None else number
