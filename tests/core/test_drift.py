"""Cosines of updates worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest
from plain_numpy import floats

from elephas_like.core.drift import SAMPLE, Agreement, DriftMonitor, cosine_of, drift_of, places, stretch_of


def round_of(monitor: DriftMonitor, *deltas: tuple[float, float]) -> Agreement:
    for worker, delta in enumerate(deltas):
        monitor.add(worker, floats(*delta))
    return monitor.measure()


def test_cosine_and_drift_by_hand() -> None:
    # directions (1, 0), (0.6, 0.8), (0, 1): pairs 0.6, 0, 0.8: mean 1.4/3
    # then (0, 1), (0.6, 0.8), (0, -1): own last ones 0, 1, -1: mean 0. Others' last ones: for worker 0 0.8 and 1, for
    # worker 1 0.6 and 0.8, for worker 2 0 and -0.8: mean 2.4/6. Drift 0 - 0.4
    monitor = DriftMonitor()
    first = round_of(monitor, (5, 0), (3, 4), (0, 0.5))
    assert first.cosine == pytest.approx(1.4 / 3)
    assert first.drift is None
    second = round_of(monitor, (0, 2), (0.3, 0.4), (0, -9))
    assert second.cosine == pytest.approx((0.8 - 1 - 0.8) / 3)
    assert second.drift == pytest.approx(-0.4)


@pytest.mark.parametrize("scale", [1e-20, 1.0, 1e15])
def test_lengths_do_not_matter(scale: float) -> None:
    monitor = DriftMonitor()
    round_of(monitor, (scale, 0), (0, 1))
    assert round_of(monitor, (1, 0), (0, scale)) == Agreement(0.0, 1.0, 2, 2)


def test_a_round_that_does_not_tell_the_drift_leaves_it_as_it_was() -> None:
    monitor = DriftMonitor()
    round_of(monitor, (1, 0), (0, 1))
    assert round_of(monitor, (1, 0), (0, 1)).drift == 1.0
    monitor.tells = False
    assert round_of(monitor, (0, 1), (1, 0)) == Agreement(0.0, 1.0, 2, 2)
    later = DriftMonitor(monitor.directions, 1.0)
    later.tells = False
    assert round_of(later, (0, 1), (1, 0)).drift == 1.0
    monitor.tells = True
    assert round_of(monitor, (1, 0), (0, 1)).drift == -1.0


def test_who_did_not_move_or_come_is_passed_over() -> None:
    monitor = DriftMonitor()
    round_of(monitor, (1, 0), (0, 0), (0, 1))
    monitor.add(1, floats(1, 0))
    monitor.add(2, floats(0, 1))
    # own: worker 2's 1. Others': worker 1 to 0's 1 and 2's 0, worker 2 to 0's 0: 1/3
    assert monitor.measure().drift == pytest.approx(2 / 3)
    assert monitor.measure() == Agreement()


def test_the_last_updates_are_compared_at_any_time() -> None:
    # (1, 0), (0.6, 0.8), (0, 1) as above; then worker 0 has (0, 1): pairs 0.8, 1, 0.8
    monitor = DriftMonitor()
    seen = []
    for worker, delta in enumerate([(5, 0), (3, 4), (0, 0.5)]):
        monitor.add(worker, floats(*delta))
        seen.append(monitor.agreement)
    assert [one.updates for one in seen] == [1, 2, 3]
    assert seen[0].cosine is None
    assert [seen[1].cosine, seen[2].cosine] == pytest.approx([0.6, 1.4 / 3])
    monitor.measure()
    assert monitor.agreement.cosine == pytest.approx(1.4 / 3)  # also after the end of a round
    monitor.add(0, floats(0, 2))
    monitor.add(1, floats(0, 0))
    assert monitor.agreement == Agreement(pytest.approx(2.6 / 3), updates=3)
    monitor.measure()
    assert DriftMonitor(monitor.directions).agreement.cosine == pytest.approx(2.6 / 3)
    # in the midst of a round they are those of the last updates, too
    monitor.add(0, floats(5, 0))
    assert monitor.directions[0].tolist() == [1, 0]
    assert DriftMonitor(monitor.directions).agreement.cosine == pytest.approx(monitor.agreement.cosine)


def test_one_worker_tells_nothing() -> None:
    monitor = DriftMonitor()
    assert round_of(monitor, (1, 0)) == Agreement(updates=1)
    assert round_of(monitor, (1, 0)) == Agreement(updates=1, pairs=1)


def test_the_order_of_workers_does_not_matter() -> None:
    random = np.random.default_rng(3)
    now, before = ({i: floats(*random.normal(size=5)) for i in range(6)} for _ in range(2))
    backwards = dict(reversed(now.items()))
    assert drift_of(backwards, before) == pytest.approx(drift_of(now, before), abs=1e-12)
    assert cosine_of(backwards) == pytest.approx(cosine_of(now), abs=1e-12)


def test_noise_has_no_drift_and_leanings_have() -> None:
    random = np.random.default_rng(4)
    leanings = random.normal(size=(8, 40_000)).astype(np.float32)
    for leaning, expected in ((0.0, 0.0), (1.0, 0.5)):  # one part leaning in two: u . v = 1/2
        monitor = DriftMonitor()
        for _ in range(2):
            for worker in range(8):
                monitor.add(worker, leaning * leanings[worker] + random.normal(size=40_000).astype(np.float32))
            seen = monitor.measure()
        assert seen.drift == pytest.approx(expected, abs=0.02)
        assert seen.cosine == pytest.approx(0.0, abs=0.02)


def test_the_mean_of_many_is_stretched_to_that_of_eight() -> None:
    # 32 updates of noise: sqrt((1/8) / (1/32)) = 2. Cosine 0.2: sqrt((0.2 + 0.1) / (0.2 + 0.025))
    assert stretch_of(Agreement(0.0, 0.0, 32), 8) == 2.0
    assert stretch_of(Agreement(0.2, None, 32), 8) == pytest.approx((0.3 / 0.225) ** 0.5)
    assert stretch_of(Agreement(-0.1, 0.2, 32), 8) == pytest.approx((0.3 / 0.225) ** 0.5)  # drift is no noise
    assert stretch_of(Agreement(0.9, 0.3, 32), 8) == 1.0
    assert stretch_of(Agreement(0.0, 0.0, 8), 8) == stretch_of(Agreement(0.0, 0.0, 2), 8) == 1.0
    assert stretch_of(Agreement(), 8) == 1.0


def test_a_worker_is_compared_with_its_last_update_however_long_ago() -> None:
    monitor = DriftMonitor()
    round_of(monitor, (1, 0), (0, 1))
    monitor.add(1, floats(0, 1))  # worker 0 takes its time
    # own 1; worker 0's last one 0
    assert monitor.measure() == Agreement(None, 1.0, 1, 1)
    monitor.add(0, floats(1, 0))
    assert monitor.measure() == Agreement(None, 1.0, 1, 1)


def test_large_models_are_looked_at_in_places() -> None:
    assert places(7).tolist() == [0, 1, 2, 3, 4, 5, 6]
    chosen = places(10**9)
    assert len(chosen) == SAMPLE
    assert chosen.min() >= 0
    assert chosen.max() < 10**9
    gaps = np.diff(chosen)
    assert gaps.max() < 3 * 10**9 / SAMPLE  # spread evenly
    assert len(set(gaps.tolist())) > 1  # and not in step with anything


def test_how_far_workers_are_apart() -> None:
    monitor = DriftMonitor()
    assert monitor.apart == 0
    for expected, *deltas in ((0, (1, 0), (0, 1)), (1, (1, 0), (0, 1)), (0, (0, 1), (1, 0))):  # drifts None, 1, -1
        round_of(monitor, *deltas)
        assert monitor.apart == expected
