"""A script: fits on a cluster of two executors, each with a stop in which it can be disturbed. Before them the same undisturbed.

How each is meant is an argument, "engine:rows". All share the cluster, whose start takes longer than a fit.

Before the fit with a callback that reports, an executor is killed: Spark has one slot when the fit asks for two.

The first fit with the jobs engine has its updates added up by Spark, and a task that adds kills its executor: with it go the
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
from elephas_like.engine.shuffled_sums import worth_it
from elephas_like.spark import slots
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


def shards(scratch: Path) -> set[str]:
    """The directories of shards on all executors of this machine."""
    return {str(shard) for shard in scratch.rglob("elephas_like-*/worker-*")}


def kill_one(context: pyspark.SparkContext) -> None:
    """Kill an executor, and wait until Spark knows."""
    java = (each for each in psutil.Process().children(recursive=True) if each.name() == "java")
    next(each for each in java if "org.apache.spark.executor.CoarseGrainedExecutorBackend" in each.cmdline()).kill()
    while slots.slots(context, 0.0) == 2:
        pass


def learned(
    data: pyspark.RDD, engine: str, *callbacks: keras.callbacks.Callback, strategy: Nesterov | None = None
) -> dict:
    """What a fit learns."""
    model = mlp()
    fitted = SparkModel(
        model, 2, seed=7, engine=engine, batch_size=16, strategy=strategy, join_timeout=150
    )  # beside other tests
    history = fitted.fit(data, epochs=5, verbose=0, validation_split=0.1, callbacks=list(callbacks))
    return {
        "weights": digest(model.get_weights()),
        "optimizer": digest([variable.numpy() for variable in model.optimizer.variables]),
        "history": dict(history.history.items()),
        "samples": [record.samples for record in history.rounds],
    }


def main(*fits: str) -> None:
    slots.SETTLED_SECONDS = 0.0  # as where the second executor needs longer than that after the first one
    context = started("local-cluster[2,1,1024]", "cluster", log_level="ERROR")
    x, y = digits()
    rows = list(zip(x[:300].reshape(-1, 8, 8, 1), y[:300].tolist(), strict=True))
    data = {
        "parallelized": context.parallelize(rows, 2),
        # Files of a shuffle are lost with their executor.
        "shuffled": context.parallelize(list(enumerate(rows)), 4).sortByKey(numPartitions=2).values(),
    }
    marker = Path(tempfile.gettempdir(), "killed").absolute()
    say({kind: learned(given, "server") for kind, given in data.items()})
    for each in fits:
        engine, given = each.split(":")
        strategy = None
        if engine == "jobs" and not marker.exists():
            job_rounds.worth_it = lambda *_, **__: True
            Kills.marker = str(marker)
            strategy = Kills()
        if given == "reported":
            kill_one(context)
            before = shards(marker.parent)  # of executors that were killed
            say(learned(data["parallelized"], engine, Reports(data["parallelized"])))
            say({"left": sorted(shards(marker.parent) - before)})
        else:
            say(learned(data[given], engine, Stops(), strategy=strategy))
        if strategy is not None:
            say({"killed": marker.exists()})
            job_rounds.worth_it = worth_it
    context.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
