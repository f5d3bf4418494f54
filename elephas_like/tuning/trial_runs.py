"""Where trials run: Spark's slots, one task or several workers a trial, or this process."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial

from pyspark import SparkContext
from pyspark.sql import SparkSession

from elephas_like.core.errors import ElephasError, Failure
from elephas_like.core.trials import Evaluate, Logs, Report, TrialOrder, TrialResult, TrialStatus
from elephas_like.core.types import ShardRef
from elephas_like.engine.function_trials import failed, tried
from elephas_like.engine.remote_runs import RemoteRuns
from elephas_like.engine.runs import CANCEL_SECONDS, TaskRuns, shipment
from elephas_like.exchange.client import ClientSettings
from elephas_like.exchange.security import new_token
from elephas_like.exchange.server import HttpExchangeServer
from elephas_like.exchange.tls import Identity
from elephas_like.exchange.trial_reports import NO_STATE, Judge, TrialRequestHandler, TrialStore
from elephas_like.model.launch import server_addresses
from elephas_like.rows.shards import sweep
from elephas_like.spark.failures import ENDS, GONE
from elephas_like.spark.gang import default_parallelism
from elephas_like.spark.parallel import CANCELLED, CancelledError, Runs, RunsInTurn, cancelled_by_caller
from elephas_like.spark.session import is_local, warn_if_stopped
from elephas_like.spark.slots import slots as spark_slots
from elephas_like.spark.waits import stopped
from elephas_like.tuning.keras_options import with_own_objects

log = logging.getLogger(__name__)
SLOTS_WAIT = 30.0
"""Seconds that a search waits for executors."""
UNREACHED = (
    "Set spark.driver.host to the driver's address as executors see it, or give search pruning=None and no timeout: then "
    "trials report nothing while they run, and no port is needed."
)


class TrialRuns:
    """Starts trials; their results come in the order in which they end.

    Args:
        runs: how many run at a time, and in which threads.
        call: runs one trial to its end.
        context: the SparkContext on which trials run; None without one.
        fits: whether each trial is a Spark fit of its own, in a thread of the driver's.
    """

    def __init__(
        self,
        runs: RunsInTurn[TrialResult],
        call: Callable[[TrialOrder], TrialResult],
        context: SparkContext | None = None,
        *,
        fits: bool = False,
    ) -> None:
        self.parallelism = runs.at_once
        self.runs = runs
        self._call, self._context, self._fits = call, context, fits

    def start(self, order: TrialOrder) -> None:
        """Starts a trial; returns at once."""
        self.runs.start(order.number, partial(self._call, order))

    def finished(self, timeout: float) -> TrialResult | None:
        """A trial that has ended; None where none does within `timeout` seconds.

        A trial whose SparkContext or whose job ended under it was interrupted: its failure says nothing about its point.
        """
        outcome = self.runs.finished(timeout)
        if outcome is None:
            return None
        number, found = outcome
        result = found if isinstance(found, TrialResult) else failed(number, found)
        if result.status is not TrialStatus.FAILED or result.failure is None:
            return result
        if self._context is not None and stopped(self._context):
            return TrialResult(number, TrialStatus.INTERRUPTED, failure=Failure.of(number, ElephasError(GONE)))
        # Ctrl-C makes PySpark cancel all jobs before anybody else hears of it: a fit that failed by then was interrupted.
        said = result.failure.message
        if said in ENDS:
            return TrialResult(number, TrialStatus.INTERRUPTED, failure=result.failure)
        cancelled = cancelled_by_caller(said) or (self._fits and (self.runs.cancelled or CANCELLED in said))
        if cancelled or isinstance(found, CancelledError):
            return TrialResult(number, TrialStatus.INTERRUPTED, host=result.host, failure=result.failure)
        return result

    def cancel(self) -> None:
        """Ends the trials that run, and drops those that wait."""
        self.runs.cancel()


def why_all_end(result: TrialResult) -> str:
    """Why no other trial is to run after one that was interrupted; empty if others may.

    The SparkContext was stopped, the session of Spark Connect has ended, or the caller has cancelled the job group or a job tag of the search, or all jobs.
    """
    if result.status is not TrialStatus.INTERRUPTED or result.failure is None:
        return ""
    if result.failure.message in ENDS:
        return result.failure.message
    what = cancelled_by_caller(result.failure.message)
    return what and f"{what} cancelled."


def _on_copies(evaluate: Evaluate) -> Evaluate:
    """Return what runs a trial of this process, whose parameters come by no pickle that would copy the Keras objects in them."""

    def called(order: TrialOrder, shards: Sequence[ShardRef], report: Report) -> TrialResult:
        return evaluate(replace(order, params=with_own_objects(order.params)), shards, report)

    return called


def in_process(
    evaluate: Evaluate, shards: Sequence[ShardRef], judge: Judge, context: SparkContext | None = None
) -> TrialRuns:
    """Trials in this thread, one at a time. context: where each is a Spark fit of its own."""

    def call(order: TrialOrder) -> TrialResult:
        return tried(_on_copies(evaluate), order, shards, partial(judge, order.number))

    return TrialRuns(RunsInTurn(), call, context)


def as_fits(context: SparkContext, evaluate: Evaluate, judge: Judge, parallelism: int) -> TrialRuns:
    """Trials that are Spark fits of their own, in threads of the driver; in this one where one trial runs at a time.

    Those that run when they are cancelled end with their epoch.
    """
    if parallelism == 1:
        return in_process(evaluate, (), judge, context)
    runs: Runs[TrialResult] = Runs(
        context, at_once=parallelism, name="elephas_like-trial", patience=CANCEL_SECONDS * parallelism
    )

    def call(order: TrialOrder) -> TrialResult:
        def report(epoch: int, logs: Logs) -> bool:
            return not runs.cancelled and judge(order.number, epoch, logs)

        return tried(_on_copies(evaluate), order, (), report)

    return TrialRuns(runs, call, context, fits=True)


@contextmanager
def _opened_remotely(
    session: SparkSession, evaluate: Evaluate, shards: Sequence[ShardRef], parallelism: int, *, allow_plain_text: bool
) -> Iterator[TrialRuns]:
    """Slots for trials over Spark Connect, where none reports anything before it ends."""
    runs = RemoteRuns(
        session,
        partial(tried, evaluate),
        shards,
        at_once=parallelism,
        name="search",
        allow_plain_text=allow_plain_text,
        patience=CANCEL_SECONDS,
    )

    def call(order: TrialOrder) -> TrialResult:
        result: TrialResult = runs.result(order.number, order, f"elephas_like search: trial {order.number}")
        return result

    with runs:
        yield TrialRuns(runs, call)


def possible_pruning(pruning: object, remote: SparkSession | None) -> object:
    """Return what a user gives as `pruning`; None in place of "auto" over Spark Connect, where running trials cannot be heard.

    Raises:
        ValueError: a rule was asked for there.
    """
    if remote is None or pruning is None:
        return pruning
    if pruning != "auto":
        raise ValueError(
            f"pruning={pruning!r} needs a classic session: over Spark Connect trials report nothing while they run. Leave it out."
        )
    return None


@contextmanager
def opened(
    context: SparkContext | None,
    evaluate: Evaluate,
    shards: Sequence[ShardRef],
    judge: Judge,
    *,
    parallelism: int,
    reports: bool,
    name: str,
    identity: Identity | None = None,
    allow_plain_text: bool = False,
    remote: SparkSession | None = None,
) -> Iterator[TrialRuns]:
    """Slots for trials of one task each: Spark's, with a server for their reports, or this process.

    Args:
        shards: the driver's shards of the data, none for functions that bring their own. They go to each executor once.
        reports: whether anyone wants to know of epochs; no port is opened otherwise.
        identity: of the server for reports; None takes them in plain text.
        allow_plain_text: whether rows may be written on executors where Spark encrypts its own files.
        remote: the session of Spark Connect whose slots they are, in place of a context.
    """
    if remote is not None:
        with _opened_remotely(remote, evaluate, shards, parallelism, allow_plain_text=allow_plain_text) as slots:
            yield slots
        return
    if context is None:
        yield in_process(evaluate, shards, judge)
        return
    tag, lines = f"elephas_like-search-{name}", None
    with ExitStack() as stack:
        if reports:
            store = TrialStore(judge, parallelism)
            token = new_token()
            bound, advertised = server_addresses(context)
            server = HttpExchangeServer(store, token, NO_STATE, bound, handler=TrialRequestHandler, identity=identity)
            port, fingerprint = (
                stack.enter_context(server).address[1],
                None if identity is None else identity.fingerprint,
            )
            lines = ClientSettings("http", advertised, port, token, NO_STATE, advice=UNREACHED, fingerprint=fingerprint)
        if not is_local(context):
            stack.callback(sweep, context, tag, parallelism, [ref.dataset for ref in shards])
        allowed = allow_plain_text
        rows = [stack.enter_context(shipment(context, ref, allow_plain_text=allowed)).open for ref in shards]
        runs = TaskRuns(context, partial(tried, evaluate), rows, at_once=parallelism, tag=tag, lines=lines)
        stack.enter_context(runs)

        def call(order: TrialOrder) -> TrialResult:
            title = f"elephas_like search: trial {order.number}, {order.params}"[:500]
            result: TrialResult = runs.result(order.number, order, title)
            return result

        yield TrialRuns(runs, call, context)


def count_parallel(
    context: SparkContext | None,
    asked: int | None,
    workers: int,
    wait: float = SLOTS_WAIT,
    remote: SparkSession | None = None,
) -> int:
    """Trials at a time: as many as asked for, at most as many as Spark's slots hold with `workers` each.

    Over Spark Connect (`remote`), which does not tell its slots, the partitions that Spark makes by default stand for them.

    Raises:
        ValueError: several are asked for and there is no Spark; or a trial's workers are more than there are slots.
    """
    if remote is not None:
        return _at_most(default_parallelism(remote), asked)
    if context is None:
        if asked is not None and asked > 1:
            raise ValueError(
                f"parallelism={asked} needs Spark: start a SparkSession first; without one trials run one by one."
            )
        warn_if_stopped("trials run one by one", "Start a new session to run them on Spark.")
        return 1
    available = spark_slots(context, wait, None if asked is None else asked * workers)
    if workers > available:  # an application may grow to one trial at least
        available = min(workers, spark_slots(context, 0.0, workers))
    if workers > max(1, available):
        raise ValueError(
            f"trial_workers={workers}, and Spark has {available} slots. Use fewer workers, or give Spark more cores."
        )
    return _at_most(max(1, available // workers), asked)


def _at_most(most: int, asked: int | None) -> int:
    if asked is not None and asked > most:
        log.warning("parallelism=%d: Spark's slots hold %d trials at a time", asked, most)
    return most if asked is None else min(asked, most)
