"""Faults in fits of this process; on Spark: tests/integration/test_injected_faults.py."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from small import line

from elephas_like import SparkModel
from elephas_like.core.types import EngineName
from elephas_like.model.injection import injected
from elephas_like.testing import Fault, delay, drop, fail, hang, inject, kill

X, Y = np.ones((8, 2), "float32"), np.ones(8, "float32")


class TooHot(Exception):
    """An exception of the user's own."""


def fit(epochs: int = 2, **options: Any) -> Any:
    model = line()
    fitted = SparkModel(model, 2, engine="in_process", batch_size=2, frequency="epoch", seed=1, **options)
    return model, fitted.fit(X, Y, epochs=epochs, verbose=0)


def test_without_faults_a_fit_is_the_one_it_is() -> None:
    one: Any = object()
    with injected(one, EngineName.SERVER, 2, lambda store: pytest.fail("nobody asks")) as other:
        assert other is one


def test_a_worker_raises_the_users_own_exception_in_its_round() -> None:
    with inject(fail(1, 1, step=1, error=TooHot("by the oven"))) as faults, pytest.raises(TooHot, match="by the oven"):
        fit()
    assert [(each.fault.worker, each.round, each.attempt) for each in faults.happened] == [(1, 1, 0)]
    fit()  # outside nothing happens


def test_a_delayed_worker_brings_the_same_bits() -> None:
    model, _ = fit()
    with inject(delay(0, seconds=0.01, every_round=True)) as faults:
        delayed, history = fit()
    for before, after in zip(model.get_weights(), delayed.get_weights(), strict=True):
        np.testing.assert_array_equal(before, after)
    assert [each.round for each in faults.happened] == [record.round for record in history.rounds] == [0, 1]


def test_rounds_of_asynchronous_workers_are_their_own() -> None:
    with inject(delay(1, 1, seconds=0.0)) as faults:
        fit(4, mode="asynchronous")
    assert [(each.fault.worker, each.round) for each in faults.happened] == [(1, 1)]


def test_a_fault_happens_once_over_all_fits_inside() -> None:
    with inject(delay(0, 0, seconds=0.0)) as faults:
        fit()
        fit()
    assert [each.attempt for each in faults.happened] == [0]


def test_a_fit_in_another_thread_has_them_too() -> None:
    with inject(delay(0, 0, seconds=0.0)) as faults:
        thread = threading.Thread(target=fit)
        thread.start()
        thread.join(60)
    assert len(faults.happened) == 1


@pytest.mark.parametrize("fault", [kill(0, 0), hang(0, 0), drop(0, 0), fail(2, 0)])
def test_what_cannot_be_done_is_an_error_before_anything_starts(fault: Fault) -> None:
    with inject(fault) as faults, pytest.raises(ValueError, match=fault.kind):
        fit()
    assert not faults.happened


def test_no_two_at_once_and_nothing_but_faults() -> None:
    with inject(), pytest.raises(RuntimeError, match="one `with inject"):
        with inject():
            pass
    with pytest.raises(TypeError, match=r"expected faults such as kill\(worker=1, round=3\), got 'kill'"):
        with inject("kill"):  # type: ignore[arg-type]
            pass
    with inject(replace(delay(0, 0, seconds=0))) as faults:
        fit()
    assert faults.happened
