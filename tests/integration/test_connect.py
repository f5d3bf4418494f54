"""The tests over Spark Connect, in a process of their own: a classic session and a remote one exclude each other."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1] / "connect"


@pytest.mark.slow
@pytest.mark.long
def test_everything_over_spark_connect(tmp_path: Path) -> None:
    pytest.importorskip("grpc", reason="Spark Connect's packages are not installed (pyspark[connect])")
    left_out = ("PYSPARK_SUBMIT_ARGS", "PYTEST_XDIST_WORKER", "PYTEST_CURRENT_TEST")
    environment = {name: value for name, value in os.environ.items() if name not in left_out}
    # Spark takes a free port for its server if it is told that it is tested.
    environment |= {"ELEPHAS_LIKE_CONNECT": "1", "SPARK_TESTING": "1", "TMPDIR": str(tmp_path)}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:xdist", "-p", "no:cacheprovider", str(TESTS)]
    run = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=900, cwd=TESTS)
    assert run.returncode == 0, run.stdout[-8000:] + run.stderr[-2000:]
    assert " passed" in run.stdout
    assert " skipped" not in run.stdout
