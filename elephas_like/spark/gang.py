"""Gangs: the K tasks of a barrier stage, which run at the same time and know each other's addresses.

A gang is started by a DataFrame operation, so it runs over Spark Connect as over a classic session. Spark never retries a barrier
stage that ends a job: whoever starts one decides what happens when a task dies.
"""

from __future__ import annotations

import itertools
import logging
import math
import re
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa
import pyspark
from pyspark import BarrierTaskContext
from pyspark.resource import ResourceProfile
from pyspark.sql import DataFrame, SparkSession

from elephas_like.core.errors import CapacityError, ElephasError
from elephas_like.core.extras import older
from elephas_like.spark.gpus import GpuTasks, map_on_gpus, worker_slots
from elephas_like.spark.remote import new_tag, run_job, saying_ended_sessions
from elephas_like.spark.session import conf_of, context_of, is_local_master, settings_of
from elephas_like.spark.slots import slots, task_cpus
from elephas_like.spark.task_input import at_once
from elephas_like.spark.waits import Overdue

log = logging.getLogger(__name__)

CHUNK_BYTES = 2**20
"""Bytes of a piece in which notes and results travel as rows."""
TASK_BYTES = 16 * 2**20
"""Bytes of notes in one of Spark's tasks, or one piece that is larger."""

_RESULTS = "rank long, number long, payload binary"
_NOTES = pa.schema([("key", pa.int64()), ("number", pa.int64()), ("note", pa.binary())])
_ADVICE = "Use fewer (num_workers=), or give Spark more cores."
_keys: dict[int, dict[int, int]] = {}
"""Keys by the number of partitions: the same in every session."""
_NOTES_OF_3 = "key long, number long, note binary"
_BATCH_ROWS = "spark.sql.execution.arrow.maxRecordsPerBatch"
_NO_SLOTS = "SPARK-24819"
_CHECK = "spark.scheduler.barrier.maxConcurrentTasksCheck"
_CHECKS = (("interval", "15s"), ("maxFailures", "40"))
_GROWING = "SPARK-24942"
_UNITS = {"us": 1e-6, "ms": 1e-3, "": 1.0, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}


@dataclass(frozen=True)
class Member:
    """One task of a gang, for the function that runs in it.

    rank: from 0 to size - 1. attempt: Spark's number of the task attempt, unique in the application.
    hosts: the address of each member's executor, without a port, by rank.
    """

    rank: int
    size: int
    attempt: int
    hosts: tuple[str, ...]

    @property
    def host(self) -> str:
        """The address of this member's executor."""
        return self.hosts[self.rank]

    def all_gather(self, text: str) -> list[str]:
        """Wait for all members, and return what each of them has given, by rank. Takes about a second."""
        return list(BarrierTaskContext.get().allGather(text))

    def barrier(self) -> None:
        """Wait for all members. Takes about a second."""
        BarrierTaskContext.get().barrier()


class Task(Protocol):
    """What a member does: picklable. It reads its rows, and yields pieces of its result."""

    def __call__(self, member: Member, batches: Iterator[pa.RecordBatch], /) -> Iterable[bytes]:
        """Yield the result of one member, in pieces."""
        ...


def run_gang(
    session: SparkSession,
    rows: DataFrame,
    size: int,
    task: Task,
    *,
    name: str,
    title: str,
    seconds: float,
    by_progress: bool = False,
    gpus: GpuTasks | None = None,
) -> list[list[bytes]]:
    """Run a task on all members of a gang at once, and return the pieces that each has yielded, by rank.

    Args:
        rows: in exactly `size` partitions, with no coalesce or union after the last shuffle: one for each member.
        name, title: of the job.
        seconds: the longest time that it may take, waiting for slots included.
        by_progress: whether `seconds` begin anew when a task of the job, or of one before it, starts or ends.
        gpus: how the tasks have a GPU each; None where nothing is asked for.

    Raises:
        CapacityError: Spark cannot run so many tasks at once.
        Overdue: the time has passed.
        WorkerError, ElephasError: a member raised an error, or died.
    """

    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = BarrierTaskContext.get()
        hosts = tuple(info.address.rpartition(":")[0].strip("[]") for info in context.getTaskInfos())
        member = Member(context.partitionId(), len(hosts), int(context.taskAttemptId()), hosts)
        rest = at_once(batches)
        for number, piece in enumerate(task(member, rest)):
            yield pa.record_batch([[member.rank], [number], pa.array([piece], pa.binary())], names=_names(_RESULTS))
        for _ in rest:  # read to the end: Spark does not reuse a process that leaves input behind
            pass

    waited = _wait_for_slots(session, size, gpus and gpus.profile, seconds)
    seconds -= 0.0 if by_progress else waited
    try:
        with saying_ended_sessions():
            job = map_on_gpus(rows, gpus, run, _RESULTS, barrier=True)
        found = run_job(session, name, title, seconds, job.collect, by_progress=by_progress)
    except ElephasError as error:
        raise _capacity_error(error, size) or error from None
    results: list[list[bytes]] = [[] for _ in range(size)]
    for row in sorted(found, key=lambda row: (row.rank, row.number)):
        results[row.rank].append(bytes(row.payload))
    return results


def notes(session: SparkSession, pieces: Sequence[Sequence[bytes]], seconds: float = math.inf) -> DataFrame:
    """Return the rows for a gang whose members are given bytes: the pieces of each, in order, as `noted` reads them.

    Args:
        seconds: the longest time that a job before it may take, the first time that there is a gang of this size.

    Raises:
        Overdue: it took longer.
    """
    keys = partition_keys(session, len(pieces), seconds)
    flat = [
        (key, number, piece)
        for key, mine in zip(keys, pieces, strict=True)
        for number, piece in enumerate(mine or [b""])
    ]
    return keyed_notes(session, flat).repartition(len(pieces), "key").sortWithinPartitions("number").select("note")


@saying_ended_sessions()
def keyed_notes(session: SparkSession, rows: Sequence[tuple[int, int, bytes]]) -> DataFrame:
    """Return a DataFrame of bytes, with the columns key, number and note."""
    unbounded = int(session.conf.get(_BATCH_ROWS, "10000") or 0) < 1  # with which PySpark takes no Arrow tables
    if unbounded or older(pyspark.__version__, "4"):
        return _without_tables(session, rows)
    tables, some, size = list[pa.Table](), list[tuple[int, int, bytes]](), 0
    for row in rows:
        if some and size + len(row[2]) > TASK_BYTES:
            tables.append(_table(some))
            some, size = [], 0
        some.append(row)
        size += len(row[2])
    # Chunks of a table become partitions: whole it would be a task, of which Spark refuses those above 128 MiB.
    return session.createDataFrame(pa.concat_tables([*tables, _table(some)]))


def _without_tables(session: SparkSession, rows: Sequence[tuple[int, int, bytes]]) -> DataFrame:
    plain = [(key, number, bytearray(piece)) for key, number, piece in rows]
    tasks = -(-sum(len(piece) for _, _, piece in plain) // TASK_BYTES)
    context = context_of(session)
    if context is not None and tasks > 1:
        return session.createDataFrame(context.parallelize(plain, tasks), _NOTES_OF_3)
    return session.createDataFrame(plain, _NOTES_OF_3)


def _table(rows: Sequence[tuple[int, int, bytes]]) -> pa.Table:
    return pa.Table.from_pydict(dict(zip(_NOTES.names, zip(*rows, strict=True), strict=True)), schema=_NOTES)


def noted(batches: Iterable[pa.RecordBatch]) -> Iterator[bytes]:
    """Yield the pieces that a member was given by `notes`."""
    for batch in batches:
        yield from batch.column("note").to_pylist()


def pieces_of(text: bytes) -> Iterator[bytes]:
    """Yield bytes in pieces of a size that Spark moves well; one piece, if there are none."""
    view = memoryview(text)
    for begin in range(0, max(1, len(view)), CHUNK_BYTES):
        yield bytes(view[begin : begin + CHUNK_BYTES])


def partition_keys(session: SparkSession, size: int, seconds: float = math.inf) -> list[int]:
    """Return numbers that `repartition(size, key)` puts into different partitions, so that none is empty: key i into partition i.

    It asks Spark once for the hashes of some numbers, instead of knowing how it hashes.

    Args:
        seconds: the longest time that this may take.

    Raises:
        Overdue: it took longer.
    """
    found = _keys.setdefault(size, {})
    for begin in itertools.count(0, 64 * size):
        if len(found) == size:
            break
        hashed = session.range(begin, begin + 64 * size).selectExpr("id", f"pmod(hash(id), {size}) AS place")
        for row in run_job(session, new_tag("keys"), "elephas_like: hash", seconds, hashed.collect):
            found.setdefault(row.place, row.id)
    return [found[place] for place in range(size)]


@saying_ended_sessions()
def default_parallelism(session: SparkSession) -> int:
    """Return the partitions that Spark makes by default: its slots, as far as a session without a context can see.

    `spark.default.parallelism`, or else the cores that are registered.
    """
    context = context_of(session)
    if context is not None:
        return int(context.defaultParallelism)
    partitions = session.range(2**16).selectExpr("spark_partition_id() AS part").distinct().count()
    return max(1, partitions // task_cpus(conf_of(session)))


def check_slots(session: SparkSession, size: int, resources: str | None = None) -> None:
    """Raise CapacityError if Spark certainly has fewer slots than a gang needs: it would look for more for ten minutes.

    Of a cluster behind Spark Connect nothing certain is known: nothing is raised.

    Args:
        resources: "gpu" if each member needs a GPU.
    """
    context = context_of(session)
    if context is not None:
        found = worker_slots(context, wanted=size, resources=resources)
    elif is_local_master(conf_of(session).get("spark.master", "") or ""):
        found = default_parallelism(session)
    else:
        return
    if found < size:
        raise CapacityError(f"{size} workers must run at the same time, and Spark has {found} slots. {_ADVICE}")


def _wait_for_slots(session: SparkSession, size: int, profile: ResourceProfile | None, seconds: float) -> float:
    """Warn if a gang has to wait for executors: Spark looks for slots for about ten minutes, and its own log alone says so.

    Spark 3 cannot cancel a job that looks for slots: there the wait is here, for as long as Spark's.

    Returns:
        The seconds that it has waited.

    Raises:
        Overdue, CapacityError: no executor came, in `seconds` or in the time that Spark looks for slots.
    """
    context = context_of(session)
    if context is None or (found := slots(context, 0.0, size, profile)) >= size:
        return 0.0
    interval, times = (settings_of(context).get(f"{_CHECK}.{name}", default) for name, default in _CHECKS)
    log.warning(
        "a gang of %d needs as many slots, and Spark has %d now, as after the loss of an executor. Spark looks again every %s, "
        "and gives up after %s times (spark.scheduler.barrier.maxConcurrentTasksCheck.*).",
        *(size, found, interval, times),
    )
    if not older(pyspark.__version__, "4"):
        return 0.0
    began, patience = time.monotonic(), _seconds(interval) * int(times)
    while (found := slots(context, 0.0, size, profile)) < size:
        if time.monotonic() > began + seconds:
            raise Overdue(f"cancelled after {seconds:g} s")
        if time.monotonic() > began + patience:
            raise CapacityError(f"{size} workers must run at the same time, and Spark has {found} slots. {_ADVICE}")
        time.sleep(0.2)
    return time.monotonic() - began


def _seconds(text: str) -> float:
    """Return a time as Spark's settings have it, "15s" or "2min"; a number alone is seconds."""
    number, unit = re.fullmatch(r"\s*(\d+)\s*(\w*)\s*", text).groups()  # type: ignore[union-attr]  # Spark has read it
    return float(number) * _UNITS[unit.lower()]


def _capacity_error(error: ElephasError, size: int) -> CapacityError | None:
    """Return what Spark's own words for too few slots mean here; None for another error."""
    text = str(error)
    if _GROWING in text:
        return CapacityError(
            "Spark runs no barrier stage, which engine='gang' needs, under dynamic allocation: set "
            "spark.dynamicAllocation.enabled=false, or use engine='jobs' or 'server' on a classic session."
        )
    if _NO_SLOTS in text:
        return CapacityError(f"{size} workers must run at the same time, and Spark has fewer slots. {_ADVICE}")
    return None


def _names(schema: str) -> list[str]:
    return [field.split()[0] for field in schema.split(", ")]
