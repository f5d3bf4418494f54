"""A script: fits that say when their second epoch is over, and after SIGINT what is left of each. One Spark for all."""

from __future__ import annotations

import os
import sys
import tempfile
import threading
from pathlib import Path

import keras
import numpy as np
import psutil
from session import say, started
from small import line, points, trained

from elephas_like import SparkModel

SCRATCH = Path(tempfile.gettempdir())


class Busy(keras.Model):
    """A linear model whose train step waits for ever once a file is there."""

    def __init__(self, folder: str, **options: object) -> None:
        super().__init__(**options)
        self.folder = folder
        self.dense = keras.layers.Dense(1)

    def call(self, x):
        return self.dense(x)

    def train_step(self, data):
        import tensorflow as tf

        def wait(x):
            folder = Path(self.folder)
            if (folder / "be-busy").exists():
                (folder / f"busy-{os.getpid()}").touch()
                threading.Event().wait(600)
            return np.float32(0)

        with tf.control_dependencies([tf.numpy_function(wait, [data[0]], tf.float32)]):
            return super().train_step(data)

    def get_config(self):
        return {"folder": self.folder}


def interrupted(engine: str, workers: str, data: tuple) -> None:
    """One fit that waits for SIGINT."""
    for mark in SCRATCH.glob("busy-*"):
        mark.unlink()
    model = Busy(str(SCRATCH)) if workers == "busy" else line()
    if workers == "busy":
        model.compile("sgd", "mse")
        model(np.zeros((1, 2), "float32"))
    finished: list[list[np.ndarray]] = [model.get_weights()]

    class Tells(keras.callbacks.Callback):
        def on_epoch_end(self, epoch: int, logs: dict) -> None:
            finished.append(self.model.get_weights())
            if epoch == 1:
                if workers == "busy":
                    (SCRATCH / "be-busy").touch()
                say({"epoch": epoch + 1})

    listening = _ports()
    answer: dict[str, object] = {"interrupted": False}
    fitted = SparkModel(model, 2, engine=engine)
    try:
        fitted.fit(*data, epochs=100_000, verbose=0, callbacks=[Tells()])
    except KeyboardInterrupt:
        answer["interrupted"] = True
    left = model.get_weights()
    (SCRATCH / "be-busy").unlink(missing_ok=True)
    # One round an epoch. The interrupt may have come between a round's end and its callback, which has not seen it then.
    answer["weights_of_a_finished_round"] = all(np.isfinite(w).all() for w in left) and (
        workers == "ready" or all((a == b).all() for a, b in zip(left, finished[-1], strict=True))
    )
    answer["threads"] = [t.name for t in threading.enumerate() if t.name.startswith(("elephas", "tqdm"))]
    answer["ports"] = len(_ports() - listening)
    answer["files"] = [str(path) for path in SCRATCH.rglob("elephas_like-*")]
    answer["fits_again"] = trained(fitted.fit(*data, epochs=1, verbose=0))
    say(answer)


def spark_rows() -> tuple:
    """Rows on Spark, whose SIGINT handler is PySpark's from here on."""
    return (started("local[2]", "interrupted").parallelize(points(20), 2),)


def main(*fits: str) -> None:
    x, y = zip(*points(20), strict=True)
    rows: tuple = ()
    for fit in fits:
        engine, workers = fit.split("-")
        if engine != "in_process":
            rows = rows or spark_rows()
        given = rows if rows else (np.array(x, "float32"), np.array(y, "float32")[:, None])
        interrupted(engine, workers, given)
    if rows:
        rows[0].context.stop()


def _ports() -> set[int]:
    return {c.laddr.port for c in psutil.Process().net_connections("inet") if c.status == psutil.CONN_LISTEN}


if __name__ == "__main__":
    main(*sys.argv[1:])
