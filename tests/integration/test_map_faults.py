"""Predictions and evaluations that hang, fail or are interrupted end in time, and leave nothing on the executors' disks."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import keras
import pytest
from leftovers import eventually, ours
from pyspark import SparkContext
from small import line, points

from elephas_like import SparkModel, WaitError
from elephas_like.engine import map_shards
from elephas_like.spark.waits import cancel_and_wait

one_of_them = pytest.mark.parametrize("call", ["predict", pytest.param("evaluate", marks=pytest.mark.slow)])


def rows_that(sc, act: Callable[[int], None], call: str):
    """20 rows in 2 partitions for a call, as features or with targets; `act` gets the number of each row as it is read."""

    def read(index: int, rows: Iterator[tuple]) -> Iterator[object]:
        for number, row in enumerate(rows):
            act(10 * index + number)
            yield row[0] if call == "predict" else row

    return sc.parallelize(points(20), 2).mapPartitionsWithIndex(read)


@pytest.fixture
def blocked(sc, tmp_path: Path) -> Iterator[Callable]:
    """Makes rows of which the last waits until the test is over; a file tells that it is being waited for."""
    folder = str(tmp_path)

    def wait(number: int) -> None:
        if number == 19:
            Path(folder, "blocked").touch()
            while Path(folder).exists() and not Path(folder, "go-on").exists():
                threading.Event().wait(0.05)

    yield lambda call: rows_that(sc, wait, call)
    (tmp_path / "go-on").touch()


def works(sc, model: SparkModel) -> bool:
    """Whether both slots are free for an ordinary prediction."""
    return len(model.predict(sc.parallelize(points(20), 2).map(lambda row: row[0]))) == 20


@pytest.mark.fault(
    "A row that `predict` or `evaluate` reads never comes",
    "`WaitError` after the `timeout` of the call, which says what was waited for; tasks and files are gone",
    "the call",
)
def test_rows_that_never_come_end_the_call(sc, blocked, scratch: Path) -> None:
    """Both calls are one job, which waits and tidies up by the same lines; how `evaluate` tidies up is seen below, with Ctrl-C."""
    model = SparkModel(line(), batch_size=1)
    assert works(sc, SparkModel(line()))  # Python processes that begin, and TensorFlow, take their time
    before = ours(scratch)
    said = r"none did for timeout=3 s \(predict 2 partitions; 1 running, 1 ended\).*a longer timeout"
    with pytest.raises(WaitError, match=said):
        model.predict(blocked("predict"), timeout=3)
    assert ours(scratch) <= before
    assert works(sc, model)


def test_a_first_row_that_never_comes_ends_the_call(sc, tmp_path: Path) -> None:
    """A model that is not built reads a row before anything else."""
    folder = str(tmp_path)

    def wait(row: tuple) -> tuple:
        while Path(folder).exists() and not Path(folder, "go-on").exists():
            threading.Event().wait(0.05)
        return row

    model = keras.Sequential([keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    with pytest.raises(WaitError, match=r"expected the first row, .*timeout=1 s"):
        SparkModel(model).evaluate(sc.parallelize(points(20), 2).map(wait), timeout=1)
    (tmp_path / "go-on").touch()
    assert not sc.statusTracker().getActiveJobsIds()


@pytest.mark.parametrize("call", ["predict", "evaluate"])
def test_a_users_exception_leaves_no_files_of_the_other_task_either(sc, scratch, tmp_path: Path, call: str) -> None:
    folder = str(tmp_path)

    def act(number: int) -> None:
        """Partition 1 fails once partition 0 has written rows, and would wait for its end."""
        if number == 5:
            Path(folder, "written").touch()
            while Path(folder).exists() and not Path(folder, "go-on").exists() and call == "predict":
                threading.Event().wait(0.05)
        if number == 15:
            while not Path(folder, "written").exists():
                threading.Event().wait(0.05)
            raise LookupError("no features of row 15")

    before = ours(scratch)
    try:
        with pytest.raises(LookupError, match="no features of row 15"):
            getattr(SparkModel(line(), batch_size=1), call)(rows_that(sc, act, call))
        assert ours(scratch) <= before
    finally:
        (tmp_path / "go-on").touch()


@pytest.fixture
def ctrl_c() -> Iterator[Callable[[], None]]:
    """Presses Ctrl-C, which raises KeyboardInterrupt as in a notebook: PySpark's own handler, which cancels jobs, is not there."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield lambda: os.kill(os.getpid(), signal.SIGINT)
    signal.signal(signal.SIGINT, before)


@pytest.mark.fault("Ctrl-C during `predict` or `evaluate`", "`KeyboardInterrupt`; tasks and files are gone", "the call")
def test_ctrl_c_ends_the_job_and_leaves_no_files(sc, blocked, ctrl_c, scratch: Path, tmp_path: Path) -> None:
    """`evaluate`; the test below presses during `predict`."""
    model, before = SparkModel(line(), batch_size=1), ours(scratch)

    def press() -> None:
        assert eventually((tmp_path / "blocked").exists, 60)
        ctrl_c()

    pressing = threading.Thread(target=press)
    pressing.start()
    with pytest.raises(KeyboardInterrupt):
        model.evaluate(blocked("evaluate"))
    pressing.join()
    assert not sc.statusTracker().getActiveJobsIds()
    assert ours(scratch) <= before
    assert works(sc, model)


@one_of_them
def test_ctrl_c_pressed_twice_leaves_no_files(
    sc, blocked, ctrl_c, scratch: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    before, presses = ours(scratch), iter([True])

    def press() -> None:
        assert eventually((tmp_path / "blocked").exists, 60)
        ctrl_c()

    def pressed(context: SparkContext, tag: str) -> None:
        if next(presses, False):
            raise KeyboardInterrupt
        cancel_and_wait(context, tag)

    monkeypatch.setattr(map_shards, "cancel_and_wait", pressed)
    pressing = threading.Thread(target=press)
    pressing.start()
    with pytest.raises(KeyboardInterrupt):
        getattr(SparkModel(line(), batch_size=1), call)(blocked(call))
    pressing.join()
    assert next(presses, None) is None
    assert not sc.statusTracker().getActiveJobsIds()
    assert ours(scratch) <= before


@one_of_them
def test_a_job_that_somebody_cancels_leaves_no_files(sc, blocked, scratch: Path, tmp_path: Path, call: str) -> None:
    before = ours(scratch)

    def cancel() -> None:
        assert eventually((tmp_path / "blocked").exists, 60)
        sc.cancelAllJobs()

    cancelling = threading.Thread(target=cancel)
    cancelling.start()
    with pytest.raises(Exception, match="cancelled"):
        getattr(SparkModel(line(), batch_size=1), call)(blocked(call))
    cancelling.join()
    assert ours(scratch) <= before


@pytest.mark.fault(
    "Other jobs hold all slots of a `predict` or `evaluate`",
    "`WaitError` after the `timeout` of the call, if it has one",
    "the call",
)
@one_of_them
def test_a_call_that_gets_no_slot_is_late(sc, no_free_slot, monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    monkeypatch.setattr("elephas_like.rows.shards.TIDY_SECONDS", 1.0)
    rows = rows_that(sc, lambda number: None, call)
    with no_free_slot(), pytest.raises(WaitError, match=r"none did for timeout=2 s .*0 running, 0 ended"):
        getattr(SparkModel(line()), call)(rows, timeout=2)


def test_a_call_in_good_order_leaves_no_files(sc, scratch: Path) -> None:
    before = ours(scratch)
    model = SparkModel(line(), batch_size=1)
    assert works(sc, model)
    model.evaluate(sc.parallelize(points(20), 2))
    assert ours(scratch) <= before
