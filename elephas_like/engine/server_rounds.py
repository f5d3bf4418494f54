"""The engine of long tasks: one Spark task per worker, which exchanges with the driver's server until told to stop.

Writing the shard, and training on it, are one lineage in one task: a task that Spark runs again starts from its rows. The
driver's side is the store of the exchange room; here is the Spark job around it, and what a task does.
"""

from __future__ import annotations

import logging
import platform
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Protocol

from pyspark import RDD, InheritableThread, SparkContext

from elephas_like.core.errors import ConnectionLostError, Failure, StoppedError, SupersededError
from elephas_like.core.types import Exchange, Order, Worker, WorkerFactory
from elephas_like.rows.shards import Pair, attempt_id, failure_in, remove_pair, sweep
from elephas_like.spark.failures import readable
from elephas_like.spark.groups import job_group, tasks
from elephas_like.spark.waits import KILLED_AFTER

log = logging.getLogger(__name__)

PATIENCE = 2.0
"""Seconds that workers have to end before their tasks are cancelled."""
WATCH_SECONDS = 1.0

_lines: dict[tuple[str, int, int], Exchange] = {}
"""Clients that this Python process opened before it wrote rows, by (run, worker, attempt), until their task takes them."""


class Connector(Protocol):
    """A picklable that opens a worker's client."""

    def connect(self, worker: int, attempt: int) -> Exchange:
        """Return the client of one attempt."""
        ...


class RunStore(Protocol):
    """What the Spark job around the workers needs of the driver's store."""

    def fail(self, error: BaseException) -> None:
        """End the run with the job's error."""
        ...

    def stop(self) -> None:
        """Tell every worker to stop at its next request; waiting ones at once."""
        ...

    def note_tasks(self, running: int, ended: int) -> bool:
        """Record task counts. Return False once all workers have joined."""
        ...


def announced(rows: RDD, connector: Connector, run: str) -> RDD:
    """Return the same rows. Before any is read, each partition's task makes the first contact with the driver.

    So a driver that cannot be reached is known before work is spent, and one that waits for a large shard knows that its
    worker lives. Only for rows that the task of `ServerRun` itself writes down, in the same Python process: not for rows
    whose references are kept or zipped.

    Args:
        run: the group of the run.
    """

    def contact(index: int, partition: Iterable[object]) -> Iterable[object]:
        _open_line(connector, run, index)
        return partition

    return rows.mapPartitionsWithIndex(contact)


class ServerRun:
    """The Spark job of one fit. A context manager that starts the tasks and waits for their end.

    Args:
        refs: one pair of shard references per partition, not computed yet.
        keep: whether the shards outlive the run (a ShardedDataset's do).
        datasets: ids of the shards that go with the run, for the sweep after tasks were killed.
    """

    def __init__(
        self,
        context: SparkContext,
        refs: RDD,
        factory: WorkerFactory,
        connector: Connector,
        store: RunStore,
        *,
        group: str,
        description: str,
        keep: bool,
        datasets: Sequence[str],
    ) -> None:
        self._context, self._store = context, store
        self._group, self._description, self._datasets = group, description, tuple(datasets)
        self._broken = False
        self._late: list[Failure] = []
        self._tasks = refs.mapPartitionsWithIndex(_task(factory, connector, group, keep))
        self._workers = refs.getNumPartitions()
        self._ended = threading.Event()
        self._thread = InheritableThread(target=self._run, name=f"elephas_like-{group}", daemon=True)
        self._watcher = InheritableThread(target=self._watch, name=f"elephas_like-{group}-watch", daemon=True)

    def __enter__(self) -> ServerRun:
        """Start the tasks."""
        self._thread.start()
        self._watcher.start()
        return self

    def __exit__(self, *error: object) -> None:
        """Tell workers to stop, and cancel tasks that have not ended after a moment.

        Raises:
            WorkerError: a worker failed at its end, after the order to stop, and nothing else went wrong.
        """
        self._store.stop()
        self._thread.join(PATIENCE if error[0] is not None else 10 * PATIENCE)
        if self._thread.is_alive():
            log.info("cancelling the tasks of %s", self._group)
            self._context.cancelJobGroup(self._group)
            self._thread.join(10 * PATIENCE)
            self._broken = True
        self._ended.set()
        self._watcher.join(PATIENCE)
        if self._broken:  # also by another: Spark's own SIGINT handler cancels all jobs
            threading.Event().wait(KILLED_AFTER)
            sweep(self._context, self._group, self._workers, self._datasets)
        if self._late and error[0] is None:
            raise self._late[0].error()

    def _run(self) -> None:
        # A thread has its own job group: one that was set in the caller's is not seen here.
        try:
            with job_group(self._context, self._group, self._description):
                self._late = [result for result in self._tasks.collect() if isinstance(result, Failure)]
        except Exception as error:  # it belongs to the thread that waits for the workers
            self._broken = True
            self._store.fail(readable(error))
        finally:
            self._ended.set()

    def _watch(self) -> None:
        try:
            while not self._ended.wait(WATCH_SECONDS):
                if not self._store.note_tasks(*tasks(self._context, self._group)):
                    return
        except Exception as error:  # the context was stopped; whoever waits for workers hears of it from the job
            log.info("cannot see the tasks of %s any more: %s", self._group, error)


def _task(
    factory: WorkerFactory, connector: Connector, run: str, keep: bool
) -> Callable[[int, Iterator[Pair]], Iterator[int | Failure]]:
    def task(index: int, pairs: Iterator[Pair]) -> Iterator[int | Failure]:
        exchange = _taken_line(connector, run, index)
        pair: Pair | None = None
        worker: Worker | None = None
        try:
            (pair,) = pairs  # read to the end: Spark does not reuse a process that leaves input behind
            failure = failure_in(pair)
            if failure is not None:
                exchange.fail(failure)
            else:
                worker = factory(index, *pair)
                serve(exchange, worker, attempt_id())
        except (SupersededError, StoppedError):
            raise  # a superseded attempt that returned would become the partition's result
        except ConnectionLostError:
            raise  # there is nobody to report to; Spark says it, or tries elsewhere
        except Exception as error:  # reported as a value: the driver raises it, Spark need not retry
            exchange.fail(Failure.of(index, error))
        finally:
            exchange.close()
            late = None if worker is None else _closed(index, worker)
            if pair is not None:
                remove_pair((None if keep else pair[0], pair[1]))  # validation rows are never a ShardedDataset's
        yield index if late is None else late

    return task


def serve(exchange: Exchange, worker: Worker, attempt: int) -> None:
    """Join, and answer orders until the one to stop."""
    order: Order = exchange.join(worker.joined(attempt, platform.node()), worker.progress)
    while order.kind != "stop":
        order = exchange.answer(worker.evaluate(order) if order.kind == "evaluate" else worker.train(order))


# Functions of the module, since what a task's own function names is copied with it.


def _closed(index: int, worker: Worker) -> Failure | None:
    """Close a worker. An exception becomes the task's result, since the driver no longer listens."""
    try:
        worker.close()
    except Exception as error:
        log.warning("worker %d failed at its end: %s", index, error, exc_info=True)
        return Failure.of(index, error)
    return None


def _open_line(connector: Connector, run: str, index: int) -> None:
    """Make the first contact of this task."""
    for key in list(_lines):  # of a task that Spark ended in between: a process has one task at a time
        _lines.pop(key).close()
    line = connector.connect(index, attempt_id())
    try:
        line.announce(platform.node())
    except BaseException:
        line.close()
        raise
    _lines[run, index, attempt_id()] = line


def _taken_line(connector: Connector, run: str, index: int) -> Exchange:
    """Return this task's client. The caller closes it."""
    key = (run, index, attempt_id())
    if key not in _lines:
        _open_line(connector, run, index)
    return _lines.pop(key)
