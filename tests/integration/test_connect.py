"""The tests over Spark Connect, in a process of their own: a classic session and a remote one exclude each other."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
FRAMES = (
    "integration/test_frame_fit.py",
    "integration/test_ml_conventions.py",
    "model/test_frame_predictions.py",
    "rows/test_examples.py",
    "rows/test_prediction_columns.py",
    "rows/test_records.py",
    "rows/test_valid_rows.py",
    "stages",
)
"""Tests of DataFrames on any session: conftest.py gives them a remote one, and leaves out those that are classic by nature."""


@pytest.mark.slow
def test_dataframes_over_spark_connect(tmp_path: Path) -> None:
    pytest.importorskip("grpc", reason="Spark Connect's packages are not installed (pyspark[connect])")
    left_out = ("PYSPARK_SUBMIT_ARGS", "PYTEST_XDIST_WORKER", "PYTEST_CURRENT_TEST")
    environment = {name: value for name, value in os.environ.items() if name not in left_out}
    # Spark takes a free port for its server if it is told that it is tested.
    environment |= {"ELEPHAS_LIKE_CONNECT": "1", "SPARK_TESTING": "1", "TMPDIR": str(tmp_path)}
    quiet = ["-q", "-p", "no:xdist", "-p", "no:cacheprovider", "--durations=0"]
    command = [sys.executable, "-m", "pytest", *quiet, *(str(TESTS / name) for name in ("connect", *FRAMES))]
    run = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=1500, cwd=TESTS)
    assert run.returncode == 0, run.stdout[-8000:] + run.stderr[-2000:]
    assert " passed" in run.stdout
    assert " skipped" not in run.stdout
