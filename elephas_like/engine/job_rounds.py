"""The engine whose rounds are ordinary Spark jobs: no port, and no slots that must be free at the same time.

Dynamic allocation and speculation are fine. Each round ships the state in a broadcast and collects the updates, or, where these are
large, their sum (shuffled_sums.py). Shards stay on the executors' disks; Spark holds references to them and rewrites a shard that was
lost.
"""

from __future__ import annotations

import logging
import platform
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import cloudpickle
from pyspark import RDD, Accumulator, Broadcast, SparkContext

from elephas_like.core.errors import DataError, ElephasError, Failure, WaitError
from elephas_like.core.summing import Partial, Summed, Weighing
from elephas_like.core.types import (
    Evaluation,
    Joined,
    Memories,
    Order,
    Recollection,
    TrainState,
    Update,
    Vector,
    nothing,
    same,
)
from elephas_like.core.workers import Worker
from elephas_like.engine.job_tasks import Answered, AnsweredWorkers, JobRun, MissingShard, close_workers, task_of
from elephas_like.engine.shuffled_sums import ShuffledSums, lacking, parted, slices_of, worth_it
from elephas_like.rows.shard_files import remove_dataset
from elephas_like.rows.shards import Pair, attempt_id, deleted_by, persisted_anew, remove_pair, sweep
from elephas_like.spark.gpus import GpuTasks, on_gpus
from elephas_like.spark.job_tags import failed_tasks
from elephas_like.spark.session import is_local, is_on, settings_of
from elephas_like.spark.settings import check_result_size, largest_result
from elephas_like.spark.shuffles import delete_shuffles
from elephas_like.spark.slots import held_up
from elephas_like.spark.task_input import at_once
from elephas_like.spark.waits import Overdue, cancel_and_wait, cleanup, destroy, insist, readable_errors, run_within

log = logging.getLogger(__name__)
Result = TypeVar("Result")
Fingerprints = tuple[tuple[int, int], ...]

TRIES = 3
"""Times that a round is tried where shards are missing. They are rewritten before each further try."""


class JobRounds:
    """Synchronous rounds as Spark jobs (core.workers.SyncWorkers). A context manager that deletes the shards on exit.

    Args:
        refs: one pair of shard references per partition, persisted.
        run: what tasks need; workers of one process share its factory.
        tag: Spark job tag; its jobs are cancelled on Ctrl-C and after failures.
        describe: returns the text in Spark's UI for an order.
        keep: whether the shards outlive the run (a ShardedDataset's do).
        datasets: ids of the shards that are deleted with the run.
        round_timeout: seconds. A round may outlast this as long as workers answer; if none does for so long, the fit
            fails.
        gpus: how the tasks have a GPU each; None where nothing is asked for.
        invalidate: called where shards are missing, to drop persisted references that `refs` is computed from.
        packed: pickles a list that begins with a Weighing, with its code where executors do not have it.
    """

    def __init__(
        self,
        context: SparkContext,
        refs: RDD,
        run: JobRun,
        tag: str,
        describe: Callable[[Order | None], str],
        keep: bool,
        *,
        datasets: Sequence[str],
        round_timeout: float,
        gpus: GpuTasks | None = None,
        invalidate: Callable[[], None] = lambda: None,
        packed: Callable[[Weighing], bytes] = lambda weighing: cloudpickle.dumps([weighing]),
    ) -> None:
        self._context, self._refs, self._run = context, refs, run
        self._tag, self._describe, self._keep = tag, describe, keep
        self._datasets, self._invalidate = tuple(datasets), invalidate
        self._round_timeout, self._gpus, self._packed = round_timeout, gpus, packed
        self._num_workers = refs.getNumPartitions()
        self._largest_result = largest_result(settings_of(context))
        self._written = False
        self._found: RDD | None = None
        self._fingerprints: list[Fingerprints] = []
        self._jobs = 0
        self._speculates, self._copies_wait = is_on(settings_of(context), "spark.speculation"), 0.0
        self._frozen: tuple[Vector, Broadcast[Vector]] | None = None
        self._answered: Accumulator[Answered] = context.accumulator(frozenset(), AnsweredWorkers())

    def __enter__(self) -> JobRounds:
        """Return itself."""
        return self

    def __exit__(self, *error: object) -> None:
        """Cancel running jobs, close workers and delete shards, within a limited time."""
        insist(self._tidy)

    def _tidy(self) -> None:
        """Leave nothing. May be called again, if it was interrupted."""
        run, keep, datasets = self._run.run, self._keep, self._datasets

        def tidy(pairs: Iterator[Pair]) -> Iterator[int]:
            close_workers(run)
            for pair in at_once(pairs):
                remove_pair((None if keep else pair[0], pair[1]))  # validation rows are never a ShardedDataset's
            for dataset in datasets:
                remove_dataset(dataset)  # including unfinished files of killed tasks
            yield 0

        cancel_and_wait(self._context, self._tag)  # tasks read and write files until they are killed
        if self._frozen is not None:
            destroy(self._context, self._frozen[1])
            self._frozen = None
        if self._written:
            deleted_by(
                self._context,
                f"{self._tag}-tidy",
                datasets,
                on_gpus(self._pairs().mapPartitions(tidy), self._gpus).count,
            )
            self._written = False
        else:  # the references were never computed: computing them now would write all rows only to delete them
            sweep(self._context, self._tag, self._num_workers, datasets)
        with cleanup(self._context, "drop references of shards"):
            self._refs.unpersist(blocking=True)

    def joined(self) -> list[Joined]:
        """Return the first messages of all workers, after a job that writes the shards and compiles the model."""
        return self._job(None, lambda worker, _: worker.joined(attempt_id(), platform.node()))

    def train(self, order: Order) -> Iterator[Update]:
        """Return the updates of one job."""
        each = 0 if order.state is None else order.state.nbytes - order.state.frozen.nbytes
        self._check_result_size(self._num_workers * each, f"what {self._num_workers} updates hold")
        return iter(self._job(order, lambda worker, given: worker.train(given)))

    def train_summed(self, order: Order, weighing: Weighing) -> Summed | None:
        """Return the updates of one job, their vectors added up by Spark's shuffle; None where the driver is faster alone."""
        assert order.state is not None
        each = order.state.nbytes - order.state.frozen.nbytes
        brought = self._num_workers * each
        if weighing.codec is not None:
            weights = order.state.weights
            brought -= self._num_workers * (weights.nbytes - weighing.codec.nbytes(weights.size))
        if not worth_it(self._num_workers, brought, self._largest_result, local=is_local(self._context)):
            return None
        self._check_result_size(each, "the sum of a round's updates")
        slices = slices_of(each, self._num_workers, self._context.defaultParallelism)
        shuffle = ShuffledSums(self._packed(weighing), slices, self._answered)
        updates, sums = self._job_through(order, shuffle.train, shuffle)
        return Summed.of(updates, sums)

    def evaluate(self, order: Order) -> Iterator[Evaluation]:
        """Return the evaluations of one job."""
        return iter(self._job(order, lambda worker, given: worker.evaluate(given)))

    def recall(self, after: int) -> Iterator[Recollection]:
        """Return nothing: workers of jobs remember nothing from round to round."""
        return iter(())

    def remind(self, memories: Memories, after: int) -> None:
        """Do nothing: workers of jobs remember nothing from round to round."""

    def _job(self, order: Order | None, act: Callable[[Worker, Order], Result]) -> list[Result]:
        """Run one job and return one result per worker, in worker order."""
        return self._job_through(order, act, None)[0]

    def _job_through(
        self, order: Order | None, act: Callable[[Worker, Order], Result], shuffle: ShuffledSums | None
    ) -> tuple[list[Result], list[Partial]]:
        """Run one job, through a shuffle if one is given. Return one result per worker, in worker order, and the shuffle's sums.

        Raises:
            ElephasError: shards were lost in every try.
            WaitError: no worker answered for `round_timeout` seconds; the message names those who did not.
            DataError: a shard that was rewritten has another number of rows.
        """
        what = self._describe(order)
        state: Broadcast[TrainState] | None = None
        frozen: Broadcast[Vector] | None = None
        try:
            # Ship the state, frozen layers apart: they rarely change.
            if order is not None and order.state is not None:
                frozen = self._frozen_broadcast(order.state.frozen)
                with readable_errors(self._context):
                    state = self._context.broadcast(order.state.but(frozen=nothing()))
                order = replace(order, state=None, step=None)
            # A task without its shard's files reports so; then the references are dropped and the round is run again.
            for tries in range(1, TRIES + 1):
                self._jobs += 1
                task = task_of(self._run, order, state, frozen, act, self._jobs, self._answered, self._copies_wait)
                if shuffle is None:
                    tasks = on_gpus(self._pairs().mapPartitionsWithIndex(task), self._gpus)
                else:
                    tasks = shuffle.through(task, self._pairs(), self._jobs, self._gpus)
                failed = failed_tasks(self._context, self._tag) if self._speculates else 0
                try:
                    results, sums = parted(self._collect(tasks, what))
                finally:
                    if shuffle is not None:
                        delete_shuffles(self._context, tasks)
                missing = [result for result in results if isinstance(result, MissingShard)]
                for result in results:
                    if isinstance(result, Failure):
                        raise result.error()
                if shuffle is not None and not missing:
                    missing = lacking(results, sums)
                if not missing:
                    self._note_written([answer.pair for answer in results])
                    return [answer.result for answer in results], sums
                if self._speculates and self._are_copies(missing, failed):
                    # Spark has taken a copy's answer, and ended the task that had its shard. From now on copies wait.
                    self._copies_wait = self._round_timeout / 2
                    log.warning(
                        "spark.speculation: a copy of a slow task came first where its shard is not; the round is run again (try %d "
                        "of %d)",
                        *(tries + 1, TRIES),
                    )
                    continue
                log.warning("%s; the shards are written again (try %d of %d)", missing[0].message, tries + 1, TRIES)
                self._written, self._found, self._copies_wait = False, None, 0.0
                self._invalidate()
                persisted_anew(self._refs)
            if self._copies_wait:
                raise ElephasError(
                    f"Spark took the answer of a copy of a slow task, which has no shard, before the task's own {TRIES} times in one "
                    "round. Set spark.speculation=false, or give a longer round_timeout: copies wait for half of it."
                )
            raise ElephasError(f"shards were lost {TRIES} times in one round, last: {missing[0].message}")
        finally:
            if state is not None:
                destroy(self._context, state)

    def _pairs(self) -> RDD:
        """Return the RDD of the references.

        Tasks carry the rows of a `parallelize`d RDD, also where what is computed of them is persisted: 0.1 s for 100 MB. In local
        mode, where all files are in one place, only the job that writes the shards has to.
        """
        return self._found or self._refs

    def _are_copies(self, missing: Sequence[MissingShard], failed: int) -> bool:
        """Whether those who miss their shards are all copies of tasks that ran: no attempt was the first, and none has failed.

        Args:
            failed: attempts that had failed before the job.
        """
        return all(each.attempt for each in missing) and failed_tasks(self._context, self._tag) == failed

    def _note_written(self, pairs: list[Pair]) -> None:
        """Note what the shards hold, and check that it is what they held before."""
        self._written = True
        self._check_same_rows([tuple((ref.rows, ref.checksum) for ref in pair if ref is not None) for pair in pairs])
        if self._found is None and is_local(self._context):
            self._found = self._context.parallelize(pairs, len(pairs))

    def _frozen_broadcast(self, frozen: Vector) -> Broadcast[Vector] | None:
        """Return the broadcast of the frozen layers, shipped again only when they change; None if there are none."""
        if self._frozen is not None and not same(self._frozen[0], frozen):
            destroy(self._context, self._frozen[1])
            self._frozen = None
        if self._frozen is None and frozen.size:
            with readable_errors(self._context):
                self._frozen = frozen, self._context.broadcast(frozen)
        return None if self._frozen is None else self._frozen[1]

    def _collect(self, tasks: RDD, what: str) -> list[Any]:
        """Collect the results of a job. An accumulator reports each task that ends."""
        self._answered.value = frozenset()
        try:
            results: list[Any] = run_within(
                self._round_timeout,
                self._context,
                self._tag,
                what,
                tasks.collect,
                progress=lambda: (self._answered.value, held_up(self._context, self._tag)),
            )
        except Overdue:
            answered = {worker for job, worker in self._answered.value if job == self._jobs}
            late = [str(worker) for worker in range(self._num_workers) if worker not in answered]
            missing = f"worker {', '.join(late)}" if late else "none, but the job has not ended"
            raise WaitError(
                f"expected {self._num_workers} workers to answer, and none did for round_timeout={self._round_timeout:g} s; "
                f"missing: {missing} ({what}). Look at the executors' logs, at whether other jobs hold "
                "the slots that their tasks wait for, or give a longer round_timeout."
            ) from None
        return results

    def _check_same_rows(self, fingerprints: list[Fingerprints]) -> None:
        """Check that rewritten shards hold the same rows as before."""
        for worker, (before, now) in enumerate(zip(self._fingerprints or fingerprints, fingerprints, strict=True)):
            for (rows, checksum), (rows_now, checksum_now) in zip(before, now, strict=True):
                if rows != rows_now:
                    raise DataError(
                        f"worker {worker} came back with {rows_now} rows; expected {rows} as before. The rows are "
                        "recomputed when a shard is lost: persist the RDD, or remove what makes it different each time."
                    )
                if checksum != checksum_now:
                    log.warning(
                        "worker %d came back with other rows (checksum %d, before %d): the fit goes on, but its weights "
                        "are no longer equal to those of an undisturbed run to the last bit.",
                        *(worker, checksum_now, checksum),
                    )
        self._fingerprints = fingerprints

    def _check_result_size(self, needed: int, what: str) -> None:
        check_result_size(what, needed, self._largest_result, ", or use engine='server'")
