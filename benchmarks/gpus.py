"""What workers do with the cards of this machine: on which they compute, how much memory they hold, and whether the model is Keras' own.

    KERAS_BACKEND=jax python benchmarks/gpus.py [--executors 1] [--epochs 2]

Executors of a `local-cluster` find cards by `nvidia-smi`, as a platform's do, and share them out: as many each as there are cards for. Each
engine fits once with resources="gpu", on 4,000 images of MNIST-5k, and each fit's weights are compared with Keras' own fit of the
same batches on one card. The table shows, by engine: what the workers saw, and the MiB of the cards that their processes held.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

os.environ |= {
    "TF_FORCE_GPU_ALLOW_GROWTH": "true",
    "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
}  # before Keras is imported

import keras
import numpy as np
import pyspark
from pyspark.sql import SparkSession

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "examples"))
from mnist_data import load

from elephas_like import SparkModel, run_on_workers

QUERY = ["nvidia-smi", "--format=csv,noheader,nounits"]


def cards() -> list[str]:
    """The indices of this machine's cards."""
    return subprocess.run([*QUERY, "--query-gpu=index"], capture_output=True, text=True, check=True).stdout.split()


def held() -> dict[int, int]:
    """MiB of cards by process, as far as the driver of the cards tells; 0 stands for all processes together."""
    told = subprocess.run([*QUERY, "--query-compute-apps=pid,used_memory"], capture_output=True, text=True, check=True)
    whole = subprocess.run([*QUERY, "--query-gpu=memory.used"], capture_output=True, text=True, check=True)
    lines = [line.split(",") for line in told.stdout.splitlines() if line.count(",") == 1]
    found = {int(process): int(memory) for process, memory in lines if memory.strip().isdigit()}
    return {0: sum(map(int, whole.stdout.split()))} | found


def mlp() -> keras.Model:
    keras.utils.set_random_seed(1)
    dense = keras.layers.Dense
    model = keras.Sequential([keras.Input((784,)), dense(128, "relu"), dense(128, "relu"), dense(10, "softmax")])
    model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
    return model


def noting(directory: Path, fit: int):
    """A loss that notes, where it is traced or first called, the process, its card, and where its arrays are."""

    def loss(y_true, y_pred):
        import os

        import keras

        if keras.backend.backend() == "jax":
            import jax

            place = str(jax.devices()[0])
        else:
            place = str(y_pred.device)
        note = directory / str(os.getpid())
        if place != "meta" and not note.exists():  # where Keras looks for shapes only
            note.write_text(json.dumps([os.environ.get("CUDA_VISIBLE_DEVICES"), place]))
        return keras.losses.sparse_categorical_crossentropy(y_true, y_pred) + 0.0 * fit

    return loss


class Memory(keras.callbacks.Callback):
    """What processes hold of the cards while a fit goes on, at most."""

    def __init__(self) -> None:
        super().__init__()
        self.held: dict[int, int] = {}

    def on_epoch_end(self, epoch: int, logs: object = None) -> None:
        for process, memory in held().items():
            self.held[process] = max(memory, self.held.get(process, 0))


def difference(ours: keras.Model, theirs: keras.Model) -> float:
    """The largest difference between the weights of two models."""
    pairs = zip(ours.get_weights(), theirs.get_weights(), strict=True)
    return max(float(np.abs(one - other).max()) for one, other in pairs)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--executors", type=int, default=1)
    parser.add_argument("--epochs", type=int, default=2)
    arguments = parser.parse_args()
    found, directory = cards(), Path(tempfile.mkdtemp(prefix="cards-"))
    amount = max(1, len(found) // arguments.executors)
    script = directory / "discover"
    script.write_text("""#!/bin/sh
printf '{"name": "gpu", "addresses": ["%s"]}\\n' "$(nvidia-smi --query-gpu=index --format=csv,noheader | paste -sd, | sed 's/,/", "/g')"
""")
    script.chmod(0o755)
    os.environ.setdefault("SPARK_HOME", str(Path(pyspark.__file__).parent))
    settings = {
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.worker.resource.gpu.amount": str(amount),
        "spark.worker.resource.gpu.discoveryScript": str(script),
        "spark.executor.resource.gpu.amount": str(amount),
    }
    builder = SparkSession.builder.master(f"local-cluster[{arguments.executors},2,2048]").config(
        map=settings | {"spark.ui.showConsoleProgress": "false"}
    )
    spark = builder.getOrCreate()
    context = spark.sparkContext
    context.setLogLevel("ERROR")

    x, y, x_test, y_test = load()
    rows = context.parallelize(list(zip(x, y.tolist(), strict=True)), len(found)).cache()
    print(f"{len(found)} card(s), {keras.backend.backend()}")
    ranks = run_on_workers(lambda gang: os.environ.get("CUDA_VISIBLE_DEVICES"), len(found), resources="gpu")
    print("run_on_workers:", ranks)
    print("| engine | workers | processes: cards, arrays on | MiB held by a worker | by all processes | s | accuracy |")
    print("|---|---|---|---|---|---|---|")
    models = {}
    for number, engine in enumerate(("server", "jobs", "gang")):
        seen = directory / engine
        seen.mkdir()
        model, memory = mlp(), Memory()
        model.compile("adam", noting(seen, number), metrics=["accuracy"])
        fit = SparkModel(model, engine=engine, resources="gpu", seed=7)
        begun = time.perf_counter()
        history = fit.fit(rows, epochs=arguments.epochs, batch_size=32, verbose=0, callbacks=[memory])
        seconds = time.perf_counter() - begun
        notes = {
            int(note.name): json.loads(note.read_text()) for note in seen.iterdir() if int(note.name) != os.getpid()
        }
        workers = [memory.held.get(process) for process in notes]
        accuracy = np.mean(np.asarray(fit.predict(x_test)).argmax(1) == y_test)
        print(
            f"| {engine} | {len(history.rounds[0].workers)} | {list(notes.values())} | {workers} | {memory.held.get(0)} "
            f"| {seconds:.1f} | {accuracy:.1%} |",
            flush=True,
        )
        models[engine] = model
    alone, one = mlp(), mlp()
    SparkModel(one, 1, engine="server", resources="gpu", seed=7).fit(
        rows, epochs=1, batch_size=len(x), shuffle=False, verbose=0
    )
    alone.fit(x, y, epochs=1, batch_size=len(x), shuffle=False, verbose=0)
    print(f"weights of one step, one worker beside Keras: {difference(one, alone):.1e} at most apart")
    for engine in ("jobs", "gang"):
        print(
            f"weights of the engines server and {engine}: {difference(models['server'], models[engine]):.1e} at most apart"
        )
    spark.stop()


if __name__ == "__main__":
    main()
