"""How far an asynchronous fit is: epochs, and the span that each worker trains next.

An epoch ends when the samples of all workers together cross a multiple of the rows. The shared state at that moment is kept
as the epoch's. Training ends on the same count, so stragglers cannot overwrite the model.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field, replace

import numpy as np

from elephas_like.core import scores
from elephas_like.core.averaging import record
from elephas_like.core.center import Center, Commit
from elephas_like.core.drift import UNKNOWN, Agreement, DriftMonitor
from elephas_like.core.rounds import RoundLength
from elephas_like.core.types import EpochRecord, Floats, Order, RoundRecord, Span, Update

LEAST_PAIRS = 8
"""Pairs of a worker's update and its last one behind one adaptation: the drift of two workers' short rounds is noise."""


class AsyncSchedule:
    """The span that each worker trains next. Round lengths adapt to the drift of the updates.

    Args:
        rounds: exchanges in an epoch of each worker's own shard; 0 for a worker that has no rows.
        finest: most exchanges while updates drift apart; `rounds` by default.
        monitor: measures the drift. Whoever applies updates adds them to it.
    """

    def __init__(
        self,
        rounds: tuple[int, ...],
        first_epoch: int = 0,
        finest: tuple[int, ...] = (),
        monitor: DriftMonitor | None = None,
    ) -> None:
        self.first_epoch = first_epoch
        self._rounds = rounds
        self._monitor = monitor or DriftMonitor()
        self._round_lengths = [RoundLength(*both) for both in zip(rounds, finest or rounds, strict=True)]
        self._walks = [round_length.walk(first_epoch) for round_length in self._round_lengths]
        self._spans = [next(walk, Span(first_epoch)) for walk in self._walks]
        self._applied = 0
        self._agreements: list[Agreement] = []

    def has_rounds(self, worker: int) -> bool:
        """Whether a worker has rows to train on."""
        return self._rounds[worker] > 0

    def span(self, worker: int) -> Span:
        """Return the span that a worker is at."""
        return self._spans[worker]

    def advance(self, worker: int) -> None:
        """Move a worker on to its next span, cut by the newest round length."""
        self._spans[worker] = next(self._walks[worker], self._spans[worker])

    def adapt(self, moved: bool) -> Agreement:
        """Every K applied updates, measure their drift and adapt the round lengths. K counts the workers with rows.

        Args:
            moved: whether the last update changed the weights.

        Returns:
            What was measured, `UNKNOWN` in between.
        """
        self._applied += moved
        if not moved or self._applied % sum(rounds > 0 for rounds in self._rounds):
            return UNKNOWN
        agreement = self._monitor.measure()
        if agreement.drift is not None:
            self._agreements.append(agreement)
        # Few pairs are noise: adapt by the mean of several measurements, weighted by their pairs.
        pairs = [earlier.pairs for earlier in self._agreements]
        if sum(pairs) >= LEAST_PAIRS:
            drift = float(np.average([earlier.drift for earlier in self._agreements], weights=pairs))
            for round_length in self._round_lengths:
                round_length.adapt(drift)
            self._agreements.clear()
        return agreement


@dataclass
class AsyncProgress:
    """Counts samples and exchanges, ends epochs, and makes orders. Not thread-safe.

    rows: of all shards together; epochs end at multiples of it.
    exchanges: of each worker so far. finished: epochs that nobody has taken yet. history: one record per exchange.
    first_round: the number of the first of them. keeps_center: whether the records of epochs have the shared state's checkpoint.
    """

    rows: int
    last_epoch: int
    schedule: AsyncSchedule
    first_round: int = 0
    keeps_center: bool = False
    samples: int = 0
    exchanges: dict[int, int] = field(default_factory=dict)
    finished: deque[EpochRecord] = field(default_factory=deque)
    history: list[RoundRecord] = field(default_factory=list)
    _metrics: Floats = field(default_factory=lambda: np.zeros(0))
    _epoch_start: int = 0

    @property
    def epoch(self) -> int:
        """The epoch that is under way."""
        return self.schedule.first_epoch + self.samples // self.rows

    @property
    def over(self) -> bool:
        """Whether the budget of samples is used up."""
        return self.samples >= self.rows * (self.last_epoch - self.schedule.first_epoch)

    def has_work(self, worker: int) -> bool:
        """Whether there is something for a worker to train."""
        return self.schedule.has_rounds(worker) and not self.over

    def next_order(self, worker: int, center: Center) -> Order:
        """Return what a worker that has just exchanged trains next, from the state that is served now."""
        version, state = center.served(worker)
        return replace(self.order_without_state(worker), version=version, state=state)

    def order_without_state(self, worker: int) -> Order:
        """Return what a worker that has just exchanged trains next; its state is that which is served when it is sent."""
        return Order("train", self.exchanges.get(worker, 0), span=self.schedule.span(worker))

    def record(self, update: Update, commit: Commit, center: Center) -> None:
        """Count an update, also a dropped one. If it ends an epoch, add a snapshot to `finished`."""
        worker, epoch = update.worker, self.epoch
        self.exchanges[worker] = self.exchanges.get(worker, 0) + 1
        self.samples += update.samples
        if commit.applied:
            self._metrics = scores.add([self._metrics, update.metrics])
        done = record(update, commit.staleness, not commit.applied, commit.stale)
        agreement = self.schedule.adapt(commit.applied and update.samples > 0)
        self.history.append(
            RoundRecord(
                round=self.first_round + len(self.history),
                epoch=epoch,
                workers=(done,),
                of=self.schedule.span(worker).of,
                cosine=agreement.cosine,
                drift=agreement.drift,
            )
        )
        self.schedule.advance(worker)
        for ended in range(epoch, min(self.epoch, self.last_epoch)):
            self._end_epoch(ended, center)

    def _end_epoch(self, epoch: int, center: Center) -> None:
        rounds = tuple(self.history[self._epoch_start :])
        samples = sum(finished.samples for finished in rounds)
        kept = center.checkpoint() if self.keeps_center else {}
        self.finished.append(EpochRecord(epoch, center.snapshot(), self._metrics, samples, rounds=rounds, center=kept))
        self._metrics, self._epoch_start = np.zeros(0), len(self.history)
