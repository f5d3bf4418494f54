"""A fit over gangs, seen from the client: shards are written once, then each job trains some epochs between callbacks.

`FitProgress` is all that passes from one job to the next. So it is also where a fit goes on from when a job is lost, as Spark
never retries one: with the same bits, as after a checkpoint.
"""

from __future__ import annotations

import itertools
import logging
import math
import pickle
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import groupby
from typing import Any, TypeVar

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from elephas_like.core.errors import (
    ConnectionLostError,
    DataError,
    ElephasError,
    Failure,
    ShardMissing,
    WaitError,
    WorkerError,
)
from elephas_like.core.loop import FitPlan
from elephas_like.core.types import Frequency, Joined, Mode, ShardRef
from elephas_like.engine.gang_rounds import Datasets, Join, TrainEpochs, WriteShards, remove_everywhere, validation_name
from elephas_like.exchange.protocol import Sizes
from elephas_like.exchange.security import new_token
from elephas_like.model.gang_lead import Epochs, LeadingEpochs
from elephas_like.model.plan import Fit, plan_of
from elephas_like.rows.gang_rows import GangRows
from elephas_like.rows.shards import SpoolOptions
from elephas_like.spark.encryption import wants_tls
from elephas_like.spark.gang import (
    Member,
    Task,
    check_slots,
    notes,
    partition_keys,
    pieces_of,
    run_gang,
)
from elephas_like.spark.gpus import gpu_tasks
from elephas_like.spark.session import conf_of, context_of
from elephas_like.spark.settings import check_result_size, largest_result
from elephas_like.spark.waits import UNSEEN_KILL_SECONDS, Overdue, cancel_and_wait, insist
from elephas_like.trainer.code import pickle_by_value

log = logging.getLogger(__name__)
Result = TypeVar("Result")

ATTEMPTS = 4
"""How often a job is tried when its tasks die: as often as Spark tries a task (`spark.task.maxFailures`)."""
MOVES = 12
"""How often rows are written again in one job's stead, because Spark has placed its tasks where other shards are."""
JOB_SECONDS = 20.0
"""Without callbacks that want each epoch, jobs grow until they take about so long: a second of each is Spark's."""
_DEATH = re.compile(
    r"failed barrier|barrier task|ExecutorLost|executor.*lost|Python worker|FetchFailed|heartbeat|EOFException", re.I
)
_numbers = itertools.count(1)


class GangFit:
    """One fit over gangs. A context manager: it deletes the shards at the end.

    Args:
        fit: all that the fit needs but its rows.
        rows, validation: in one partition for each worker.
    """

    def __init__(self, fit: Fit, session: SparkSession, rows: GangRows, validation: GangRows | None) -> None:
        self._fit, self._session, self._rows, self._validation = fit, session, rows, validation
        self._size = rows.num_workers
        self._tag = f"elephas_like-{fit.spool.dataset}"
        self._names: list[str] = []
        self._datasets: Datasets | None = None
        self._title = f"elephas_like fit over gangs {next(_numbers)}: {fit.hooks.model.name}, {self._size} workers"
        self._over = False

    def __enter__(self) -> GangFit:
        """Return itself."""
        return self

    def __exit__(self, *error: object) -> None:
        """Cancel what runs, and delete the shards, within a limited time."""
        insist(self._tidy)

    def _tidy(self) -> None:
        """Leave nothing. May be called again, if it was interrupted."""
        context = context_of(self._session)
        if context is not None:
            cancel_and_wait(context, self._tag)
        elif not self._over:  # tasks that were cancelled write until they are killed, and nobody here sees that
            threading.Event().wait(UNSEEN_KILL_SECONDS)
        memory = [] if self._datasets is None else [self._datasets.memory]
        datasets = [*self._names, *map(validation_name, self._names), *memory]
        remove_everywhere(self._session, self._tag, datasets, self._size)

    def run(self) -> None:
        """Train, leaving the state of every finished epoch in the fit's progress."""
        fit, hooks, progress = self._fit, self._fit.hooks, self._fit.progress
        state = Sizes.of(hooks.variables.layout).state()
        check_result_size("the state of the model", state, largest_result(conf_of(self._session)))
        self._assemble()
        self._again(self._write_rows, "writing the rows")
        joined = self._again(self._join, "compiling the model")
        hooks.monitor.joined(joined)
        plan = plan_of(fit, joined)
        if fit.checkpoints is not None:
            fit.checkpoints.workers_joined(joined, progress)
        begin = plan.initial_epoch if progress.epoch < 0 else progress.epoch
        at_once = 1
        while begin < plan.end:
            # Callbacks may change the state before an epoch; if it goes on amid its rounds, they have done so before.
            before_epoch = hooks.epoch_begin(begin, progress.state)
            if progress.span is None:
                progress.go_on_from(before_epoch)
                progress.epoch = begin
            if hooks.stopped():
                break
            until = (
                plan.end
                if plan.frequency is Frequency.FIT or plan.mode is not Mode.SYNCHRONOUS
                else min(plan.end, begin + self._epochs(at_once))
            )
            started, before = time.monotonic(), len(progress.rounds)
            # Only callbacks may end the fit after an earlier job.
            last = until >= plan.epochs or bool(fit.request.callbacks)
            part = replace(plan, until=until, keeps_slots=plan.keeps_slots and last)
            trained = self._again(partial(self._train, part), f"epoch {begin + 1}")
            if time.monotonic() - started < JOB_SECONDS / 2:
                at_once *= 2
            vars(progress).update(vars(trained.progress))
            self._call_hooks(trained, before)
            begin = until
            if trained.error is not None:
                raise trained.error
            if hooks.stopped():
                break
            if fit.checkpoints is not None and begin < plan.end:
                fit.checkpoints.save(progress, fit.checkpoints.due(False))
            progress.memories = None  # as large as a state of every worker; they have it themselves
        self._over = True

    def _epochs(self, at_once: int) -> int:
        """Epochs of the next job: what was asked for, or one while callbacks want each, or so many at once."""
        asked = self._fit.options.epochs_per_job
        if asked is not None:
            return asked
        return 1 if self._fit.request.callbacks or self._fit.checkpoints is not None else at_once

    def _call_hooks(self, trained: Epochs, before: int) -> None:
        """Have callbacks see the epochs of a job, in order. What they change counts for the next job."""
        hooks, progress = self._fit.hooks, self._fit.progress
        new = {epoch: list(rounds) for epoch, rounds in groupby(progress.rounds[before:], lambda each: each.epoch)}
        for index, record in enumerate(trained.records):
            if hooks.stopped():
                return
            if index:
                progress.go_on_from(hooks.epoch_begin(record.epoch, progress.state))
            for finished in new.get(record.epoch, ()):
                hooks.round_end(finished, record.metrics)
            progress.go_on_from(hooks.epoch_end(replace(record, state=progress.state)))

    def _assemble(self) -> None:
        """See that all workers can run at once, before any row is read.

        Raises:
            CapacityError, WaitError: they cannot, or for `join_timeout` seconds none of their tasks starts or ends.
        """
        limit = self._fit.options.join_timeout
        check_slots(self._session, self._size, self._fit.options.resources)
        try:
            partition_keys(self._session, self._size, limit)
            self._gang(_present, "find slots", [[b""]] * self._size, seconds=limit, by_progress=True)
        except Overdue:
            raise WaitError(
                f"expected {self._size} tasks to run at the same time, and for join_timeout={limit:g} s none started: Spark "
                "has fewer slots, or other jobs hold them. Use fewer workers (num_workers=), or give a longer join_timeout."
            ) from None

    def _write_rows(self) -> None:
        """Write all rows, as shards of a new name: none of an earlier time may come among them that holds others.

        Raises:
            ValueError: there are no rows. DataError: rows that were written again are not as many as before.
        """
        name = f"{self._fit.spool.dataset}-{len(self._names)}"
        self._names.append(name)
        spool = self._fit.spool
        training = self._write(self._rows, replace(spool, dataset=name), "train on")
        held = self._validation
        held_out = spool.for_validation(validation_name(name))
        validation = None if held is None else self._write(held, held_out, "validate with")
        before, self._datasets = self._datasets, Datasets.of(self._names, training, validation)
        found = self._datasets.training
        if before is not None and [rows for rows, _ in found] != [rows for rows, _ in before.training]:
            raise DataError(
                f"the shards were lost, and written again they have {[rows for rows, _ in found]} rows instead of "
                f"{[rows for rows, _ in before.training]}: the data is not the same each time it is read. Persist it, or write it "
                "down."
            )
        if before is not None and found != before.training:
            log.warning("%s: rows that were written again differ from those before; bits will, too", self._title)

    def _write(self, rows: GangRows, options: SpoolOptions, purpose: str) -> list[ShardRef]:
        """Write one shard for each worker. Return their references.

        Raises:
            WaitError: none of the job's tasks started or ended for `round_timeout` seconds.
        """
        task = WriteShards(rows.read, options)
        with self._in_time("write their rows"):
            answers = self._run(rows.frame, task, "write shards", self._fit.options.round_timeout, by_progress=True)
        if not all(answers):  # Spark makes no partition at all of a DataFrame that it knows to be empty
            raise ValueError(f"there are no rows to {purpose}: the DataFrame is empty.")
        return list(map(_unless_failed, answers))

    def _join(self) -> list[Joined]:
        """Return what the workers join with, each with its shard open and the model compiled.

        Raises:
            WaitError: they did not within `round_timeout` seconds.
        """
        assert self._datasets is not None
        task, limit = Join(self._fit.factory, self._datasets), self._fit.options.round_timeout
        with self._in_time("compile the model"):
            found = self._gang(task, "compile the model", [[b""]] * self._size, seconds=limit, by_progress=True)
        try:
            return sorted(map(_unless_failed, found), key=lambda each: each.worker)
        except ShardMissing:
            if not self._datasets.in_one_place:
                raise
        self._datasets = replace(self._datasets, in_one_place=False)  # tasks run elsewhere now: they must agree
        return self._join()

    def _train(self, plan: FitPlan) -> Epochs:
        """Train some epochs, from the fit's progress."""
        fit = self._fit
        layout, options = fit.hooks.variables.layout, fit.options
        lead = LeadingEpochs(
            plan=pickle_by_value(plan),
            options=replace(
                options, strategy=None, custom_objects={}, frequency=Frequency.AUTO, codec=None, state_codec=None
            ),
            recalls=fit.checkpoints is not None,
            layout_hash=layout.hash,
            sizes=Sizes.of(
                layout,
                options.codec,
                state_codec=options.state_codec,
                workers_remember=options.workers_remember(fit.strategy),
                control_variates=fit.config.control_variates,
            ),
            with_loss=bool(fit.hooks.model.metrics) and fit.hooks.model.metrics[0].name == "loss",
            tls=wants_tls(conf_of(self._session), options.tls, allow_plain_text=options.allow_plain_text),
            token=new_token(),
        )
        given = list(pieces_of(pickle.dumps(fit.progress.arrays(), 5)))
        assert self._datasets is not None
        task = TrainEpochs(lead, fit.factory, self._datasets)
        first = fit.progress.epoch + 1
        title = f"epoch {first}" if plan.end == first else f"epochs {first} to {plan.end}"
        found = self._gang(task, title, [given, *[[b""]] * (self._size - 1)])
        (answer,) = [b"".join(pieces) for pieces in found if pieces]
        result = pickle.loads(answer)  # noqa: S301  Spark handed over what a member wrote
        if isinstance(result, Failure):
            raise ShardMissing(result.message)
        return Epochs.of(answer)

    @contextmanager
    def _in_time(self, what: str) -> Iterator[None]:
        """Raise WaitError where a job is cancelled after `round_timeout` seconds without progress."""
        try:
            yield
        except Overdue:
            raise WaitError(
                f"expected {self._size} workers to {what}, and none of their tasks started or ended within "
                f"round_timeout={self._fit.options.round_timeout:g} s. Look at the executors' logs, at whether other jobs hold the "
                "slots that the tasks wait for, or give SparkModel a longer round_timeout."
            ) from None

    def _gang(
        self,
        task: Task,
        title: str,
        given: Sequence[Sequence[bytes]],
        seconds: float = math.inf,
        by_progress: bool = False,
    ) -> list[list[bytes]]:
        return self._run(notes(self._session, given), task, title, seconds, by_progress=by_progress)

    def _run(
        self, rows: DataFrame, task: Task, title: str, seconds: float, *, by_progress: bool = False
    ) -> list[list[bytes]]:
        return run_gang(
            self._session,
            rows,
            self._size,
            task,
            name=self._tag,
            title=f"{self._title}: {title}",
            seconds=seconds,
            by_progress=by_progress,
            gpus=gpu_tasks(self._session, self._fit.options.resources),
        )

    def _again(self, job: Callable[[], Result], what: str) -> Result:
        """Return what a job returns; try again if its tasks die, and write the rows anew if their files are gone."""
        lost = moved = 0
        while True:
            try:
                return job()
            except ElephasError as error:
                self._fit.hooks.check_interrupt()  # Spark's own handler of Ctrl-C cancels the job
                moved += isinstance(error, ShardMissing)
                lost += not isinstance(error, ShardMissing)
                if lost == ATTEMPTS or moved == MOVES or not _lost(error):
                    raise
                log.warning("%s: %s was lost and is run again: %s", self._title, what, str(error).splitlines()[0])
                if isinstance(error, ShardMissing):
                    self._again(self._write_rows, "writing the rows")


def _present(member: Member, batches: Iterable[pa.RecordBatch]) -> Iterable[bytes]:
    """Say that a member is there."""
    return [b""]


def _unless_failed(pieces: Iterable[bytes]) -> Any:
    """Return what a member has answered, or raise its Failure."""
    answer = pickle.loads(b"".join(pieces))  # noqa: S301  Spark handed over what a member wrote
    if isinstance(answer, Failure):
        raise answer.error()
    return answer


def _lost(error: ElephasError) -> bool:
    """Whether a job failed because tasks died or files are gone, and not because of the user's code, rows or settings."""
    if isinstance(error, WorkerError):
        return isinstance(error, ConnectionLostError | ShardMissing)
    return isinstance(error, ShardMissing) or _DEATH.search(str(error)) is not None
