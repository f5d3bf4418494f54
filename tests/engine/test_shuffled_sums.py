"""Which rounds a shuffle adds up, and in how many slices. test_job_rounds.py has the shuffle itself."""

from __future__ import annotations

import pytest

from elephas_like.engine.shuffled_sums import SLICE_BYTES, slices_of, worth_it

MiB, GiB = 2**20, 2**30


@pytest.mark.parametrize(
    ("workers", "nbytes", "limit", "local", "expected"),
    [
        (3, 128 * MiB, 0, False, True),
        (3, 128 * MiB - 1, 0, False, False),
        (2, 100 * GiB, GiB, False, False),  # the driver takes in two updates, or one sum
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
    [(8, 64, 16, 16), (8, 4, 16, 4), (8, 1, 1, 1), (10 * SLICE_BYTES, 4, 2, 10), (10 * SLICE_BYTES + 1, 4, 2, 11)],
)
def test_a_slice_for_each_slot_and_more_of_large_vectors(nbytes: int, workers: int, slots: int, expected: int) -> None:
    assert slices_of(nbytes, workers, slots) == expected
