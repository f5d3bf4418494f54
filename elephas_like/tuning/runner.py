"""How a search flows: points are suggested, tried on slots, watched and recorded, until there are enough of them."""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from elephas_like.core import checks
from elephas_like.core.errors import ElephasError, WorkerError
from elephas_like.core.objective import Objective
from elephas_like.core.pruning import NumberedRule, Rule, stops
from elephas_like.core.runs_monitor import RunsMonitor
from elephas_like.core.tracebacks import cause
from elephas_like.core.trials import Logs, TrialOrder, TrialResult, TrialStatus
from elephas_like.engine.function_trials import failed
from elephas_like.trainer.bars import Bar
from elephas_like.tuning.log import ModelStore, SearchLog
from elephas_like.tuning.samplers import PointSource, is_feasible
from elephas_like.tuning.space import Point
from elephas_like.tuning.trial_runs import TrialRuns, why_all_end

log = logging.getLogger(__name__)

POLL_SECONDS = 1.0
"""How often the driver looks up while no trial ends: Ctrl-C, and errors of a pruning rule, are seen then."""


@dataclass(frozen=True)
class Limits:
    """When a search ends. timeout: seconds after which no trial begins and running ones end with their epoch."""

    max_evals: int
    timeout: float | None = None
    max_failures: int | None = None


def limits_of(max_evals: object, timeout: object, max_failures: object) -> Limits:
    """The limits that a user gives, checked.

    Raises:
        ValueError: they make no sense.
    """
    return Limits(
        checks.positive_int("max_evals", max_evals),
        None if timeout is None else checks.positive_seconds("timeout", timeout),
        None if max_failures is None else checks.positive_int("max_failures", max_failures, least=0),
    )


@dataclass(frozen=True)
class TrialRecord:
    """A trial that is over, and what it tried.

    values: of its parameters by label, as `Space.values` has them.
    """

    result: TrialResult
    point: Point
    params: Any
    values: Mapping[str, Any]


class PruningMonitor:
    """Decides after each epoch that a trial reports whether the trial goes on. Thread-safe.

    epochs: of a whole trial; after the last one nothing is left to save. None where nobody knows.
    """

    def __init__(
        self, objective: Objective, rule: Rule | NumberedRule | None, epochs: int | None, deadline: float | None
    ) -> None:
        self.error: Exception | None = None
        self._objective, self._rule, self._epochs, self._deadline = objective, rule, epochs, deadline
        self._losses: dict[int, list[float]] = {}
        self._over: dict[int, list[float]] = {}
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
            if self._epochs is not None and epoch + 1 >= self._epochs:
                return True
            if self.late:
                self._stopped[trial] = TrialStatus.TIMEOUT
            elif self._is_bad(trial):
                self._stopped[trial] = TrialStatus.PRUNED
            return trial not in self._stopped

    def ended(self, result: TrialResult) -> TrialResult:
        """Return a trial's result with the reason for which it was stopped, and measure later trials by its losses too."""
        with self._lock:
            self._losses.pop(result.number, None)
            if result.loss is not None:
                self._over[result.number] = self._objective.losses(result.history)
            if result.status is TrialStatus.PRUNED:
                return replace(result, status=self._stopped.get(result.number, TrialStatus.INTERRUPTED))
            return result

    def _is_bad(self, trial: int) -> bool:
        if self._rule is None:
            return False
        known = {number: tuple(losses) for number, losses in (self._over | self._losses).items()}
        try:
            return stops(self._rule, trial, known)
        except Exception as error:  # the user's own rule, in a server's thread: raised where the search is waited for
            self.error = error
            return False


class Search:
    """One search at work. Its records are complete at any moment, also when `run` raises."""

    def __init__(
        self,
        sampler: PointSource,
        objective: Objective,
        monitor: PruningMonitor,
        limits: Limits,
        store: ModelStore,
        log: SearchLog | None,
        batch_size: Callable[[Any], int],
        verbose: int,
        page: RunsMonitor | None = None,
    ) -> None:
        self.records: dict[int, TrialRecord] = {}
        self.interrupted = False
        self._sampler, self._objective, self._monitor, self._limits = sampler, objective, monitor, limits
        self._store, self._log, self._batch_size, self._verbose = store, log, batch_size, verbose
        self._running: dict[int, tuple[Point, Any]] = {}
        self._ended: list[TrialResult] = []
        self._page = page or search_monitor(objective, limits.max_evals)

    def recall(self, earlier: Sequence[tuple[TrialResult, Point]]) -> None:
        """Takes the trials of earlier sessions as tried."""
        for result, point in earlier:
            self._sampler.recall(result, point)
            if is_feasible(self._sampler, result.number):
                self._store.recall(result)
            self._monitor.ended(result)
            self.records[result.number] = self._record(result, point, self._sampler.space.at(point))
            self._show_ended(self.records[result.number], earlier=True)
        begun = 0 if self._log is None else self._log.begun()
        again = sum(number not in self.records for number in range(begun))
        if earlier or again:
            self._say(f"search: {len(self.records)} of {self._limits.max_evals} done, {again} to retry")

    def run(self, slots: TrialRuns) -> None:
        """Tries points until the limits, or Ctrl-C.

        Raises:
            WorkerError: the first trial's error, where all trials failed or more than `max_failures`.
            ElephasError: the SparkContext was stopped, or the caller's job group or tag, or all jobs, were cancelled.
        """
        with self._bar() as bar:
            try:
                self._loop(slots, bar)
            except KeyboardInterrupt:
                self.interrupted = True
                log.warning("interrupted: %d trials are finished", len(self.records))
                self._end(slots, bar)
            except BaseException:
                slots.cancel()
                raise
        if not self.interrupted and not any(record.result.counts for record in self.records.values()):
            self._raise_failures(f"all {len(self.records)} trials failed")

    def _loop(self, slots: TrialRuns, bar: Bar) -> None:
        todo = iter([number for number in range(self._limits.max_evals) if number not in self.records])
        more = True
        while True:
            while more and len(self._running) < slots.parallelism and not self._monitor.late:
                more = self._begin(next(todo, None), slots)
            if not self._running:
                return
            result = self._next(slots, POLL_SECONDS)
            if self._monitor.error is not None:
                raise self._monitor.error
            if result is not None:
                self._take(result, bar)
                if why := why_all_end(result):
                    self._end(slots, bar)
                    raise ElephasError(f"{why} {self._goes_on()}")
                most = self._limits.max_failures
                if most is not None and len(self._failed()) > most:
                    self._raise_failures(f"{len(self._failed())} trials failed (max_failures={most})")

    def _next(self, slots: TrialRuns, seconds: float) -> TrialResult | None:
        """Return a trial that has ended, or that could not begin; None if there is none within some seconds."""
        return self._ended.pop() if self._ended else slots.finished(seconds)

    def _end(self, slots: TrialRuns, bar: Bar) -> None:
        """Ends the trials that run, and takes those that have ended."""
        slots.cancel()
        while self._running and (result := self._next(slots, 0.0)) is not None:
            self._take(result, bar)
        for number in list(self._running):
            self._take(TrialResult(number, TrialStatus.INTERRUPTED), bar)

    def _say(self, text: str) -> None:
        log.info("%s", text)
        if self._verbose:
            Bar.write(text)

    def _goes_on(self) -> str:
        over = sum(record.result.status is not TrialStatus.INTERRUPTED for record in self.records.values())
        if self._log is None:
            return f"Trials that had ended: {over}. They are lost; search(checkpoint_dir=...) keeps them."
        return f"Trials that had ended: {over}. They are kept, and resume='auto' goes on after them."

    def _begin(self, number: int | None, slots: TrialRuns) -> bool:
        point = None if number is None else self._sampler.suggest(number)
        if number is None:
            return False
        if point is None:
            begun = len(self.records) + len(self._running)
            self._say(f"search: the algorithm has no more points after {begun} of {self._limits.max_evals} trials")
            return False
        params = self._sampler.space.at(point)
        self._running[number] = point, params
        self._page.begin(number, self._sampler.space.values(point, params))
        self._store.forget(number)
        if self._log is not None:
            self._log.note_begun(number)
        try:
            size = self._batch_size(params)
        except Exception as error:  # a function of the user's, as `build` is: the trial's failure, and not the search's
            self._ended.append(failed(number, error))
        else:
            slots.start(TrialOrder(number, params, size, self._store.threshold))
        return True

    def _take(self, result: TrialResult, bar: Bar) -> None:
        result = self._monitor.ended(result)
        point, params = self._running.pop(result.number)
        kept = replace(result, model=b"")
        # Before the log says that this trial has ended: a driver that dies in between tries it again.
        self._store.offer(result)
        if self._log is not None and result.status is not TrialStatus.INTERRUPTED:
            self._log.write(kept, point)
        self.records[result.number] = self._record(kept, point, params)
        try:
            self._sampler.tell(result)  # after the trial is kept: an algorithm of the user's may fail
        finally:
            self._store.settle(None if is_feasible(self._sampler, result.number) else result.number)
        self._show_ended(self.records[result.number])
        if result.failure is not None and result.status is TrialStatus.FAILED:
            log.info("trial %d failed: %s: %s", result.number, result.failure.type_name, result.failure.message)
        self._show(bar, result)

    def _show_ended(self, record: TrialRecord, *, earlier: bool = False) -> None:
        counts = record.result.counts and is_feasible(self._sampler, record.result.number)
        show_trial(self._page, record, self._objective, counts, earlier=earlier)

    def _record(self, result: TrialResult, point: Point, params: Any) -> TrialRecord:
        return TrialRecord(result, point, params, self._sampler.space.values(point, params))

    def _show(self, bar: Bar, result: TrialResult) -> None:
        best = min(
            (
                r.result.loss
                for number, r in self.records.items()
                if r.result.counts and r.result.loss is not None and is_feasible(self._sampler, number)
            ),
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
        return Bar(
            total=total, initial=done, desc="search", unit="trial", disable=self._verbose != 1 or sys.stderr is None
        )

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


def search_monitor(objective: Objective, total: int, **about: object) -> RunsMonitor:
    """What people are told of a search of so many trials."""
    return RunsMonitor(
        "search", objective.name, total, time.perf_counter, time.time, maximize=objective.maximize, about=about
    )


def show_trial(
    page: RunsMonitor, record: TrialRecord, objective: Objective, counts: bool, *, earlier: bool = False
) -> None:
    """Show a trial that is over. counts: whether it may be the best one. earlier: it ended in an earlier session."""
    result, failure = record.result, record.result.failure
    page.end(
        result.number,
        result.status.value,
        None if result.loss is None else objective.value(result.loss),
        counts=counts,
        params=dict(record.values),
        values=[objective.value(loss) for loss in objective.losses(result.history)],
        best_epoch=result.best_epoch,
        seconds=result.seconds,
        host=result.host,
        error="" if failure is None else f"{failure.type_name}: {cause(failure.message)}",
        earlier=earlier,
    )


class WatchedTrials:
    """Judges trials by their reports as a monitor does, and shows these."""

    def __init__(self, monitor: PruningMonitor, page: RunsMonitor, objective: Objective) -> None:
        self._monitor, self._page, self._objective = monitor, page, objective

    def __call__(self, trial: int, epoch: int, logs: Logs) -> bool:
        """Whether a trial is to go on after an epoch."""
        self._page.report(trial, epoch, self._objective.value(self._objective.loss(logs)))
        return self._monitor(trial, epoch, logs)


def summary(records: Mapping[int, TrialRecord]) -> dict[str, int]:
    """How many trials ended in which way."""
    counts: dict[str, int] = {}
    for record in records.values():
        counts[record.result.status.value] = counts.get(record.result.status.value, 0) + 1
    return counts
