"""A script: fits over Spark that keep checkpoints, and say when an epoch is over and what came out.

Of each, two arguments: the directory of its checkpoints ("none" for none), and options of SparkModel in JSON.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys

os.environ |= {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1", "KERAS_BACKEND": "tensorflow"}

import keras
import numpy as np
from pyspark import RDD, SparkConf, SparkContext
from small import classifier, digits, rows, trained

from elephas_like import SparkModel


class Tells(keras.callbacks.Callback):
    """Says that an epoch is over, and goes on when it is told to."""

    def on_epoch_end(self, epoch: int, logs: dict) -> None:
        print(json.dumps({"epoch": epoch}), flush=True)
        sys.stdin.readline()


def main(engine: str, *fits: str) -> None:
    conf = SparkConf().set("spark.ui.enabled", "false").set("spark.driver.host", "127.0.0.1")
    context = SparkContext("local[2]", "checkpointed", conf=conf)
    context.setLogLevel("OFF")
    x, y = digits()
    # Two partitions of rows: the second of three has been joined with the first
    data = context.parallelize(rows(x[:600], y[:600]), 3).coalesce(2)
    for folder, options in zip(fits[::2], fits[1::2], strict=True):
        print(json.dumps(learned(data, engine, folder, json.loads(options))), flush=True)
    context.stop()


def learned(data: RDD, engine: str, folder: str, options: dict) -> dict:
    """What a fit learns."""
    model = classifier()
    stopping = keras.callbacks.EarlyStopping("loss", patience=100, restore_best_weights=True)
    history = SparkModel(model, 2, engine=engine, seed=5, **options).fit(
        data,
        epochs=4,
        verbose=0,
        callbacks=[Tells(), stopping],
        checkpoint_dir=None if folder == "none" else folder,
        checkpoint_freq=1e-9,
    )
    weights = b"".join(np.array(each.value).tobytes() for each in (*model.variables, *model.optimizer.variables))
    return {
        "weights": hashlib.sha256(weights).hexdigest(),
        "losses": history.history["loss"],
        "rounds": len(history.rounds),
        "trained": trained(history),
        "best": [float(stopping.best), stopping.best_epoch],
    }


if __name__ == "__main__":
    main(*sys.argv[1:])
