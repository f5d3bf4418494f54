"""`run_on_workers`: any function on K processes at once, over the gang that fits run on."""

from __future__ import annotations

import contextlib
import json
import logging
import pickle
import socket
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from pyspark.sql import SparkSession

from elephas_like.core import checks
from elephas_like.core.errors import ElephasError, WaitError
from elephas_like.core.types import Resources
from elephas_like.engine.function_settings import FunctionSettings
from elephas_like.engine.member_calls import Call, CallFunction
from elephas_like.exchange.client import ClientSettings
from elephas_like.exchange.printed_lines import PrintedLines, PrintedRequestHandler
from elephas_like.exchange.trial_reports import NO_STATE
from elephas_like.model.launch import exchange_server
from elephas_like.model.options import Options
from elephas_like.spark.gang import Member, check_slots, notes, run_gang
from elephas_like.spark.gpus import gpu_tasks
from elephas_like.spark.remote import new_tag
from elephas_like.spark.session import active_session, context_of
from elephas_like.spark.waits import Overdue
from elephas_like.trainer.code import UnsendableError, dumps, pickle_by_value
from elephas_like.trainer.keras_settings import KerasSettings

log = logging.getLogger(__name__)


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
    of a barrier stage: all of them run at the same time, or none, and if one dies all end. Works over Spark Connect. Keras has
    the settings of the thread that calls this (`set_floatx`, `set_epsilon`, `set_image_data_format`, `set_dtype_policy`).

    Args:
        function: called with a Member, which has `rank`, `size`, `hosts`, `all_gather(text)` and `barrier()`, then with `args`. It
            is sent by value, as are the arguments and the results.
        num_workers: processes. Spark must have as many free slots.
        resources: "gpu" asks Spark for one GPU for each process, which then sees that card alone; None takes what Spark gives to
            every task.
        tf_config: calls the function in new processes, which have computed nothing before, with TF_CONFIG in their environment and a
            free port on each worker's host, as `tf.distribute` wants it.
        session: a session of either kind; None takes the active one.
        timeout: seconds that all of it may take, waiting for slots included; None for no limit.
        verbose: prints what the workers print, each line after its rank: while they run, on a classic session whose driver they can
            reach; else at the end, the last 256 Ki letters of each.

    Returns:
        Each worker's result, by rank.

    Raises:
        ValueError: no Spark session is active. ElephasError: the function refers to Spark, or to what lives in this process only.
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
    gpus = gpu_tasks(session, resources)
    check_slots(session, size, resources)
    name, title = new_tag("run"), f"elephas_like: {getattr(function, '__name__', 'function')} on {size} workers"
    call, settings = _call(function, args), KerasSettings.current()
    under = FunctionSettings(dumps(settings.applied), settings.plain)
    try:
        with _listening(session, size) if verbose else contextlib.nullcontext() as listener:
            made = Call(call, listener, under)
            task = CallFunction(made, resources is not None, _tf_config if tf_config else None)
            given = notes(session, [[b""]] * size)
            found = run_gang(session, given, size, task, name=name, title=title, seconds=limit, gpus=gpus)
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
            _show(rank, line)
    return results


def _call(function: Callable[..., object], args: Sequence[object]) -> bytes:
    """Return a function with its arguments, pickled by value; by name where it cannot, as workers may have its module (--py-files).

    Raises:
        ElephasError: it can be pickled neither way.
    """
    call = [function, tuple(args)]
    try:
        return pickle_by_value(call)
    except UnsendableError as error:
        try:
            return dumps(call)
        except Exception:
            raise error from None


def _show(rank: int, line: str) -> None:
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    text = f"[worker {rank}] {line}\n".encode(encoding, "replace").decode(encoding)
    with contextlib.suppress(OSError, ValueError):  # a stdout that is closed costs no results
        sys.stdout.write(text)
        sys.stdout.flush()


@contextlib.contextmanager
def _listening(session: SparkSession, size: int) -> Iterator[ClientSettings | None]:
    """Show what workers print while they run. Yield how they reach us; None over Spark Connect, where they cannot."""
    context = context_of(session)
    if context is None:
        yield None
        return
    lines, options = PrintedLines(_show, size), Options(parameter_server_mode="socket")
    with contextlib.ExitStack() as stack:
        stack.callback(lines.stop)
        try:
            serving = exchange_server(context, options, lines, NO_STATE, PrintedRequestHandler)
            settings = replace(stack.enter_context(serving), advice="The run goes on without.")
        except (OSError, ElephasError) as error:
            log.warning("what workers print is shown when they have ended: %s", error)
            settings = None
        yield settings


def _tf_config(member: Member) -> dict[str, str]:
    """Return TF_CONFIG by its name, for a member: a cluster of workers, each at a port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind((member.host, 0))
        port = probe.getsockname()[1]
    workers = [f"{host}:{port}" for host, port in zip(member.hosts, member.all_gather(str(port)), strict=True)]
    cluster = {"cluster": {"worker": workers}, "task": {"type": "worker", "index": member.rank}}
    return {"TF_CONFIG": json.dumps(cluster)}
