"""Which engine is taken, and why. What a fit does is in tests/model/test_spark_model.py and tests/integration."""

from __future__ import annotations

import logging

import keras
import numpy as np
import pytest

from elephas_like import SparkModel
from elephas_like.core.errors import CapacityError, WaitError
from elephas_like.core.types import EngineName
from elephas_like.model.fitting import chosen_engine
from elephas_like.rows.spool import Block
from elephas_like.spark.slots import free, reservation


def settings(**options: object):
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    return SparkModel(model, num_workers=2, join_timeout=1, **options)._settings(2)


def chosen(settings, context, num_workers: int | None, partitions: int | None = None, **options: bool):
    with chosen_engine(settings, context, num_workers, partitions, **options) as choice:
        return choice


def test_without_spark_it_is_this_process_and_the_reason_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "elephas_like")
    assert chosen(settings(), None, 2) == (EngineName.IN_PROCESS, 2)
    assert "no Spark session is active" in caplog.text


def test_what_was_asked_for_is_taken(sc) -> None:
    assert chosen(settings(engine="in_process"), sc, 2) == (EngineName.IN_PROCESS, 2)
    assert chosen(settings(engine="jobs"), sc, 2) == (EngineName.JOBS, 2)
    assert chosen(settings(engine="server"), sc, 2) == (EngineName.SERVER, 2)
    with pytest.raises(CapacityError, match="99 workers must run at the same time, and Spark has 2 slots"):
        chosen(settings(engine="server"), sc, 99)


def test_auto_follows_mode_and_slots(sc) -> None:
    assert chosen(settings(), sc, 2) == (EngineName.SERVER, 2)
    assert chosen(settings(), sc, 3) == (EngineName.JOBS, 3)
    with pytest.raises(CapacityError, match="3 workers must run at the same time"):
        chosen(settings(mode="asynchronous"), sc, 3)


@pytest.mark.parametrize(
    ("partitions", "expected"), [(None, (2, 2, 2)), (1, (1, 1, 1)), (5, (2, 5, 5))], ids=["arrays", "one", "five"]
)
def test_workers_follow_partitions_and_slots(sc, partitions: int | None, expected: tuple[int, int, int]) -> None:
    server, in_process, jobs = expected
    assert chosen(settings(), sc, None, partitions) == (EngineName.SERVER, server)
    assert chosen(settings(engine="in_process"), None, None, partitions)[1] == (in_process if partitions else 1)
    assert chosen(settings(engine="jobs"), sc, None, partitions)[1] == (jobs if partitions else 1)


def test_auto_takes_the_slots_that_other_fits_leave(sc, caplog: pytest.LogCaptureFixture) -> None:
    with reservation(sc, 1, 2, timeout=0):
        assert chosen(settings(), sc, None, 5) == (EngineName.SERVER, 1)
        assert chosen(settings(), sc, 2) == (EngineName.JOBS, 2)
    assert "other fits hold the slots; each round is a Spark job" in caplog.text
    with reservation(sc, 2, 2, timeout=0):
        assert chosen(settings(), sc, None, 5) == (EngineName.JOBS, 5)
        for options, steady in (({"mode": "asynchronous"}, False), ({}, True), ({"engine": "server"}, False)):
            with pytest.raises(WaitError, match="other fits hold 2 of 2 slots"):
                chosen(settings(**options), sc, 2, steady=steady)
    assert chosen(settings(), sc, 2) == (EngineName.SERVER, 2)


def test_a_choice_holds_its_slots_until_its_end(sc) -> None:
    with chosen_engine(settings(), sc, 2, None) as first, chosen_engine(settings(), sc, 2, None) as second:
        assert (first[0], second[0]) == (EngineName.SERVER, EngineName.JOBS)
    with pytest.raises(RuntimeError, match="on the way"), chosen_engine(settings(), sc, 2, None):
        raise RuntimeError("on the way")
    assert free(sc, 2) == 2


def test_rows_that_are_all_held_out_or_missing_are_said() -> None:
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    few = SparkModel(model, num_workers=2, engine="in_process")
    with pytest.raises(ValueError, match="leaves no validation rows"):
        few.fit(np.zeros((4, 1)), np.zeros(4), validation_split=0.1, verbose=0)


def fitted(rows: list[int], **options: object) -> tuple[list[int], np.ndarray]:
    """Parts of an epoch that rounds were, and the weights, of a fit in which each worker's rows are of another kind."""
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1, use_bias=False)])
    model.compile(keras.optimizers.Adam(0.001), "mse")
    inputs = [np.eye(4, dtype=np.float32)[[worker] * count] for worker, count in enumerate(rows)]
    blocks = [Block((x, np.ones((len(x), 1), np.float32)), len(x)) for x in inputs]
    history = SparkModel(model, engine="in_process", seed=0, **options).fit(blocks, epochs=4, batch_size=2, verbose=0)
    return [record.of for record in history.rounds], model.get_weights()[0]


def rounds_of(rows: list[int], **options: object) -> list[int]:
    return fitted(rows, **options)[0]


def test_drift_makes_rounds_shorter_and_those_of_workers_that_keep_something_to_themselves_are_short() -> None:
    # 50 steps an epoch: five rounds of synchronous workers, ten of two asynchronous ones
    assert max(rounds_of([100, 100])) > 5
    assert max(rounds_of([100, 100], mode="asynchronous")) > 10
    for private in ({"optimizer_state": "per_worker"}, {"strategy": "easgd"}):
        assert set(rounds_of([100, 100], **private)) == {20}
        assert set(rounds_of([100, 100], **private, frequency=10)) == {5}
    assert set(rounds_of([100, 100], mode="asynchronous", strategy="aeasgd")) == {40}


@pytest.mark.parametrize("mode", ["synchronous", "asynchronous"])
def test_workers_without_rows_do_not_count(mode: str) -> None:
    # 200 steps an epoch: ten rounds of two asynchronous workers, where four would have 20 in a shard of mean size, and 40 in
    # these; and an update of two weighs 2 ** -1/2, of four 4 ** -1/2
    rounds, weights = fitted([400, 400, 0, 0], mode=mode)
    alone, expected = fitted([400, 400], mode=mode)
    assert rounds == alone
    np.testing.assert_allclose(weights, expected, atol=1e-6)
