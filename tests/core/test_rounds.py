from __future__ import annotations

from itertools import islice

import numpy as np
import pytest

from elephas_like.core.rounds import (
    DRIFT_HIGH,
    DRIFT_LOW,
    RoundLength,
    auto_rounds,
    boundary,
    finest,
    rounds_of_workers,
    rounds_per_epoch,
    steps,
    steps_of,
)
from elephas_like.core.types import Frequency, Mode, Span


def spans(epoch: int, rounds: int) -> list[Span]:
    """The spans of an epoch in equal rounds."""
    return list(RoundLength(rounds, rounds).spans(epoch))


@pytest.mark.parametrize(
    ("rows", "batch_size", "expected"), [(0, 32, 0), (1, 32, 1), (32, 32, 1), (33, 32, 2), (7, 1, 7)]
)
def test_the_last_partial_batch_counts(rows: int, batch_size: int, expected: int) -> None:
    assert steps(rows, batch_size) == expected


@pytest.mark.parametrize(
    ("worker_steps", "frequency", "expected"),
    [
        ([10, 7], Frequency.EPOCH, 1),
        ([10, 7], Frequency.FIT, 1),
        ([10, 7], Frequency.BATCH, 10),  # the largest shard decides
        ([10, 7], 1, 10),
        ([7, 10], 3, 4),  # 10 / 3, rounded up
        ([10, 7], 5, 2),
        ([10, 7], 10, 1),
        ([10, 7], 1000, 1),
        ([0, 0], Frequency.BATCH, 1),
        ([], 3, 1),
    ],
)
def test_rounds_per_epoch(worker_steps: list[int], frequency: Frequency | int, expected: int) -> None:
    assert rounds_per_epoch(worker_steps, frequency) == expected


@pytest.mark.parametrize(
    ("largest", "expected"), [(1, 1), (5, 1), (9, 1), (10, 2), (14, 2), (15, 3), (24, 4), (25, 5), (26, 5), (10**6, 5)]
)
def test_auto_is_five_rounds_of_at_least_five_steps(largest: int, expected: int) -> None:
    assert rounds_per_epoch([largest, 3], Frequency.AUTO) == expected


@pytest.mark.parametrize(
    ("worker_steps", "expected"),
    [
        ([90], 5),
        ([90] * 2, 10),
        ([90] * 4, 20),
        ([90] * 5, 25),
        ([90] * 32, 25),
        ([10, 20, 30, 40, 50], 41),  # 25 in 30 steps, the mean: 41 in 50
        ([0, 90, 0, 90], 10),  # who has no rows does not count
        ([0], 1),
    ],
)
def test_workers_that_go_on_alone_exchange_more_often(worker_steps: list[int], expected: int) -> None:
    assert auto_rounds(Mode.SYNCHRONOUS, worker_steps) == 5
    assert auto_rounds(Mode.ASYNCHRONOUS, worker_steps) == auto_rounds(Mode.HOGWILD, worker_steps) == expected


@pytest.mark.parametrize("expected", [5, 25])
def test_what_auto_stands_for(expected: int) -> None:
    assert rounds_per_epoch([10**6], Frequency.AUTO, auto=expected) == expected
    assert rounds_per_epoch([26], Frequency.AUTO, auto=expected) == 5  # of five steps at least


def test_no_automatic_round_is_shorter_than_five_steps() -> None:
    for largest in range(5, 300):
        parts = spans(0, rounds_per_epoch([largest], Frequency.AUTO))
        lengths = [last - first for first, last in (steps_of(span, largest) for span in parts)]
        assert min(lengths) >= 5, (largest, lengths)
        assert len(lengths) == 5 or largest < 25, (largest, lengths)


def test_boundaries_of_unequal_shards() -> None:
    # floor(s j / 3): 10 steps begin at 0, 3, 6 and end at 10; 4 steps at 0, 1, 2 and 4; 1 step comes last
    assert [boundary(10, part, 3) for part in range(4)] == [0, 3, 6, 10]
    assert [boundary(4, part, 3) for part in range(4)] == [0, 1, 2, 4]
    assert [boundary(1, part, 3) for part in range(4)] == [0, 0, 0, 1]
    assert [boundary(0, part, 3) for part in range(4)] == [0, 0, 0, 0]


def test_rounds_end_on_multiples_of_accumulation() -> None:
    # floor(22 j / 3) = 0, 7, 14, 22; down to multiples of 4: 0, 4, 12; the end stays
    assert [boundary(22, part, 3, 4) for part in range(4)] == [0, 4, 12, 22]


@pytest.mark.parametrize("accumulation", [1, 2, 3, 7])
def test_every_step_of_every_shard_is_in_exactly_one_round(accumulation: int) -> None:
    for epoch_steps in range(41):
        for rounds in range(1, 14):
            trained = []
            for span in spans(0, rounds):
                first, last = steps_of(span, epoch_steps, accumulation)
                assert first % accumulation == 0
                trained += range(first, last)
            assert trained == list(range(epoch_steps)), (epoch_steps, rounds)


@pytest.mark.parametrize("frequency", [Frequency.AUTO, Frequency.BATCH, 1, 3, 5, 8])
def test_the_largest_shards_rounds_hold_a_whole_accumulation(frequency: Frequency | int) -> None:
    for accumulation in range(1, 9):
        for largest in range(accumulation, 60):
            for span in spans(0, rounds_per_epoch([largest], frequency, accumulation)):
                first, last = steps_of(span, largest, accumulation)
                assert last - first >= accumulation, (largest, accumulation, span)


@pytest.mark.parametrize(
    ("worker_steps", "rounds", "expected"),
    [
        ([10, 10], 5, (5, 5)),
        ([10, 4, 1, 0], 5, (5, 2, 1, 0)),  # every two steps
        ([10, 7], 3, (3, 2)),  # 10 in 3 is every four steps: 7 make two exchanges
        ([10, 4], 1, (1, 1)),
        ([0, 0], 1, (0, 0)),
        ([], 1, ()),
    ],
)
def test_workers_that_go_on_alone_exchange_after_as_many_steps(
    worker_steps: list[int], rounds: int, expected: tuple[int, ...]
) -> None:
    assert rounds_of_workers(worker_steps, rounds) == expected


def test_spans_are_consecutive() -> None:
    assert list(spans(4, 3)) == [Span(4, 0, 1, 3), Span(4, 1, 2, 3), Span(4, 2, 3, 3)]


def test_a_fixed_pace_knows_no_drift() -> None:
    round_length = RoundLength(3, 3)
    round_length.adapt(2.0)
    assert list(round_length.spans(4)) == [Span(4, 0, 1, 3), Span(4, 1, 2, 3), Span(4, 2, 3, 3)]


def test_drift_cuts_rounds_in_half_and_agreement_joins_them_again() -> None:
    # two rounds: the first ends at 1/2; drift: quarters, 1/2 to 3/4; drift: eighths, 6/8 to 7/8; then agreement, but the
    # quarter that begins at 7/8 is none: 7/8 to 8/8. The next epoch begins with quarters, and goes back to halves
    round_length = RoundLength(2, 8)
    parts = round_length.spans(0)
    begun = []
    for drift in (0.5, 0.5, 0.0, 0.15):
        begun.append(next(parts))
        round_length.adapt(drift)
    assert begun == [Span(0, 0, 1, 2), Span(0, 2, 3, 4), Span(0, 6, 7, 8), Span(0, 7, 8, 8)]
    assert list(parts) == []
    parts = round_length.spans(1)
    begun = []
    for drift in (None, 0.0, 0.0):  # nothing to tell changes nothing; two quarters, then the half that is left
        begun.append(next(parts))
        round_length.adapt(drift)
    assert begun == [Span(1, 0, 1, 4), Span(1, 1, 2, 4), Span(1, 1, 2, 2)]
    assert list(parts) == []


def test_between_the_thresholds_the_pace_stays() -> None:
    round_length = RoundLength(1, 4)
    round_length.adapt(DRIFT_HIGH)
    assert len(list(round_length.spans(0))) == 1
    round_length.adapt(DRIFT_HIGH + 1e-9)
    round_length.adapt(DRIFT_LOW)
    assert len(list(round_length.spans(0))) == 2
    round_length.adapt(DRIFT_LOW - 1e-9)
    assert len(list(round_length.spans(0))) == 1


@pytest.mark.parametrize(
    ("worker_steps", "frequency", "accumulation", "expected"),
    [
        ([125, 60], Frequency.AUTO, 1, 20),  # five rounds, cut in half twice
        ([26], Frequency.AUTO, 1, 20),
        ([25], Frequency.AUTO, 2, 12),  # a round keeps two steps
        ([10], Frequency.AUTO, 1, 8),  # two rounds, cut in half twice
        ([3], Frequency.AUTO, 1, 3),
        ([1], Frequency.AUTO, 1, 1),
        ([0], Frequency.AUTO, 1, 1),
        ([125], 25, 1, 5),
        ([125], Frequency.EPOCH, 1, 1),
    ],
)
def test_the_finest_pace(worker_steps: list[int], frequency: Frequency | int, accumulation: int, expected: int) -> None:
    rounds = rounds_per_epoch(worker_steps, frequency, accumulation)
    assert finest(worker_steps, rounds, frequency, accumulation) == expected


def test_whatever_the_drift_every_step_is_in_exactly_one_round() -> None:
    random = np.random.default_rng(0)
    for _ in range(200):
        worker_steps = random.integers(0, 130, random.integers(1, 6)).tolist()
        accumulation = int(random.integers(1, 4))
        rounds = rounds_per_epoch(worker_steps, Frequency.AUTO, accumulation)
        most = finest(worker_steps, rounds, Frequency.AUTO, accumulation)
        round_length = RoundLength(rounds, most)
        for epoch in range(4):
            trained: list[list[int]] = [[] for _ in worker_steps]
            for span in round_length.spans(epoch):
                assert span.epoch == epoch
                assert span.of <= most
                for steps_taken, epoch_steps in zip(trained, worker_steps, strict=True):
                    first, last = steps_of(span, epoch_steps, accumulation)
                    assert first % accumulation == 0
                    if epoch_steps == max(worker_steps) >= accumulation:
                        assert last - first >= accumulation
                    steps_taken += range(first, last)
                round_length.adapt(float(random.choice([-0.1, 0.05, 0.15, 0.3, 0.9])))
            assert trained == [list(range(count)) for count in worker_steps]


def test_a_worker_that_goes_on_alone_walks_through_the_epochs() -> None:
    assert list(islice(RoundLength(2, 2).walk(3), 5)) == [
        Span(3, 0, 1, 2),
        Span(3, 1, 2, 2),
        Span(4, 0, 1, 2),
        Span(4, 1, 2, 2),
        Span(5, 0, 1, 2),
    ]
    assert list(RoundLength(0, 0).walk(0)) == []  # who has no rows
