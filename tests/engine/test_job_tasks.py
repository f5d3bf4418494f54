"""What a Python process keeps between the jobs of a fit."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from test_in_process import Adds

from elephas_like.core.errors import Failure, ShardMissing
from elephas_like.core.types import Order, ShardRef, Span, Update
from elephas_like.engine import job_tasks
from elephas_like.engine.job_tasks import JobRun, OpenWorkers
from elephas_like.rows.shards import Pair
from elephas_like.rows.spool import Block, spool


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
    monkeypatch.setattr(job_tasks, "OPEN", workers)
    updates = []
    for number in range(4):
        order = Order("train", number, state=start, span=Span(number // 2, number % 2, number % 2 + 1, 2))
        task = job_tasks.task_of(
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


@pytest.mark.parametrize(("attempt", "waits"), [(0, []), (1, [7.0])])
def test_a_copy_without_its_shard_waits_for_the_task_that_has_it(
    monkeypatch: pytest.MonkeyPatch, attempt: int, waits: list[float]
) -> None:
    waited: list[float] = []

    class Told:
        def wait(self, seconds: float) -> None:
            waited.append(seconds)

    class Context:
        @staticmethod
        def get() -> Context:
            return Context()

        def attemptNumber(self) -> int:
            return attempt

    class Nobody:
        def add(self, value: object) -> None:
            """No driver listens."""

    def elsewhere(index: int, *pair: object) -> None:
        raise ShardMissing("it is on another host")

    monkeypatch.setattr(job_tasks, "threading", SimpleNamespace(Event=Told))
    monkeypatch.setattr(job_tasks, "TaskContext", Context)
    ref = ShardRef("copied", 0, "/nowhere", "there", 1, (), None, 1)
    task = job_tasks.task_of(JobRun("copied", lambda: elsewhere), None, None, None, lambda w, o: 0, 0, Nobody(), 7.0)
    assert list(task(0, iter([(ref, None)]))) == [job_tasks.MissingShard(0, "it is on another host", attempt)]
    assert waited == waits
    job_tasks.close_workers("copied")
