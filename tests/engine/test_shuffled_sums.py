"""Which rounds a shuffle adds up, and in how many slices. test_job_rounds.py has the shuffle itself."""

from __future__ import annotations

import numpy as np
import pytest
from test_in_process import Adds

from elephas_like.core.summing import Partial, Weighed
from elephas_like.core.types import Order, Span
from elephas_like.engine.job_tasks import Answer, MissingShard
from elephas_like.engine.shuffled_sums import SLICE_BYTES, lacking, slices_of, worth_it

MiB, GiB = 2**20, 2**30


@pytest.mark.parametrize(
    ("workers", "nbytes", "limit", "local", "expected"),
    [
        (3, 128 * MiB, 0, False, True),
        (3, 128 * MiB - 1, 0, False, False),
        (2, 100 * GiB, 0, False, False),  # the driver takes in two updates, or one sum
        (2, GiB, GiB, False, True),
        (1, 100 * GiB, GiB, False, False),
        (64, 6 * GiB, 0, True, False),
        (64, 512 * MiB, GiB, True, False),
        (64, 512 * MiB + 1, GiB, True, True),
        (64, 40 * MiB, 64 * MiB, False, True),
        (64, 32 * MiB, 64 * MiB, False, False),
    ],
)
def test_a_shuffle_is_for_many_bytes(workers: int, nbytes: int, limit: int, local: bool, expected: bool) -> None:
    assert worth_it(workers, nbytes, limit, local=local) is expected


@pytest.mark.parametrize(
    ("nbytes", "workers", "slots", "expected"),
    [
        (8, 64, 16, 16),
        (8, 4, 16, 4),
        (8, 1, 1, 1),
        (10 * SLICE_BYTES, 4, 2, 10),
        (10 * SLICE_BYTES + 1, 4, 2, 11),
        (SLICE_BYTES, 128, 2, 32),
    ],
)
def test_a_slice_for_each_slot_and_more_of_large_vectors(nbytes: int, workers: int, slots: int, expected: int) -> None:
    assert slices_of(nbytes, workers, slots) == expected


def test_a_slice_that_lacks_a_worker_is_seen() -> None:
    """A part of a shuffle was lost after slice 0 had been added, and the task that ran again had no shard: slice 1 has no update of it."""

    def answer(worker: int, rows: int) -> Answer[Weighed]:
        update = Adds(worker, rows).train(Order("train", 0, span=Span(0)))
        return Answer(worker, Weighed(update, (), 1.0, np.zeros(0, np.float32)), (None, None))

    answers = [answer(0, 4), answer(1, 5), answer(2, 0)]  # worker 2 has trained nothing
    whole, torn = (Partial(0, workers, {}, {}) for workers in ((0, 1), (0,)))
    assert lacking(answers, [whole, whole]) == []
    said = "the update of worker 1 was lost before all of it was added up"
    assert lacking(answers, [whole, torn]) == [MissingShard(1, said)]
