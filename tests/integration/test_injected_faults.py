"""Faults of elephas_like.testing in fits on Spark: each one happens, and the fit ends as documented. Kills: test_kills.py."""

from __future__ import annotations

import keras
import numpy as np
import pytest
from small import line, points, trained

from elephas_like import ElephasError, SparkModel, WaitError, WorkerError
from elephas_like.testing import Fault, delay, drop, fail, hang, inject, kill

both = pytest.mark.parametrize("engine", ["server", "jobs"])
ROUNDS = 4


class OutOfPaper(Exception):
    """An exception of the user's own, from a module that workers do not have."""


@pytest.fixture
def rdd(sc):
    return sc.parallelize(points(40), 2)


def fit(rdd, engine: str, **options: object) -> tuple[keras.Model, keras.callbacks.History]:
    """A fit of two epochs of two rounds."""
    model = line(optimizer="adam")
    fitted = SparkModel(model, 2, engine=engine, batch_size=5, frequency=2, seed=3, **options)
    return model, fitted.fit(rdd, epochs=2, verbose=0)


def same_bits(one: keras.Model, other: keras.Model) -> None:
    ours, theirs = ([*model.get_weights(), *map(np.array, model.optimizer.variables)] for model in (one, other))
    for mine, its in zip(ours, theirs, strict=True):
        np.testing.assert_array_equal(mine, its)


def what(faults) -> list[tuple[str, int, int, int]]:
    return sorted((each.fault.kind, each.fault.worker, each.round, each.attempt) for each in faults.happened)


@both
def test_a_worker_fails_with_the_exception_of_ones_choice(rdd, engine: str) -> None:
    with inject(fail(1, 2, step=1, error=KeyError("no such page"))) as faults:
        with pytest.raises(KeyError, match="no such page") as caught:
            fit(rdd, engine)
    assert isinstance(caught.value, WorkerError)
    assert caught.value.worker == 1
    assert what(faults) == [("fail", 1, 2, 0)]
    assert trained(fit(rdd, engine)[1]) == 80


@both
def test_an_exception_class_that_workers_do_not_have_is_sent_to_them(rdd, engine: str) -> None:
    with inject(fail(0, epoch=1, error=OutOfPaper("tray 2"))) as faults:
        with pytest.raises(WorkerError, match="OutOfPaper on worker 0: tray 2"):
            fit(rdd, engine)
    assert what(faults) == [("fail", 0, 2, 0)]


@both
def test_a_slow_worker_brings_the_same_bits(rdd, engine: str) -> None:
    undisturbed, _ = fit(rdd, engine)
    with inject(delay(0, seconds=0.05, every_round=True), delay(1, 1, epoch=1, seconds=0.05)) as faults:
        delayed, _ = fit(rdd, engine)
    same_bits(delayed, undisturbed)
    assert what(faults) == [*(("delay", 0, number, 0) for number in range(ROUNDS)), ("delay", 1, 3, 0)]


@pytest.mark.parametrize(("transport", "tls"), [("http", True), ("socket", False)])
def test_a_connection_that_breaks_costs_no_update_and_doubles_none(rdd, transport: str, tls: bool) -> None:
    options = {"state_codec": "int8"} if tls else {}
    undisturbed, _ = fit(rdd, "server", **options)
    broken = (drop(0, every_round=True), drop(1, 1), drop(1, 3, when="reply"))
    with inject(*broken) as faults:
        dropped, history = fit(rdd, "server", parameter_server_mode=transport, tls=tls, **options)
    same_bits(dropped, undisturbed)
    assert trained(history) == 80
    assert what(faults) == [*(("drop", 0, number, 0) for number in range(ROUNDS)), ("drop", 1, 1, 0), ("drop", 1, 3, 0)]


@pytest.mark.slow  # test_faults.py has a step that hangs on the server, tests/engine/test_faulty_worker.py an injected one
def test_a_worker_that_hangs_is_named(rdd) -> None:
    fit(rdd, "jobs")  # imports TensorFlow and traces the step
    with inject(hang(1, 1)) as faults, pytest.raises(WaitError, match=r"round_timeout=4 s; missing: worker 1"):
        fit(rdd, "jobs", round_timeout=4)
    assert what(faults) == [("hang", 1, 1, 0)]


@pytest.mark.slow
@both
def test_a_killed_process_ends_the_fit_where_spark_repeats_no_task(rdd, engine: str) -> None:
    with inject(kill(0, 1, step=1)) as faults, pytest.raises(ElephasError) as caught:
        fit(rdd, engine)
    assert not isinstance(caught.value, WorkerError | WaitError)  # nobody waits for what Spark has given up
    assert what(faults) == [("kill", 0, 1, 0)]
    assert trained(fit(rdd, engine)[1]) == 80


def test_what_an_engine_cannot_have_is_refused_before_any_job(rdd) -> None:
    for engine, fault in (("jobs", drop(0, 0)), ("server", kill(2, 0))):
        assert_refused(rdd, engine, fault)


def assert_refused(rdd, engine: str, fault: Fault) -> None:
    before = len(rdd.context.statusTracker().getJobIdsForGroup(None))
    with inject(fault) as faults, pytest.raises(ValueError, match=fault.kind):
        fit(rdd, engine)
    assert not faults.happened
    assert len(rdd.context.statusTracker().getJobIdsForGroup(None)) == before
