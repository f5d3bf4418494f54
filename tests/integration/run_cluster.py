"""A script: the same fit twice on a cluster of two executors, the second one with a stop in which it can be disturbed.

With the jobs engine, the second fit has its updates added up by Spark, and a task that adds kills its executor: with it go the
updates of a worker that has trained there, and what it had added.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

os.environ |= {"TF_NUM_INTRAOP_THREADS": "1", "TF_NUM_INTEROP_THREADS": "1"}

import keras
import psutil
import pyspark
from run_engine import digest, mlp
from session import say, started
from small import digits

from elephas_like import SparkModel
from elephas_like.engine import job_rounds
from elephas_like.strategies import Nesterov


class Reports(keras.callbacks.Callback):
    """Counts rows with a Spark job after an epoch, while the workers hold all slots."""

    def __init__(self, data: pyspark.RDD) -> None:
        super().__init__()
        self.data = data

    def on_epoch_end(self, epoch: int, logs: dict) -> None:
        if epoch == 1:
            say({"rows": self.data.count()})


class Stops(keras.callbacks.Callback):
    """Says that the second epoch is over, and goes on when it is told to."""

    def on_epoch_end(self, epoch: int, logs: dict) -> None:
        if epoch == 1:
            say({"epoch": epoch + 1})
            sys.stdin.readline()


class Kills(Nesterov):
    """The default strategy. Whoever is the first to add updates up kills its executor."""

    marker = ""

    def reduction(self, context, held=()):
        if pyspark.TaskContext.get() is not None:
            try:
                Path(self.marker).touch(exist_ok=False)
            except FileExistsError:
                pass
            else:
                (executor,) = (each for each in psutil.Process().parents()[:3] if each.name() == "java")
                executor.kill()
        return super().reduction(context, dict(held))


def main(engine: str, given: str) -> None:
    context = started("local-cluster[2,1,1024]", "cluster", log_level="ERROR")
    x, y = digits()
    rows = list(zip(x[:300].reshape(-1, 8, 8, 1), y[:300].tolist(), strict=True))
    data = context.parallelize(rows, 2)
    if given == "shuffled":  # files of a shuffle are lost with their executor
        data = context.parallelize(list(enumerate(rows)), 4).sortByKey(numPartitions=2).values()
    for disturbed in (False, True):
        model = mlp()
        strategy = None
        if disturbed and engine == "jobs":
            job_rounds.worth_it = lambda *_, **__: True
            Kills.marker = str(Path(tempfile.gettempdir(), "killed").absolute())
            strategy = Kills()
        fitted = SparkModel(model, 2, seed=7, engine=engine, batch_size=16, strategy=strategy)
        callbacks = [Reports(data) if given == "reported" else Stops()] if disturbed else []
        history = fitted.fit(data, epochs=5, verbose=0, validation_split=0.1, callbacks=callbacks)
        answer = {
            "weights": digest(model.get_weights()),
            "optimizer": digest([variable.numpy() for variable in model.optimizer.variables]),
            "history": dict(history.history.items()),
            "samples": [record.samples for record in history.rounds],
        }
        say(answer)
    if engine == "jobs":
        say({"killed": Path(tempfile.gettempdir(), "killed").exists()})
    context.stop()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
