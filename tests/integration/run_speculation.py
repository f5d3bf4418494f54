"""A script: the same fit twice on a cluster that speculates, the second one with a task that hangs in its first attempt.

jobs: one round's task of worker 1 waits for ever, unless another attempt has got there before.
server: Spark copies every task that runs for more than a second; the copies are parked while the first attempts live.
"""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path

os.environ |= {"TF_NUM_INTRAOP_THREADS": "1", "TF_NUM_INTEROP_THREADS": "1"}

import keras
import numpy as np
from pyspark import TaskContext
from run_engine import digest
from session import say, started

from elephas_like import SparkModel


class Slow(keras.Model):
    """A linear model whose first train step on a row that begins with 1000 waits for ever, once that is asked for."""

    def __init__(self, folder: str, **options: object) -> None:
        super().__init__(**options)
        self.folder = folder
        self.drop = keras.layers.Dropout(0.2, seed=3)
        self.dense = keras.layers.Dense(1)

    def call(self, x, training=False):
        return self.dense(self.drop(x / 100, training=training))

    def train_step(self, data):
        import tensorflow as tf

        def wait(x):
            folder = Path(self.folder)
            if (x == 1000).any() and (folder / "be-slow").exists():
                try:
                    (folder / "slow").touch(exist_ok=False)
                except FileExistsError:
                    (folder / "copy").touch()
                else:
                    threading.Event().wait(600)
            return np.float32(0)

        with tf.control_dependencies([tf.numpy_function(wait, [data[0]], tf.float32)]):
            return super().train_step(data)

    def get_config(self):
        return {"folder": self.folder}


def main(engine: str, master: str) -> None:
    scratch = Path(os.environ["TMPDIR"])
    settings = {
        "spark.executor.memory": "512m",
        "spark.speculation": "true",
        "spark.speculation.interval": "100ms",
    }
    if engine == "server":
        # Spark looks at the threshold only where it knows that all tasks fit into one executor.
        settings |= {"spark.speculation.task.duration.threshold": "1s", "spark.executor.cores": "2"}
    context = started(master, "speculation", settings, log_level="ERROR")
    folder = str(scratch)

    def rows(index: int, _: object):
        Path(folder, f"attempt-{TaskContext.get().taskAttemptId()}").touch()
        return (([float(index * 20 + i), 1000.0 * index], float(i)) for i in range(20))

    data = context.parallelize(range(2), 2).mapPartitionsWithIndex(rows)
    for disturbed in (False, True):
        if disturbed and engine == "jobs":
            (scratch / "be-slow").touch()
        keras.utils.set_random_seed(1)
        model = Slow(folder)
        model.compile("adam", "mse")
        model(np.zeros((1, 2), "float32"))
        before = len(list(scratch.glob("attempt-*")))
        history = SparkModel(model, 2, seed=7, engine=engine, batch_size=4, frequency="epoch").fit(
            data, epochs=4, verbose=0, callbacks=[Copied(scratch)] if engine == "server" and disturbed else []
        )
        answer = {
            "weights": digest(model.get_weights()),
            "optimizer": digest([variable.numpy() for variable in model.optimizer.variables]),
            "samples": [record.samples for record in history.rounds],
            "copied": (scratch / "copy").exists(),
            "attempts": len(list(scratch.glob("attempt-*"))) - before,
        }
        say(answer)
    context.stop()


class Copied(keras.callbacks.Callback):
    """Holds the first epoch's end until Spark has started a copy of each task."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder = folder
        self.known = len(list(folder.glob("attempt-*")))

    def on_epoch_end(self, epoch: int, logs: dict) -> None:
        for _ in range(300):
            if len(list(self.folder.glob("attempt-*"))) >= self.known + 4:
                return
            threading.Event().wait(0.1)


if __name__ == "__main__":
    main(*sys.argv[1:])
