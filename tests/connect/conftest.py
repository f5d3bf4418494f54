"""Tests over Spark Connect. They need a process of their own, as it allows no classic session beside: `pytest tests/connect`.

In the ordinary run they are ignored here, and run by tests/integration/test_connect.py.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator

import pytest

if "ELEPHAS_LIKE_CONNECT" not in os.environ:
    collect_ignore_glob = ["test_*.py"]


@pytest.fixture(scope="session")
def remote() -> Iterator[object]:
    """A session of Spark Connect, whose server Spark starts on this machine with two slots."""
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as shells have it for what they start in the background
        signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ.pop("PYSPARK_SUBMIT_ARGS", None)  # of the classic session
    from pyspark.sql import SparkSession

    session = SparkSession.builder.remote("local[2]").getOrCreate()
    session.conf.set("spark.sql.shuffle.partitions", "2")
    yield session
    session.stop()


@pytest.fixture(scope="session")
def df(remote):
    """240 digits: features, label."""
    from data import X, Y

    rows = [(row, int(label)) for row, label in zip(X.tolist(), Y, strict=True)]
    return remote.createDataFrame(rows, "features array<double>, label long")
