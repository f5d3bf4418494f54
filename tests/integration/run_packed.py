"""A script: fits on a standalone cluster whose executors have no Python packages but those of a packed environment.

It is given the name of the archive, which lies in its directory, and the cluster's URL. It says from where executors import what, how
long they took, and what fits have trained.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time

# As docs/deploy.md says: each executor unpacks the archive as ./environment.
os.environ |= {"PYSPARK_PYTHON": "./environment/bin/python", "PYSPARK_DRIVER_PYTHON": sys.executable}

from run_engine import digest, mlp
from session import say, started
from small import digits

from elephas_like import SparkModel


def imported(_: int, rows: object) -> list[dict[str, str]]:
    """Where a process of an executor has its packages from."""
    import keras
    import pyspark
    import tensorflow

    import elephas_like

    files = {module.__name__: str(module.__file__) for module in (elephas_like, keras, tensorflow, pyspark)}
    return [{"folder": os.getcwd(), "prefix": sys.prefix, **files}]


def main(archive: str, url: str) -> None:
    settings = {
        "spark.archives": f"{tempfile.gettempdir()}/{archive}#environment",
        "spark.executor.memory": "512m",
        "spark.executor.cores": "1",
    }
    context = started(url, "packed environment", {**settings, "spark.cores.max": "2"}, log_level="ERROR")
    begun = time.monotonic()
    context.parallelize(range(2), 2).count()  # executors fetch and unpack the archive
    say({"unpacked": round(time.monotonic() - begun, 1)})
    begun = time.monotonic()
    say({"executors": context.parallelize(range(2), 2).mapPartitionsWithIndex(imported).collect()})
    say({"imported": round(time.monotonic() - begun, 1)})
    x, y = digits()
    data = context.parallelize(list(zip(x[:200].reshape(-1, 8, 8, 1), y[:200].tolist(), strict=True)), 2)
    for engine in ("jobs", "server", "gang"):
        begun = time.monotonic()
        model = mlp()
        fitted = SparkModel(model, 2, seed=7, engine=engine, batch_size=16)
        fitted.fit(data, epochs=2, verbose=0)
        seconds = round(time.monotonic() - begun, 1)
        say({"engine": engine, "weights": digest(model.get_weights()), "seconds": seconds})
    rows = data.map(lambda row: row[0])
    say({"predicted": len(fitted.predict(rows))})
    context.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
