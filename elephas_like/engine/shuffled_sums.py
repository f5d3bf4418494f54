"""Updates of a round, added up by a shuffle of Spark's: each slice of all workers' vectors meets in one task (core/summing.py).

What is lost with an executor, Spark computes again: the same worker trains the same rows from the same state.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import cloudpickle
from pyspark import RDD, Accumulator

from elephas_like.core.summing import Partial, Term, Weighed, Weighing, cut
from elephas_like.core.types import Order
from elephas_like.core.workers import Worker
from elephas_like.engine.job_tasks import Answer, Answered, MissingShard
from elephas_like.spark.gpus import GpuTasks, on_gpus
from elephas_like.spark.task_input import at_once

LEAST_WORKERS = 3
LEAST_BYTES = 128 * 2**20
"""Updates of so many workers, and of so many bytes in all, are added up by a shuffle. Below, its second stage takes longer than the
driver does alone."""
SLICE_BYTES = 64 * 2**20
"""Maximum bytes of one slice of one worker: Spark moves at most 2 GiB in one piece."""

TASK_BYTES = 256 * 2**20
"""Maximum bytes that a task which adds holds: a slice of every worker, as they come in any order."""


@dataclass(frozen=True)
class ShuffledSums:
    """How the answers of a round's tasks go through a shuffle.

    weighing: a pickled list that begins with the Weighing: with its code, where executors do not have it.
    slices: in how many the vectors are cut, and so how many tasks add.
    """

    weighing: bytes
    slices: int
    answered: Accumulator[Answered]

    def train(self, worker: Worker, order: Order) -> Weighed:
        """Return a worker's update, weighed."""
        assert order.state is not None
        return _loaded(self.weighing).weigh(worker.train(order), order.state)

    def through(
        self, task: Callable[[int, Iterator[Any]], Iterator[Any]], pairs: RDD, job: int, gpus: GpuTasks | None
    ) -> RDD:
        """Return an RDD of what is left of the answers of `task` over `pairs`, and of a `Partial` for each slice.

        Args:
            job: its number. gpus: how the tasks of both stages have a GPU each.
        """
        weighing, slices, answered = self.weighing, self.slices, self.answered

        def sliced(index: int, given: Iterator[Any]) -> Iterator[tuple[int, object]]:
            for answer in task(index, given):
                if isinstance(answer, Answer) and isinstance(answer.result, Weighed):
                    if answer.result.counts:
                        yield from enumerate(cut(answer.result, slices))
                    yield 0, replace(answer, result=answer.result.without_vectors())
                else:
                    yield 0, answer

        def added(place: int, parts: Iterator[tuple[int, object]]) -> Iterator[object]:
            terms: list[Term] = []
            for _, part in at_once(parts):
                if isinstance(part, Term):
                    terms.append(part)
                else:
                    yield part
            yield _loaded(weighing).added(place, terms)
            answered.add(frozenset({(job, -1 - place)}))  # a sign of life, as those of workers

        with contextlib.nullcontext() if gpus is None else gpus.processes(pairs.context):
            shuffled = on_gpus(pairs, gpus).mapPartitionsWithIndex(sliced).partitionBy(slices, int)
            return on_gpus(shuffled.mapPartitionsWithIndex(added), gpus)


def worth_it(num_workers: int, nbytes: int, limit: int, *, local: bool) -> bool:
    """Return whether a shuffle is to add up the updates of a round.

    Args:
        nbytes: of all of them. limit: bytes of results that Spark's driver takes; 0 for no limit. Half of it may be all that the
            driver's heap has room for.
        local: whether workers run on the driver's machine: what its cores need not do for the driver, they do for the shuffle.
    """
    too_many = num_workers > 1 and 0 < limit < 2 * nbytes
    return too_many or (num_workers >= LEAST_WORKERS and nbytes >= LEAST_BYTES and not local)


def slices_of(nbytes: int, num_workers: int, slots: int) -> int:
    """Return in how many slices vectors of `nbytes` are cut: one for each slot that can add, and more of large ones."""
    return max(1, min(num_workers, slots), -(-nbytes // SLICE_BYTES), -(-nbytes * num_workers // TASK_BYTES))


def parted(results: list[Any]) -> tuple[list[Any], list[Partial]]:
    """Return the answers among the results of a job, in the order of workers, and the sums."""
    sums = [result for result in results if isinstance(result, Partial)]
    answers = [result for result in results if not isinstance(result, Partial)]
    return sorted(answers, key=lambda answer: answer.worker), sums


def lacking(answers: list[Any], sums: list[Partial]) -> list[MissingShard]:
    """Return the workers that some slice lacks, as their update was lost after others had it, and could not be made again.

    Spark runs a task again whose part of a shuffle was lost, and the slices that had been added by then stay as they are: an error that
    comes only now is not among the answers.
    """
    expected = {answer.worker for answer in answers if isinstance(answer, Answer) and answer.result.counts}
    lost = sorted(set().union(*(expected.symmetric_difference(partial.workers) for partial in sums)))
    return [
        MissingShard(worker, f"the update of worker {worker} was lost before all of it was added up") for worker in lost
    ]


def _loaded(weighing: bytes) -> Weighing:
    found: Weighing = cloudpickle.loads(weighing)[0]  # written by our own driver
    return found
