"""A script: a fit on one worker whose shard is 1 GB, and the memory that the worker took for it.

Says {"grown_mb": ..., "samples": ..., "loss": ...}: the most anonymous memory beyond what the worker had before its first row.
With "all rows" the shard is held in memory, as a version without chunks would.
"""

from __future__ import annotations

import os
import sys
import threading
from functools import partial
from pathlib import Path

import keras
import numpy as np
from session import say, started

from elephas_like import SparkModel
from elephas_like.trainer import request

WIDTH = 784
ROWS = 2**30 // (WIDTH * 4)


def main(version: str) -> None:
    scratch = Path(os.environ["TMPDIR"])
    if version == "all rows":
        request.FitConfig = partial(request.FitConfig, resident_bytes=2**40)
    context = started("local[1]", "big shard")
    peak = scratch / "grown"

    def anonymous() -> int:
        status = Path("/proc/self/status").read_text()
        return int(status.split("RssAnon:")[1].split()[0]) // 1024

    def rows(count: int, _: int, partition: object):
        list(
            partition
        )  # Spark does not reuse a process that leaves input behind, and TensorFlow is to be in it already
        assert count != ROWS or "tensorflow" in sys.modules
        before, most = anonymous(), 0

        def watch() -> None:
            nonlocal most
            while not (scratch / "done").exists():
                grown = anonymous() - before
                if grown > most:
                    most = grown
                    peak.write_text(str(most))
                threading.Event().wait(0.02)

        if count == ROWS:
            threading.Thread(target=watch, daemon=True).start()
        for number in range(count):
            yield np.full(WIDTH, number / ROWS, np.float32), np.float32(number / ROWS)

    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((WIDTH,)), keras.layers.Dense(8, activation="tanh"), keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(1e-4), "mse")
    spark_model = SparkModel(model, num_workers=1, batch_size=256, seed=1)
    for count in (2000, ROWS):  # the first fit imports TensorFlow and compiles the model
        data = context.parallelize([0], 1).mapPartitionsWithIndex(partial(rows, count))
        history = spark_model.fit(data, epochs=1, verbose=0)
    (scratch / "done").touch()
    samples = sum(record.samples for record in history.rounds)
    say({"grown_mb": int(peak.read_text()), "samples": samples, "rows": ROWS})
    context.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
