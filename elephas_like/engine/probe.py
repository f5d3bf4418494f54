"""What executors say of themselves: packages, disk space, and whether they reach the driver's server."""

from __future__ import annotations

import importlib.util
import os
import platform
import sys
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

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
    compiles_again: whether each new process compiles Keras' modules, because Python cannot keep what it has compiled.
    """

    host: str
    packages: Mapping[str, str]
    mismatch: str
    directory: str
    free_bytes: int
    unreachable: str
    compiles_again: bool = False


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
        # Executors with an earlier version are to say so, and have neither this question nor the field.
        more = () if mismatch else (sys.modules[ExecutorProbe.__module__].compiles_again(),)
        yield ExecutorProbe(platform.node(), installed(), mismatch, directory, free, unreachable, *more)

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


def compiles_again(package: str = "keras") -> bool:
    """Whether a package has no bytecode here, and none can be written: each process that imports it compiles it."""
    try:
        spec = importlib.util.find_spec(package)
    except ValueError:  # something has put a module without a spec in its place
        return False
    if spec is None or spec.cached is None or os.path.exists(spec.cached):
        return False
    folder = Path(spec.cached).parent
    there = next(each for each in (folder, *folder.parents) if os.path.exists(each))
    return sys.dont_write_bytecode or not os.access(there, os.W_OK)


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
