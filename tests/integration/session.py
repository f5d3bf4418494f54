"""The Spark of a script beside this, and how it answers. Script (scripts.py) starts it quiet, on TensorFlow and without a GPU."""

from __future__ import annotations

import json
import os
import signal
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark import SparkContext


if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as shells have it for what they start in the background
    signal.signal(signal.SIGINT, signal.default_int_handler)


def started(
    master: str, name: str, settings: Mapping[str, str] | None = None, *, log_level: str = "OFF"
) -> SparkContext:
    """A SparkContext on this machine, whose files are in the script's own directory."""
    import pyspark

    if master.startswith("local-cluster"):
        os.environ["SPARK_HOME"] = str(Path(pyspark.__file__).parent)
    conf = pyspark.SparkConf().set("spark.ui.enabled", "false").set("spark.driver.host", "127.0.0.1")
    conf = conf.set("spark.local.dir", tempfile.gettempdir()).setAll(list((settings or {}).items()))
    context = pyspark.SparkContext(master, name, conf=conf)
    context.setLogLevel(log_level)
    return context


def say(answer: Mapping[str, object]) -> None:
    """A line of JSON, which `Script.answer` returns."""
    print(json.dumps(answer), flush=True)
