"""Schedules of local steps: pure functions of the moment, cut into the spans of an epoch."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from elephas_like.core import rounds
from elephas_like.core.schedules import (
    EveryEpoch,
    FixedSteps,
    Moment,
    PostLocal,
    QuadraticSynchronization,
    Schedule,
    round_spans,
)
from elephas_like.core.types import Span


def steps_of(schedule: Schedule, *, epoch: int = 0, rate: float = 0.1, first: float = 0.1) -> int:
    return schedule.steps(Moment(epoch, 3, 40, rate, first))


def cut(schedule: Schedule, epoch_steps: int, **other: object) -> list[tuple[int, int, int]]:
    spans = list(round_spans(schedule, 2, epoch_steps, lambda done: 0.1, 0.1, **other))
    assert all(span.epoch == 2 and span.epochs == 1 for span in spans)
    return [(span.begin, span.end, span.of) for span in spans]


def test_fixed() -> None:
    assert cut(FixedSteps(4), 10) == [(0, 4, 10), (4, 8, 10), (8, 10, 10)]
    assert cut(FixedSteps(4), 3) == [(0, 3, 3)]


def test_every_epoch() -> None:
    assert cut(EveryEpoch(), 10) == [(0, 10, 10)]


def test_post_local_from_an_epoch_on() -> None:
    schedule = PostLocal(8, after=2)
    assert [steps_of(schedule, epoch=epoch) for epoch in (0, 1, 2, 3)] == [1, 1, 8, 8]


def test_post_local_from_the_first_decay_on() -> None:
    assert [steps_of(PostLocal(), rate=rate) for rate in (0.2, 0.1, 0.0999, 0.01)] == [1, 1, 16, 16]


def test_quadratic_synchronization() -> None:
    # (0.4/0.1)^2 = 16; (0.4/0.15)^2 = 7.1; (0.4/0.3)^2 = 1.8, at least 4; no rate: an epoch
    schedule = QuadraticSynchronization(alpha=0.4)
    assert [steps_of(schedule, rate=rate) for rate in (0.1, 0.15, 0.3, 0.0)] == [16, 7, 4, 40]
    assert steps_of(QuadraticSynchronization(alpha=0.4, least=9), rate=0.3) == 9


def test_the_rate_is_looked_up_before_each_round() -> None:
    # alpha = 1: rate 1/2 at first, 1/3 from step 4 on: 4 steps, then 9
    spans = round_spans(
        QuadraticSynchronization(1.0, least=1), 0, 20, lambda done: 1 / 2 if done < 4 else 1 / 3.0001, 0.5
    )
    assert [(span.begin, span.end) for span in spans] == [(0, 4), (4, 13), (13, 20)]


def test_rounds_end_on_whole_accumulations() -> None:
    assert cut(FixedSteps(7), 20, accumulation=3) == [(0, 6, 20), (6, 12, 20), (12, 18, 20), (18, 20, 20)]
    assert cut(FixedSteps(1), 7, accumulation=3) == [(0, 3, 7), (3, 6, 7), (6, 7, 7)]


@pytest.mark.parametrize("schedule", [FixedSteps(1), FixedSteps(3), FixedSteps(7), EveryEpoch(), PostLocal(5, after=0)])
@pytest.mark.parametrize("steps", [0, 1, 2, 9, 10])
def test_every_shard_does_all_its_steps_once(schedule: Schedule, steps: int) -> None:
    done = []
    for span in round_spans(schedule, 0, 10, lambda done: 0.1, 0.1):
        done += range(*rounds.steps_of(span, steps))
    assert done == list(range(steps))


def test_an_epoch_without_steps_has_a_round() -> None:
    assert list(round_spans(FixedSteps(3), 4, 0, lambda done: 0.1, 0.1)) == [Span(4)]


@dataclass(frozen=True)
class Halving(Schedule):
    """A user's own."""

    def steps(self, moment: Moment) -> int:
        return (moment.epoch_steps - moment.done) // 2


def test_ones_own_must_take_a_step() -> None:
    with pytest.raises(ValueError, match=r"Halving\.steps\(\) must be a whole number of at least 1; got 0"):
        cut(Halving(), 8)


@pytest.mark.parametrize(
    "make",
    [
        lambda: FixedSteps(0),
        lambda: PostLocal(0),
        lambda: PostLocal(after=-1),
        lambda: QuadraticSynchronization(0),
        lambda: QuadraticSynchronization(1.0, least=0),
    ],
)
def test_numbers_that_make_no_sense(make: object) -> None:
    with pytest.raises(ValueError, match="must be a"):
        make()
