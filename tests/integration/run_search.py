"""A script: a search that says when it has built a model on the driver's side of things, and what it found."""

from __future__ import annotations

import sys
import threading

import keras
from session import say, started
from small import digits

from elephas_like import search


def build(params):
    model = keras.Sequential(
        [keras.Input((64,)), keras.layers.Dense(params["units"], "relu"), keras.layers.Dense(10, "softmax")]
    )
    model.compile("adam", "sparse_categorical_crossentropy")
    return model


def rule(losses, others):
    """Lets every trial go on; on the driver, it sees each trial's first epoch."""
    if len(losses) == 1:
        say({"built": True})
    return False


def main(evals: str, folder: str) -> None:
    context = started("local[2]", "search")
    x, y = digits()
    found = search(
        build,
        {"units": ("uniformint", 4, 64)},
        (x[:300], y[:300]),
        max_evals=int(evals),
        algo="random",
        epochs=20,
        objective="loss",
        pruning=rule,
        seed=0,
        checkpoint_dir=folder,
        resume="auto",
        verbose=0,
    )
    answer = {
        "trials": found.trials["trial"].tolist(),
        "status": found.trials["status"].tolist(),
        "interrupted": found.interrupted,
        "models": len(found.best_models((found.trials["status"] == "ok").sum())) if evals == "6" else 0,
        "evaluated": float(found.best_model.evaluate(x, y, verbose=0)),
        "threads": [thread.name for thread in threading.enumerate() if thread.name.startswith("elephas")],
    }
    say(answer)
    context.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
