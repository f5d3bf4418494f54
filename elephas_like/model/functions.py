"""`run_on_workers`: any function on K processes at once, over the gang that fits run on."""

from __future__ import annotations

import contextlib
import io
import json
import os
import pickle
import socket
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import cloudpickle
import pyarrow as pa
from pyspark.sql import SparkSession

from elephas_like.core import checks
from elephas_like.core.errors import WaitError
from elephas_like.core.types import Resources
from elephas_like.spark.gang import Member, check_slots, notes, pieces_of, run_gang
from elephas_like.spark.gpus import profile_for, take_gpu
from elephas_like.spark.remote import new_tag
from elephas_like.spark.session import active_session
from elephas_like.spark.waits import Overdue

LOG_LETTERS = 256 * 2**10
"""Letters of what a worker has printed that travel to the driver: the last ones."""


def run_on_workers(
    function: Callable[..., Any],
    num_workers: int,
    *,
    resources: str | None = None,
    args: Sequence[Any] = (),
    tf_config: bool = False,
    session: SparkSession | None = None,
    timeout: float | None = None,
    verbose: bool = True,
) -> list[Any]:
    """Run `function(member, *args)` on so many processes at once, and return what each has returned, by rank.

    For code that distributes itself: a strategy of TensorFlow's, an all-reduce of your own, a simulation. The processes are tasks
    of a barrier stage: all of them run at the same time, or none, and if one dies all end. Works over Spark Connect.

    Args:
        function: called with a Member, which has `rank`, `size`, `hosts`, `all_gather(text)` and `barrier()`, then with `args`. It
            is sent by value, as are the arguments and the results.
        num_workers: processes. Spark must have as many free slots.
        resources: "gpu" asks Spark for one GPU for each process, which then sees that card alone; None takes what Spark gives to
            every task.
        tf_config: sets the environment variable TF_CONFIG before the function is called, with a free port on each worker's host,
            as `tf.distribute` reads it.
        session: a session of either kind; None takes the active one.
        timeout: seconds that all of it may take, waiting for slots included; None for no limit.
        verbose: prints at the end what the workers have printed, each line after its rank.

    Returns:
        Each worker's result, by rank.

    Raises:
        ValueError: no Spark session is active.
        CapacityError: Spark has fewer slots, or no GPUs and they were asked for.
        WaitError: `timeout` has passed; all workers were ended.
        WorkerError: an exception of a worker, with its type, message and traceback. The other workers are ended.
    """
    size = checks.positive_int("num_workers", num_workers)
    limit = float("inf") if timeout is None else checks.positive_seconds("timeout", timeout)
    session = session or active_session()
    if session is None:
        raise ValueError("run_on_workers needs a SparkSession; start one first, or give session=.")
    if resources is not None:
        checks.choice("resources", resources, Resources)
    profile = profile_for(session, resources)
    check_slots(session, size, resources)
    task = _CallFunction(cloudpickle.dumps((function, tuple(args))), tf_config, unasked=resources is not None)
    name, title = new_tag("run"), f"elephas_like: {getattr(function, '__name__', 'function')} on {size} workers"
    try:
        found = run_gang(
            session, notes(session, [[b""]] * size), size, task, name=name, title=title, seconds=limit, profile=profile
        )
    except Overdue:
        raise WaitError(
            f"expected {size} workers to end within timeout={limit:g} s, and they did not; they were ended. Give a longer timeout, "
            "or see whether other jobs hold Spark's slots."
        ) from None
    results = []
    for rank, pieces in enumerate(found):
        result, printed = pickle.loads(b"".join(pieces))  # noqa: S301  Spark handed over what a member wrote
        results.append(result)
        for line in printed.splitlines() if verbose else ():
            sys.stdout.write(f"[worker {rank}] {line}\n")
    return results


@dataclass(frozen=True)
class _CallFunction:
    call: bytes
    tf_config: bool
    unasked: bool

    def __call__(self, member: Member, batches: Iterator[pa.RecordBatch]) -> Iterable[bytes]:
        take_gpu(unasked=self.unasked)
        function, args = cloudpickle.loads(self.call)  # written by our own driver
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed), contextlib.ExitStack() as stack:
            if self.tf_config:
                stack.enter_context(_tf_config(member))
            result = function(member, *args)
        return pieces_of(cloudpickle.dumps((result, printed.getvalue()[-LOG_LETTERS:])))


@contextlib.contextmanager
def _tf_config(member: Member) -> Iterator[None]:
    """Set TF_CONFIG for this process: a cluster of workers, each at a port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind((member.host, 0))
        port = probe.getsockname()[1]
    workers = [f"{host}:{port}" for host, port in zip(member.hosts, member.all_gather(str(port)), strict=True)]
    cluster = {"cluster": {"worker": workers}, "task": {"type": "worker", "index": member.rank}}
    before = os.environ.get("TF_CONFIG")
    os.environ["TF_CONFIG"] = json.dumps(cluster)
    try:
        yield
    finally:
        if before is None:
            del os.environ["TF_CONFIG"]
        else:
            os.environ["TF_CONFIG"] = before
