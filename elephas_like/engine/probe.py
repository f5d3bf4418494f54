"""What executors say of themselves: packages, disk space, and whether they reach the driver's server."""

from __future__ import annotations

import platform
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from pyspark import SparkContext

from elephas_like.core.errors import ElephasError
from elephas_like.engine.server_rounds import Connector
from elephas_like.rows.shard_files import roomiest_directory
from elephas_like.rows.shards import attempt_id
from elephas_like.spark.job_tags import tasks as progress_of
from elephas_like.spark.versions import check_versions, installed
from elephas_like.spark.waits import cancel_and_wait, run_within


@dataclass(frozen=True)
class ExecutorProbe:
    """What one task found where it ran.

    packages: versions by name, Python's among them.
    mismatch: why its packages cannot work with the driver's; "" if they can.
    directory, free_bytes: where a shard could lie that needs much room.
    unreachable: why it does not reach the driver's server; "" if it does, or was not to try.
    """

    host: str
    packages: Mapping[str, str]
    mismatch: str
    directory: str
    free_bytes: int
    unreachable: str


def probed(
    context: SparkContext, tasks: int, connector: Connector | None, driver: Mapping[str, str], seconds: float
) -> list[ExecutorProbe]:
    """Return what tasks found, run on as many slots as there are free ones.

    Args:
        connector: connects a task to the driver's server; None for no server.
        driver: the driver's versions of the packages that must agree.
        seconds: the longest time without a task that starts or ends: an executor's first task imports Keras.

    Raises:
        Overdue: none did for so long, and they were cancelled.
        ElephasError: they could not run; a package that is missing is named.
    """

    def probe(index: int, _: object) -> Iterator[ExecutorProbe]:
        directory, free = roomiest_directory()
        mismatch = _error_of(lambda: check_versions(driver))
        unreachable = "" if connector is None else _error_of(lambda: _announce(connector, index))
        yield ExecutorProbe(platform.node(), installed(), mismatch, directory, free, unreachable)

    tag = f"elephas_like-probe-{uuid.uuid4().hex[:16]}"
    job = context.range(0, tasks, 1, tasks).mapPartitionsWithIndex(probe)
    try:
        return run_within(
            seconds,
            context,
            tag,
            "elephas_like check: executors",
            job.collect,
            progress=lambda: progress_of(context, tag),
        )
    except BaseException:
        cancel_and_wait(context, tag)
        raise


def _announce(connector: Connector, worker: int) -> None:
    connection = connector.connect(worker, attempt_id())
    try:
        connection.announce(platform.node())
    finally:
        connection.close()


def _error_of(act: Callable[[], object]) -> str:
    """Return what an action raises, "" for nothing."""
    try:
        act()
    except (ElephasError, OSError) as error:
        return str(error)
    return ""
