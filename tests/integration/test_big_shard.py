"""A shard that is larger than what a worker may hold in memory."""

from __future__ import annotations

from pathlib import Path

import pytest
from scripts import Script

pytestmark = pytest.mark.slow

ALLOWED_MB = 200


def test_a_shard_of_1_gb_costs_a_worker_no_more_than_200_mb(tmp_path: Path) -> None:
    with Script("run_big_shard.py", "chunks", scratch=tmp_path, plain=True) as script:
        answer = script.answer()
        assert script.ended() == 0
    assert answer["samples"] == answer["rows"]
    assert answer["grown_mb"] <= ALLOWED_MB


def test_a_version_that_holds_all_rows_is_seen(tmp_path: Path) -> None:
    with Script("run_big_shard.py", "all rows", scratch=tmp_path, plain=True) as script:
        answer = script.answer()
        assert script.ended() == 0
    assert answer["samples"] == answer["rows"]
    assert answer["grown_mb"] > ALLOWED_MB
