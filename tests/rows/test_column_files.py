"""Columns that are widened as they are written: the same bytes as if they had been wide from the first row, in little memory."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator

import numpy as np
import pytest
from spooling import Spool, columns, contents, dtypes, peak

from elephas_like.rows.column_files import RawFile
from elephas_like.rows.spool import Block


def test_integers_become_floats_when_floats_come(spooled: Spool) -> None:
    rows = [([0, index], 1) for index in range(5000)] + [([0.5, 1.0], 1), ([7, 8], 1)]
    ref = spooled(rows)
    assert dtypes(ref) == ["float32", "int64"]
    x, y = columns(ref)
    np.testing.assert_array_equal(x, np.array([row[0] for row in rows]))
    assert y.tolist() == [1] * 5002


def test_promotion_gives_the_bytes_of_the_wide_dtype(spooled: Spool) -> None:
    late = spooled([(np.uint8(index), 0) for index in range(200)] + [(0.5, 0)])
    early = spooled([(float(index), 0) for index in range(200)] + [(0.5, 0)], dataset="e")
    assert contents(late) == contents(early)
    assert late.checksum == early.checksum
    assert sorted(os.listdir(late.directory)) == ["column-0", "column-1", "shard.json"]


def test_promotion_of_a_later_column_keeps_the_row_whole(spooled: Spool) -> None:
    ref = spooled([((1, 1), 10), ((2, 0.5), 20), ((3, 3), 0.25)])
    assert [column.tolist() for column in columns(ref)] == [[1, 2, 3], [1, 0.5, 3], [10, 20, 0.25]]


def test_a_block_that_is_not_contiguous_and_widens(spooled: Spool) -> None:
    grid = np.arange(12).reshape(3, 4)
    ref = spooled([Block((grid.T,), 4), Block((grid.T[::-1] + 0.5,), 4)], expect_target=False)
    assert dtypes(ref) == ["float32"]
    np.testing.assert_array_equal(columns(ref)[0], np.concatenate([grid.T, grid.T[::-1] + 0.5]))


def test_memory_is_bounded_for_text_and_promotion(spooled: Spool) -> None:
    assert peak((("word" * 10_000, 1) for _ in range(2000)), spooled) < 20 * 2**20  # 80 MB
    narrow = ((np.zeros(50_000, np.uint8), 1) for _ in range(500))  # 25 MB, 200 MB as int64
    wide = ((np.zeros(50_000, np.int64), 1) for _ in range(2))

    def rows() -> Iterator[object]:
        yield from narrow
        yield from wide

    assert peak(rows(), lambda rows: spooled(rows, worker=1)) < 30 * 2**20


@pytest.mark.parametrize(
    ("of_spark", "advice"),
    [
        ("/data,/dev", "give Spark (spark.local.dir, "),
        ("/de", "set TMPDIR to a directory on a larger disk"),
        (None, "set TMPDIR to a directory on a larger disk"),
    ],
)
def test_a_disk_that_is_full_is_named_with_the_setting_that_chooses_it(
    of_spark: str | None, advice: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows that stay on the driver lie in the system's temporary directory, with Spark and without."""
    monkeypatch.delenv("SPARK_EXECUTOR_DIRS", raising=False)
    monkeypatch.delenv("SPARK_LOCAL_DIRS", raising=False)
    if of_spark is not None:
        monkeypatch.setenv("SPARK_LOCAL_DIRS", of_spark)
    file = RawFile("/dev/full")
    file.write(memoryview(b"row"))
    with pytest.raises(OSError, match=rf"No space left on device in /dev .* all of its rows: {re.escape(advice)}"):
        file.close()
