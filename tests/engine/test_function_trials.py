"""Trials of plain functions: what they return, what they report, what they import."""

from __future__ import annotations

import json
import math
import random
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import cloudpickle
import numpy as np
import pytest

from elephas_like.core.errors import ElephasError
from elephas_like.core.objective import Objective
from elephas_like.core.trials import TrialOrder, TrialResult, TrialStatus
from elephas_like.engine.function_trials import ObjectiveTrial, read_value, takes_trial, tried

LOSS = Objective("loss")


def run(function: Callable, stop_at: int = 99, objective: Objective = LOSS, number: int = 0) -> TrialResult:
    """A trial that is told to stop at its report number `stop_at`."""
    trial = ObjectiveTrial(cloudpickle.dumps([function]), objective, 7, takes_trial(function))
    return tried(trial, TrialOrder(number, {"x": 3}), (), lambda epoch, logs: epoch + 1 < stop_at)


def reports(params, trial):
    for value in (5.0, 2.0, 4.0):
        if not trial.report(value, seen=params["x"]):
            return
    return


def test_a_number_or_hyperopts_dict_is_the_result() -> None:
    assert read_value(np.float32(0.5), "loss") == (0.5, None, {})
    more = {"path": "a", "size": np.int64(3), "recall": np.float32(0.5)}
    found = read_value({"loss": 1, "status": "ok", **more, "object": object(), "rest": math.nan}, "loss")
    assert found == (1.0, None, more)
    assert json.loads(json.dumps(found[2])) == more  # plain numbers, as a resumed search has them
    assert read_value({"accuracy": 0.9, "loss": 2}, "accuracy")[0] == 0.9
    with pytest.raises(ElephasError, match="must have 'accuracy', which is maximized; it has 'loss'"):
        read_value({"loss": -0.9}, "accuracy", maximized=True)
    assert (
        read_value({"status": "fail", "error": "too big"}, "loss")[1] == "the function returned status 'fail': too big"
    )
    result = run(lambda params: params["x"] ** 2)
    assert (result.status, result.loss, result.history, result.best_epoch) == (TrialStatus.OK, 9.0, ({"loss": 9.0},), 0)
    best = run(lambda params: {"accuracy": 0.9, "note": "n"}, objective=Objective("accuracy", maximize=True))
    assert (best.loss, best.history, best.notes) == (-0.9, ({"accuracy": 0.9},), {"note": "n"})


@pytest.mark.parametrize(
    ("returned", "said"),
    [
        ("low", "must return a number, or a dict with 'loss'; got str"),
        (True, "got bool"),
        (None, "got NoneType"),
        ({"cost": 1}, r"must have 'loss'; got \['cost'\]"),
        (math.nan, "'loss' was never a finite number"),
        ({"status": "fail"}, "status 'fail': no reason given"),
        ({"loss": None}, "the function's 'loss' must be one number; got None"),
        ({"loss": [0.5]}, r"the function's 'loss' must be one number; got \[0.5\]"),
    ],
)
def test_what_is_no_result_is_a_failed_trial(returned: object, said: str) -> None:
    result = run(lambda params: returned)
    assert result.status is TrialStatus.FAILED
    assert result.loss is None
    assert result.failure is not None
    assert re.search(said, result.failure.message)


def test_each_of_several_objectives_is_a_number_of_any_kind_and_must_be_there() -> None:
    both = Objective("loss", more=(Objective("size"),))
    for size in (3, np.float32(3), np.array(3.0), np.array([3.0])):
        assert run(lambda params, size=size: {"loss": 1, "size": size}, objective=both).history == (
            {"loss": 1.0, "size": 3.0},
        )
    for returned, said in (
        ({"loss": 1}, "the function gave no 'size', which is one of the objectives"),
        (1.0, "the function gave no 'size'"),
        ({"loss": 1, "size": "big"}, "the function's 'size' must be one number; got 'big'"),
    ):
        result = run(lambda params, returned=returned: returned, objective=both)
        assert (result.status, result.loss) == (TrialStatus.FAILED, None)
        assert result.failure is not None
        assert said in result.failure.message


def test_the_best_report_counts_where_nothing_is_returned() -> None:
    result = run(reports)
    assert (result.status, result.loss, result.best_epoch) == (TrialStatus.OK, 2.0, 1)
    assert result.history == ({"loss": 5.0, "seen": 3.0}, {"loss": 2.0, "seen": 3.0}, {"loss": 4.0, "seen": 3.0})

    def returns(params, trial):
        trial.report(5.0)
        return 1.0

    assert run(returns).loss == 1.0


def test_a_trial_that_is_told_to_stop_is_pruned_however_it_ends() -> None:
    def raises(params, trial):
        trial.report(5.0)
        if trial.should_prune():
            raise RuntimeError("stopped")
        return 1.0

    def insists(params, trial):
        return 0.0 if not trial.report(5.0) and not trial.report(4.0) else 9.0

    assert (run(reports, stop_at=2).status, run(reports, stop_at=2).loss) == (TrialStatus.PRUNED, 2.0)
    for function, loss, length in ((raises, 5.0, 1), (insists, 4.0, 2)):
        result = run(function, stop_at=1)
        assert (result.status, result.loss, len(result.history)) == (TrialStatus.PRUNED, loss, length)
        assert result.failure is None
    failed = run(raises, stop_at=5)
    assert failed.status is TrialStatus.OK


def test_an_error_is_the_trials_own() -> None:
    def fails(params):
        raise KeyError("units")

    result = run(fails)
    assert result.status is TrialStatus.FAILED
    assert result.failure is not None
    assert result.failure.type_name == "KeyError"


def test_generators_are_seeded_by_trial_and_left_as_they_were() -> None:
    def draws(params):
        return np.random.rand() + random.random()

    np.random.seed(1)
    before = np.random.get_state()[1].copy()
    assert run(draws).loss == run(draws).loss
    assert run(draws).loss != run(draws, number=1).loss
    np.testing.assert_array_equal(np.random.get_state()[1], before)


def test_a_trial_loads_neither_keras_nor_tensorflow(tmp_path: Path) -> None:
    """As an executor runs it: everything comes out of a pickle, in a process that has loaded nothing."""
    from functools import partial

    trial = ObjectiveTrial(cloudpickle.dumps([lambda params: params["x"]]), Objective("loss"), 0, False)
    (tmp_path / "trial").write_bytes(cloudpickle.dumps((partial(tried, trial), TrialOrder(0, {"x": 3.0}))))
    code = (
        "import sys, cloudpickle, elephas_like.engine.runs, elephas_like.exchange.client;"
        "run, order = cloudpickle.loads(open(sys.argv[1], 'rb').read());"
        "print(run(order, (), lambda epoch, logs: True).loss, [n for n in ('keras', 'tensorflow', 'hyperopt') if n in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "trial")], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "3.0 []"
