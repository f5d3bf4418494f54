"""The tests over Spark Connect, in a process of their own: a classic session and a remote one exclude each other."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from forked import run

TESTS = Path(__file__).parents[1] / "connect"


@pytest.mark.slow
@pytest.mark.long
def test_everything_over_spark_connect(tmp_path: Path) -> None:
    pytest.importorskip("grpc", reason="Spark Connect's packages are not installed (pyspark[connect])")
    left_out = ("PYSPARK_SUBMIT_ARGS", "PYTEST_XDIST_WORKER", "PYTEST_CURRENT_TEST")
    environment = {name: value for name, value in os.environ.items() if name not in left_out}
    # Spark takes a free port for its server if it is told that it is tested.
    environment |= {"ELEPHAS_LIKE_CONNECT": "1", "SPARK_TESTING": "1", "TMPDIR": str(tmp_path)}
    command = ["-m", "pytest", "-q", "-p", "no:xdist", "-p", "no:cacheprovider", TESTS]
    done = run(command, environment=environment, timeout=900, folder=TESTS)
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
    assert " passed" in done.stdout
    assert " skipped" not in done.stdout
