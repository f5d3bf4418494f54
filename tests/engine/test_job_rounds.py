"""Spark's own limits, read before a job runs into them. What the rounds do is in tests/integration."""

from __future__ import annotations

import pytest

from elephas_like.engine.job_rounds import _bytes


@pytest.mark.parametrize(
    ("text", "expected"),
    [("1g", 2**30), ("512m", 512 * 2**20), ("512MB", 512 * 2**20), ("0", 0), ("1024", 1024), ("2k", 2048), ("10b", 10)],
)
def test_sizes_are_read_as_spark_writes_them(text: str, expected: int) -> None:
    assert _bytes(text) == expected
