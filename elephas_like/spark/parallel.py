"""Independent runs, some at a time: outcomes as they come, and an early end.

A run is a call with a number. `RunsInTurn` makes the calls in the caller's thread, `Runs` in threads of the driver, and
`JobRuns` makes calls of Spark jobs of one task each: one job over all partitions would say what failed only when its last
task is over.
"""

from __future__ import annotations

import logging
import math
import queue
import re
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import Generic, TypeVar

from pyspark import RDD, InheritableThread, SparkContext

from elephas_like.core.errors import ElephasError, ShipmentGone, WorkerError
from elephas_like.spark.failures import GONE, RefusedError, readable
from elephas_like.spark.job_tags import tagged_jobs
from elephas_like.spark.session import is_local_master
from elephas_like.spark.waits import cancel_and_wait, cleanup, stopped

log = logging.getLogger(__name__)
Result = TypeVar("Result")
Outcome = tuple[int, Result | BaseException]
"""(number of the run, what it returned or the error that ended it)."""

TRIES = 4
"""Jobs that one run may lose to dying Python workers in local mode, where Spark retries no task; a cluster retries."""
CANCELLED = " cancelled "
"""Part of what Spark says of a job that was cancelled: here, by Ctrl-C, or in its UI."""
_CANCELLED_WITH = re.compile(
    r" cancelled job (?P<kind>group|tag)s? (?!elephas_like-)| cancelled (?P<query>Query) [^\n]*\[id = | cancellation of all jobs"
)


def cancelled_by_caller(text: str) -> str:
    """Return what a caller has cancelled beside a job, by what Spark says of the job, as the begin of a sentence; empty if nothing.

    Tags of this package are not the caller's. Spark's UI cancels one job alone.
    """
    found = _CANCELLED_WITH.search(text)
    if found is None:
        return ""
    if found["query"] is not None:
        return "the streaming query of the caller was"
    return "all Spark jobs were" if found["kind"] is None else f"the Spark job {found['kind']} of the caller was"


class CancelledError(ElephasError):
    """A run's Spark job was cancelled, or never submitted because the runs were."""


class RunsInTurn(Generic[Result]):
    """Makes calls one after the other, in the thread that asks for their outcomes. A context manager, as `Runs`."""

    def __init__(self) -> None:
        self.at_once = 1
        self.cancelled = False
        self._waiting: deque[tuple[int, Callable[[], Result]]] = deque()

    def start(self, number: int, call: Callable[[], Result]) -> None:
        """Adds a run; it is made when its outcome is asked for."""
        self._waiting.append((number, call))

    def finished(self, timeout: float) -> Outcome[Result] | None:
        """The outcome of the next run, however long that takes; None if there is none."""
        if not self._waiting:
            return None
        number, call = self._waiting.popleft()
        try:
            return number, call()
        except Exception as error:  # an outcome like any other
            return number, error
        except SystemExit as exited:  # of the run, not of the program
            failed = ElephasError(f"it called sys.exit({exited.code!r}).")
            failed.__cause__ = exited
            return number, failed

    def outcomes(self, calls: Sequence[Callable[[], Result]]) -> Iterator[Outcome[Result]]:
        """The outcomes of calls, as they come; `at_once` of the calls are under way at a time."""
        waiting = iter(enumerate(calls))
        running = 0
        for _, (number, call) in zip(range(self.at_once), waiting):  # noqa: B905  the shorter one ends it
            self.start(number, call)
            running += 1
        while running and not self.cancelled:
            found = self.finished(0.5)  # a wait without end could not be interrupted everywhere
            if found is None:
                continue
            following = next(waiting, None)
            if following is None:
                running -= 1
            else:
                self.start(*following)
            yield found

    def cancel(self) -> None:
        """Drops the runs that have not begun."""
        self.cancelled = True
        self._waiting.clear()

    def __enter__(self) -> RunsInTurn[Result]:
        """Itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Cancels what is left."""
        self.cancel()


class Runs(RunsInTurn[Result]):
    """Makes each call in a thread of its own. A context manager: leaving it cancels what runs, and waits for its end.

    Args:
        context: whose local properties the threads inherit; None over Spark Connect.
        at_once: runs that `outcomes` keeps under way.
        name: of the threads.
        stop: asks running calls to end; it is called again and again, for one may just have been about to start.
        patience: seconds that `cancel` waits for running calls.
    """

    def __init__(
        self,
        context: SparkContext | None,
        *,
        at_once: int,
        name: str,
        stop: Callable[[], object] = lambda: None,
        patience: float = math.inf,
    ) -> None:
        super().__init__()
        self.at_once = max(1, at_once)
        self.cut_short = False
        self._context, self._name, self._stop, self._patience = context, name, stop, patience
        self._ended: queue.SimpleQueue[Outcome[Result]] = queue.SimpleQueue()
        self._threads: dict[int, threading.Thread] = {}
        self._under_way: set[int] = set()

    def start(self, number: int, call: Callable[[], Result]) -> None:
        """Starts a run; returns at once."""
        self._threads = {each: thread for each, thread in self._threads.items() if thread.is_alive()}
        kind = threading.Thread if self._context is None else InheritableThread
        try:
            thread = kind(target=self._run, args=(number, call), name=f"{self._name}-{number}", daemon=True)
            self._under_way.add(number)
            self._threads[number] = thread
            thread.start()
        except Exception:  # it asks the JVM for the properties that it inherits
            self._under_way.discard(number)
            if self._context is None or not stopped(self._context):
                raise
            self._ended.put((number, ElephasError(GONE)))

    def finished(self, timeout: float) -> Outcome[Result] | None:
        """The outcome of a run that has ended; None where none does within `timeout` seconds."""
        try:
            return self._ended.get(timeout=timeout)
        except queue.Empty:
            return None

    def cancel(self) -> None:
        """Stops the runs, also those that are just being started; waits until they have ended, or for `patience`."""
        self.cancelled = True
        end = time.monotonic() + self._patience
        while (alive := [thread for thread in self._threads.values() if thread.is_alive()]) and time.monotonic() < end:
            if self._under_way:
                self.cut_short = True
                with cleanup(self._context, "cancel what runs"):
                    self._stop()
            alive[0].join(0.2)

    def _run(self, number: int, call: Callable[[], Result]) -> None:
        try:
            found: Result | BaseException = call()
        except BaseException as error:  # it belongs to the thread that waits for the outcome
            found = error
        self._under_way.discard(number)
        self._ended.put((number, found))


class JobRuns(Runs[Result]):
    """Runs that are Spark jobs of one task each, with one tag. Leaving it early cancels the jobs.

    Args:
        at_once: jobs that `outcomes` keeps under way; Spark queues what it has no slots for.
        tag: Spark job tag of the runs.
        patience: seconds that `cancel` waits for running jobs.
    """

    def __init__(self, context: SparkContext, *, at_once: int, tag: str, patience: float = math.inf) -> None:
        super().__init__(
            context, at_once=at_once, name=tag, stop=lambda: context.cancelJobsWithTag(tag), patience=patience
        )
        self._tag, self._spark = tag, context

    def rows(self, rdd: RDD, partition: int, title: str, *, tries: int = 1) -> list[object]:
        """The rows of one partition, by a Spark job in this thread.

        Args:
            title: what Spark's UI shows.
            tries: jobs that may be lost to dying Python workers, or to those whose rows have vanished; what the user's code raises
                ends the run at once, and so does what Spark refuses.

        Raises:
            CancelledError: the job, or these runs, were cancelled. ElephasError: it failed, or the SparkContext was stopped.
        """
        while not self.cancelled:
            tries -= 1
            try:
                with tagged_jobs(self._spark, self._tag, title):
                    found: list[object] = self._spark.runJob(rdd, lambda rows: rows, [partition])
                return found
            except Exception as error:  # py4j and pyspark raise many kinds
                cause = readable(error)
                if stopped(self._spark):
                    raise ElephasError(GONE) from None
                if self.cancelled or CANCELLED in str(error):
                    raise CancelledError(str(cause)) from None
                final = isinstance(cause, WorkerError | RefusedError) and not isinstance(cause, ShipmentGone)
                if not tries or final:
                    raise cause from None
                log.warning("%s was lost and is run again: %s", title, str(cause).splitlines()[0])
        raise CancelledError("the run was cancelled before it began.")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End all jobs, and wait until the processes of cancelled tasks are gone."""
        super().__exit__(kind, error, trace)
        interrupted = isinstance(error, KeyboardInterrupt)  # Spark's own SIGINT handler cancels all jobs
        if self.cut_short or interrupted:
            cancel_and_wait(self._spark, self._tag)


def tries(master: str) -> int:
    """Return how many jobs one run may lose to dying Python workers, by Spark's master."""
    return TRIES if is_local_master(master) else 1
