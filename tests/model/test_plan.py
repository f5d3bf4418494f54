"""What a fit will do once its workers have joined: what is refused then, and how many rounds an epoch has."""

from __future__ import annotations

from dataclasses import replace

import keras
import numpy as np
import pytest

from elephas_like import SparkModel
from elephas_like.core.errors import DataError, ElephasError, ElephasWarning
from elephas_like.core.types import Frequency, Joined, Mode
from elephas_like.model.plan import RoundCounts, check_joined, schedule_of
from elephas_like.rows.spool import Block
from elephas_like.strategies import FedBuff, PostLocal

ROWS = '[[0, 1], [["float32", [4]], ["float32", [1]]]]'
WORKER = Joined(0, 0, "host", rows=8, validation_rows=2, layout_hash="same", signature=ROWS)
IDLE = replace(WORKER, worker=2, rows=0, validation_rows=0, signature="")


def test_workers_that_can_train_together_may() -> None:
    other = replace(WORKER, worker=1, signature=ROWS.replace("float32", "int64", 1))  # numbers of any dtype are alike
    check_joined([WORKER, other, IDLE], "same", 0.2)
    check_joined([replace(WORKER, validation_rows=0)], "same", 0.0)


@pytest.mark.parametrize(
    ("joined", "kind", "message"),
    [
        (
            [WORKER, replace(WORKER, worker=1, layout_hash="other")],
            ElephasError,
            "worker 1 built another model.*layouts other and same",
        ),
        (
            [IDLE, WORKER, replace(WORKER, worker=1, signature=ROWS.replace("[4]", "[5]"))],
            DataError,
            r"rows of workers 0 and 1 differ: column 0: float32 of shape \(4,\) and float32 of shape \(5,\)",
        ),
        ([IDLE, replace(IDLE, validation_rows=3)], ValueError, "there are no rows to train on"),
        ([IDLE, replace(WORKER, validation_rows=0)], ValueError, "leaves no validation rows: the largest shard has 8"),
    ],
)
def test_workers_that_cannot_train_together(joined: list[Joined], kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message):
        check_joined(joined, "same", 0.2)


SYNCHRONOUS, ALONE = Mode.SYNCHRONOUS, Mode.ASYNCHRONOUS
SCHEDULES = [
    ((SYNCHRONOUS, Frequency.AUTO, [50, 50], 1, False), RoundCounts(5, 20, (5, 5), (20, 20))),
    ((SYNCHRONOUS, Frequency.AUTO, [50, 50], 1, True), RoundCounts(20, 20, (20, 20), (20, 20))),
    ((SYNCHRONOUS, 10, [50, 50], 1, True), RoundCounts(5, 5, (5, 5), (5, 5))),
    ((SYNCHRONOUS, Frequency.BATCH, [50, 25, 0], 1, False), RoundCounts(50, 50, (50, 25, 0), (50, 25, 0))),
    ((SYNCHRONOUS, Frequency.BATCH, [50], 2, False), RoundCounts(25, 25, (25,), (25,))),
    ((SYNCHRONOUS, Frequency.FIT, [50, 50], 1, False), RoundCounts(1, 1, (1, 1), (1, 1))),
    ((SYNCHRONOUS, PostLocal(16), [50, 50, 0], 1, False), RoundCounts(1, 1, (1, 1, 1), (1, 1, 1))),
    ((ALONE, Frequency.AUTO, [50, 50], 1, False), RoundCounts(10, 40, (10, 10), (40, 40))),
    ((ALONE, Frequency.AUTO, [50, 50], 1, True), RoundCounts(40, 40, (40, 40), (40, 40))),
]


@pytest.mark.parametrize(("given", "expected"), SCHEDULES)
def test_exchanges_in_an_epoch(given: tuple, expected: RoundCounts) -> None:
    *positional, private = given
    assert schedule_of(*positional, private=private) == expected


def test_rows_that_are_all_held_out_or_missing_are_said() -> None:
    with pytest.raises(ValueError, match="validation_data has no rows"):
        check_joined([replace(WORKER, validation_rows=0)], "same", 0.0, has_validation_data=True)
    check_joined([WORKER, IDLE], "same", 0.0, has_validation_data=True)
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    few = SparkModel(model, num_workers=2, engine="in_process")
    with pytest.raises(ValueError, match="leaves no validation rows"):
        few.fit(np.zeros((4, 1)), np.zeros(4), validation_split=0.1, verbose=0)
    with pytest.raises(ValueError, match="validation_data has no rows"):
        few.fit(np.zeros((4, 1)), np.zeros(4), validation_data=(np.zeros((0, 1)), np.zeros(0)), verbose=0)


def fitted(rows: list[int], epochs: int = 1, **options: object) -> tuple[list[int], np.ndarray]:
    """Parts of an epoch that rounds were, and the weights, of a fit in which each worker's rows are of another kind."""
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1, use_bias=False)])
    model.compile(keras.optimizers.Adam(0.001), "mse")
    inputs = [np.eye(4, dtype=np.float32)[[worker] * count] for worker, count in enumerate(rows)]
    blocks = [Block((x, np.ones((len(x), 1), np.float32)), len(x)) for x in inputs]
    history = SparkModel(model, engine="in_process", seed=0, **options).fit(
        blocks, epochs=epochs, batch_size=2, verbose=0
    )
    return [record.of for record in history.rounds], model.get_weights()[0]


def rounds_of(rows: list[int], **options: object) -> list[int]:
    return fitted(rows, **options)[0]


def test_drift_makes_rounds_shorter_and_those_of_workers_that_keep_something_to_themselves_are_short() -> None:
    # 50 steps an epoch: five rounds of synchronous workers, ten of two asynchronous ones
    assert max(rounds_of([100, 100])) > 5
    assert max(rounds_of([100, 100], optimizer_state="reset")) > 5
    assert max(rounds_of([100, 100], mode="asynchronous")) > 10
    for private in ({"optimizer_state": "per_worker"}, {"strategy": "easgd"}):
        assert set(rounds_of([100, 100], **private)) == {20}
        assert set(rounds_of([100, 100], **private, frequency=10)) == {5}
    assert set(rounds_of([100, 100], mode="asynchronous", strategy="aeasgd")) == {40}


def test_drift_is_looked_at_where_workers_begin_with_the_same_slots() -> None:
    """Slots of their own make the updates of rounds 2, 3, 5, 6, ... resemble the worker's last ones. Round 4 is the first that tells."""
    assert rounds_of([100, 100], epochs=2, optimizer_state_every=3)[:8] == [5, 5, 5, 5, 10, 10, 10, 20]
    # Where no average would come in so few rounds, no drift is told either.
    assert set(rounds_of([100, 100], optimizer_state_every=1000)) == {20}


@pytest.mark.parametrize("mode", ["synchronous", "asynchronous"])
def test_workers_without_rows_do_not_count(mode: str) -> None:
    # 200 steps an epoch: ten rounds of two asynchronous workers, where four would have 20 in a shard of mean size, and 40 in
    # these; and an update of two weighs 2 ** -1/2, of four 4 ** -1/2
    rounds, weights = fitted([400, 400, 0, 0], mode=mode)
    alone, expected = fitted([400, 400], mode=mode)
    assert rounds == alone
    np.testing.assert_allclose(weights, expected, atol=1e-6)


@pytest.mark.parametrize(
    ("workers", "epochs", "named", "said"),
    [
        (8, 3, {}, True),
        (8, 40, {}, False),
        (2, 3, {}, False),
        (8, 3, {"scale_learning_rate": "sqrt"}, False),
        (8, 3, {"mode": "asynchronous"}, False),
    ],
)
def test_many_workers_of_few_steps_each_are_said(
    workers: int, epochs: int, named: dict, said: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Five steps an epoch on eight workers: 15 in three epochs, 200 in forty."""
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse", run_eagerly=False)
    x = np.zeros((workers * 10, 1), "float32")
    enough = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: setattr(model, "stop_training", True))
    SparkModel(model, workers, engine="in_process", batch_size=2, frequency="epoch", **named).fit(
        x, x, epochs=epochs, verbose=0, callbacks=[enough]
    )
    expected = (
        "each of 8 workers takes 15 steps in this fit, where one process would take about 120: global_batch_size=2"
    )
    assert (expected in caplog.text) is said


@pytest.mark.parametrize(
    ("rows", "frequency", "buffer", "came"), [((4, 4), 1, 4, 4), ((4, 4), 1, 5, 4), ((2, 40), "epoch", 3, None)]
)
def test_a_strategy_that_has_not_stepped_once_is_said(
    rows: tuple[int, int], frequency: object, buffer: int, came: int | None, recwarn: pytest.WarningsRecorder
) -> None:
    """Two workers exchange twice each. Of shards of 2 and 40 rows the small one is trained again while the large one is."""
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, kernel_initializer="zeros")])
    model.compile("sgd", "mse")
    x = np.ones((max(rows), 1), "float32")
    fit = SparkModel(
        model, engine="in_process", batch_size=2, mode="asynchronous", strategy=FedBuff(buffer), frequency=frequency
    )
    fit.fit([Block((x[:count], x[:count]), count) for count in rows], epochs=1, verbose=0)
    stepped = model.get_weights()[0][0, 0] > 0
    assert stepped is np.bool_(came is None or buffer <= came)
    said = [str(warning.message) for warning in recwarn if issubclass(warning.category, ElephasWarning)]
    expected = f"'fedbuff' has not stepped once: {came} updates have come, and it waits for {buffer}"
    assert [expected in each for each in said] == [True] * (not stepped)


@pytest.mark.parametrize("mode", ["synchronous", "asynchronous", "hogwild"])
def test_nothing_left_to_train_is_no_error(mode: str) -> None:
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    x = np.ones((8, 1), "float32")
    fit = SparkModel(model, 2, engine="in_process", mode=mode)
    assert fit.fit(x, x, epochs=3, initial_epoch=3, verbose=0).epoch == []


@pytest.mark.parametrize(
    ("options", "request_", "name"),
    [
        ({"scale_learning_rate": "linear"}, {}, "scale_learning_rate"),
        ({}, {"global_batch_size": 4}, "global_batch_size"),
        ({}, {}, None),
    ],
)
def test_workers_without_rows_that_were_counted_in_are_said(
    options: dict, request_: dict, name: str | None, recwarn: pytest.WarningsRecorder
) -> None:
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    x = np.ones((4, 1), "float32")
    blocks = [Block((x[:rows], x[:rows]), rows) for rows in (4, 0, 4)]
    SparkModel(model, engine="in_process", **options).fit(blocks, epochs=1, verbose=0, **request_)
    said = [str(warning.message) for warning in recwarn if issubclass(warning.category, ElephasWarning)]
    expected = f"1 of 3 workers have no rows, and {name} has counted all 3: train with num_workers=2"
    assert [expected in message for message in said] == [True] * (name is not None)
