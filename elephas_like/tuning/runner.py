"""How a search flows: points are suggested, tried on slots, watched and recorded, until there are enough of them."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any

from pyspark import SparkContext

from elephas_like.core.errors import ElephasError, WorkerError
from elephas_like.core.objective import Objective
from elephas_like.core.pruning import Rule
from elephas_like.core.trials import Evaluate, Logs, Slots, TrialOrder, TrialResult, TrialStatus
from elephas_like.core.types import ShardRef
from elephas_like.engine.trial_jobs import InProcessTrials, ThreadTrials, TrialJobs, cut_off
from elephas_like.exchange.client import ClientSettings
from elephas_like.exchange.security import new_token
from elephas_like.exchange.server import HttpServer
from elephas_like.exchange.trial_reports import NO_STATE, TrialDesk, TrialStore
from elephas_like.model.launch import server_addresses
from elephas_like.spark.slots import slots as spark_slots
from elephas_like.spark.waits import GONE
from elephas_like.trainer.bars import Bar
from elephas_like.tuning.log import SearchLog, Shelf
from elephas_like.tuning.space import Point, Sampler

log = logging.getLogger(__name__)

POLL_SECONDS = 1.0
"""How often the driver looks up while no trial ends: Ctrl-C, and errors of a pruning rule, are seen then."""
UNREACHED = (
    "Set spark.driver.host to the driver's address as executors see it, or give search pruning=None and no timeout: then "
    "trials report nothing while they run, and no port is needed."
)


@dataclass(frozen=True)
class Limits:
    """When a search ends. timeout: seconds after which no trial begins and running ones end with their epoch."""

    max_evals: int
    timeout: float | None = None
    max_failures: int | None = None


@dataclass(frozen=True)
class TrialRecord:
    """A trial that is over, and what it tried."""

    result: TrialResult
    point: Point
    params: Any


class Watch:
    """Looks at the epochs that trials report, and says which are to go on. Thread-safe.

    epochs: of a whole trial; after the last one nothing is left to save.
    """

    def __init__(self, objective: Objective, rule: Rule | None, epochs: int, deadline: float | None) -> None:
        self.error: Exception | None = None
        self._objective, self._rule, self._epochs, self._deadline = objective, rule, epochs, deadline
        self._losses: dict[int, list[float]] = {}
        self._over: list[list[float]] = []
        self._stopped: dict[int, TrialStatus] = {}
        self._lock = threading.Lock()

    @property
    def late(self) -> bool:
        """Whether the time is up."""
        return self._deadline is not None and time.monotonic() > self._deadline

    def __call__(self, trial: int, epoch: int, logs: Logs) -> bool:
        """Whether a trial is to go on after an epoch; an attempt that begins again with epoch 0 replaces its losses."""
        with self._lock:
            losses = self._losses.setdefault(trial, [])
            del losses[epoch:]
            losses.append(self._objective.loss(logs))
            self._stopped.pop(trial, None)
            if epoch + 1 >= self._epochs:
                return True
            if self.late:
                self._stopped[trial] = TrialStatus.TIMEOUT
            elif self._is_bad(trial):
                self._stopped[trial] = TrialStatus.PRUNED
            return trial not in self._stopped

    def ended(self, result: TrialResult) -> TrialResult:
        """A trial's result with the reason for which it was stopped; its losses are what others are measured by."""
        with self._lock:
            self._losses.pop(result.number, None)
            if result.loss is not None:
                self._over.append(self._objective.losses(result.history))
            if result.status is TrialStatus.PRUNED:
                return replace(result, status=self._stopped.get(result.number, TrialStatus.INTERRUPTED))
            return result

    def _is_bad(self, trial: int) -> bool:
        if self._rule is None:
            return False
        running = (losses for number, losses in self._losses.items() if number != trial)
        try:
            return bool(self._rule(tuple(self._losses[trial]), tuple(map(tuple, [*self._over, *running]))))
        except Exception as error:  # the user's own rule, in a server's thread: raised where the search is waited for
            self.error = error
            return False


class Search:
    """One search at work. Its records are complete at any moment, also when `run` raises."""

    def __init__(
        self,
        sampler: Sampler,
        objective: Objective,
        watch: Watch,
        limits: Limits,
        shelf: Shelf,
        log: SearchLog | None,
        batch_size: Callable[[Any], int],
        verbose: int,
    ) -> None:
        self.records: dict[int, TrialRecord] = {}
        self.interrupted = False
        self._sampler, self._objective, self._watch, self._limits = sampler, objective, watch, limits
        self._shelf, self._log, self._batch_size, self._verbose = shelf, log, batch_size, verbose
        self._running: dict[int, tuple[Point, Any]] = {}

    def recall(self, earlier: Sequence[tuple[TrialResult, Point]]) -> None:
        """Takes the trials of earlier sessions as tried."""
        for result, point in earlier:
            self._sampler.recall(result, point)
            self._shelf.recall(result)
            self._watch.ended(result)
            self.records[result.number] = TrialRecord(result, point, self._sampler.space.at(point))

    def run(self, slots: Slots) -> None:
        """Tries points until the limits, or Ctrl-C.

        Raises:
            WorkerError: the first trial's error, where all trials failed or more than `max_failures`.
            ElephasError: the SparkContext was stopped.
            KeyboardInterrupt: Ctrl-C before any trial has finished.
        """
        with self._bar() as bar:
            try:
                self._loop(slots, bar)
            except KeyboardInterrupt:
                self.interrupted = True
                log.warning("interrupted: %d trials are finished", len(self.records))
                self._end(slots, bar)
                if not any(record.result.counts for record in self.records.values()):
                    raise
            except BaseException:
                slots.cancel()
                raise
        if not any(record.result.counts for record in self.records.values()):
            self._raise_failures(f"all {len(self.records)} trials failed")

    def _loop(self, slots: Slots, bar: Bar) -> None:
        todo = iter([number for number in range(self._limits.max_evals) if number not in self.records])
        more = True
        while True:
            while more and len(self._running) < slots.parallelism and not self._watch.late:
                more = self._begin(next(todo, None), slots)
            if not self._running:
                return
            result = slots.finished(POLL_SECONDS)
            if self._watch.error is not None:
                raise self._watch.error
            if result is not None:
                self._take(result, bar)
                if cut_off(result):
                    self._end(slots, bar)
                    raise ElephasError(f"{GONE} {self._goes_on()}")
                most = self._limits.max_failures
                if most is not None and len(self._failed()) > most:
                    self._raise_failures(f"{len(self._failed())} trials failed (max_failures={most})")

    def _end(self, slots: Slots, bar: Bar) -> None:
        """Ends the trials that run, and takes those that have ended."""
        slots.cancel()
        while self._running and (result := slots.finished(0.0)) is not None:
            self._take(result, bar)
        for number in list(self._running):
            self._take(TrialResult(number, TrialStatus.INTERRUPTED), bar)

    def _goes_on(self) -> str:
        over = sum(record.result.status is not TrialStatus.INTERRUPTED for record in self.records.values())
        if self._log is None:
            return f"Trials that had ended: {over}. They are lost; search(checkpoint_dir=...) keeps them."
        return f"Trials that had ended: {over}. They are kept, and resume='auto' goes on after them."

    def _begin(self, number: int | None, slots: Slots) -> bool:
        point = None if number is None else self._sampler.suggest(number)
        if number is None or point is None:
            return False
        params = self._sampler.space.at(point)
        self._running[number] = point, params
        slots.start(TrialOrder(number, params, self._batch_size(params), self._shelf.bar))
        return True

    def _take(self, result: TrialResult, bar: Bar) -> None:
        result = self._watch.ended(result)
        point, params = self._running.pop(result.number)
        self._shelf.offer(result)
        self._sampler.tell(result)
        kept = replace(result, model=b"")
        if self._log is not None and result.status is not TrialStatus.INTERRUPTED:
            self._log.write(kept, point)
        self.records[result.number] = TrialRecord(kept, point, params)
        if result.failure is not None and result.status is TrialStatus.FAILED:
            log.info("trial %d failed: %s: %s", result.number, result.failure.type_name, result.failure.message)
        self._show(bar, result)

    def _show(self, bar: Bar, result: TrialResult) -> None:
        best = min(
            (r.result.loss for r in self.records.values() if r.result.counts and r.result.loss is not None),
            default=None,
        )
        name = self._objective.name
        shown = [] if best is None else [f"best {name}: {self._objective.value(best):.4f}"]
        if failed := len(self._failed()):
            shown.append(f"{failed} failed")
        bar.set_postfix_str(", ".join(shown), refresh=False)
        bar.update(1)
        if self._verbose == 2:
            value = "-" if result.loss is None else f"{self._objective.value(result.loss):.4f}"
            params = self.records[result.number].params
            Bar.write(f"trial {result.number}: {result.status.value}, {name} {value}, {result.seconds:.1f}s, {params}")

    def _bar(self) -> Bar:
        total, done = self._limits.max_evals, len(self.records)
        return Bar(total=total, initial=done, desc="search", unit="trial", disable=self._verbose != 1)

    def _failed(self) -> list[TrialRecord]:
        return [record for record in self.records.values() if record.result.status is TrialStatus.FAILED]

    def _raise_failures(self, what: str) -> None:
        failed = sorted(self._failed(), key=lambda record: record.result.number)
        if not failed or failed[0].result.failure is None:
            raise ElephasError("no trial has finished; see the timeout, and the log of Spark's jobs.")
        failure, number = failed[0].result.failure, failed[0].result.number
        raise WorkerError.of(
            failure.type_name,
            f"{what}. The first, trial {number} with {failed[0].params}: {failure.message}",
            failure.traceback_text,
            -1,
        )


@contextmanager
def opened(
    context: SparkContext | None,
    evaluate: Evaluate,
    shards: Sequence[ShardRef],
    watch: Watch,
    *,
    parallelism: int,
    reports: bool,
    name: str,
) -> Iterator[Slots]:
    """Slots for trials of one task each: Spark's, with a server for their reports, or this process.

    Args:
        reports: whether anyone wants to know of epochs; no port is opened otherwise.
    """
    if context is None:
        yield InProcessTrials(evaluate, shards, watch)
        return
    with ExitStack() as stack:
        lines = None
        if reports:
            store = TrialStore(watch, parallelism)
            token = new_token()
            bound, advertised = server_addresses(context)
            server = stack.enter_context(HttpServer(store, token, NO_STATE, bound, desk=TrialDesk))
            lines = ClientSettings("http", advertised, server.address[1], token, NO_STATE, advice=UNREACHED)
        yield stack.enter_context(
            TrialJobs(
                context,
                evaluate,
                shards,
                lines,
                parallelism=parallelism,
                group=f"elephas_like-search-{name}",
                describe=lambda order: f"elephas_like search: trial {order.number}, {order.params}"[:500],
            )
        )


def wide(context: SparkContext, evaluate: Evaluate, watch: Watch, parallelism: int) -> Slots:
    """Slots for trials that are Spark fits of their own: the driver's threads, or the caller's where one is enough."""
    if parallelism == 1:
        return InProcessTrials(evaluate, (), watch, context)
    return ThreadTrials(context, evaluate, watch, parallelism)


def count_parallel(context: SparkContext | None, asked: int | None, workers: int, wait: float) -> int:
    """Trials at a time: as many as asked for, at most as many as Spark's slots hold with `workers` each.

    Raises:
        ValueError: several are asked for and there is no Spark; or a trial's workers are more than there are slots.
    """
    if context is None:
        if asked is not None and asked > 1:
            raise ValueError(
                f"parallelism={asked} needs Spark: start a SparkSession first; without one trials run one by one."
            )
        return 1
    available = spark_slots(context, wait, None if asked is None else asked * workers)
    if workers > max(1, available):
        raise ValueError(
            f"trial_workers={workers}, and Spark has {available} slots. Use fewer workers, or give Spark more cores."
        )
    most = max(1, available // workers)
    if asked is not None and asked > most:
        log.warning("parallelism=%d: Spark's %d slots hold %d trials at a time", asked, available, most)
    return most if asked is None else min(asked, most)


def summary(records: Mapping[int, TrialRecord]) -> dict[str, int]:
    """How many trials ended in which way."""
    counts: dict[str, int] = {}
    for record in records.values():
        counts[record.result.status.value] = counts.get(record.result.status.value, 0) + 1
    return counts
