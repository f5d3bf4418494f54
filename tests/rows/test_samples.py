"""The first rows of some partitions, read in bounded time."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import numpy as np
import pytest

from elephas_like.core.errors import ElephasError
from elephas_like.rows.samples import MOST_ROWS, PartitionSample, first_element, first_row, sampled
from elephas_like.rows.spool import Block
from elephas_like.spark.waits import Overdue


def test_short_partitions_are_counted_and_long_ones_are_not_read_to_the_end(sc) -> None:
    def rows(index: int, _: object) -> Iterator[int]:
        if index == 2:
            raise AssertionError("expected to be left alone")
        yield from range(index * 3)
        while index == 3:  # without an end
            yield 7

    found = sampled(sc.parallelize(range(4), 4).mapPartitionsWithIndex(rows), [0, 1, 3], 60)
    assert found == [
        PartitionSample(0, 0, True, None),
        PartitionSample(1, 3, True, 0),
        PartitionSample(3, MOST_ROWS, False, 0),
    ]


def test_blocks_count_as_their_rows_and_give_their_first(sc) -> None:
    blocks = [Block((np.zeros((0, 2)),), 0), Block((np.arange(6.0).reshape(3, 2),), 3)]
    (found,) = sampled(sc.parallelize(blocks, 1), [0], 60)
    assert (found.rows, found.complete) == (3, True)
    np.testing.assert_array_equal(found.first.columns[0], [[0, 1]])
    assert first_row((np.zeros((0, 2)),)).rows == 0


def test_rows_that_never_come_and_rows_that_raise(sc) -> None:
    def waits(_: object) -> Iterator[int]:
        threading.Event().wait(600)
        yield 1

    with pytest.raises(Overdue):
        sampled(sc.parallelize(range(2), 2).mapPartitions(waits), [0], 0.5)
    with pytest.raises(ElephasError, match="ZeroDivisionError"):
        sampled(sc.parallelize(range(2), 2).map(lambda number: 1 / number), [0], 60)


def test_an_error_whose_text_is_no_utf8_ends_the_reading(sc) -> None:
    """As of a file with such a name: PySpark cannot write it, and Spark would wait for it."""

    def fails(row: object) -> object:
        raise FileNotFoundError("no caf\udce9.png")

    with pytest.raises(FileNotFoundError, match="no caf"):
        first_element(sc.parallelize([1, 2], 2).map(fails), 60)
