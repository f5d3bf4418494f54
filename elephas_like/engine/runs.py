"""Runs on executors: trials of a search and members of an ensemble, one ordinary Spark job of one task each.

A job of one task costs tenths of a second less than a run of TensorFlow takes to trace its graph, shows in Spark's UI under
its own title, and is retried by Spark alone: no run waits for another one's lost executor.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Protocol

import cloudpickle
from pyspark import RDD, Broadcast, SparkContext

from elephas_like.core.columns import verify
from elephas_like.core.errors import Failure, ShardMissing, ShipmentGone, SupersededError
from elephas_like.core.trials import Logs, Report
from elephas_like.core.types import ShardRef
from elephas_like.rows.replicas import Replica, blocks_of, replicated
from elephas_like.rows.row_values import FLOATS
from elephas_like.rows.shard_files import remove
from elephas_like.rows.shards import SpoolOptions, attempt_id
from elephas_like.spark.broadcasts import unlisted
from elephas_like.spark.gpus import take_gpu
from elephas_like.spark.parallel import JobRuns, tries
from elephas_like.spark.task_input import whole
from elephas_like.spark.versions import check_versions, versions
from elephas_like.spark.waits import destroy

CANCEL_SECONDS = 20.0
"""How long a search waits for cancelled trials."""

RunFunction = Callable[[Any, Sequence[ShardRef], Report], Any]
"""A picklable: (order, shards of the rows, report) -> result of one run."""
OpenShard = Callable[[], ShardRef]
"""A picklable that gives a shard on the executor, as `Shipment.open` and `Replica.ref` do."""


class Line(Protocol):
    """A run's line to the driver (exchange/client.py)."""

    def progress(self, epoch: int, metrics: Logs) -> bool:
        """Reports an epoch; whether to go on."""
        ...

    def close(self) -> None:
        """Ends the line."""
        ...


class LineFactory(Protocol):
    """A picklable that opens lines."""

    def connect(self, worker: int, attempt: int) -> Line:
        """The line of one attempt of one run."""
        ...


@dataclass(frozen=True)
class Shipment:
    """A shard that every executor can read: where the driver wrote it, and its rows for those that do not see it there."""

    ref: ShardRef
    replica: Replica

    def open(self) -> ShardRef:
        """The shard on this host: the driver's own files in local mode, else a copy that the first task here writes."""
        return self.ref if is_here(self.ref) else self.replica.ref()


def is_here(ref: ShardRef) -> bool:
    """Return whether this process sees a shard's files."""
    try:
        verify(ref)
    except (ShardMissing, PermissionError):
        return False
    return True


@contextmanager
def shipment(context: SparkContext, ref: ShardRef, *, allow_plain_text: bool = False) -> Iterator[Shipment]:
    """The rows of a shard of the driver's on their way to executors, for as long as the context lasts.

    Raises:
        PlainTextError: rows must not be written on the executors.
    """
    with replicated(context, blocks_of(ref), written_as(ref, allow_plain_text=allow_plain_text)) as replica:
        yield Shipment(ref, replica)


def written_as(ref: ShardRef, *, allow_plain_text: bool = False) -> SpoolOptions:
    """Return how the rows of a shard are written once more, elsewhere."""
    floats = [column.dtype for column in ref.columns if column.dtype in FLOATS]  # all of one kind
    has_target = isinstance(ref.structure, list) and len(ref.structure) > 1
    floatx = floats[0] if floats else "float32"
    return SpoolOptions(ref.dataset, floatx, has_target, versions(), allow_plain_text=allow_plain_text)


@contextmanager
def shipped(context: SparkContext, value: Any) -> Iterator[Broadcast[Any]]:
    """A broadcast that is destroyed at the end."""
    broadcast = context.broadcast(value)
    try:
        yield broadcast
    finally:
        destroy(context, broadcast)


class TaskRuns(JobRuns[Any]):
    """Runs of one task each, all by the same function on the same rows. A context manager: entering it ships the function.

    Args:
        evaluate: what a task does with its order; its exceptions are outcomes, as WorkerErrors.
        shards: of the rows, in the order in which `evaluate` takes them.
        lines: how runs report their epochs; None where nobody wants to know.
        own: references of shards of which each run has one of its own, before the others: run i that of partition i.
        keep: whether files of own shards outlast the run.
        at_once, tag, patience: as for JobRuns.
    """

    def __init__(
        self,
        context: SparkContext,
        evaluate: RunFunction,
        shards: Sequence[OpenShard],
        *,
        at_once: int,
        tag: str,
        lines: LineFactory | None = None,
        own: RDD | None = None,
        keep: bool = False,
        patience: float = CANCEL_SECONDS,
    ) -> None:
        super().__init__(context, at_once=at_once, tag=tag, patience=patience)
        self._evaluate, self._shards, self._lines, self._own, self._keep = evaluate, tuple(shards), lines, own, keep
        self._shipped = ExitStack()

    def __enter__(self) -> TaskRuns:
        """Ships the function."""
        with unlisted(self._spark):
            function, broadcasts = _pickled(self._evaluate)
        shipping = self._shipped.enter_context(shipped(self._spark, function))
        self._task = _task((shipping, *broadcasts), self._shards, self._lines, versions(), self._keep)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Ends what still runs, and frees what was shipped."""
        with self._shipped:
            super().__exit__(kind, error, trace)

    def result(self, number: int, order: object, title: str) -> Any:
        """What `evaluate` returns for an order, by a Spark job in this thread; again if its Python worker was lost.

        Raises:
            WorkerError: what `evaluate` raised. CancelledError, ElephasError: as `rows`.
        """
        task = self._task
        if self._own is None:
            base, partition = self._spark.range(0, 1, 1, 1), 0
        else:
            base, partition = self._own, number
        rdd = base.mapPartitions(lambda given: task(number, order, given))
        (found,) = self.rows(rdd, partition, title, tries=tries(self._spark.master))
        if isinstance(found, Failure):
            raise found.error()
        return found


class _Pickler(cloudpickle.Pickler):
    """cloudpickle's pickler, which keeps the broadcasts that it meets."""

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file)
        self.broadcasts: list[Broadcast[Any]] = []

    def reducer_override(self, thing: object) -> Any:
        if isinstance(thing, Broadcast):
            self.broadcasts.append(thing)
        return super().reducer_override(thing)


def _pickled(function: RunFunction) -> tuple[bytes, list[Broadcast[Any]]]:
    """Return a function as bytes, and the broadcasts of the user's that it refers to."""
    file = io.BytesIO()
    pickler = _Pickler(file)
    pickler.dump(function)
    return file.getvalue(), pickler.broadcasts


def _task(
    sent: tuple[Broadcast[Any], ...],
    shards: Sequence[OpenShard],
    lines: LineFactory | None,
    driver: Mapping[str, str],
    keep: bool,
) -> Callable[[int, object, Iterator[object]], Iterator[object]]:
    """What runs on a slot for one run.

    sent: what it evaluates, and the broadcasts to which that refers: PySpark ships those that a function names.
    """

    def run(order: object, own: Sequence[ShardRef], report: Report) -> object:
        check_versions(driver)
        take_gpu()
        function: RunFunction = cloudpickle.loads(sent[0].value)  # our driver's own bytes, handed over by Spark
        return function(order, [*own, *(open_shard() for open_shard in shards)], report)

    def task(number: int, order: object, given: Iterator[object]) -> Iterator[object]:
        elements = list(whole(given))  # read to the end: Spark does not reuse a process that leaves input behind
        own = [element for element in elements if isinstance(element, ShardRef)]
        line = None if lines is None else lines.connect(number, attempt_id())
        try:
            failure = next((element for element in elements if isinstance(element, Failure)), None)
            yield failure or run(order, own, line.progress if line is not None else lambda epoch, logs: True)
        except SupersededError:
            raise  # an attempt that returned would become the task's result
        except ShipmentGone:
            raise  # it ends this process, and Spark runs the task in another one
        except Exception as error:  # reported as a value: the driver raises it
            yield Failure.of(number, error)
        finally:
            if line is not None:
                line.close()
            for ref in () if keep else own:
                remove(ref)

    return task
