"""What a long task does between its join and the order to stop."""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from pyspark import cloudpickle
from test_in_process import LAYOUT, START, Adds

from elephas_like.core.errors import CapacityError, ConnectionLostError, Failure, WorkerError
from elephas_like.core.types import Evaluation, Joined, Order, ShardRef, Span, Update
from elephas_like.engine import server_rounds
from elephas_like.engine.server_rounds import ServerRun, announced_rows, serve
from elephas_like.rows.shard_files import local_directories
from elephas_like.rows.shards import SpoolOptions, pairs, references


class Script:
    """A line to a driver that gives these orders, one after the other."""

    def __init__(self, *orders: Order) -> None:
        self._orders = iter(orders)
        self.heard: list[Joined | Update | Evaluation] = []

    def announce(self, host: str) -> None:
        """Not needed here."""

    def join(self, joined: Joined, progress: Callable[[], int]) -> Order:
        assert progress() == 0
        self.heard.append(joined)
        return next(self._orders)

    def answer(self, result: Update | Evaluation) -> Order:
        self.heard.append(result)
        return next(self._orders)

    def fail(self, failure: Failure) -> bool:
        raise AssertionError(failure)

    def close(self) -> None:
        """Nothing is open."""


def test_each_order_is_answered_with_its_number_until_stop() -> None:
    line = Script(
        Order("train", 0, state=START, span=Span(0)),
        Order("evaluate", 1, state=START),
        Order("train", 2, state=START, span=Span(1)),
        Order("stop"),
    )
    serve(line, Adds(0, 6), attempt=41)
    joined, *answers = line.heard
    assert isinstance(joined, Joined)
    assert (joined.attempt, joined.rows, joined.layout_hash) == (41, 6, LAYOUT.hash)
    assert [(type(answer).__name__, answer.number) for answer in answers] == [
        ("Update", 0),
        ("Evaluation", 1),
        ("Update", 2),
    ]


def test_a_run_that_is_over_asks_for_nothing() -> None:
    line = Script(Order("stop"))
    serve(line, Adds(0, 6), attempt=1)
    assert len(line.heard) == 1


class DeadLine(Script):
    """A line on which nobody can be reached, from the join on or, `at_once`, from the first contact."""

    def __init__(self, marks: Path, at_once: bool) -> None:
        super().__init__()
        self._marks, self._at_once = marks, at_once

    def announce(self, host: str) -> None:
        self._leave("announced")
        if self._at_once:
            raise ConnectionLostError("worker 0 cannot reach the parameter server at nowhere:1; give host=")

    def join(self, joined: Joined, progress: Callable[[], int]) -> Order:
        raise ConnectionLostError("worker 0 cannot reach the parameter server at nowhere:1 any more")

    def fail(self, failure: Failure) -> bool:
        self._leave("failed")
        return False

    def close(self) -> None:
        self._leave("closed")

    def _leave(self, name: str) -> None:
        (self._marks / name).touch()


@dataclass(frozen=True)
class DeadEnd:
    """A connector to nobody. What its lines are told is left as files in `marks`."""

    marks: Path
    at_once: bool

    def connect(self, worker: int, attempt: int) -> DeadLine:
        return DeadLine(self.marks, self.at_once)


class Driver:
    """A store that waits for the end of the run."""

    rewrite = None

    def __init__(self) -> None:
        self.over = threading.Event()
        self.error: BaseException | None = None

    def fail(self, error: BaseException) -> None:
        self.error = error
        self.over.set()

    def stop(self) -> None:
        """Nobody is there."""

    def note_tasks(self, running: int, ended: int) -> bool:
        return True

    def idle_seconds(self) -> float:
        return 0.0

    def suspend(self) -> None:
        """Nobody runs callbacks."""

    def recalled(self) -> bool:
        return False


@pytest.fixture
def by_value() -> Iterator[None]:
    """Executors do not have the modules of tests: what tasks take from them travels whole."""
    modules = [sys.modules[name] for name in (__name__, Adds.__module__)]
    for module in modules:
        cloudpickle.register_pickle_by_value(module)
    yield
    for module in modules:
        cloudpickle.unregister_pickle_by_value(module)


@pytest.mark.parametrize("at_once", [True, False])
def test_a_driver_that_cannot_be_reached_is_known_before_rows_are_read_and_is_not_told(
    sc, by_value: None, tmp_path: Path, at_once: bool
) -> None:
    def read(row: int) -> tuple[list[float], float]:
        (tmp_path / ("early" if not (tmp_path / "announced").exists() else "read")).touch()
        return [float(row)], 0.0

    connector, driver = DeadEnd(tmp_path, at_once), Driver()
    rows = announced_rows(sc.parallelize(range(4), 1).map(read), connector, "run-1")
    options = SpoolOptions("dataset-1", "float32", True, {})

    def factory(worker: int, shard: ShardRef, validation: ShardRef | None) -> Adds:
        return Adds(worker, shard.rows)

    run = ServerRun(
        sc,
        pairs(references(rows, options), None),
        None,
        factory,
        connector,
        driver,
        tag="run-1",
        description="a test",
        keep=False,
        datasets=["dataset-1"],
        memory="dataset-1-memory",
    )
    with run:
        assert driver.over.wait(60)
    assert isinstance(driver.error, ConnectionLostError)
    assert "nowhere:1" in str(driver.error)
    assert "in announce" in driver.error.traceback_text or "in join" in driver.error.traceback_text
    assert {path.name for path in tmp_path.iterdir()} == {"announced", "closed", *(() if at_once else ("read",))}


class EndsBadly(Adds):
    """A worker whose last hook fails."""

    def close(self) -> None:
        raise KeyError("at the end")


@dataclass(frozen=True)
class Stops:
    """A connector to a driver whose only order is to stop. A file in `marks` for each line."""

    marks: Path

    def connect(self, worker: int, attempt: int) -> Script:
        (self.marks / str(attempt)).touch()
        return Script(Order("stop"))


def test_what_a_worker_raises_at_its_end_is_raised_and_not_tried_again(sc, by_value: None, tmp_path: Path) -> None:
    options = SpoolOptions("dataset-2", "float32", True, {})
    rows = sc.parallelize([([1.0], 0.0)], 1)
    with (
        pytest.raises(WorkerError, match=r"KeyError on worker 0: 'at the end'") as raised,
        ServerRun(
            sc,
            pairs(references(rows, options), None),
            None,
            lambda worker, shard, validation: EndsBadly(worker, shard.rows),
            Stops(tmp_path),
            Driver(),
            tag="run-2",
            description="a test",
            keep=False,
            datasets=["dataset-2"],
            memory="dataset-2-memory",
        ),
    ):
        pass
    assert isinstance(raised.value, KeyError)
    assert len(list(tmp_path.iterdir())) == 1


class PressedAgain(Driver):
    """Ctrl-C comes a second time while the run is ended."""

    presses = 1

    def stop(self) -> None:
        if self.presses:
            self.presses -= 1
            raise KeyboardInterrupt


def test_a_second_interrupt_leaves_no_rows_behind(sc, by_value: None, tmp_path: Path) -> None:
    options, marks = SpoolOptions("dataset-3", "float32", True, {}), str(tmp_path)

    def endless(index: int, rows: Iterator[object]) -> Iterator[object]:
        yield from rows
        Path(marks, str(index)).touch()
        threading.Event().wait(600)

    rows = sc.parallelize([([1.0], 0.0)] * 4, 2).mapPartitionsWithIndex(endless)
    run = ServerRun(
        sc,
        pairs(references(rows, options), None),
        None,
        lambda worker, shard, validation: Adds(worker, shard.rows),
        Stops(tmp_path),
        PressedAgain(),
        tag="run-3",
        description="a test",
        keep=False,
        datasets=["dataset-3"],
        memory="dataset-3-memory",
    )
    folders = sc.range(0, 1, 1, 1).map(lambda _: local_directories()[0]).first()
    with pytest.raises(KeyboardInterrupt), run:
        while len(list(tmp_path.iterdir())) < 2:
            threading.Event().wait(0.05)
        assert list(Path(folders).glob("elephas_like-dataset-3*"))
        raise KeyboardInterrupt
    assert not list(Path(folders).glob("elephas_like-dataset-3*"))


class EndsSlowly(Adds):
    """A worker whose last hook lasts until there is a file."""

    def __init__(self, folder: str, worker: int, rows: int) -> None:
        super().__init__(worker, rows)
        self._folder = Path(folder)

    def close(self) -> None:
        (self._folder / "closing").touch()
        while not (self._folder / "go").exists():
            threading.Event().wait(0.05)
        (self._folder / "closed").touch()


def ending(sc, tmp_path: Path, number: int, round_timeout: float) -> ServerRun:
    """A run of one worker whose callbacks end slowly."""
    folder, dataset = str(tmp_path), f"dataset-{number}"
    rows = sc.parallelize([([1.0], 0.0)], 1)
    return ServerRun(
        sc,
        pairs(references(rows, SpoolOptions(dataset, "float32", True, {})), None),
        None,
        lambda worker, shard, validation: EndsSlowly(folder, worker, shard.rows),
        Stops(tmp_path),
        Driver(),
        tag=f"run-{number}",
        description="a test",
        keep=False,
        datasets=[dataset],
        memory=f"{dataset}-memory",
        round_timeout=round_timeout,
    )


def until(path: Path) -> None:
    while not path.exists():
        threading.Event().wait(0.05)


def test_callbacks_of_workers_have_the_round_timeout_for_their_end(
    sc, by_value: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_rounds, "GRACE_SECONDS", 0.05)
    with ending(sc, tmp_path, 4, round_timeout=60):
        until(tmp_path / "closing")
        threading.Timer(2, (tmp_path / "go").touch).start()  # longer than ten times the grace
    assert (tmp_path / "closed").exists()


def test_callbacks_of_workers_that_take_longer_are_cancelled_with_a_warning(
    sc, by_value: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(server_rounds, "GRACE_SECONDS", 0.05)
    with ending(sc, tmp_path, 5, round_timeout=1):
        until(tmp_path / "closing")
    assert not (tmp_path / "closed").exists()
    assert "worker_callbacks were still at work 1 s after the training" in caplog.text
    assert "longer round_timeout" in caplog.text


def test_an_error_does_not_wait_for_callbacks_of_workers(
    sc, by_value: None, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(KeyboardInterrupt), ending(sc, tmp_path, 6, round_timeout=600):
        until(tmp_path / "closing")
        raise KeyboardInterrupt
    assert not (tmp_path / "closed").exists()
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


def test_only_jobs_of_callbacks_that_wait_for_slots_end_a_fit_soon(sc, monkeypatch: pytest.MonkeyPatch) -> None:
    run = ending(sc, Path("nowhere"), 7, round_timeout=100)
    store = run._store
    monkeypatch.setattr(store, "idle_seconds", lambda: 99.0)
    monkeypatch.setattr(server_rounds, "jobs_with", lambda context, tag: {3} if tag == "run-7-callbacks" else {4})
    run._make_room({4: 99.0})
    assert store.error is None
    run._make_room({4: 20.0, 3: 1.0})
    assert isinstance(store.error, CapacityError)
    assert "a callback runs a Spark job" in str(store.error)
    store.error = None
    run._make_room({4: 101.0})
    assert isinstance(store.error, CapacityError)
    assert "a Spark job found no free slot for 101 s (round_timeout) beside a callback" in str(store.error)


def test_jobs_of_callbacks_bear_a_tag_while_workers_run(sc, by_value: None, tmp_path: Path) -> None:
    def tags() -> set[str]:
        return set((sc.getLocalProperty("spark.job.tags") or "").split(",")) - {""}

    before = tags()
    (tmp_path / "go").touch()
    with ending(sc, tmp_path, 8, round_timeout=60):
        assert tags() == {*before, "run-8-callbacks"}
    assert tags() == before
