"""A script: a fit over Spark that keeps checkpoints, and says when an epoch is over and what came out."""

from __future__ import annotations

import hashlib
import json
import os
import sys

os.environ |= {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1", "KERAS_BACKEND": "tensorflow"}

import keras
import numpy as np
from pyspark import SparkConf, SparkContext
from small import classifier, digits, rows, trained

from elephas_like import SparkModel


class Tells(keras.callbacks.Callback):
    """Says that an epoch is over, and goes on when it is told to."""

    def on_epoch_end(self, epoch: int, logs: dict) -> None:
        print(json.dumps({"epoch": epoch}), flush=True)
        sys.stdin.readline()


def main(engine: str, folder: str, options: str) -> None:
    conf = SparkConf().set("spark.ui.enabled", "false").set("spark.driver.host", "127.0.0.1")
    context = SparkContext("local[2]", "checkpointed", conf=conf)
    context.setLogLevel("OFF")
    x, y = digits()
    model = classifier()
    # Two partitions of rows: the second of three has been joined with the first
    data = context.parallelize(rows(x[:600], y[:600]), 3).coalesce(2)
    stopping = keras.callbacks.EarlyStopping("loss", patience=100, restore_best_weights=True)
    history = SparkModel(model, 2, engine=engine, seed=5, **json.loads(options)).fit(
        data,
        epochs=4,
        verbose=0,
        callbacks=[Tells(), stopping],
        checkpoint_dir=None if folder == "none" else folder,
        checkpoint_freq=1e-9,
    )
    weights = b"".join(np.array(each.value).tobytes() for each in (*model.variables, *model.optimizer.variables))
    answer = {
        "weights": hashlib.sha256(weights).hexdigest(),
        "losses": history.history["loss"],
        "rounds": len(history.rounds),
        "trained": trained(history),
        "best": [float(stopping.best), stopping.best_epoch],
    }
    print(json.dumps(answer), flush=True)
    context.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
