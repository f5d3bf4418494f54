"""Run calls that start Spark jobs in threads of the driver: results as they come, and an early end.

Each partition is a job of its own here. One job over all partitions would report a failure only when its last task has
ended.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import Generic, TypeVar

from pyspark import RDD, InheritableThread, SparkContext

from elephas_like.spark.failures import readable
from elephas_like.spark.groups import job_group
from elephas_like.spark.waits import KILLED_AFTER

Result = TypeVar("Result")


class Calls(Generic[Result]):
    """Calls in threads.

    A context manager: leaving it starts no further call, stops the running ones and waits for them.

    Args:
        calls: functions; results carry their number in this sequence.
        at_once: maximum number of calls at the same time.
        name: of the threads.
        stop: asks running calls to end. It is called repeatedly, because a call may have been about to start.
    """

    def __init__(
        self, calls: Sequence[Callable[[], Result]], *, at_once: int, name: str, stop: Callable[[], None]
    ) -> None:
        self._calls, self._stop = list(calls), stop
        self._waiting: queue.SimpleQueue[int] = queue.SimpleQueue()
        for number in range(len(calls)):
            self._waiting.put(number)
        self._done: queue.SimpleQueue[tuple[int, Result | BaseException]] = queue.SimpleQueue()
        self._pending = len(calls)
        self._ended = threading.Event()
        self.stopped = False
        self._threads = [
            InheritableThread(target=self._run, name=f"elephas_like-{name}-{place}", daemon=True)
            for place in range(max(1, min(at_once, len(calls))))
        ]

    def __enter__(self) -> Calls[Result]:
        """Start the first calls."""
        for thread in self._threads:
            thread.start()
        return self

    def results(self) -> Iterator[tuple[int, Result | BaseException]]:
        """Yield (number of the call, its result or the error that ended it), as they come."""
        while self._pending:
            try:
                found = self._done.get(timeout=0.5)  # a wait without end could not be interrupted everywhere
            except queue.Empty:
                continue
            self._pending -= 1
            yield found

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End all calls."""
        self._ended.set()
        while any(thread.is_alive() for thread in self._threads):
            if self._pending:
                self.stopped = True
                self._stop()
            for thread in self._threads:
                thread.join(0.2)

    def _run(self) -> None:
        while not self._ended.is_set():
            try:
                number = self._waiting.get_nowait()
            except queue.Empty:
                return
            try:
                self._done.put((number, self._calls[number]()))
            except BaseException as cause:  # it belongs to the thread that waits for the results
                self._done.put((number, cause))


class PartitionJobs(Calls[list[object]]):
    """Jobs of one partition each; results are the partitions' elements. Leaving it early cancels the jobs.

    Args:
        jobs: (RDD, partition number) of each job.
        at_once: maximum number of jobs at the same time; Spark queues jobs that it has no slots for.
        group: Spark job group of the jobs.
        descriptions: texts in Spark's UI, one per job.
    """

    def __init__(
        self,
        context: SparkContext,
        jobs: Sequence[tuple[RDD, int]],
        *,
        at_once: int,
        group: str,
        descriptions: Sequence[str],
    ) -> None:
        def job(rdd: RDD, partition: int, description: str) -> Callable[[], list[object]]:
            def run() -> list[object]:
                # A thread has its own job group: one that was set in the caller's is not seen here.
                with job_group(context, group, description):
                    try:
                        found: list[object] = context.runJob(rdd, lambda rows: rows, [partition])
                    except Exception as error:  # py4j and pyspark raise many kinds
                        raise readable(error) from None
                    return found

            return run

        super().__init__(
            [job(*given, description) for given, description in zip(jobs, descriptions, strict=True)],
            at_once=at_once,
            name=group,
            stop=lambda: context.cancelJobGroup(group),
        )

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End all jobs, and wait until the processes of cancelled tasks are gone."""
        super().__exit__(kind, error, trace)
        if self.stopped or isinstance(error, KeyboardInterrupt):  # Spark's own SIGINT handler cancels all jobs
            threading.Event().wait(KILLED_AFTER)
