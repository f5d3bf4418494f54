"""Jobs of sessions of either kind: both are cancelled by a tag, which Spark Connect has of its own."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

from pyspark.sql import SparkSession

from elephas_like.spark.failures import SESSION_GONE, RefusedError, readable, session_ended
from elephas_like.spark.job_tags import tasks
from elephas_like.spark.session import context_of
from elephas_like.spark.waits import LATE_SECONDS, Overdue, run_within

Result = TypeVar("Result")


def new_tag(what: str) -> str:
    """Return a name for a job of its own."""
    return f"elephas_like-{what}-{uuid.uuid4().hex[:16]}"


def run_job(
    session: SparkSession,
    name: str,
    description: str,
    seconds: float,
    job: Callable[[], Result],
    *,
    by_progress: bool = False,
) -> Result:
    """Run a job of either kind of session and return its result. Ctrl-C and the time limit cancel it.

    Args:
        name: its tag; no spaces or commas.
        seconds: the longest time that it may take.
        by_progress: whether `seconds` begin anew when a task of it starts or ends.

    Raises:
        Overdue: it took longer, and was cancelled.
        ElephasError: it failed; a worker's own error is a WorkerError.
    """
    context = context_of(session)
    if context is None:
        return _tagged(session, name, seconds, job, by_progress)
    if not by_progress:
        return run_within(seconds, context, name, description, job)
    return run_within(seconds, context, name, description, job, progress=lambda: tasks(context, name))


@contextmanager
def saying_ended_sessions() -> Iterator[None]:
    """Translate what Spark Connect says of a session that has ended, where jobs are made: that asks its server, too.

    Raises:
        RefusedError: it has.
    """
    try:
        yield
    except Exception as error:  # Spark Connect raises many kinds
        if session_ended(str(error)):
            raise RefusedError(SESSION_GONE) from None
        raise


def _tagged(session: SparkSession, name: str, seconds: float, job: Callable[[], Result], by_progress: bool) -> Result:
    tag = f"{name}-{uuid.uuid4().hex[:8]}"  # a late interrupt must not hit the next job
    overdue, ended = threading.Event(), threading.Event()
    mine, told = threading.get_ident(), object()
    moved = time.monotonic()

    def note(stages: Iterable[Any] | None, inflight_tasks: int, **_: object) -> None:
        """Note what the server tells of tasks, by default every two seconds: of this thread's job, in this thread."""
        nonlocal told, moved
        if threading.get_ident() != mine:  # one list of handlers hears of all jobs of the session
            return
        before, told = told, (inflight_tasks, [(each.stage_id, each.num_completed_tasks) for each in stages or ()])
        if told != before:
            moved = time.monotonic()

    def interrupt() -> None:
        with suppress(Exception):  # a session that has ended since has nothing to interrupt
            session.interruptTag(tag)

    def watch() -> None:
        while (left := moved + seconds - time.monotonic()) > 0:
            if ended.wait(min(left, threading.TIMEOUT_MAX)):
                return
        overdue.set()
        interrupt()
        while not ended.wait(LATE_SECONDS):  # the server may not have known the job
            interrupt()

    watcher = threading.Thread(target=watch, name=f"elephas_like-watch-{tag}", daemon=True)
    if by_progress:
        session.registerProgressHandler(note)
    session.addTag(tag)
    try:
        watcher.start()
        return job()
    except KeyboardInterrupt:
        interrupt()
        again = threading.Timer(LATE_SECONDS, interrupt)
        again.daemon = True
        again.start()
        raise
    except Exception as error:  # Spark Connect raises many kinds
        if overdue.is_set():
            raise Overdue(f"cancelled after {seconds:g} s") from None
        raise readable(error) from None
    finally:
        ended.set()
        if overdue.is_set():
            watcher.join()
        session.removeTag(tag)
        if by_progress:
            session.removeProgressHandler(note)
