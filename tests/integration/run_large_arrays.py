"""A script: a fit on arrays that are too large for Spark's messages, given as they are, as a ShardedDataset, and as rows."""

from __future__ import annotations

import os
import sys
from pathlib import Path

os.environ |= {"TF_NUM_INTRAOP_THREADS": "1", "TF_NUM_INTEROP_THREADS": "1"}

import keras
import numpy as np
from session import say, started

from elephas_like import SparkModel, shard


def main(engine: str) -> None:
    settings = {"spark.rpc.message.maxSize": "10"}
    context = started("local-cluster[2,1,1024]", "large arrays", settings, log_level="ERROR")
    x = np.ones((6_000, 1000), "float32")  # 11 MiB for each of two workers
    y = np.ones((6_000, 1), "float32")
    answer = {}
    for given in ("arrays", "sharded", "rows"):
        keras.utils.set_random_seed(1)
        model = keras.Sequential([keras.Input((1000,)), keras.layers.Dense(1)])
        model.compile(keras.optimizers.SGD(1e-4), "mse")
        fitted = SparkModel(model, 2, engine=engine, batch_size=1000, seed=3)
        if given == "arrays":
            history = fitted.fit(x, y, epochs=1, verbose=0)
        elif given == "rows":
            history = fitted.fit(context.parallelize(list(zip(x, y, strict=True)), 8), epochs=1, verbose=0)
        else:
            with shard(x, 2, y=y) as dataset:
                history = fitted.fit(dataset, epochs=1, verbose=0)
        answer[given] = [history.history["loss"], sum(record.samples for record in history.rounds)]
    left = [*Path(os.environ["TMPDIR"]).rglob("elephas_like-*/worker-*")]
    say({**answer, "left": len(left)})
    context.stop()


if __name__ == "__main__":
    main(sys.argv[1])
