"""Trials on Spark's slots: an ordinary job of one task for each, and the data shipped once to each executor.

A job of one task costs tenths of a second less than a trial of TensorFlow takes to trace its graph, shows in Spark's UI
under its parameters, and is retried by Spark alone: no trial waits for another one's lost executor.
"""

from __future__ import annotations

import logging
import platform
import queue
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, replace
from typing import Protocol

import cloudpickle
from pyspark import Broadcast, InheritableThread, SparkContext

from elephas_like.core.columns import verify
from elephas_like.core.errors import ElephasError, Failure, ShardMissing, SupersededError
from elephas_like.core.trials import Evaluate, Logs, Report, TrialOrder, TrialResult, TrialStatus
from elephas_like.core.types import ShardRef
from elephas_like.rows.replicas import Replica, blocks_of, replicated
from elephas_like.rows.row_values import FLOATS
from elephas_like.rows.shards import SpoolOptions, attempt_id, sweep
from elephas_like.spark.failures import readable
from elephas_like.spark.groups import job_group
from elephas_like.spark.versions import check_versions, versions
from elephas_like.spark.waits import GONE, destroy, stopped, tidying

log = logging.getLogger(__name__)

TRIES = 4
"""Jobs that one trial may lose to dying Python workers in local mode, where Spark retries no task; a cluster retries."""
CANCEL_SECONDS = 20.0
_CANCELLED = " cancelled "


class Line(Protocol):
    """A trial's client of the driver's server (exchange/client.py)."""

    def progress(self, epoch: int, metrics: Logs) -> bool:
        """Report an epoch. Return whether to go on."""
        ...

    def close(self) -> None:
        """Close the client."""
        ...


class LineFactory(Protocol):
    """A picklable that opens clients."""

    def connect(self, worker: int, attempt: int) -> Line:
        """Return the client of one attempt of a trial."""
        ...


@dataclass(frozen=True)
class Shipment:
    """A shard that every executor can read: where the driver wrote it, and its rows for those that do not see it there."""

    ref: ShardRef
    replica: Replica

    def open(self) -> ShardRef:
        """The shard on this host: the driver's own files in local mode, else a copy that the first task here writes."""
        try:
            verify(self.ref)
        except (ShardMissing, PermissionError):
            return self.replica.ref()
        return self.ref


def shipment(context: SparkContext, ref: ShardRef) -> AbstractContextManager[Replica]:
    """The rows of a shard of the driver's on their way to executors, for as long as the context lasts."""
    floats = [column.dtype for column in ref.columns if column.dtype in FLOATS]  # all of one kind
    has_target = isinstance(ref.structure, list) and len(ref.structure) > 1
    options = SpoolOptions(ref.dataset, floats[0] if floats else "float32", has_target, versions())
    return replicated(context, blocks_of(ref), options)


class _Threads:
    """Trials that run in threads of the driver's, one each; their results come as they end."""

    def __init__(self, context: SparkContext) -> None:
        self._context = context
        self._ended: queue.SimpleQueue[TrialResult] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._cancelled = False

    def start(self, order: TrialOrder) -> None:
        """Start a trial."""
        self._threads = [thread for thread in self._threads if thread.is_alive()]
        name = f"elephas_like-trial-{order.number}"
        try:
            thread = InheritableThread(target=self._run, args=(order,), name=name, daemon=True)
            self._threads.append(thread)
            thread.start()
        except Exception:  # it asks the JVM for the properties that it inherits
            if not stopped(self._context):
                raise
            self._threads = [thread for thread in self._threads if thread.is_alive()]
            self._ended.put(_cut_off(order.number))

    def finished(self, timeout: float) -> TrialResult | None:
        """Return a trial that has ended, or None if none does in time."""
        try:
            return self._ended.get(timeout=timeout)
        except queue.Empty:
            return None

    def _run(self, order: TrialOrder) -> None:
        """Run one trial to its end and put its result into `_ended`."""
        raise NotImplementedError


class TrialJobs(_Threads):
    """Runs trials as Spark jobs, each in a thread of the driver's (core.trials.Slots). A context manager.

    Args:
        shards: the driver's shards of the data, none for functions that bring their own.
        lines: how trials report their epochs; None where nobody wants to know.
        parallelism: trials that may run at a time.
        describe: a trial's title in Spark's UI.
    """

    def __init__(
        self,
        context: SparkContext,
        evaluate: Evaluate,
        shards: Sequence[ShardRef],
        lines: LineFactory | None,
        *,
        parallelism: int,
        group: str,
        describe: Callable[[TrialOrder], str],
    ) -> None:
        self.parallelism = parallelism
        self._group, self._describe = group, describe
        self._evaluate, self._shards, self._lines = evaluate, tuple(shards), lines
        super().__init__(context)
        self._tries = TRIES if context.master.startswith("local[") or context.master == "local" else 1

    def __enter__(self) -> TrialJobs:
        """Broadcast the data."""
        self._shipped: Broadcast = self._context.broadcast(cloudpickle.dumps(self._evaluate))
        self._shipped_rows = ExitStack()
        shipments = [
            Shipment(ref, self._shipped_rows.enter_context(shipment(self._context, ref))) for ref in self._shards
        ]
        self._task = _task(self._shipped, shipments, self._lines, versions())
        return self

    def __exit__(self, *error: object) -> None:
        """End running trials and free the broadcasts."""
        self.cancel()
        destroy(self._context, self._shipped)
        self._shipped_rows.close()
        if not self._context.master.startswith("local["):
            datasets = [ref.dataset for ref in self._shards]
            sweep(self._context, self._group, self.parallelism, datasets)

    def cancel(self) -> None:
        """Cancel running jobs, also those that are just being submitted."""
        self._cancelled = True
        end = time.monotonic() + CANCEL_SECONDS
        while (running := [thread for thread in self._threads if thread.is_alive()]) and time.monotonic() < end:
            with tidying(self._context, "cancel the trials"):
                self._context.cancelJobGroup(self._group)
            running[0].join(0.5)

    def _run(self, order: TrialOrder) -> None:
        """Run one trial as a Spark job, and again if its Python worker died. Exactly one result comes of it."""
        status = TrialStatus.INTERRUPTED
        error: BaseException = ElephasError("the search was cancelled.")
        task = self._task
        for left in reversed(range(self._tries)):
            if self._cancelled:
                break
            try:
                with job_group(self._context, self._group, self._describe(order)):
                    (result,) = self._context.range(0, 1, 1, 1).mapPartitions(lambda rows: task(order, rows)).collect()
                self._ended.put(result)
                return
            except Exception as cause:  # of Spark's: the trial's own errors come as values
                if stopped(self._context):
                    self._ended.put(_cut_off(order.number))
                    return
                error = readable(cause)
                if _CANCELLED in str(cause):  # by Ctrl-C, or in Spark's UI
                    break
                if left:
                    log.warning("trial %d was lost and is run again: %s", order.number, str(error).splitlines()[0])
                else:
                    status = TrialStatus.FAILED
        self._ended.put(TrialResult(order.number, status, failure=Failure.of(order.number, error)))


class ThreadTrials(_Threads):
    """Runs trials that are Spark fits of their own, each in a thread of the driver's (core.trials.Slots)."""

    def __init__(
        self, context: SparkContext, evaluate: Evaluate, judge: Callable[[int, int, Logs], bool], parallelism: int
    ) -> None:
        self.parallelism = parallelism
        self._evaluate, self._judge = evaluate, judge
        super().__init__(context)

    def finished(self, timeout: float) -> TrialResult | None:
        """A trial that has ended; None where none does in time.

        Ctrl-C makes PySpark cancel all jobs before anybody else hears of it: a trial that failed by then was interrupted.
        """
        result = super().finished(timeout)
        if result is None or result.failure is None or result.status is not TrialStatus.FAILED:
            return result
        if self._cancelled or _CANCELLED in result.failure.message:
            return replace(result, status=TrialStatus.INTERRUPTED)
        return result

    def cancel(self) -> None:
        """End running trials at the end of their epoch."""
        self._cancelled = True
        for thread in self._threads:
            thread.join(CANCEL_SECONDS)

    def _run(self, order: TrialOrder) -> None:
        def report(epoch: int, logs: Logs) -> bool:
            return not self._cancelled and self._judge(order.number, epoch, logs)

        self._ended.put(_unless_cut_off(tried(self._evaluate, order, (), report), self._context))


class InProcessTrials:
    """Runs trials in this process, one at a time (core.trials.Slots).

    context: where trials are Spark fits of their own; None without Spark.
    """

    parallelism = 1

    def __init__(
        self,
        evaluate: Evaluate,
        shards: Sequence[ShardRef],
        judge: Callable[[int, int, Logs], bool],
        context: SparkContext | None = None,
    ) -> None:
        self._evaluate, self._shards, self._judge, self._context = evaluate, shards, judge, context
        self._orders: list[TrialOrder] = []

    def start(self, order: TrialOrder) -> None:
        """Queue a trial. It runs when its result is asked for."""
        self._orders.append(order)

    def finished(self, timeout: float) -> TrialResult | None:
        """Run the next trial to its end, however long that takes."""
        if not self._orders:
            return None
        order = self._orders.pop(0)
        result = tried(self._evaluate, order, self._shards, lambda epoch, logs: self._judge(order.number, epoch, logs))
        return _unless_cut_off(result, self._context)

    def cancel(self) -> None:
        """Drop the trials that have not begun."""
        self._orders.clear()


def cut_off(result: TrialResult) -> bool:
    """Whether a trial ended because its SparkContext did: no other one can run then."""
    return result.failure is not None and result.failure.message == GONE


def _cut_off(number: int) -> TrialResult:
    return TrialResult(number, TrialStatus.INTERRUPTED, failure=Failure.of(number, ElephasError(GONE)))


def _unless_cut_off(result: TrialResult, context: SparkContext | None) -> TrialResult:
    """A trial's result; where its SparkContext is gone its failure says nothing about its point."""
    if result.status is TrialStatus.FAILED and context is not None and stopped(context):
        return _cut_off(result.number)
    return result


def tried(evaluate: Evaluate, order: TrialOrder, shards: Sequence[ShardRef], report: Report) -> TrialResult:
    """Run a trial and return its result. An exception is a result, too."""
    try:
        return evaluate(order, shards, report)
    except SupersededError:
        raise  # an attempt that returned would become the task's result
    except Exception as error:
        return TrialResult(
            order.number, TrialStatus.FAILED, host=platform.node(), failure=Failure.of(order.number, error)
        )


def _task(
    evaluate: Broadcast, shipments: Sequence[Shipment], lines: LineFactory | None, driver: Mapping[str, str]
) -> Callable[[TrialOrder, Iterator[object]], Iterator[TrialResult]]:
    """The task of one trial."""

    def run(order: TrialOrder, shards: Sequence[ShardRef], report: Report) -> TrialResult:
        check_versions(driver)
        function: Evaluate = cloudpickle.loads(evaluate.value)  # our driver's own bytes, handed over by Spark
        return function(order, [shipment.open() for shipment in shipments], report)

    def task(order: TrialOrder, rows: Iterator[object]) -> Iterator[TrialResult]:
        for _ in rows:  # read to the end: Spark does not reuse a process that leaves input behind
            pass
        if lines is None:
            yield tried(run, order, (), lambda epoch, logs: True)
            return
        line = lines.connect(order.number, attempt_id())
        try:
            yield tried(run, order, (), line.progress)
        finally:
            line.close()

    return task
