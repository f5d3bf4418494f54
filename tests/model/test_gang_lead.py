"""What a leader sends back, and what it needs to begin."""

from __future__ import annotations

import cloudpickle
import numpy as np
import pytest

from elephas_like.core.errors import DataError, Failure, WaitError, WorkerError
from elephas_like.core.progress import FitProgress
from elephas_like.core.types import EpochRecord, RoundRecord, TrainState, WorkerRecord
from elephas_like.model.gang_lead import Epochs, loss_of, no_loss

STATE = TrainState(
    weights=np.arange(3, dtype=np.float32),
    statistics=np.zeros(0, np.float32),
    slots=np.ones(2, np.float32),
    counters=np.array([4]),
    learning_rate=np.array([0.1], np.float32),
    loss_scale=np.zeros(0, np.float32),
    seeds=np.zeros(0, np.int64),
)


def progress() -> FitProgress:
    rounds = [RoundRecord(number, number // 2, (WorkerRecord(0, 5, 1, 0.5),), loss=0.25, of=2) for number in range(4)]
    return FitProgress(STATE, rounds, epoch=2, orders=4, version=4, samples=20, first_rate=0.1)


def sent(epochs: Epochs) -> Epochs:
    return Epochs.of(b"".join(epochs.pieces()))


def test_progress_and_records_come_back_as_they_were() -> None:
    given = [EpochRecord(0, STATE, np.array([2.0, 4.0]), 10), EpochRecord(1, STATE, np.ones(2), 10, np.zeros(2))]
    found = sent(Epochs(progress(), given, None))
    assert found.error is None
    assert found.progress.rounds == progress().rounds
    assert (found.progress.epoch, found.progress.samples) == (2, 20)
    np.testing.assert_array_equal(found.progress.state.weights, STATE.weights)
    assert [(record.epoch, record.samples) for record in found.records] == [(0, 10), (1, 10)]
    assert found.records[0].validation is None
    np.testing.assert_array_equal(found.records[1].validation, np.zeros(2))


@pytest.mark.parametrize(
    "error",
    [
        WaitError("too late"),
        DataError("row 3"),
        Failure("KeyError", "'x'", "Traceback ...", 1).error(),
        Failure("DataError", "row 3", "Traceback ...", 0).error(),
        Failure("Exotic", "of a user's own", "Traceback ...", 2).error(),
    ],
)
def test_errors_keep_their_type_and_words(error: Exception) -> None:
    found = sent(Epochs(progress(), [], error)).error
    assert str(found) == str(error)
    assert [kind.__name__ for kind in type(found).__mro__] == [kind.__name__ for kind in type(error).__mro__]
    if isinstance(error, WorkerError):
        assert isinstance(found, WorkerError)
        assert (found.worker, found.type_name, found.message) == (error.worker, error.type_name, error.message)
        assert str(cloudpickle.loads(cloudpickle.dumps(error))) == str(error)


def test_the_loss_is_the_mean_that_metric_sums_begin_with() -> None:
    assert loss_of(np.array([3.0, 4.0, 9.0])) == 0.75
    assert loss_of(np.array([3.0, 0.0])) is None
    assert loss_of(np.zeros(0)) is None
    assert no_loss(np.array([3.0, 4.0])) is None
