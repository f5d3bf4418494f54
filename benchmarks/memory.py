"""Peak memory of the driver and of a worker in one fit, in states: the weights and the optimizer's slots.

    python benchmarks/memory.py [--megabytes 100] [--workers 2] [--docs docs/performance.md]

Each row is a session of its own. A first fit of a small model loads what every fit needs. Then a model of the given size is built and
fitted; what the processes hold at most, beyond what they held before that model, is counted: Linux notes it. The driver's count
includes the user's model, a worker's its own copy. Rows are few, so that nothing but states is large. Linux only.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import subprocess
import sys
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")
os.environ.setdefault("PYSPARK_PYTHON", sys.executable)

import numpy as np
from convergence import put

FITS: dict[str, dict[str, object]] = {
    "synchronous": {},
    "synchronous, int8": {"codec": "int8"},
    "synchronous, int8 both ways": {"codec": "int8", "state_codec": "int8"},
    "asynchronous": {"mode": "asynchronous"},
    "jobs engine": {"engine": "jobs"},
}
LAYERS = 8
MB = 2**20


def memory(process: int | str, what: str) -> float:
    """MiB that a process holds ("VmRSS"), or has held at most since `forget_peaks` ("VmHWM")."""
    for line in Path(f"/proc/{process}/status").read_text().splitlines():
        if line.startswith(what):
            return int(line.split()[1]) / 1024
    return 0.0


def python_workers() -> list[int]:
    """Spark's Python processes below this one."""
    found, parents = [os.getpid()], {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except OSError:  # it has ended since
                continue
    for process in found:
        found += [child for child, parent in parents.items() if parent == process]
    return [process for process in found if b"daemon" in Path(f"/proc/{process}/cmdline").read_bytes()]


def forget_peaks(processes: list[int]) -> None:
    """Have Linux note peaks anew."""
    for process in processes:
        Path(f"/proc/{process}/clear_refs").write_text("5")


def one(name: str, optimizer: str, megabytes: int, workers: int) -> dict[str, object]:
    """The peaks of one fit."""
    import keras
    from pyspark.sql import SparkSession

    from elephas_like import SparkModel

    builder = SparkSession.builder.master(f"local[{workers}]").config("spark.ui.enabled", "false")
    builder = builder.config("spark.driver.maxResultSize", "0").config("spark.driver.memory", "8g")
    spark = builder.config("spark.ui.showConsoleProgress", "false").getOrCreate()
    spark.sparkContext.setLogLevel("OFF")

    def model_of(width: int) -> keras.Model:
        layers = [keras.layers.Dense(width, "relu") for _ in range(LAYERS)]
        model = keras.Sequential([keras.Input((width,)), *layers, keras.layers.Dense(1)])
        model.compile(optimizer, "mse")
        model.optimizer.build(model.trainable_variables)
        return model

    def fit(model: keras.Model, width: int) -> None:
        rows = np.random.default_rng(0).normal(size=(16 * workers, width)).astype(np.float32)
        rdd = spark.sparkContext.parallelize([(row, row[:1]) for row in rows], workers)
        SparkModel(model, num_workers=workers, **FITS[name]).fit(rdd, epochs=3, batch_size=8, verbose=0)  # type: ignore[arg-type]

    fit(model_of(8), 8)
    gc.collect()
    slots = 3 if optimizer == "adam" else 1
    width = int((megabytes * MB / 4 / LAYERS / slots) ** 0.5)
    before = memory("self", "VmRSS")
    held = {process: memory(process, "VmRSS") for process in python_workers()}
    model = model_of(width)
    state = sum(4 * int(np.prod(each.shape)) for each in (*model.variables, *model.optimizer.variables)) / MB
    forget_peaks([os.getpid(), *held])
    fit(model, width)
    driver = memory("self", "VmHWM") - before
    grown = sorted((memory(each, "VmHWM") - held.get(each, 0.0) for each in python_workers()), reverse=True)
    spark.stop()
    return {"state": state, "driver": driver / state, "worker": grown[0] / state, "workers": grown[:workers]}


def main() -> None:
    """Print the table, or write it into a document."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=int, default=100, help="of a state")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--docs", type=Path, help="a document to write the table into")
    parser.add_argument("--only", nargs=2, metavar=("FIT", "OPTIMIZER"), help="one row, as JSON")
    arguments = parser.parse_args()
    if arguments.only:
        print(json.dumps(one(*arguments.only, arguments.megabytes, arguments.workers)))
        return
    lines = ["| fit | optimizer | state, MB | driver, states | worker, states |", "|---|---|---|---|---|"]
    for name in FITS:
        for optimizer in ("sgd", "adam"):
            options = ["--megabytes", str(arguments.megabytes), "--workers", str(arguments.workers)]
            command = [sys.executable, __file__, *options, "--only", name, optimizer]
            done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
            found = json.loads(done.stdout.splitlines()[-1])
            lines.append(
                f"| {name} | {optimizer} | {found['state']:.0f} | {found['driver']:.1f} | {found['worker']:.1f} |"
            )
            print(lines[-1], flush=True)
    if arguments.docs:
        put(arguments.docs, memory="\n".join(lines))


if __name__ == "__main__":
    main()
