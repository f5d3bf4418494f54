"""Control variates, by hand."""

from __future__ import annotations

import numpy as np
import pytest
from plain_numpy import floats

from elephas_like.core.variates import ControlVariate, MeanStep


def test_a_worker_corrects_its_steps_by_what_its_last_ones_lacked_to_those_of_all() -> None:
    variate = ControlVariate()
    assert variate.correction(floats(), 1.0) is None  # there was no round
    assert variate.own_end(floats(0, 0), floats(4, -2), 2).tolist() == [4, -2]
    assert variate.own.tolist() == [2, -1]
    assert variate.correction(floats(1, 1), 1.0).tolist() == [-1, 2]
    # Four steps from (1, 1) to (5, 11), of which -4 and 8 are corrections: its own went to (9, 3).
    assert variate.own_end(floats(1, 1), floats(5, 11), 4).tolist() == [9, 3]
    assert variate.own.tolist() == [2, 0.5]


def test_a_worker_that_remembers_nothing_or_another_model_corrects_nothing() -> None:
    variate = ControlVariate()
    assert variate.correction(floats(1, 1), 1.0) is None
    variate.own_end(floats(0, 0), floats(1, 2), 1)
    assert variate.correction(floats(1), 1.0) is None
    assert variate.own_end(floats(0, 0), floats(1, 2), 1).tolist() == [1, 2]


def test_nan_is_not_remembered() -> None:
    variate = ControlVariate()
    variate.own_end(floats(0), floats(1), 1)
    assert np.isnan(variate.own_end(floats(0), floats(np.nan), 1)).all()
    assert variate.own.tolist() == [1]


def test_corrections_of_all_workers_add_up_to_nothing() -> None:
    """Weighed as their messages are, whatever the rows and batches of each."""
    random = np.random.default_rng(1)
    ends, steps, weights = random.normal(size=(3, 5)).astype(np.float32), (2, 2, 2), (30.0, 50.0, 20.0)
    workers, mean_step = [ControlVariate() for _ in ends], MeanStep()
    for worker, end, taken, weight in zip(workers, ends, steps, weights, strict=True):
        worker.own_end(np.zeros(5, np.float32), end, taken)
        mean_step.add(weight, taken)
    mean = np.average(ends, axis=0, weights=weights).astype(np.float32)
    corrections = [worker.correction(mean_step.of(mean, 1.0), 1.0) for worker in workers]
    np.testing.assert_allclose(np.average(corrections, axis=0, weights=weights), 0, atol=1e-6)


def test_the_mean_step_is_the_mean_message_a_mean_number_of_steps_is_in() -> None:
    mean_step = MeanStep()
    assert mean_step.of(floats(1), 1.0) is None
    mean_step.add(weight=1, steps=2)
    mean_step.add(weight=3, steps=6)
    assert mean_step.of(floats(10, -5), 1.0).tolist() == pytest.approx([2, -1])  # 4 / (1 x 2 + 3 x 6) of it
    assert mean_step.of(floats(10, -5), 0.5).tolist() == pytest.approx([4, -2])
    assert mean_step.of(floats(10, -5), 0.0) is None


def test_corrections_become_shorter_with_the_learning_rate() -> None:
    """Steps of (2, -1) at a rate of 1/2 are steps of (1/2, -1/4) at 1/8; so are those of all workers, told at this round's rate."""
    variate = ControlVariate()
    variate.correction(floats(), 0.5)
    variate.own_end(floats(0, 0), floats(4, -2), 2)
    assert variate.own.tolist() == [4, -2]
    assert variate.correction(floats(1, 1), 0.125).tolist() == [0.5, 1.25]
    assert variate.own_end(floats(0, 0), floats(1, 3), 1).tolist() == [0.5, 1.75]
    assert variate.own.tolist() == [4, 14]
    # With a rate of nought nothing moves, and what is remembered stays.
    assert variate.correction(floats(0, 0), 0.0) is None
    assert variate.own_end(floats(1, 1), floats(1, 1), 3).tolist() == [1, 1]
    assert variate.own.tolist() == [4, 14]


def test_weights_that_are_left_out_go_their_own_way() -> None:
    variate = ControlVariate([slice(1, 2)])
    variate.own_end(floats(0, 0), floats(1, 2), 1)
    assert variate.correction(floats(5, 5), 1.0).tolist() == [4, 0]
    assert variate.own_end(floats(0, 0), floats(5, 3), 1).tolist() == [1, 3]
    assert variate.own_end(floats(0, 0), floats(5, 3), 1).tolist() == [5, 3]  # a correction is of one round
