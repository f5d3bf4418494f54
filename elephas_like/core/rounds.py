"""When rounds end: the schedule of an epoch, as pure functions of step counts. Never of a clock or an engine."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from elephas_like.core.types import Frequency, Span

AUTO_ROUNDS = 5
"""Rounds an epoch under `frequency="auto"`: where outer Nesterov with averaged slots was measured best."""
AUTO_LEAST_STEPS = 5
"""Local steps that an automatic round has at least."""


def steps(rows: int, batch_size: int) -> int:
    """Batches in an epoch of `rows` rows; the last partial batch counts."""
    return -(-rows // batch_size)


def rounds_per_epoch(worker_steps: Sequence[int], frequency: Frequency | int, accumulation: int = 1) -> int:
    """M, the exchanges in one epoch: ceil(steps of the largest shard / steps a round).

    Args:
        worker_steps: batches an epoch of each worker.
        frequency: a name, or the steps a round of the largest shard.
        accumulation: Keras' `gradient_accumulation_steps`; the largest shard's rounds are never shorter.

    Returns:
        At least 1. `"auto"` gives about five rounds, none shorter than five steps; `"fit"` gives 1.
    """
    largest = max(worker_steps, default=0)
    if frequency is Frequency.EPOCH or frequency is Frequency.FIT or largest == 0:
        return 1
    if frequency is Frequency.AUTO:
        rounds = min(AUTO_ROUNDS, largest // AUTO_LEAST_STEPS)
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


def spans(epoch: int, rounds: int) -> Iterator[Span]:
    """The spans of one epoch in `rounds` equal parts."""
    for part in range(rounds):
        yield Span(epoch, part, part + 1, rounds)


def nth_span(exchange: int, rounds: int) -> Span:
    """The span of a worker that goes on alone, after `exchange` exchanges of its own."""
    epoch, part = divmod(exchange, rounds)
    return Span(epoch, part, part + 1, rounds)
