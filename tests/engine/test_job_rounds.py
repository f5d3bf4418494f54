"""Rounds that are jobs: what the driver compares and waits for. More is in tests/integration."""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import cloudpickle
import pytest
import test_in_process
from pyspark.cloudpickle import register_pickle_by_value, unregister_pickle_by_value
from test_in_process import LAYOUT, START, Adds

from elephas_like.core.errors import DataError, ElephasError, ShardMissing, WaitError
from elephas_like.core.strategies import Average, Context
from elephas_like.core.summing import Partial, Term, Weighing
from elephas_like.core.types import Evaluation, Joined, Order, ShardRef, Span, Update
from elephas_like.engine import job_rounds, shuffled_sums
from elephas_like.engine.job_rounds import JobRounds
from elephas_like.engine.job_tasks import JobRun, MissingShard
from elephas_like.rows.shard_files import local_directories
from elephas_like.spark.slots import reservation

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
        cloudpickle.register_pickle_by_value(module)

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
        cloudpickle.unregister_pickle_by_value(module)


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
    with rounds(lambda index, _: iter([(reference("waiting", index, 2, 3), None)]), "waiting", timeout=2) as opened:
        thread = threading.Thread(target=lambda: joined.extend(opened.joined()))
        with no_free_slot(), reservation(sc, 2, 2, timeout=0):
            thread.start()
            thread.join(3)  # longer than round_timeout
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


@pytest.mark.parametrize("where", ["cancel_and_wait", "deleted_by", "cleanup"])
def test_a_second_interrupt_leaves_no_rows_behind(
    sc, rounds, scratch: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    folder, tidy, presses = str(tmp_path), getattr(job_rounds, where), iter([True])

    def written(index: int, rows: Iterator[object]) -> Iterator[object]:
        Path(folder, f"written-{index}-{uuid.uuid4().hex}").touch()
        place = os.path.join(local_directories()[0], "elephas_like-twice", f"worker-{index}")
        os.makedirs(place)
        yield ShardRef("twice", index, place, "here", 2, (), None, 7), None

    def pressed(*given: object) -> object:
        if next(presses, False):
            raise KeyboardInterrupt
        return tidy(*given)

    with pytest.raises(KeyboardInterrupt), rounds(written, "twice") as opened:
        opened._refs.persist()
        opened.joined()
        assert list(scratch.rglob("elephas_like-twice"))
        monkeypatch.setattr(job_rounds, where, pressed)
    assert next(presses, None) is None
    assert not list(scratch.rglob("elephas_like-twice"))
    assert len(list(tmp_path.glob("written-*"))) == 2


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


# Rounds whose updates are added up by a shuffle


@pytest.fixture
def summing(monkeypatch: pytest.MonkeyPatch) -> Weighing:
    """Has two small updates added up by a shuffle, and returns how they are weighed: by samples."""
    monkeypatch.setattr(shuffled_sums, "LEAST_WORKERS", 2)
    monkeypatch.setattr(shuffled_sums, "LEAST_BYTES", 0)
    monkeypatch.setattr(job_rounds, "is_local", lambda context: False)
    return Weighing(Average(), Context(0, 2, LAYOUT), LAYOUT)


def referring(run: str):
    """References of 4 and 5 rows."""
    return lambda index, _: iter([(reference(run, index, 4 + index, 7), None)])


def test_a_shuffle_adds_updates_up(rounds, summing: Weighing) -> None:
    """Workers add 1 and 2 to each weight, by 4 and 5 rows: 1 x 4 + 2 x 5 = 14."""
    with rounds(referring("summed"), "summed") as open_rounds:
        open_rounds.joined()
        for number in range(2):
            summed = open_rounds.train_summed(Order("train", number, state=START, span=Span(0)), summing)
            assert summed is not None
            assert summed.weights["sum"].tolist() == [14, 14]
            assert summed.weights["weight"].tolist() == [9]
            assert [(one.update.worker, one.update.samples, one.update.delta.size) for one in summed.updates] == [
                (0, 4, 0),
                (1, 5, 0),
            ]


def test_a_shard_that_is_missing_is_written_again_before_updates_are_added_up(
    rounds, summing: Weighing, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with rounds(referring("again"), "again") as open_rounds:
        open_rounds.joined()
        (tmp_path / "lost-1").touch()
        summed = open_rounds.train_summed(Order("train", 0, state=START, span=Span(0)), summing)
        assert summed is not None
        assert summed.weights["sum"].tolist() == [14, 14]
    assert "it is gone; the shards are written again" in caplog.text


class Torn(Weighing):
    """What Spark does where a part of a shuffle is lost and cannot be made again: the first slice 1 lacks worker 1."""

    marker = ""

    def added(self, place: int, terms: Iterator[Term]) -> Partial:
        if place == 1 and not Path(self.marker).exists():
            Path(self.marker).touch()
            terms = [term for term in terms if term.worker != 1]
        return super().added(place, terms)


def test_a_round_whose_slices_lack_a_worker_is_run_again(
    rounds, summing: Weighing, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(Torn, "marker", str(tmp_path / "torn"))
    torn = Torn(summing.strategy, summing.context, summing.layout)
    with rounds(referring("torn"), "torn") as open_rounds:
        open_rounds.joined()
        summed = open_rounds.train_summed(Order("train", 0, state=START, span=Span(0)), torn)
        assert summed is not None
        assert summed.weights["sum"].tolist() == [14, 14]
    assert (tmp_path / "torn").exists()
    assert "the update of worker 1 was lost before all of it was added up" in caplog.text


def test_the_error_of_a_worker_is_not_added_up(rounds, summing: Weighing) -> None:
    with rounds(referring("broken"), "broken") as open_rounds:
        open_rounds.joined()
        with pytest.raises(AssertionError, match="AssertionError on worker 0"):
            open_rounds.train_summed(Order("train", 0, state=START), summing)  # without a span


def test_files_of_shuffles_are_deleted_while_the_fit_goes_on(rounds, summing: Weighing, scratch: Path) -> None:
    """Spark itself would keep them until the driver's JVM collects garbage."""
    with rounds(referring("files"), "files") as open_rounds:
        open_rounds.joined()
        before = set(scratch.rglob("shuffle_*"))
        for number in range(3):
            open_rounds.train_summed(Order("train", number, state=START, span=Span(0)), summing)
        ended = time.monotonic() + 30  # executors delete them, and nobody waits
        while (left := set(scratch.rglob("shuffle_*")) - before) and time.monotonic() < ended:
            threading.Event().wait(0.05)
        assert not left


def test_the_sum_must_fit_into_the_driver(rounds, summing: Weighing) -> None:
    with rounds(referring("large"), "large") as open_rounds:
        open_rounds.joined()
        open_rounds._largest_result = START.nbytes - 1
        with pytest.raises(
            ElephasError, match=r"the sum of a round's updates, .* is more than spark.driver.maxResultSize"
        ):
            open_rounds.train_summed(Order("train", 0, state=START, span=Span(0)), summing)


@pytest.mark.parametrize("copies", [1, 3])
def test_copies_of_slow_tasks_that_have_no_shard_have_nothing_written_again(
    rounds, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, copies: int
) -> None:
    """With speculation Spark takes the first answer, also a copy's that runs on a host without the shard."""
    collect, task_of = JobRounds._collect, job_rounds.task_of
    left, waits, written = [False], [], []

    def copied(self: JobRounds, tasks: object, what: str) -> list:
        results = collect(self, tasks, what)
        if len(left) <= copies and what != "joining":
            left.append(True)
            results[1] = MissingShard(1, "it is on another host", attempt=1)
        return results

    def noted(*given):
        waits.append(given[-1])
        return task_of(*given)

    monkeypatch.setattr(JobRounds, "_collect", copied)
    monkeypatch.setattr(job_rounds, "task_of", noted)
    monkeypatch.setattr(job_rounds, "is_on", lambda conf, name: True)
    monkeypatch.setattr(job_rounds, "persisted_anew", written.append)
    with rounds(referring("copied"), "copied") as open_rounds:
        open_rounds.joined()
        order = Order("train", 0, state=START, span=Span(0))
        if copies == 3:
            with pytest.raises(
                ElephasError, match=r"copy of a slow task.* 3 times in one round.*spark.speculation=false"
            ):
                open_rounds.train(order)
        else:
            assert [update.samples for update in open_rounds.train(order)] == [4, 5]
    assert not written
    assert waits == [0.0, 0.0, *[30.0] * min(copies, 2)]
    assert "a copy of a slow task came first where its shard is not; the round is run again" in caplog.text


def test_a_further_try_without_its_shard_has_it_written_again_under_speculation(
    rounds, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    collect, failures = JobRounds._collect, iter([0, 1])
    left = [True]

    def tried_again(self: JobRounds, tasks: object, what: str) -> list:
        results = collect(self, tasks, what)
        if what != "joining" and left:
            left.pop()
            results[1] = MissingShard(1, "it is on another host", attempt=1)
        return results

    with rounds(referring("again"), "again") as open_rounds:
        open_rounds.joined()
        open_rounds._speculates = True
        monkeypatch.setattr(JobRounds, "_collect", tried_again)
        monkeypatch.setattr(job_rounds, "failed_tasks", lambda context, tag: next(failures, 1))
        assert len(list(open_rounds.train(Order("train", 0, state=START, span=Span(0))))) == 2
    assert "it is on another host; the shards are written again" in caplog.text
