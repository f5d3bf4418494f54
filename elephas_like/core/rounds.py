"""When rounds end: computed from step counts and from the drift of updates, never from a clock or an engine."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain, count

from elephas_like.core.drift import DRIFT_HIGH
from elephas_like.core.types import Frequency, Mode, Span

AUTO_ROUNDS = 5
"""Rounds an epoch under `frequency="auto"` to start with: where outer Nesterov with averaged slots was measured best."""
AUTO_ROUNDS_ALONE = 25
"""The same for workers that go on alone, from five of them; fewer workers, whose updates are less stale, K times five."""
AUTO_LEAST_STEPS = 5
"""Local steps that an automatic round has at least while the updates agree."""
AUTO_DOUBLINGS = 2
"""Times that an automatic round is cut in half at most."""
DRIFT_LOW = 0.1
"""Drift below which automatic rounds may become longer again."""


def steps(rows: int, batch_size: int) -> int:
    """Batches in an epoch of `rows` rows; the last partial batch counts."""
    return -(-rows // batch_size)


def auto_rounds(mode: Mode, worker_steps: Sequence[int]) -> int:
    """Rounds an epoch of the largest shard that "auto" begins with, where an epoch has steps enough.

    Where workers wait for each other, updates start from one state and an outer momentum may stretch what they agree on.
    Where each goes on alone, K updates that started from K states, all before the others', are added up: what they agree
    on is overshot unless rounds are short: so many in an epoch of a shard of mean size, the larger ones more.
    """
    if mode is Mode.SYNCHRONOUS:
        return AUTO_ROUNDS
    workers, total = sum(steps > 0 for steps in worker_steps), max(1, sum(worker_steps))
    return min(AUTO_ROUNDS * workers, AUTO_ROUNDS_ALONE) * max(worker_steps, default=1) * workers // total or 1


def rounds_per_epoch(
    worker_steps: Sequence[int], frequency: Frequency | int, accumulation: int = 1, auto: int = AUTO_ROUNDS
) -> int:
    """M, the exchanges in one epoch: ceil(steps of the largest shard / steps a round).

    Args:
        worker_steps: batches an epoch of each worker.
        frequency: a name, or the steps a round of the largest shard.
        accumulation: Keras' `gradient_accumulation_steps`; the largest shard's rounds are never shorter.
        auto: what `"auto"` stands for.

    Returns:
        At least 1. `"auto"` gives about `auto` rounds, none shorter than five steps; `"fit"` gives 1.
    """
    largest = max(worker_steps, default=0)
    if frequency is Frequency.EPOCH or frequency is Frequency.FIT or largest == 0:
        return 1
    if frequency is Frequency.AUTO:
        rounds = min(auto, largest // AUTO_LEAST_STEPS)
    elif frequency is Frequency.BATCH:
        rounds = largest
    else:
        rounds = -(-largest // int(frequency))
    return max(1, min(rounds, largest // accumulation))


def rounds_of_workers(worker_steps: Sequence[int], rounds: int) -> tuple[int, ...]:
    """Exchanges in an epoch of each worker's own, where each goes on alone: all exchange after as many steps.

    A worker without rows has none.
    """
    length = max(1, -(-max(worker_steps, default=0) // rounds))
    return tuple(-(-count // length) for count in worker_steps)


def boundary(epoch_steps: int, part: int, of: int, accumulation: int = 1) -> int:
    """The step at which part `part` of `of` begins: floor(s part / of), on a multiple of `accumulation`.

    The end of the epoch is where it is: a row is never left out for the sake of a multiple.
    """
    if part >= of:
        return epoch_steps
    exact = epoch_steps * part // of
    return exact - exact % accumulation


def steps_of(span: Span, epoch_steps: int, accumulation: int = 1) -> tuple[int, int]:
    """First step and the step after the last of a span, for a worker with `epoch_steps` batches an epoch."""
    return (
        boundary(epoch_steps, span.begin, span.of, accumulation),
        boundary(epoch_steps, span.end, span.of, accumulation),
    )


class RoundLength:
    """The length of a fit's rounds: fixed, or halved and doubled by the drift of the updates.

    An epoch is cut into `rounds * 2**level` equal parts, and a round trains one of them. Each round begins where the last
    one ended, so every step is in exactly one round whatever the levels are. A drift above `DRIFT_HIGH` halves the rounds. A
    drift below `DRIFT_LOW` doubles them again, as soon as a boundary of the longer rounds is reached.

    Args:
        rounds: rounds an epoch at level 0.
        finest: most rounds an epoch; equal to `rounds` for a fixed length.
        level: how often rounds are halved to begin with.
    """

    def __init__(self, rounds: int, finest: int, level: int = 0) -> None:
        self._rounds, self._finest = rounds, finest
        self.level = level

    def spans(self, epoch: int, after: Span | None = None) -> Iterator[Span]:
        """Yield the rounds of one epoch, or those that follow on `after`. Each is cut when it is asked for: it has the newest
        length.
        """
        done, of = (0, self._rounds) if after is None else (after.end, after.of)
        while done < of:
            parts = self._rounds << self.level
            if parts > of:
                done, of = done * (parts // of), parts
            while of > parts and done % 2 == 0:  # a longer round begins where its predecessor would have ended
                done, of = done // 2, of // 2
            yield Span(epoch, done, done + 1, of)
            done += 1

    def walk(self, epoch: int) -> Iterator[Span]:
        """Yield the rounds of all epochs from `epoch` on, for an asynchronous worker. Yield nothing if epochs have no rounds."""
        return chain.from_iterable(self.spans(number) for number in count(epoch)) if self._rounds else iter(())

    def adapt(self, drift: float | None) -> None:
        """Halve or double the rounds by the drift of the round that has ended. None, an unknown drift, changes nothing."""
        if drift is None:
            return
        if drift > DRIFT_HIGH and self._rounds << (self.level + 1) <= self._finest:
            self.level += 1
        elif drift < DRIFT_LOW and self.level:
            self.level -= 1


def finest(worker_steps: Sequence[int], rounds: int, frequency: Frequency | int, accumulation: int = 1) -> int:
    """Return the most rounds an epoch under "auto"; `rounds` under any other frequency.

    Each round of the largest shard has at least one step, or one whole accumulation.
    """
    if frequency is not Frequency.AUTO:
        return rounds
    return max(rounds, min(rounds << AUTO_DOUBLINGS, max(worker_steps, default=0) // accumulation))
