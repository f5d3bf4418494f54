"""Wait for Spark jobs: cancel a job without progress, and clean up without hiding an earlier error."""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import TypeVar

from pyspark import RDD, Broadcast, SparkContext

from elephas_like.core.errors import ElephasError
from elephas_like.spark.failures import GONE, readable
from elephas_like.spark.job_tags import tagged_jobs, unfinished

log = logging.getLogger(__name__)
Result = TypeVar("Result")

MAX_KILL_SECONDS = 20.0
"""Longest wait until Spark has killed the Python processes of cancelled tasks, for which it takes 2 to 4 seconds if not busy."""
UNSEEN_KILL_SECONDS = 5.0
"""The same where it cannot be seen, over Spark Connect."""
LATE_SECONDS = 1.0
"""Seconds after Ctrl-C, or a time limit, in which a job that was being sent to the JVM, or to a server, may start."""
TIDY_SECONDS = 20.0
"""Seconds that the jobs which delete files at the end of a run may take."""
MAX_POLL_SECONDS = 1.0
"""Maximum seconds between two checks of a job's progress."""
STOPPED = f"{GONE} After a fit that was under way the model holds the state of the last finished round."


class Overdue(Exception):
    """A job was cancelled because it made no progress for too long. The caller knows what it was waiting for."""


def run_within(
    seconds: float,
    context: SparkContext,
    tag: str,
    description: str,
    job: Callable[[], Result],
    *,
    progress: Callable[[], object] = lambda: None,
) -> Result:
    """Run a job in this thread, under a tag of its own, and return its result.

    Args:
        seconds: longest time without progress, whether tasks run or wait for a slot. Without `progress`, the limit of
            the whole job.
        tag: Spark job tag; its jobs are cancelled after that time.
        description: text in Spark's UI.
        job: starts the job.
        progress: returns a value that changes when the job gets on; called from another thread.

    Raises:
        Overdue: the job made no progress for `seconds` and was cancelled.
        ElephasError: the job failed, or the SparkContext was stopped.
    """
    ended, overdue = threading.Event(), threading.Event()

    def watch() -> None:
        with cleanup(context, f"see how the jobs of {tag} get on"):
            seen, deadline = progress(), time.monotonic() + seconds
            while not ended.wait(min(MAX_POLL_SECONDS, max(0.0, deadline - time.monotonic()))):
                if (now := progress()) != seen:
                    seen, deadline = now, time.monotonic() + seconds
                elif time.monotonic() >= deadline:
                    overdue.set()
                    context.cancelJobsWithTag(tag)
                    while not ended.wait(LATE_SECONDS):  # it may have been on its way to the JVM
                        context.cancelJobsWithTag(tag)
                    return

    watcher = threading.Thread(target=watch, name=f"elephas_like-watch-{tag}", daemon=True)
    try:
        watcher.start()  # in here: Ctrl-C may come at once
        with readable_errors(context), tagged_jobs(context, tag, description):
            return job()
    except ElephasError:
        if overdue.is_set():
            raise Overdue(f"cancelled after {seconds:g} s") from None
        raise
    finally:
        ended.set()
        if watcher.ident is not None:
            watcher.join()  # a late cancellation must not hit the next job with the tag


def outside_groups(job: Callable[[], Result]) -> Result:
    """Run a job that deletes files in a thread of its own, and return its result.

    A streaming query that is stopped, or a notebook's cell, cancels its job group and interrupts its thread in the JVM.
    A new thread has no group, and its JVM thread is not interrupted. It is no thread of an executor: those end with the main
    thread, which threads of fits may outlive. After Ctrl-C the job's end is waited for, too.
    """
    found: Future[Result] = Future()

    def run() -> None:
        try:
            found.set_result(job())
        except BaseException as error:  # it belongs to the thread that waits
            found.set_exception(error)

    thread = threading.Thread(target=run, name="elephas_like-tidy")
    try:
        thread.start()  # in here: Ctrl-C may come at once
        return found.result()
    finally:
        if thread.ident is not None:
            thread.join()


def insist(tidy: Callable[[], object]) -> None:
    """Tidy up; if Ctrl-C interrupts that, once more from the begin before it is raised: it takes seconds, and nobody else does it."""
    try:
        tidy()
    except KeyboardInterrupt:
        tidy()
        raise


def cancel_and_wait(context: SparkContext, tag: str) -> None:
    """Cancel the jobs with a tag and wait until their tasks have ended, so that what these have written can be deleted.

    A task ends when Spark kills its Python process. The wait takes `MAX_KILL_SECONDS` at most. Ctrl-C may come while a job is on its
    way to the JVM, which then starts it after all: so while a KeyboardInterrupt is being handled, jobs are cancelled for
    `LATE_SECONDS`.
    """
    with cleanup(context, f"cancel the jobs of {tag}"):
        began = time.monotonic()
        cause = sys.exc_info()[1]
        least = LATE_SECONDS if isinstance(cause, KeyboardInterrupt) or hides_interrupt(cause) else 0.0
        context.cancelJobsWithTag(tag)
        while (passed := time.monotonic() - began) < least or (unfinished(context, tag) and passed < MAX_KILL_SECONDS):
            threading.Event().wait(0.1)
            if least:  # else never again: Spark's later jobs of this thread may still bear the tag
                context.cancelJobsWithTag(tag)


@contextmanager
def readable_errors(context: SparkContext) -> Iterator[None]:
    """Translate Spark's errors: a worker's own exception, or that the SparkContext was stopped."""
    try:
        yield
    except Exception as error:  # py4j and pyspark raise many kinds
        raise_hidden_interrupt(error)
        raise (ElephasError(STOPPED) if stopped(context) else readable(error)) from None


def partition_count(rdd: RDD) -> int:
    """Return the number of an RDD's partitions, for which Spark looks at the files that it is read from.

    Raises:
        ElephasError: Spark finds none, or has ended.
    """
    with readable_errors(rdd.context):
        return rdd.getNumPartitions()


def stopped(context: SparkContext) -> bool:
    """Return whether a SparkContext was stopped, here or in the JVM.

    Spark has no public name for it, but then every call fails.
    """
    try:
        context.defaultParallelism  # noqa: B018  # the question is asked for its error
    except Exception as error:
        raise_hidden_interrupt(error)
        return True
    return False


def hides_interrupt(error: BaseException | None) -> bool:
    """Return whether py4j raised an error of its own while it handled Ctrl-C during a call to the JVM."""
    if not type(error).__module__.startswith("py4j"):
        return False
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__context__
    return error is not None


def raise_hidden_interrupt(error: BaseException) -> None:
    """Raise KeyboardInterrupt if an error of py4j's hides one."""
    if hides_interrupt(error):
        raise KeyboardInterrupt from error


def destroy(context: SparkContext, broadcast: Broadcast) -> None:
    """Free what was shipped to the executors."""
    with cleanup(context, "free what was shipped to the executors"):
        if sys.exc_info()[0] is None:  # what ends now may have been interrupted, and the thread's calls would fail
            broadcast.destroy()
        else:
            outside_groups(broadcast.destroy)


@contextmanager
def cleanup(context: SparkContext | None, what: str) -> Iterator[None]:
    """Log an error of cleaning up instead of raising it, so that it does not hide what happened before.

    Nothing is logged if the SparkContext was stopped: Spark has ended its executors, with all they held.

    Args:
        context: None over Spark Connect.
        what: the end of "could not ...".
    """
    try:
        yield
    except Exception as error:
        raise_hidden_interrupt(error)
        if context is None or not stopped(context):
            log.warning("could not %s: %s", what, (str(error) or type(error).__name__).splitlines()[0])
