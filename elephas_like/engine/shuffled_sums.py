"""Updates of a round, added up by a shuffle of Spark's: each slice of all workers' vectors meets in one task (core/summing.py).

What is lost with an executor, Spark computes again: the same worker trains the same rows from the same state.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from pyspark import RDD, Accumulator

from elephas_like.core.summing import Partial, Term, Weighed, Weighing, cut
from elephas_like.engine.job_tasks import Answer, Answered

LEAST_WORKERS = 3
LEAST_BYTES = 128 * 2**20
"""Updates of so many workers, and of so many bytes in all, are added up by a shuffle. Below, its second stage takes longer than the
driver does alone."""
SLICE_BYTES = 64 * 2**20
"""Maximum bytes of one slice of one worker: Spark moves at most 2 GiB in one piece."""


@dataclass(frozen=True)
class ShuffledSums:
    """How the answers of a round's tasks go through a shuffle.

    slices: in how many the vectors are cut, and so how many tasks add.
    """

    weighing: Weighing
    slices: int
    answered: Accumulator[Answered]

    def through(self, task: Callable[[int, Iterator[Any]], Iterator[Any]], pairs: RDD, job: int) -> RDD:
        """Return an RDD of what is left of the answers of `task` over `pairs`, and of a `Partial` for each slice."""
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
            for _, part in parts:
                if isinstance(part, Term):
                    terms.append(part)
                else:
                    yield part
            yield weighing.added(place, terms)
            answered.add(frozenset({(job, -1 - place)}))  # a sign of life, as those of workers

        return pairs.mapPartitionsWithIndex(sliced).partitionBy(slices, int).mapPartitionsWithIndex(added)


def worth_it(num_workers: int, nbytes: int, limit: int, *, local: bool) -> bool:
    """Return whether a shuffle is to add up the updates of a round.

    Args:
        nbytes: of all of them. limit: bytes of results that Spark's driver takes; 0 for no limit. Half of it may be all that the
            driver's heap has room for.
        local: whether workers run on the driver's machine: what its cores need not do for the driver, they do for the shuffle.
    """
    too_many = 0 < limit < 2 * nbytes
    return num_workers >= LEAST_WORKERS and (too_many or (nbytes >= LEAST_BYTES and not local))


def slices_of(nbytes: int, num_workers: int, slots: int) -> int:
    """Return in how many slices vectors of `nbytes` are cut: one for each slot that can add, and more of very large ones."""
    return max(1, min(num_workers, slots), -(-nbytes // SLICE_BYTES))


def parted(results: list[Any]) -> tuple[list[Any], list[Partial]]:
    """Return the answers among the results of a job, in the order of workers, and the sums."""
    sums = [result for result in results if isinstance(result, Partial)]
    answers = [result for result in results if not isinstance(result, Partial)]
    return sorted(answers, key=lambda answer: answer.worker), sums
