"""What of a search may win, and that its words travel as plain data."""

from __future__ import annotations

import math
import pickle

import pytest

from elephas_like.core.trials import TrialOrder, TrialResult, TrialStatus


@pytest.mark.parametrize(
    ("status", "loss", "counts"),
    [
        (TrialStatus.OK, 0.5, True),
        (TrialStatus.TIMEOUT, 0.5, True),  # it was stopped by the clock, not for being bad
        (TrialStatus.PRUNED, 0.1, False),  # stopped for being worse than others at the time, whatever it had reached
        (TrialStatus.INTERRUPTED, 0.1, False),
        (TrialStatus.FAILED, None, False),
        (TrialStatus.OK, None, False),
    ],
)
def test_which_trials_may_be_the_best(status: TrialStatus, loss: float | None, counts: bool) -> None:
    assert TrialResult(0, status, loss=loss).counts is counts


def test_the_first_trial_beats_any_bar() -> None:
    assert TrialOrder(0, {}).keep_below == math.inf
    assert TrialOrder(0, {}).wants_model(1e9)


def test_a_trial_as_good_as_the_worst_that_is_kept_brings_its_model() -> None:
    order = TrialOrder(3, {}, keep_below=0.5)
    assert [order.wants_model(loss) for loss in (0.4, 0.5, 0.6, None)] == [True, True, False, False]


def test_orders_and_results_travel() -> None:
    order = TrialOrder(3, {"units": 8}, batch_size=16, keep_below=0.25)
    result = TrialResult(3, TrialStatus.OK, ({"loss": 1.0},), 0, 1.0, model=b"\x00", notes={"a": [1]})
    assert pickle.loads(pickle.dumps((order, result))) == (order, result)  # noqa: S301  our own bytes


def test_a_models_bytes_stay_out_of_what_is_printed() -> None:
    assert "model" not in repr(TrialResult(0, TrialStatus.OK, model=b"x" * 1000))


def test_only_trials_that_were_not_found_wanting_may_be_the_best() -> None:
    counting = {status: TrialResult(0, status, loss=1.0).counts for status in TrialStatus}
    assert [status for status, counts in counting.items() if counts] == [TrialStatus.OK, TrialStatus.TIMEOUT]
    assert not TrialResult(0, TrialStatus.OK).counts


def test_orders_and_results_are_plain_data() -> None:
    order = TrialOrder(3, {"units": 8}, keep_below=0.5)
    result = TrialResult(3, TrialStatus.OK, history=({"loss": 1.0},), best_epoch=0, loss=1.0, model=b"x")
    assert pickle.loads(pickle.dumps((order, result))) == (order, result)  # noqa: S301  our own
    assert "b'x'" not in repr(result)
