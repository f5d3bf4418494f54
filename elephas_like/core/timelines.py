"""When workers trained and when they waited, from the records of a fit's rounds (`history.rounds`).

Records hold seconds of training. Where workers wait for each other a round lasts as long as its slowest worker trains; the time of
exchanges between rounds is not in the records, nor here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from elephas_like.core.types import RoundRecord, WorkerRecord


@dataclass(frozen=True, slots=True)
class TrainingSpan:
    """What one worker trained in one round.

    start, seconds: on the clock of training alone. wait: seconds until the slowest worker of the round was done.
    """

    worker: int
    round: int
    epoch: int
    start: float
    seconds: float
    wait: float
    samples: int
    staleness: int
    dropped: bool


def waits(record: RoundRecord) -> list[float]:
    """Return how long each worker of a round waited for the slowest one."""
    slowest = max((worker.seconds for worker in record.workers), default=0.0)
    return [slowest - worker.seconds for worker in record.workers]


def training_spans(rounds: Sequence[RoundRecord]) -> list[TrainingSpan]:
    """Return who trained when, in the order of the records.

    Where every record has a single worker, workers go on alone: each has a clock of its own.
    """
    together = any(len(record.workers) > 1 for record in rounds)
    clocks: dict[int, float] = {}
    found = []
    for record in rounds:
        start = max(clocks.values(), default=0.0) if together else None
        for worker, wait in zip(record.workers, waits(record), strict=True):
            begun = clocks.get(worker.worker, 0.0) if start is None else start
            found.append(_span(record, worker, begun, wait))
            clocks[worker.worker] = begun + worker.seconds
    return found


def _span(record: RoundRecord, worker: WorkerRecord, start: float, wait: float) -> TrainingSpan:
    return TrainingSpan(
        worker=worker.worker,
        round=record.round,
        epoch=record.epoch,
        start=start,
        seconds=worker.seconds,
        wait=wait,
        samples=worker.samples,
        staleness=worker.staleness,
        dropped=bool(worker.dropped),
    )
