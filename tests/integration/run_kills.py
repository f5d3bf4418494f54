"""A script: many small fits on one Spark session, each with faults that its seed decides, and what became of it."""

from __future__ import annotations

import shutil
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

import keras
import numpy as np
import pyspark
from run_engine import digest
from session import say, started
from small import points

from elephas_like import SparkModel, shard
from elephas_like.exchange.membership import Waits
from elephas_like.model import serving
from elephas_like.testing import Fault, delay, drop, inject, kill

serving.Waits = partial(
    Waits, lease_seconds=1.0
)  # a killed worker's place is free sooner; no other attempt waits for one
ROWS, ROUNDS, STEP = 40, 4, 1 / 1024
RUNS = ("server", "jobs", "asynchronous", "server", "hogwild")


def noisy() -> keras.Model:
    """A model with everything that could differ on a second attempt: dropout, statistics, momenta."""
    keras.utils.set_random_seed(1)
    layers = keras.layers
    model = keras.Sequential(
        [keras.Input((2,)), layers.Dense(4), layers.BatchNormalization(), layers.Dropout(0.3), layers.Dense(1)]
    )
    model.compile("adam", "mse")
    return model


def mean_prediction(_: object, prediction: object) -> object:
    return keras.ops.mean(prediction, axis=-1)


def counting() -> keras.Model:
    """A model whose weight falls by STEP with every step, whatever the rows and the order of updates."""
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")])
    model.compile(keras.optimizers.SGD(STEP), mean_prediction)
    return model


def inputs(context: pyspark.SparkContext) -> dict[str, pyspark.RDD]:
    rows = points(ROWS)
    ones = [([1.0, 1.0], 0.0)] * ROWS
    keyed = context.parallelize(list(enumerate(rows)), 4)
    return {
        "parallelized": context.parallelize(rows, 2),
        "shuffled": keyed.partitionBy(2, lambda number: number % 2).values(),
        "ones": context.parallelize(ones, 2),
    }


def synchronous(engine: str, data: object, packed: bool, *callbacks: keras.callbacks.Callback) -> dict:
    """What a synchronous fit learns. packed: workers follow it by packed steps."""
    model, options = noisy(), {"state_codec": "int4" if packed else None}
    fitted = SparkModel(model, 2, seed=7, engine=engine, batch_size=5, frequency=2, **options)
    history = fitted.fit(data, epochs=2, verbose=0, callbacks=list(callbacks))
    optimizer = [variable.numpy() for variable in model.optimizer.variables]
    return {
        "weights": digest(model.get_weights() + optimizer),
        "history": dict(history.history),
        "samples": [[record.worker, record.samples] for each in history.rounds for record in each.workers],
    }


def alone(mode: str, data: pyspark.RDD) -> dict:
    """What an asynchronous fit counts: steps by its records, and by how far the weights have moved."""
    model = counting()
    fitted = SparkModel(model, 2, seed=7, engine="server", mode=mode, strategy="downpour", batch_size=5, frequency=1)
    history = fitted.fit(data, epochs=2, verbose=0)
    records = [record for each in history.rounds for record in each.workers]
    return {
        "samples": sum(record.samples for record in records),
        "steps": sum(record.steps for record in records if not record.dropped),
        "moved": (-model.get_weights()[0] / STEP).ravel().tolist(),
    }


def plan(random: np.random.Generator, kinds: list[str], rounds: int) -> list[Fault]:
    """One or two faults of different workers."""
    faults = []
    for worker in random.permutation(2)[: random.integers(1, 3)].tolist():
        place = {"worker": worker, "round": int(random.integers(rounds))}
        match random.choice(kinds):
            case "kill":
                faults.append(kill(**place, step=int(random.integers(3))))
            case "delay":
                faults.append(delay(**place, seconds=float(random.uniform(0, 0.5))))
            case when:
                faults.append(drop(**place, when=when))
    return faults


def disturbed(seed: int, data: dict[str, pyspark.RDD]) -> dict:
    """One seed's fit, and what happened to it."""
    random = np.random.default_rng(seed)
    began = time.perf_counter()
    run = RUNS[seed % len(RUNS)]
    given = str(random.choice(["parallelized", "shuffled"]))
    faults = plan(random, *(["kill", "delay"], ROUNDS) if run == "jobs" else _served(run))
    with inject(*faults) as injected:
        answer = (
            alone(run, data["ones"])
            if run in ("asynchronous", "hogwild")
            else synchronous(run, data[given], given == "shuffled")
        )
    happened = [[each.fault.kind, each.fault.worker, each.round, each.attempt] for each in injected.happened]
    took = time.perf_counter() - began
    return {
        "seed": seed,
        "run": run,
        "given": given,
        "faults": len(faults),
        "happened": happened,
        "took": took,
        **answer,
    }


def _served(run: str) -> tuple[list[str], int]:
    """The kinds of faults over a server, and the rounds that surely come: of an asynchronous worker only the first."""
    return ["kill", "sending", "reply", "delay"], ROUNDS if run == "server" else 1


class Deletes(keras.callbacks.Callback):
    """Deletes the rows of a worker in mid-fit, as an executor that is decommissioned does: Spark keeps its reference of them."""

    def on_epoch_begin(self, epoch: int, logs: dict | None = None) -> None:
        if epoch == 1:
            (directory,) = Path(tempfile.gettempdir()).rglob("elephas_like-*/worker-1")
            shutil.rmtree(directory)


def vanished(context: pyspark.SparkContext) -> dict:
    """What a fit learns on rows that are kept, and have vanished when a task is run again."""
    with shard(context.parallelize(points(ROWS), 2), 2) as rows, inject(kill(worker=1, round=2)) as injected:
        answer = synchronous("server", rows, False, Deletes())
    return {"happened": len(injected.happened), **answer}


def main(first: str, last: str) -> None:
    context = started("local[2,8]", "kills")
    data = inputs(context)
    for engine in ("server", "jobs"):
        for given in ("parallelized", "shuffled"):
            say({"engine": engine, "given": given, **synchronous(engine, data[given], given == "shuffled")})
    say(vanished(context))
    for seed in range(int(first), int(last)):
        say(disturbed(seed, data))
    context.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
