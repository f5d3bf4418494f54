"""What a Python process keeps between the jobs of a fit, and what the driver compares. More is in tests/integration."""

from __future__ import annotations

import logging
import os
import sys
import threading
import uuid
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import test_in_process
from pyspark.cloudpickle import register_pickle_by_value, unregister_pickle_by_value
from test_in_process import LAYOUT, START, Adds

from elephas_like.core.errors import DataError, Failure, ShardMissing, WaitError
from elephas_like.core.types import Evaluation, Joined, Order, ShardRef, Span, Update
from elephas_like.engine import job_rounds
from elephas_like.engine.job_rounds import JobRounds, JobRun, OpenWorkers
from elephas_like.rows.shards import Pair
from elephas_like.rows.spool import Block, spool
from elephas_like.spark.slots import reservation

# Workers that are kept


class Counted(Adds):
    """A worker that is noted where it is opened and closed."""

    def __init__(self, number: int, notes: list[str]) -> None:
        super().__init__(number, 4)
        self.notes = notes
        notes.append(f"open {number}")

    def close(self) -> None:
        self.notes.append(f"close {self.number}")


def counting(notes: list[str], run: str = "run") -> JobRun:
    return JobRun(run, lambda: lambda index, shard, validation: Counted(index, notes))


def pairs(base: Path, count: int, rows: int = 25) -> list[Pair]:
    """Shards of 100 bytes."""
    block = Block((np.zeros(rows, "float32"),), rows)
    return [
        (spool([block], dataset="data", worker=worker, base=str(base), expect_target=False), None)
        for worker in range(count)
    ]


@pytest.mark.parametrize(
    ("bounds", "opened"),
    [
        ({"count": 3}, "0 1 2"),
        ({"count": 2}, "0 1 2 1"),
        ({"nbytes": 200}, "0 1 2 1"),
        ({"count": 1}, "0 1 0 2 0 1"),
        ({"nbytes": 199}, "0 1 0 2 0 1"),
        ({"nbytes": 1}, "0 1 0 2 0 1"),
    ],
)
def test_the_longest_unused_workers_go_where_there_are_too_many(tmp_path: Path, bounds: dict, opened: str) -> None:
    """Asked for in the order 0, 1, 0, 2, 0, 1: who is kept need not be opened."""
    notes: list[str] = []
    held = pairs(tmp_path, 3)
    workers, run = OpenWorkers(**bounds), counting(notes)
    for index in (0, 1, 0, 2, 0, 1):
        assert workers.worker(run, index, held[index]).number == index
    assert [note.removeprefix("open ") for note in notes if note.startswith("open")] == opened.split()
    workers.close("run")
    assert sorted(note.split()[1] for note in notes if note.startswith("open")) == sorted(
        note.split()[1] for note in notes if note.startswith("close")
    )


def test_another_run_and_a_shard_that_was_written_again_get_workers_of_their_own(tmp_path: Path) -> None:
    notes: list[str] = []
    (pair,) = pairs(tmp_path, 1)
    workers = OpenWorkers()
    first = workers.worker(counting(notes), 0, pair)
    assert workers.worker(counting(notes), 0, pair) is first
    again = (replace(pair[0], checksum=1), None)
    assert workers.worker(counting(notes), 0, again) is not first
    workers.worker(counting(notes, "other"), 0, again)
    workers.close("run")  # which is over already
    assert notes == ["open 0", "close 0", "open 0", "close 0", "open 0"]


def test_a_worker_whose_files_are_gone_is_as_large_as_what_is_left(tmp_path: Path) -> None:
    (pair,) = pairs(tmp_path, 1)
    Path(pair[0].columns[0].path).unlink()
    assert OpenWorkers(nbytes=1).worker(counting([]), 0, pair).number == 0


def trained(held: list[Pair], count: int, monkeypatch: pytest.MonkeyPatch) -> list[Update]:
    """Updates of three rounds of all workers in one process that keeps `count` of them: what a task does, without Spark."""
    from trainer.small import config, mlp

    from elephas_like.core.strategies import Average
    from elephas_like.trainer.building import build
    from elephas_like.trainer.factories import SharingFactory, TrainerFactory
    from elephas_like.trainer.spec import ModelSpec
    from elephas_like.trainer.state import Variables

    class Nobody:
        def add(self, value: object) -> None:
            """No driver listens."""

    model = mlp("adam")
    build(model, (np.zeros((1, 4), "float32"), np.zeros((1, 1), "float32")))
    start = Variables(model).read()
    factory = TrainerFactory(ModelSpec.from_model(model), config(num_workers=3, shuffle=True), Average(), "")
    workers = OpenWorkers(count=count)
    monkeypatch.setattr(job_rounds, "OPEN", workers)
    updates = []
    for number in range(4):
        order = Order("train", number, state=start, span=Span(number // 2, number % 2, number % 2 + 1, 2))
        task = job_rounds._task(
            JobRun("run", lambda: SharingFactory(factory)),
            order,
            None,
            None,
            lambda w, given: w.train(given),
            0,
            Nobody(),
        )
        for index, pair in enumerate(held):
            (answer,) = task(index, iter([pair]))
            assert not isinstance(answer, Failure), answer
            updates.append(answer.result)
    workers.close("run")
    return updates


def test_rounds_are_the_same_to_the_last_bit_where_one_worker_at_a_time_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from trainer.small import rows, shard

    held = [(shard(tmp_path, *rows(18, seed=worker), worker=worker), None) for worker in range(3)]
    for one, all_kept in zip(trained(held, 1, monkeypatch), trained(held, 9, monkeypatch), strict=True):
        assert (one.worker, one.samples) == (all_kept.worker, all_kept.samples)
        for name, array in one.arrays().items():
            np.testing.assert_array_equal(array, all_kept.arrays()[name], err_msg=name)


# Rounds


class Noted(Adds):
    """A worker that leaves a file wherever it is opened, and whose shard is missing where a file says so."""

    def __init__(self, folder: str, number: int, rows: int) -> None:
        super().__init__(number, rows)
        Path(folder, f"opened-{number}-{os.getpid()}-{uuid.uuid4().hex}").touch()
        self._lost = Path(folder, f"lost-{number}")

    def _find(self) -> None:
        if self._lost.exists():
            self._lost.unlink()
            raise ShardMissing("it is gone")

    def train(self, order: Order) -> Update:
        self._find()
        return super().train(order)

    def evaluate(self, order: Order) -> Evaluation:
        self._find()
        return super().evaluate(order)


@pytest.fixture
def rounds(sc, tmp_path: Path) -> Iterator[object]:
    """Opens rounds over references that come anew whenever they are asked for, as those of lost shards do."""
    shipped = [sys.modules[__name__], test_in_process]  # Python workers do not see the tests' modules
    for module in shipped:
        register_pickle_by_value(module)

    def open_rounds(references: object, run: str, timeout: float = 60.0) -> JobRounds:
        folder = str(tmp_path)
        refs = sc.parallelize(range(2), 2).mapPartitionsWithIndex(references)
        return JobRounds(
            sc,
            refs,
            JobRun(run, lambda: lambda index, shard, validation: Noted(folder, index, shard.rows)),
            f"elephas_like-{run}",
            lambda order: "joining" if order is None else f"round {order.number}",
            False,
            datasets=[run],
            round_timeout=timeout,
        )

    yield open_rounds
    for module in shipped:
        unregister_pickle_by_value(module)


def reference(run: str, index: int, rows: int, checksum: int) -> ShardRef:
    return ShardRef(run, index, f"/nowhere/elephas_like-{run}/worker-{index}", "here", rows, (), None, checksum)


def seen_again(folder: str, index: int) -> bool:
    """Whether this is not the first time that worker 1's reference is asked for."""
    if index == 0:
        return False
    asked = Path(folder, "asked")
    before = asked.exists()
    asked.touch()
    return before


def test_another_number_of_rows_is_an_error(rounds, tmp_path: Path) -> None:
    folder = str(tmp_path)

    def references(index: int, _: object):
        yield reference("rows", index, 5 if seen_again(folder, index) else 4, 7), None

    with rounds(references, "rows") as open_rounds:
        assert [joined.rows for joined in open_rounds.joined()] == [4, 4]
        Path(folder, "lost-1").touch()
        with pytest.raises(DataError, match=r"worker 1 came back with 5 rows; expected 4 as before.*persist the RDD"):
            open_rounds.train(Order("train", 0, state=START, span=Span(0)))


def test_other_rows_are_used_and_said_once(rounds, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = str(tmp_path)

    def references(index: int, _: object):
        yield reference("sums", index, 4, 8 if seen_again(folder, index) else 7), None

    with rounds(references, "sums") as open_rounds:
        open_rounds.joined()
        Path(folder, "lost-1").touch()
        for number in range(2):
            order = Order("train", number, state=START, span=Span(0))
            assert [update.samples for update in open_rounds.train(order)] == [4, 4]
    warned = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    said = [text for text in warned if "it is gone" not in text]
    assert (len(warned), len(said)) == (2, 1)
    assert "worker 1 came back with other rows (checksum 8, before 7)" in said[0]
    assert "no longer equal" in said[0]


def test_validation_rows_are_compared_as_well(rounds, tmp_path: Path) -> None:
    folder = str(tmp_path)

    def references(index: int, _: object):
        yield reference("a", index, 4, 7), reference("b", index, 5 if seen_again(folder, index) else 4, 7)

    with rounds(references, "held") as open_rounds:
        open_rounds.joined()
        Path(folder, "lost-1").touch()
        with pytest.raises(DataError, match="worker 1 came back with 5 rows"):
            open_rounds.evaluate(Order("evaluate", 0, state=START))


def test_whoever_has_not_answered_is_named(rounds, sc) -> None:
    sc.parallelize(range(2), 2).map(str).count()  # Python processes that begin take longer than 2 s

    def references(index: int, _: object):
        if index == 1:
            import threading  # Python workers do not see this module

            threading.Event().wait(600)
        yield reference("late", index, 4, 7), None

    with rounds(references, "late", timeout=2.0) as open_rounds:
        said = r"expected 2 workers to answer, and none did for round_timeout=2 s; missing: worker 1 \(joining\)"
        with pytest.raises(WaitError, match=said):
            open_rounds.joined()


@pytest.mark.fault(
    "A fit waits for the slots of another fit of the process", "its time-outs begin when it has a slot", "time"
)
def test_a_round_that_waits_for_the_slots_of_another_fit_is_not_late(rounds, sc, no_free_slot) -> None:
    """What another fit of this process holds it gives back; only then does time count."""

    joined: list[Joined] = []
    with rounds(lambda index, _: iter([(reference("waiting", index, 2, 3), None)]), "waiting", timeout=4) as opened:
        thread = threading.Thread(target=lambda: joined.extend(opened.joined()))
        with no_free_slot(), reservation(sc, 2, 2, timeout=0):
            thread.start()
            thread.join(6)  # longer than round_timeout
            assert thread.is_alive()
        thread.join(60)
    assert [worker.rows for worker in joined] == [2, 2]


def test_workers_stay_open_from_round_to_round(rounds, tmp_path: Path) -> None:
    """A process opens each worker once, however many rounds it has."""
    with rounds(lambda index, _: iter([(reference("stay", index, 4, 0), None)]), "stay") as open_rounds:
        open_rounds.joined()
        for number in range(5):
            assert len(list(open_rounds.train(Order("train", number, state=START, span=Span(0))))) == 2
    opened = [file.name.split("-")[1:3] for file in tmp_path.glob("opened-*")]
    assert len(opened) >= 2
    assert len({tuple(one) for one in opened}) == len(opened)


def test_all_workers_are_there_where_none_is_late(rounds) -> None:
    with rounds(lambda index, _: iter([(reference("fine", index, 3 + index, 0), None)]), "fine") as open_rounds:
        joined: list[Joined] = open_rounds.joined()
    assert [(one.worker, one.rows, one.layout_hash) for one in joined] == [(0, 3, LAYOUT.hash), (1, 4, LAYOUT.hash)]


def test_rounds_do_not_go_back_to_the_rows(rounds, tmp_path: Path) -> None:
    """A task would carry the rows of a parallelized RDD in every round."""
    folder = str(tmp_path)

    def references(index: int, _: object):
        Path(folder, f"asked-{index}-{uuid.uuid4().hex}").touch()
        yield reference("once", index, 4, 7), None

    with rounds(references, "once") as open_rounds:
        open_rounds.joined()
        for number in range(3):
            open_rounds.train(Order("train", number, state=START, span=Span(0)))
    assert len(list(tmp_path.glob("asked-*"))) == 2
