"""Jobs that get nowhere are cancelled, whether their tasks hang or wait for a slot; those that get on are left alone."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from textwrap import dedent

import psutil
import pytest
from py4j.protocol import Py4JError
from pyspark import InheritableThread

from elephas_like.core.errors import ElephasError
from elephas_like.rows import shards
from elephas_like.rows.shards import ShardedDataset, SpoolOptions, deleted_by, new_dataset, partitioned
from elephas_like.spark.job_tags import unfinished
from elephas_like.spark.versions import versions
from elephas_like.spark.waits import (
    Overdue,
    cancel_and_wait,
    cleanup,
    destroy,
    hides_interrupt,
    insist,
    outside_groups,
    readable_errors,
    run_within,
    stopped,
)

pytestmark = pytest.mark.spark


def watchers() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("elephas_like-watch")]


def waiting(sc, *seconds: float):
    """A job of one task per number, which takes so many seconds."""

    def wait(rows: Iterator[float]) -> Iterator[float]:  # Python workers do not see this module: it is sent along
        for each in rows:
            threading.Event().wait(each)
            yield each

    return sc.parallelize(seconds, len(seconds)).mapPartitions(wait).count


def test_ctrl_c_at_the_very_beginning_leaves_no_watcher(monkeypatch: pytest.MonkeyPatch) -> None:
    class Interrupted(threading.Thread):
        """Python raises what a signal asks for as soon as `start` has its thread."""

        def start(self) -> None:
            super().start()
            raise KeyboardInterrupt

    monkeypatch.setattr(threading, "Thread", Interrupted)
    with pytest.raises(KeyboardInterrupt):
        run_within(60, None, "interrupted", "a job that never starts", lambda: 1)
    assert not watchers()


def test_a_job_gives_what_it_gives(sc) -> None:
    assert run_within(60, sc, "plain", "a plain job", sc.parallelize(range(4), 2).sum) == 6
    assert not watchers()


def test_a_look_at_the_progress_that_fails_is_logged_and_the_job_goes_on(sc, caplog: pytest.LogCaptureFixture) -> None:
    def broken() -> None:
        raise RuntimeError("no tracker")

    assert run_within(60, sc, "unseen", "a job", sc.parallelize(range(4), 2).sum, progress=broken) == 6
    assert "could not see how the jobs of unseen get on: no tracker" in caplog.text


def test_the_tasks_of_a_cancelled_job_have_ended_when_its_files_are_deleted(sc, tmp_path: Path) -> None:
    folder = str(tmp_path)

    def write(rows: Iterator[int]) -> Iterator[int]:
        Path(folder, f"alive-{os.getpid()}").touch()
        while Path(folder).exists():
            threading.Event().wait(0.05)
        return rows

    def run() -> None:
        with pytest.raises(ElephasError, match="cancelled"):
            run_within(60, sc, "writes", "writes", sc.parallelize(range(1), 1).mapPartitions(write).count)

    job = threading.Thread(target=run)
    job.start()
    while not (found := list(tmp_path.iterdir())):
        threading.Event().wait(0.05)
    number = int(found[0].name.partition("-")[2])
    process = psutil.Process(number)
    cancel_and_wait(sc, "writes")
    assert not unfinished(sc, "writes")
    with suppress(psutil.NoSuchProcess):  # the signal is on its way; nothing else ends it
        while process.status() != psutil.STATUS_ZOMBIE:
            threading.Event().wait(0.05)
    job.join()


def test_a_job_that_starts_after_ctrl_c_is_cancelled_too(sc) -> None:
    """Python gives up on a command that it has sent; the JVM does not know."""
    cancelling = threading.Event()

    def submit() -> None:
        cancelling.wait(60)
        threading.Event().wait(0.2)
        sc.addJobTag("late")
        with suppress(Exception):
            waiting(sc, 600)()

    late = threading.Thread(target=submit)
    late.start()
    try:
        raise KeyboardInterrupt
    except KeyboardInterrupt:
        cancelling.set()
        cancel_and_wait(sc, "late")
    late.join(30)
    assert not late.is_alive()


def test_a_job_that_hangs_is_cancelled(sc) -> None:
    began = time.monotonic()
    with pytest.raises(Overdue, match=r"cancelled after 0\.5 s"):
        run_within(0.5, sc, "hangs", "hangs", waiting(sc, 0, 600))
    assert time.monotonic() - began < 60
    assert not watchers()


def test_a_job_that_starts_when_its_time_is_over_is_cancelled_too(sc) -> None:
    hangs = waiting(sc, 0, 600)

    def late() -> object:
        threading.Event().wait(0.5)
        return hangs()

    with pytest.raises(Overdue):
        run_within(0.1, sc, "late", "late", late)


def test_waiting_for_a_slot_is_waiting_too(sc, no_free_slot) -> None:
    with no_free_slot(), pytest.raises(Overdue):
        run_within(0.5, sc, "queued", "queued", sc.parallelize(range(2), 2).count)


def test_a_job_that_gets_on_may_take_as_long_as_it_likes(sc) -> None:
    """The progress changes with every look at it: half a second in all, where a tenth is the limit."""
    looks = iter(range(10_000))
    assert run_within(0.1, sc, "slow", "slow", waiting(sc, 0.5), progress=lambda: next(looks)) == 1


def test_what_a_job_raises_is_raised_in_its_own_words(sc) -> None:
    def broken(_: object) -> None:
        raise LookupError("no such row")

    with pytest.raises(LookupError, match="no such row") as caught:
        run_within(60, sc, "broken", "broken", lambda: sc.parallelize(range(2), 2).foreach(broken))
    assert isinstance(caught.value, ElephasError)
    assert not watchers()


def test_what_goes_wrong_while_tidying_is_logged_and_no_more(sc, caplog: pytest.LogCaptureFixture) -> None:
    with cleanup(sc, "sweep the floor"):
        raise OSError("no broom")
    assert "could not sweep the floor: no broom" in caplog.text
    assert not stopped(sc)


# Deleting


def test_what_was_shipped_is_freed_in_a_thread_that_the_jvm_has_interrupted(
    sc, caplog: pytest.LogCaptureFixture
) -> None:
    """As a streaming query does that is stopped: the file of the broadcast stayed until the session's end."""
    shipped = sc.broadcast([1])
    sc.parallelize([1], 1).map(lambda x: shipped.value).collect()

    def stopped() -> None:
        sc._jvm.java.lang.Thread.currentThread().interrupt()
        try:
            raise RuntimeError("the query was stopped")
        except RuntimeError:
            destroy(sc, shipped)

    thread = InheritableThread(target=stopped)
    thread.start()
    thread.join()
    assert not Path(shipped._path).exists()
    assert not caplog.messages


def test_a_thread_that_outlives_the_main_thread_deletes_its_files() -> None:
    script = """
        import threading
        from elephas_like.spark.waits import outside_groups

        def fit() -> None:
            threading.main_thread().join()
            print(outside_groups(lambda: "deleted"))

        threading.Thread(target=fit).start()
    """
    done = subprocess.run([sys.executable, "-c", dedent(script)], capture_output=True, text=True, timeout=300)
    assert done.stdout == "deleted\n", done.stderr


def test_what_deletes_files_has_ended_when_ctrl_c_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    interrupted, deleted = threading.Event(), threading.Event()

    class Interrupted(threading.Thread):
        """Python raises what a signal asks for as soon as `start` has its thread."""

        def start(self) -> None:
            super().start()
            interrupted.set()
            raise KeyboardInterrupt

    def delete() -> None:
        interrupted.wait(60)
        deleted.set()

    monkeypatch.setattr(threading, "Thread", Interrupted)
    with pytest.raises(KeyboardInterrupt):
        outside_groups(delete)
    assert deleted.is_set()


def test_an_error_of_what_deletes_files_is_raised() -> None:
    def broken() -> None:
        raise LookupError("no such file")

    with pytest.raises(LookupError, match="no such file"):
        outside_groups(broken)


def test_files_that_cannot_be_deleted_in_time_are_named(
    sc, no_free_slot, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shards, "TIDY_SECONDS", 0.5)
    with no_free_slot():
        deleted_by(sc, "late", ["one", "two"], sc.parallelize(range(2), 2).count)
    assert "(cancelled after 0.5 s). Directories called elephas_like-one and elephas_like-two may remain" in caplog.text


@pytest.mark.parametrize("written", [False, True])
def test_releasing_computes_no_rows(sc, scratch: Path, tmp_path: Path, written: bool) -> None:
    folder = str(tmp_path)

    def noted(index: int, rows: Iterator[tuple[float, float]]) -> Iterator[tuple[float, float]]:
        Path(folder, f"computed-{index}").touch()
        return rows

    rows = sc.parallelize([(1.0, 2.0)] * 4, 2).mapPartitionsWithIndex(noted)
    dataset = ShardedDataset(partitioned(rows, 2), 2, new_dataset())
    refs = dataset.references(SpoolOptions(dataset.dataset, "float32", True, versions()))
    if written:
        assert refs.map(lambda ref: ref.rows).collect() == [2, 2]
        dataset.written()
        for file in tmp_path.glob("computed-*"):
            file.unlink()
        assert len(list(scratch.rglob(f"elephas_like-{dataset.dataset}/worker-*"))) == 2
    dataset.release()
    dataset.release()
    assert not list(tmp_path.glob("computed-*"))
    assert not list(scratch.rglob(f"elephas_like-{dataset.dataset}"))
    with pytest.raises(ValueError, match="was released"):
        dataset.references(SpoolOptions(dataset.dataset, "float32", True, versions()))


def test_releasing_that_ctrl_c_interrupts_is_done_all_the_same(
    sc, scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    presses = 3
    dataset = ShardedDataset(partitioned(sc.parallelize([(1.0, 2.0)] * 4, 2), 2), 2, new_dataset())
    refs = dataset.references(SpoolOptions(dataset.dataset, "float32", True, versions()))
    assert refs.map(lambda ref: ref.rows).collect() == [2, 2]
    dataset.written()

    def pressed(*given: object) -> None:
        nonlocal presses
        presses -= 1
        if presses >= 0:
            raise KeyboardInterrupt
        deleted_by(*given)

    monkeypatch.setattr(shards, "deleted_by", pressed)
    with pytest.raises(KeyboardInterrupt):
        dataset.release()  # pressed again while it insists
    assert list(scratch.rglob(f"elephas_like-{dataset.dataset}"))
    with pytest.raises(KeyboardInterrupt):
        dataset.release()
    assert not list(scratch.rglob(f"elephas_like-{dataset.dataset}"))
    dataset.release()
    assert presses == -1


def test_tidying_up_is_done_once_where_nobody_interrupts_it() -> None:
    done: list[int] = []
    insist(lambda: done.append(1))
    assert done == [1]
    with pytest.raises(ZeroDivisionError):
        insist(lambda: (done.append(2), 1 / 0))
    assert done == [1, 2]


def test_an_interrupt_behind_an_error_of_py4j_is_seen() -> None:
    def raised(first: BaseException, then: BaseException) -> BaseException:
        try:
            try:
                raise first
            except BaseException:
                raise then  # noqa: B904  as py4j does
        except BaseException as error:
            return error

    assert hides_interrupt(raised(KeyboardInterrupt(), Py4JError("no gateway")))
    assert not hides_interrupt(raised(ValueError(), Py4JError("no gateway")))
    assert not hides_interrupt(raised(KeyboardInterrupt(), ValueError()))
    assert not hides_interrupt(KeyboardInterrupt())


@pytest.mark.parametrize("guard", [readable_errors, lambda context: cleanup(context, "tidy")])
def test_guards_raise_the_interrupt_that_py4j_has_hidden(guard: Callable) -> None:
    def hidden() -> None:
        try:
            raise KeyboardInterrupt
        except KeyboardInterrupt:
            raise Py4JError("no gateway")  # noqa: B904  as py4j does

    with pytest.raises(KeyboardInterrupt), guard(None):
        hidden()
