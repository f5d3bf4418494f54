"""The engine of long tasks: one Spark task per worker, which exchanges with the driver's server until it stops.

A task writes its shard and trains on it, so that a task which Spark runs again starts from its rows. The driver's side
is the store in `exchange`; here is the Spark job around it, and what a task does.
"""

from __future__ import annotations

import logging
import os
import platform
import threading
import time
import zipfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

from pyspark import RDD, InheritableThread, SparkContext

from elephas_like.core.errors import (
    CapacityError,
    ConnectionLostError,
    ElephasError,
    Failure,
    InputCutError,
    StoppedError,
    SupersededError,
)
from elephas_like.core.types import Order, Result
from elephas_like.core.workers import Exchange, Worker, WorkerFactory
from elephas_like.rows.shard_files import dataset_directory, local_directories
from elephas_like.rows.shards import Pair, attempt_id, failure_in, remove_pair, sweep, unfinished_files
from elephas_like.spark.failures import readable
from elephas_like.spark.gpus import GpuTasks, on_gpus, take_gpu
from elephas_like.spark.job_tags import jobs_with, starved_jobs, tagged_jobs, tasks
from elephas_like.spark.session import settings_of, task_tries
from elephas_like.spark.task_input import only
from elephas_like.spark.waits import cancel_and_wait, cleanup, insist

log = logging.getLogger(__name__)

GRACE_SECONDS = 2.0
"""Seconds that workers have to end by themselves before their tasks are cancelled."""
WATCH_SECONDS = 0.5
PATIENCE_SECONDS = 15.0
"""How long a callback runs beside a Spark job of its own without a slot before a fit that cannot make room is ended."""

_connections: dict[tuple[str, int, int], Exchange] = {}
"""Connections opened before the rows are written, by (run, worker, attempt), until their task takes them."""


class Connector(Protocol):
    """A picklable object that connects a worker to the driver."""

    def connect(self, worker: int, attempt: int) -> Exchange:
        """Return the connection of one attempt."""
        ...


class RunStore(Protocol):
    """The part of the driver's store that the Spark job around the workers uses.

    rewrite: called where files of shards that outlive the run are missing, to drop Spark's references.
    """

    rewrite: Callable[[], None] | None

    def fail(self, error: BaseException) -> None:
        """Report that the job has failed, to whoever waits for workers."""
        ...

    def stop(self) -> None:
        """Answer workers' next requests with `stop`; waiting workers get it at once."""
        ...

    def note_tasks(self, running: int, ended: int) -> bool:
        """Record task counts. Return False once all workers have joined."""
        ...

    def idle_seconds(self) -> float:
        """Return for how long the driver has not waited for workers: it runs callbacks."""
        ...

    def suspend(self) -> None:
        """Have workers end their tasks at their next request, unless the driver needs them by now."""
        ...

    def recalled(self) -> bool:
        """Wait until the driver needs the suspended workers. Return False if they were not suspended, or the run is over."""
        ...


def announced_rows(rows: RDD, connector: Connector, run: str) -> RDD:
    """Return the same rows; each partition's task contacts the driver before it reads any.

    A driver that cannot be reached is found before work is spent, and one that waits for a large shard knows that its
    worker lives. Use it only for rows that the task of `ServerRun` itself writes, in the same Python process: not for
    rows whose references are kept or zipped.

    Args:
        run: the tag of the run.
    """

    def contact(index: int, partition: Iterable[object]) -> Iterable[object]:
        _open_connection(connector, run, index)
        return partition

    return rows.mapPartitionsWithIndex(contact)


class ServerRun:
    """The Spark job of one fit. A context manager: it starts the tasks, and waits for them or cancels them at the end.

    Args:
        refs: one pair of shard references per partition, not computed yet.
        finished: the same again, after `refs` was computed and the tasks have ended; None for workers that cannot be suspended, as
            they have callbacks of the user's.
        factory: makes the workers, on the executors.
        connector: connects them to the driver.
        store: the driver's side of the exchange.
        tag, description: of the Spark jobs.
        keep: whether the shards outlive the run (a ShardedDataset's do).
        invalidate: drops Spark's references of those that do, so that a task that is run again writes them again.
        round_timeout: of workers with callbacks, seconds that they have for their end, and that a Spark job of others may wait for a
            slot beside a callback of the driver's.
        datasets: ids of the shards that are deleted with the run, also after tasks were killed.
        memory: id of the dataset among them in which suspended workers save what they remember.
        gpus: how the tasks have a GPU each; None where nothing is asked for.
    """

    def __init__(
        self,
        context: SparkContext,
        refs: RDD,
        finished: Callable[[], RDD] | None,
        factory: WorkerFactory,
        connector: Connector,
        store: RunStore,
        *,
        tag: str,
        description: str,
        keep: bool,
        datasets: Sequence[str],
        memory: str,
        gpus: GpuTasks | None = None,
        invalidate: Callable[[], None] = lambda: None,
        round_timeout: float = 0.0,
    ) -> None:
        self._context, self._store = context, store
        tried_again = task_tries(context.master, settings_of(context)) > 1
        store.rewrite = invalidate if keep and tried_again else None
        self._tag, self._description, self._datasets = tag, description, tuple(datasets)
        self._callbacks_tag, self._round_timeout = f"{tag}-callbacks", min(round_timeout, threading.TIMEOUT_MAX)
        self._aborted = self._suspended = self._hurries = False
        self._late_failures: list[Failure] = []
        self._refs, self._finished, self._gpus = refs, finished, gpus
        self._task = _task(factory, connector, tag, keep, memory)
        self._workers = refs.getNumPartitions()
        self._ended = threading.Event()
        self._thread = InheritableThread(target=self._run, name=f"elephas_like-{tag}", daemon=True)
        self._watcher = InheritableThread(target=self._watch, name=f"elephas_like-{tag}-watch", daemon=True)

    def __enter__(self) -> ServerRun:
        """Start the tasks. If workers cannot be suspended, jobs that this thread starts from now on bear a tag: they are its callbacks'."""
        if self._finished is None:
            self._context.addJobTag(self._callbacks_tag)
        self._thread.start()
        self._watcher.start()
        return self

    def __exit__(self, *error: object) -> None:
        """Tell workers to stop, and cancel those that do not end within a moment.

        Raises:
            WorkerError: a worker failed after the order to stop, and nothing else went wrong.
        """
        self._hurries = error[0] is not None
        try:
            insist(self._end)
        finally:
            if self._finished is None:
                with cleanup(self._context, "remove the tag of the callbacks' jobs"):
                    self._context.removeJobTag(self._callbacks_tag)
        if self._late_failures and error[0] is None:
            raise self._late_failures[0].error()

    def _end(self) -> None:
        """Stop the workers, and delete what cancelled tasks have left. May be called again, if it was interrupted: then it hurries."""
        hurries, self._hurries = self._hurries, True
        self._store.stop()
        self._ended.set()
        has_callbacks = self._finished is None
        if hurries:
            self._thread.join(GRACE_SECONDS)
        else:
            self._thread.join(max(10 * GRACE_SECONDS, self._round_timeout if has_callbacks else 0.0))
        if self._thread.is_alive():
            if has_callbacks and not hurries:
                log.warning(
                    "worker_callbacks were still at work %g s after the training (round_timeout): their tasks are cancelled, and "
                    "what on_train_end does there may be missing. Give SparkModel a longer round_timeout.",
                    max(10 * GRACE_SECONDS, self._round_timeout),
                )
            log.info("cancelling the tasks of %s", self._tag)
            self._context.cancelJobsWithTag(self._tag)
            self._thread.join(10 * GRACE_SECONDS)
            self._aborted = True
        self._watcher.join(GRACE_SECONDS)
        if self._aborted:  # also if Spark's own SIGINT handler cancelled all jobs
            cancel_and_wait(self._context, self._tag)
        left = self._aborted or self._suspended  # a suspended worker may have come back on another executor
        with cleanup(self._context, f"see whether tasks of {self._tag} have left files"):
            left = left or unfinished_files(self._context, self._tag)
        if left:
            sweep(self._context, self._tag, self._workers, self._datasets)

    def _run(self) -> None:
        try:
            refs = self._refs
            with tagged_jobs(self._context, self._tag, self._description):
                while True:
                    results = on_gpus(refs.mapPartitionsWithIndex(self._task), self._gpus).collect()
                    self._late_failures += [result for result in results if isinstance(result, Failure)]
                    if self._finished is None or not self._store.recalled():
                        # Nothing to say if the run is over; otherwise nobody would be left to wait for.
                        self._store.fail(ElephasError(f"all tasks of {self._tag} ended before the fit was over."))
                        return
                    refs = self._finished()
        except Exception as error:  # reported to the thread that waits for the workers
            self._aborted = True
            self._store.fail(readable(error))
        finally:
            self._ended.set()

    def _watch(self) -> None:
        try:
            joining, since = True, dict[int, float]()
            while not self._ended.wait(WATCH_SECONDS):
                joining = joining and self._store.note_tasks(*tasks(self._context, self._tag))
                in_callback = self._store.idle_seconds() >= WATCH_SECONDS
                found = starved_jobs(self._context, self._tag) if in_callback else set()
                waited = {job: time.monotonic() - since[job] for job in found if job in since}
                since = {job: since.get(job, time.monotonic()) for job in found}
                if waited:
                    self._make_room(waited)
        except Exception as error:  # the context was stopped, which the job reports
            log.info("cannot see the tasks of %s any more: %s", self._tag, error)

    def _make_room(self, waited: dict[int, float]) -> None:
        """Free the slots of the workers, for a Spark job of a callback that would wait for them for ever.

        Args:
            waited: seconds for which jobs have waited for a slot while a callback runs: its own, or those of others.
        """
        if self._finished is None:
            advice = (
                "while the workers hold them. Workers with worker_callbacks cannot be suspended meanwhile: use fewer workers than "
                "Spark has slots (num_workers=)."
            )
            own = waited.keys() & jobs_with(self._context, self._callbacks_tag)
            if own and self._store.idle_seconds() >= PATIENCE_SECONDS:
                self._store.fail(CapacityError(f"a callback runs a Spark job, which found no free slot {advice}"))
            elif max(waited.values()) >= max(
                PATIENCE_SECONDS, self._round_timeout
            ):  # the callback may wait for its threads
                self._store.fail(
                    CapacityError(
                        f"a Spark job found no free slot for {max(waited.values()):.0f} s (round_timeout) beside a callback, {advice}"
                    )
                )
            return
        if not self._suspended:
            log.warning(
                "a Spark job waits for a slot while a callback runs: the workers of %s end their tasks, and carry on with "
                "new ones when the callback has returned. Fewer workers than slots (num_workers=) would save this time.",
                self._tag,
            )
        self._suspended = True
        self._store.suspend()


def _task(
    factory: WorkerFactory, connector: Connector, run: str, keep: bool, memory: str
) -> Callable[[int, Iterator[Pair]], Iterator[int | Failure]]:
    def task(index: int, pairs: Iterator[Pair]) -> Iterator[int | Failure]:
        take_gpu()
        exchange = _take_connection(connector, run, index)
        pair: Pair | None = None
        worker: Worker | None = None
        suspended = False
        try:
            pair = only(pairs)
            failure = failure_in(pair)
            if failure is not None:
                exchange.fail(failure)
            else:
                worker = factory(index, *pair)
                remembered = os.path.join(dataset_directory(local_directories()[0], memory), f"worker-{index}.npz")
                with without_memory(index):
                    worker.restore(remembered)
                suspended = serve(exchange, worker, attempt_id())
                if suspended:
                    with without_memory(index):
                        worker.save(remembered)
        except InputCutError:
            raise  # Spark says why
        except (SupersededError, StoppedError):
            raise  # a superseded attempt that returned would become the partition's result
        except ConnectionLostError:
            raise  # the driver cannot be told; Spark reports it or retries the task
        except Exception as error:  # reported as a value: the driver raises it, Spark need not retry
            if exchange.fail(Failure.of(index, error)):
                raise  # its shard is missing: the next attempt writes the rows again
        finally:
            exchange.close()
            late = None if worker is None else _close(index, worker)
            if pair is not None and not suspended:
                remove_pair((None if keep else pair[0], pair[1]))  # validation rows are never a ShardedDataset's
        yield index if late is None else late

    return task


def serve(exchange: Exchange, worker: Worker, attempt: int) -> bool:
    """Join, then answer orders until the one to stop, or to suspend. Return whether the worker is suspended."""
    order: Order = exchange.join(worker.joined(attempt, platform.node()), worker.progress)
    while order.kind not in ("stop", "suspend"):
        result = _result(worker, order)
        del order  # its state may be large, and the next one comes while the result is still here
        order = exchange.answer(result)
        del result
    return order.kind == "suspend"


def _result(worker: Worker, order: Order) -> Result:
    """Carry out an order."""
    match order.kind:
        case "train":
            return worker.train(order)
        case "evaluate":
            return worker.evaluate(order)
        case "recall":
            return worker.recall(order)
        case "remind":
            return worker.remind(order)
    raise ElephasError(f"expected an order to work; got {order.kind!r}.")


# Functions of the module, since what a task's own function names is copied with it.


def _close(index: int, worker: Worker) -> Failure | None:
    """Close a worker. An error becomes the task's result, because the driver no longer listens."""
    try:
        worker.close()
    except Exception as error:
        log.warning("worker %d failed at its end: %s", index, error, exc_info=True)
        return Failure.of(index, error)
    return None


@contextmanager
def without_memory(index: int) -> Iterator[None]:
    """Log that a worker's memory cannot be saved or read. It goes on without, like one whose executor was killed."""
    try:
        yield
    except (OSError, ValueError, zipfile.BadZipFile) as error:
        log.warning("worker %d goes on without what it remembered of earlier rounds: %s", index, error)


def _open_connection(connector: Connector, run: str, index: int) -> None:
    """Make the first contact of this task."""
    for key in list(_connections):  # left by a task that Spark ended: a process runs one task at a time
        _connections.pop(key).close()
    connection = connector.connect(index, attempt_id())
    try:
        connection.announce(platform.node())
    except BaseException:
        connection.close()
        raise
    _connections[run, index, attempt_id()] = connection


def _take_connection(connector: Connector, run: str, index: int) -> Exchange:
    """Return the connection of this task. The caller closes it."""
    key = (run, index, attempt_id())
    if key not in _connections:
        _open_connection(connector, run, index)
    return _connections.pop(key)
