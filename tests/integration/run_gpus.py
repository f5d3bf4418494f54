"""A script: an executor of four cores whose discovery script names two GPUs, and what worker processes see of them.

No card is needed: TensorFlow computes on the CPU where CUDA finds none.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

os.environ |= {"TF_NUM_INTRAOP_THREADS": "1", "TF_NUM_INTEROP_THREADS": "1"}

from session import say, started
from small import line, points

import elephas_like
from elephas_like import SparkModel
from elephas_like.engine import job_rounds

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


def main(how: str) -> None:
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
    context = started("local-cluster[1,4,1024]", "gpus", settings, log_level="ERROR")
    resources = {} if how == "given" else {"resources": "gpu"}
    job_rounds.worth_it = lambda *_, **__: (
        True
    )  # the tasks that add updates up are given what those that train are given
    rows = context.parallelize(points(40), 4)
    for number, engine in enumerate(("server", "jobs", "gang", "server")):
        workers = None if engine == "server" else 2  # as many as there are cards, of four slots
        model = SparkModel(line(loss=noting(SEEN, number)), workers, engine=engine, seed=7, **resources)
        history = model.fit(rows, epochs=1, verbose=0)
        say({"engine": engine, "workers": len(history.rounds[0].workers), "cards": cards()})
    model.evaluate(rows)
    say({"cards": cards()})
    shown = elephas_like.run_on_workers(lambda member: os.environ["CUDA_VISIBLE_DEVICES"], 2, **resources)
    say({"shown": shown})
    context.stop()


if __name__ == "__main__":
    main(sys.argv[1])
