"""Waiting for Spark: a job that gets nowhere is cancelled, and tidying up hides nothing of what went before it."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from pyspark import Broadcast, SparkContext

from elephas_like.core.errors import ElephasError
from elephas_like.spark.failures import readable
from elephas_like.spark.groups import job_group

log = logging.getLogger(__name__)
Result = TypeVar("Result")

KILLED_AFTER = 3.0
"""Seconds within which Spark kills a cancelled task's Python process, TensorFlow or not; what it wrote goes only then."""
TIDY_SECONDS = 20.0
"""How long the jobs may take that delete files at the end of a run."""
LONGEST_LOOK = 1.0
"""Seconds between two looks at whether a job has got on, at most."""
GONE = (
    "the SparkContext was stopped, by stop() or because the application ended. Start a new session and make the data from "
    "it."
)
STOPPED = f"{GONE} After a fit that was under way the model holds the state of the last finished round."


class Overdue(Exception):
    """A job was cancelled because it had got nowhere for too long. Whoever ran it knows what was waited for."""


def run_within(
    seconds: float,
    context: SparkContext,
    group: str,
    description: str,
    job: Callable[[], Result],
    *,
    progress: Callable[[], object] = lambda: None,
) -> Result:
    """What the job returns, which runs in this thread and in a job group of its own.

    Args:
        seconds: for which `progress` may stay the same, whether tasks run or wait for a slot; for the whole job without.
        description: what Spark's UI shows.
        progress: something that changes when the job has got on; asked by another thread.

    Raises:
        Overdue: it got nowhere for so long, and was cancelled.
        ElephasError: the job failed, or the SparkContext was stopped.
    """
    ended, overdue = threading.Event(), threading.Event()

    def watch() -> None:
        seen, deadline = progress(), time.monotonic() + seconds
        while not ended.wait(min(LONGEST_LOOK, max(0.0, deadline - time.monotonic()))):
            if (now := progress()) != seen:
                seen, deadline = now, time.monotonic() + seconds
            elif time.monotonic() >= deadline:
                overdue.set()
                with tidying(context, f"cancel the jobs of {group}"):
                    context.cancelJobGroup(group)
                return

    watcher = threading.Thread(target=watch, name=f"elephas_like-watch-{group}", daemon=True)
    watcher.start()
    try:
        with readably(context), job_group(context, group, description):
            return job()
    except ElephasError:
        if overdue.is_set():
            raise Overdue(f"cancelled after {seconds:g} s") from None
        raise
    finally:
        ended.set()
        watcher.join()  # so that a cancellation that is under way meets no later job of the group


@contextmanager
def readably(context: SparkContext) -> Iterator[None]:
    """Raises what Spark raises in the user's terms: a worker's own words, or that there is no SparkContext any more."""
    try:
        yield
    except Exception as error:  # py4j and pyspark raise many kinds
        raise (ElephasError(STOPPED) if stopped(context) else readable(error)) from None


def stopped(context: SparkContext) -> bool:
    """Whether a SparkContext was stopped, here or in the JVM: it has no public name for that, but answers nothing then."""
    try:
        context.defaultParallelism  # noqa: B018  # the question is asked for its error
    except Exception:
        return True
    return False


def hides_interrupt(error: BaseException | None) -> bool:
    """Whether py4j raised an error of its own while it handled Ctrl-C, which came amid a call to the JVM."""
    if not type(error).__module__.startswith("py4j"):
        return False
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__context__
    return error is not None


def destroy(context: SparkContext, broadcast: Broadcast) -> None:
    """Frees what was shipped to the executors."""
    with tidying(context, "free what was shipped to the executors"):
        broadcast.destroy()


@contextmanager
def tidying(context: SparkContext, what: str) -> Iterator[None]:
    """Logs an error of what tidies up, where it would hide the outcome of what went before it.

    Where the SparkContext was stopped there is nothing to say: Spark has ended its executors, and what they held.
    """
    try:
        yield
    except Exception as error:
        if not stopped(context):
            log.warning("could not %s: %s", what, (str(error) or type(error).__name__).splitlines()[0])
