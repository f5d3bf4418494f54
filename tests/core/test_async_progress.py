"""When asynchronous epochs end, who goes on where, and what drift makes of round lengths: numbers worked out by hand."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from exchanges import CENTERS, center_of
from plain_numpy import LAYOUT, state, update

from elephas_like.core.async_progress import AsyncProgress, AsyncSchedule
from elephas_like.core.center import LockedCenter
from elephas_like.core.drift import DriftMonitor
from elephas_like.core.strategies import (
    MomentumLookAhead,
)
from elephas_like.core.types import OnNaN, Span, Update


def record(progress: AsyncProgress, center: LockedCenter, brought: Update) -> None:
    progress.record(brought, center.commit(brought), center)


def progress_of(**other: object) -> AsyncProgress:
    values = {"rounds": (2, 2), "first_epoch": 0} | other
    rows, last_epoch = values.pop("rows", 4), values.pop("last_epoch", 2)
    return AsyncProgress(rows, last_epoch, AsyncSchedule(**values))


def test_an_epoch_ends_when_the_samples_cross_a_multiple_of_the_rows() -> None:
    progress, center = progress_of(), center_of(LockedCenter, state(0, 0))
    record(progress, center, update(0, 1, 0, samples=3))
    assert not progress.finished
    assert progress.epoch == 0
    record(progress, center, update(1, 0, 1, samples=3))  # 6 of 4
    (first,) = progress.finished
    assert (first.epoch, first.samples) == (0, 6)
    assert first.state.weights.tolist() == [1, 1]
    assert first.metrics.tolist() == [2.0, 6.0]  # (1, 3) + (1, 3)
    assert (progress.epoch, progress.over) == (1, False)
    record(progress, center, update(0, 1, 0, samples=2))  # 8 of 8
    assert progress.over
    second = progress.finished[1]
    assert (second.epoch, second.samples) == (1, 2)
    assert second.state.weights.tolist() == [2, 1]
    assert second.metrics.tolist() == [1.0, 2.0]
    assert first.state.weights.tolist() == [1, 1]


def test_rounds_are_of_the_epoch_they_began_in() -> None:
    progress, center = progress_of(), center_of(LockedCenter)
    for worker, samples in [(0, 3), (1, 3), (1, 1), (0, 1)]:
        record(progress, center, update(worker, samples=samples))
    assert [(r.round, r.epoch, r.workers[0].worker) for r in progress.history] == [
        (0, 0, 0),
        (1, 0, 1),
        (2, 1, 1),
        (3, 1, 0),
    ]
    assert [tuple(r.round for r in epoch.rounds) for epoch in progress.finished] == [(0, 1), (2, 3)]


def test_one_update_may_end_two_epochs() -> None:
    progress, center = progress_of(), center_of(LockedCenter, state(0, 0))
    record(progress, center, update(0, 1, 0, samples=9))
    first, second = progress.finished
    assert [(e.epoch, e.samples, len(e.rounds), e.metrics.size) for e in (first, second)] == [
        (0, 9, 1, 2),
        (1, 0, 0, 0),
    ]
    assert second.state.weights.tolist() == [1, 0]
    assert progress.over


def test_a_straggler_ends_no_epoch_after_the_last() -> None:
    progress, center = progress_of(), center_of(LockedCenter)
    for samples in (4, 4, 4):
        record(progress, center, update(0, samples=samples))
    assert [epoch.epoch for epoch in progress.finished] == [0, 1]
    assert progress.over


def test_epochs_count_from_the_first() -> None:
    progress, center = progress_of(first_epoch=3, last_epoch=5), center_of(LockedCenter)
    assert progress.epoch == 3
    assert progress.next_order(0, center).span == Span(3, 0, 1, 2)
    for _ in range(2):
        assert not progress.over
        record(progress, center, update(0, samples=4))
    assert progress.over
    assert [epoch.epoch for epoch in progress.finished] == [3, 4]


def test_a_fast_worker_goes_on_to_the_next_epochs_rows() -> None:
    progress, center = progress_of(rows=100), center_of(LockedCenter)
    begun = []
    for _ in range(4):
        order = progress.next_order(1, center)
        begun.append((order.number, order.version, order.span))
        record(progress, center, update(1, samples=1))
    assert begun == [
        (0, 0, Span(0, 0, 1, 2)),
        (1, 1, Span(0, 1, 2, 2)),
        (2, 2, Span(1, 0, 1, 2)),
        (3, 3, Span(1, 1, 2, 2)),
    ]
    slow = progress.next_order(0, center)
    assert (slow.kind, slow.number, slow.version, slow.span) == ("train", 0, 4, Span(0, 0, 1, 2))


def test_each_worker_has_rounds_of_its_own() -> None:
    progress, center = progress_of(rows=100, rounds=(1, 3)), center_of(LockedCenter)
    for _ in range(2):
        record(progress, center, update(0))
        record(progress, center, update(1))
    assert progress.next_order(0, center).span == Span(2, 0, 1, 1)
    assert progress.next_order(1, center).span == Span(0, 2, 3, 3)


def test_workers_that_pull_apart_exchange_more_often() -> None:
    # Worker 0 moves along the first axis, worker 1 along the second. Two updates of K = 2 workers are one look: the first
    # knows no last ones; of all others own cosines are 1, and 0 to the other's last: drift 1. Four looks of two pairs each
    # are enough: after updates 3, 5, 7 and 9 rounds are half as long. Worker 1, which brought the last of these, goes on
    # with a quarter of an epoch; worker 0 has been handed half of one, and goes on with quarters then
    monitor = DriftMonitor()
    progress = progress_of(
        rows=100, rounds=(2, 2, 0), finest=(8, 8, 0), monitor=monitor
    )  # the third has no rows, and no say
    center = center_of(LockedCenter, num_workers=2, monitor=monitor)
    trained: list[list[Span]] = [[], []]
    for number in range(12):
        worker = number % 2
        trained[worker].append(progress.next_order(worker, center).span)
        record(progress, center, update(worker, 1 - worker, worker, samples=1))
    halves = [Span(0, 0, 1, 2), Span(0, 1, 2, 2), Span(1, 0, 1, 2), Span(1, 1, 2, 2), Span(2, 0, 1, 2)]
    assert trained == [[*halves, Span(2, 1, 2, 2)], [*halves, Span(2, 2, 3, 4)]]
    assert [progress.next_order(worker, center).span for worker in (0, 1)] == [Span(3, 0, 1, 4), Span(2, 3, 4, 4)]
    assert [record.of for record in progress.history] == [2] * 11 + [4]
    assert [record.cosine for record in progress.history] == [None, 0.0] * 6
    assert [record.drift for record in progress.history] == [None, None, *[None, 1.0] * 5]


def test_one_look_of_eight_workers_is_enough() -> None:
    monitor = DriftMonitor()
    progress = progress_of(rows=100, rounds=(2,) * 8, finest=(4,) * 8, monitor=monitor)
    center = center_of(LockedCenter, num_workers=8, monitor=monitor)
    for number in range(24):
        angle = np.pi / 4 * (number % 8)
        record(progress, center, update(number % 8, np.cos(angle), np.sin(angle), samples=1))
    # own cosine 1; those of the eight directions add up to 0, so to the seven others -1 / 7 on average: drift 8 / 7
    assert [record.drift for record in progress.history[7::8]] == [None, *[pytest.approx(8 / 7)] * 2]
    assert [record.of for record in progress.history] == [2] * 23 + [4]


@pytest.mark.parametrize("kind", CENTERS)
def test_workers_that_agree_keep_their_rounds(kind: type) -> None:
    monitor = DriftMonitor()
    progress, center = (
        progress_of(rows=100, finest=(8, 8), monitor=monitor),
        center_of(kind, num_workers=2, monitor=monitor),
    )
    for number in range(8):
        record(progress, center, update(number % 2, 1, 2))
    assert [record.of for record in progress.history] == [2] * 8
    assert [record.drift for record in progress.history[3::2]] == pytest.approx([0.0] * 3, abs=1e-6)


def test_what_is_dropped_says_nothing() -> None:
    # two updates are a look, a third is dropped, and two more are the next look: drift 1, as without the third
    monitor = DriftMonitor()
    progress = progress_of(rows=100, monitor=monitor)
    center = center_of(LockedCenter, num_workers=2, monitor=monitor, on_nan=OnNaN.DROP)
    for brought in (update(0, 1, 0), update(1, 0, 1), update(0, float("nan"), 0), update(0, 1, 0), update(1, 0, 1)):
        record(progress, center, brought)
    assert [(record.cosine, record.drift) for record in progress.history] == [
        (None, None),
        (0.0, None),
        (None, None),
        (None, None),
        (0.0, 1.0),
    ]


def test_whatever_the_drift_every_part_of_every_epoch_is_trained_once() -> None:
    random = np.random.default_rng(7)
    monitor = DriftMonitor()
    progress = progress_of(rows=10**6, rounds=(5, 3, 1, 0), finest=(20, 12, 1, 0), monitor=monitor)
    center = center_of(LockedCenter, num_workers=4, monitor=monitor)
    trained: list[list[Span]] = [[], [], []]
    axes = random.normal(size=(3, 2))
    for _ in range(300):
        worker = int(random.integers(3))
        trained[worker].append(progress.next_order(worker, center).span)
        record(progress, center, update(worker, *(axes[worker] + random.normal(size=2)), samples=1))
    for parts, finest in zip(trained, (20, 12, 1), strict=True):
        assert parts[0] == Span(0, 0, 1, parts[0].of)
        for one, following in pairwise(parts):
            begins = (one.epoch + 1, 0.0) if one.end == one.of else (one.epoch, one.end / one.of)
            assert (following.epoch, following.begin / following.of) == begins
            assert following.end == following.begin + 1
            assert following.of <= finest
    assert len({span.of for span in trained[0]}) > 1  # or this shows nothing


def test_who_has_no_rows_or_no_time_has_no_work() -> None:
    progress, center = progress_of(rounds=(2, 0)), center_of(LockedCenter)
    assert [progress.has_work(worker) for worker in (0, 1)] == [True, False]
    record(progress, center, update(0, samples=8))
    assert [progress.has_work(worker) for worker in (0, 1)] == [False, False]


def test_an_order_carries_what_is_served() -> None:
    center = LockedCenter(state(0, 0), LAYOUT, MomentumLookAhead(learning_rate=1.0, momentum=0.5), 1)
    center.commit(update(0, 4, 0))
    assert progress_of().next_order(0, center).state.weights.tolist() == [6, 0]  # as in test_center.py


def test_staleness_and_drops_are_on_record() -> None:
    progress, center = progress_of(), center_of(LockedCenter, on_nan=OnNaN.DROP)
    center.version = 3
    record(progress, center, update(0, 1, 1, samples=2))
    record(progress, center, update(1, float("nan"), 1, samples=2, version=4))
    records = [record.workers[0] for record in progress.history]
    assert [(record.staleness, record.dropped) for record in records] == [(3, 0), (0, 1)]
    (epoch,) = progress.finished  # dropped rows count, or training would never end
    assert (epoch.samples, epoch.metrics.tolist()) == (4, [1.0, 2.0])


def test_stale_drops_are_on_record_and_count_as_samples() -> None:
    progress, center = progress_of(), center_of(LockedCenter, on_nan=OnNaN.DROP, max_staleness=0)
    record(progress, center, update(0, 1, 1, samples=2, version=0))
    record(progress, center, update(1, 1, 1, samples=1, version=0))
    record(progress, center, update(1, float("nan"), 1, samples=1, version=1))
    records = [record.workers[0] for record in progress.history]
    assert [(r.staleness, r.dropped, r.stale) for r in records] == [(0, 0, False), (1, 1, True), (0, 1, False)]
    (epoch,) = progress.finished  # or training would never end
    assert (epoch.samples, epoch.metrics.tolist()) == (4, [1.0, 2.0])
