"""A script: members that train until SIGINT, and what is left of them."""

from __future__ import annotations

import os
import sys
import tempfile
import threading
from pathlib import Path

import keras
from session import say, started
from small import line, points

from elephas_like import train_ensemble


class Tells(keras.callbacks.Callback):
    """Says by a file that a member is under way."""

    def __init__(self, folder: str) -> None:
        super().__init__()
        self.folder = folder

    def on_epoch_end(self, epoch: int, logs: dict) -> None:
        if epoch == 1:
            (Path(self.folder) / f"training-{os.getpid()}").touch()


def main(_: str) -> None:
    scratch = Path(tempfile.gettempdir())
    context = started("local[2]", "interrupted")
    rdd = context.parallelize(points(20), 2)

    def watch() -> None:
        while len(list(scratch.glob("training-*"))) < 2:
            threading.Event().wait(0.1)
        say({"training": 2})

    threading.Thread(target=watch, daemon=True).start()
    answer: dict[str, object] = {"interrupted": False}
    try:
        train_ensemble(line, rdd, 4, epochs=10_000_000, callbacks=[Tells(str(scratch))], verbose=0)
    except KeyboardInterrupt:
        answer["interrupted"] = True
    answer["threads"] = [t.name for t in threading.enumerate() if t.name.startswith(("elephas", "tqdm"))]
    answer["files"] = [str(path) for path in scratch.rglob("elephas_like-*")]
    answer["trains_again"] = len(train_ensemble(line, rdd, 2, verbose=0).models)
    say(answer)
    context.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
