"""A script: two GPUs that four cores share, as far as Spark and CUDA's variable know, and what worker processes see of them.

No card is needed: TensorFlow computes on the CPU where CUDA finds none.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

os.environ |= {"TF_NUM_INTRAOP_THREADS": "1", "TF_NUM_INTEROP_THREADS": "1"}

from session import say, started
from small import line, points

import elephas_like
from elephas_like import SparkModel
from elephas_like.engine import job_rounds
from elephas_like.spark.gpus import GpuTasks, gpu_tasks, on_gpus, take_gpu

if TYPE_CHECKING:
    from pyspark import SparkContext

SEEN = Path(tempfile.mkdtemp(prefix="seen-"))


def noting(seen: Path, fit: int):
    """A loss that notes, where it is traced, which process sees which card. Each fit has its own: graphs are kept."""

    def squared(y_true, y_pred):
        import os

        import keras

        shown = (os.environ.get("CUDA_VISIBLE_DEVICES"), os.environ.get("TF_FORCE_GPU_ALLOW_GROWTH"))
        (seen / f"{os.getpid()}").write_text(" ".join(map(str, shown)))
        return keras.ops.mean(keras.ops.square(y_true - y_pred), axis=-1) + 0.0 * fit

    return squared


def cards() -> dict[str, str]:
    """What processes have noted since the last call, but for this one: "card growth" by process."""
    found = {each.name: each.read_text() for each in SEEN.iterdir() if each.name != str(os.getpid())}
    for each in SEEN.iterdir():
        each.unlink()
    return found


def cluster(how: str) -> SparkContext:
    """An executor whose discovery script names two cards; Spark gives one to each task where they are given."""
    here = Path(tempfile.mkdtemp(prefix="cards-"))
    script = here / "discover"
    script.write_text("""#!/bin/sh\necho '{"name": "gpu", "addresses": ["0", "1"]}'\n""")
    script.chmod(0o755)
    settings = {
        "spark.worker.resource.gpu.amount": "2",
        "spark.worker.resource.gpu.discoveryScript": str(script),
        "spark.executor.resource.gpu.amount": "2",
    }
    if how == "given":
        settings["spark.task.resource.gpu.amount"] = "1"
    return started("local-cluster[1,4,1024]", "gpus", settings, log_level="ERROR")


def at_once(context: SparkContext, wanted: GpuTasks | None) -> list[str]:
    """The cards of two tasks that run at the same time, in processes of RDDs."""

    def card(rows):
        from pyspark import BarrierTaskContext

        take_gpu()
        BarrierTaskContext.get().barrier()
        return [*rows, os.environ["CUDA_VISIBLE_DEVICES"]][-1:]

    return on_gpus(context.parallelize([0, 0], 2).barrier().mapPartitions(card), wanted).collect()


def main(how: str, *engines: str) -> None:
    context = started("local[4]", "gpus", log_level="ERROR") if how == "local" else cluster(how)
    resources = {} if how == "given" else {"resources": "gpu"}
    job_rounds.worth_it = lambda *_, **__: True  # tasks that add updates up are given what those that train are given
    rows = context.parallelize(points(40), 4)
    for number, engine in enumerate(engines):
        workers = None if engine == "server" else 2  # as many as there are cards, of four slots
        model = SparkModel(line(loss=noting(SEEN, number)), workers, engine=engine, seed=7, **resources)
        history = model.fit(rows, epochs=1, verbose=0)
        say({"engine": engine, "workers": len(history.rounds[0].workers), "cards": cards()})
    model.evaluate(rows)
    say({"cards": cards()})
    shown = elephas_like.run_on_workers(lambda member: os.environ["CUDA_VISIBLE_DEVICES"], 2, **resources)
    say({"shown": shown})
    wanted = gpu_tasks(context, resources.get("resources"))
    for _ in range(4):  # Spark hands its processes out in turn: tasks without a card bring another two to the front
        context.parallelize([0], 1).map(str).collect()
        say({"shown": at_once(context, wanted)})
    context.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
