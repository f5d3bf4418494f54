"""Seconds of the first fit of a session, with and without `elephas_like.daemon`.

    python benchmarks/first_fit.py [--rounds 5] [--slots 2] [--imports]

Each contestant is a program of its own: it starts Spark, fits a small MLP on 60,000 rows of MNIST's size for one epoch, then a second
model of another size. The goal is a first fit of at most 1.5 x (import of TensorFlow in one process + second fit). It also prints the
memory that a Python worker has for itself (its proportional share of what is shared counts), and what imports take: a worker's modules
import TensorFlow while Python looks for no garbage, and Keras imports scikit-learn and Matplotlib where they are installed. Contestants alternate; medians, and (lowest, highest).
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import time

ROWS = 60_000
KINDS = ("Spark's daemon", "elephas_like.daemon")


def run(kind: str, slots: int) -> dict[str, float]:
    """One program: seconds of its first and second fit."""
    import keras
    import numpy as np
    import psutil
    from pyspark.sql import SparkSession

    from elephas_like import SparkModel

    random = np.random.default_rng(0)
    x, y = random.random((ROWS, 784), np.float32), random.integers(0, 10, ROWS)
    builder = SparkSession.builder.master(f"local[{slots}]").config("spark.ui.enabled", "false")
    if kind == KINDS[1]:
        builder = builder.config("spark.python.daemon.module", "elephas_like.daemon")
    spark = builder.config("spark.ui.showConsoleProgress", "false").config("spark.driver.memory", "3g").getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    seconds = []
    for units in (64, 96):
        model = keras.Sequential(
            [
                keras.Input((784,)),
                keras.layers.Dense(units, "relu"),
                keras.layers.Dense(10, "softmax"),
            ]
        )
        model.compile("sgd", "sparse_categorical_crossentropy", metrics=["accuracy"])
        began = time.perf_counter()
        SparkModel(model, slots).fit(x, y, verbose=0)
        seconds.append(time.perf_counter() - began)
    memory = []
    for process in psutil.Process().children(recursive=True):
        if "daemon" in " ".join(process.cmdline()) and process.memory_info().rss > 2e8:
            memory.append(process.memory_full_info().pss / 2**20)
    spark.stop()
    return {"first": seconds[0], "second": seconds[1], "memory": sum(memory) / slots}


COMPILES = "a worker's modules, where there is no bytecode"
IMPORTS = {
    "TensorFlow and Keras": "import tensorflow, keras",
    "then a worker's modules": "import tensorflow, keras, elephas_like.trainer.worker",
    "a worker's modules, which import both": "import elephas_like.trainer.worker",
    "the same, without scikit-learn and Matplotlib": "import sys; sys.modules.update(sklearn=None, matplotlib=None); import elephas_like.trainer.worker",
    COMPILES: "import elephas_like.trainer.worker",
}


def import_seconds(code: str, *, compiles: bool = False) -> tuple[float, float]:
    """(seconds, CPU seconds) that a new process needs to import something, beyond Python's own start.

    compiles: without bytecode, as in images that set PYTHONDONTWRITEBYTECODE and install by `pip --no-compile`.
    """
    found = []
    environment = os.environ | {"PYTHONDONTWRITEBYTECODE": "1" if compiles else ""}
    if compiles:
        environment["PYTHONPYCACHEPREFIX"] = "/nowhere"
    for program in ("pass", code):
        began, cpu = time.perf_counter(), _children()
        subprocess.run([sys.executable, "-c", program], check=True, stderr=subprocess.DEVNULL, env=environment)
        found.append((time.perf_counter() - began, _children() - cpu))
    (least, least_cpu), (wall, cpu) = found
    return wall - least, cpu - least_cpu


def _children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--slots", type=int, default=2)
    parser.add_argument("--imports", action="store_true", help="measure the imports alone")
    parser.add_argument("--run", help="one contestant, in this process")
    given = parser.parse_args()
    if given.run:
        print(json.dumps(run(given.run, given.slots)))
        return
    environment = os.environ | {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1"}
    environment["PYSPARK_PYTHON"] = sys.executable
    imports: dict[str, list[tuple[float, float]]] = {name: [] for name in IMPORTS}
    seen: dict[str, list[dict[str, float]]] = {kind: [] for kind in KINDS}
    import_seconds(IMPORTS["then a worker's modules"])  # which leaves the bytecode of all
    for _ in range(given.rounds):
        for name, code in IMPORTS.items():
            imports[name].append(import_seconds(code, compiles=name == COMPILES))
        for kind in () if given.imports else KINDS:
            command = [sys.executable, __file__, "--run", kind, "--slots", str(given.slots)]
            done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
            seen[kind].append(json.loads(done.stdout.splitlines()[-1]))
    print("| import of | s | CPU s |\n|---|---|---|")
    for name, times in imports.items():
        print(f"| {name} | {_spread([wall for wall, _ in times])} | {_spread([cpu for _, cpu in times])} |")
    if given.imports:
        return
    least = statistics.median(wall for wall, _ in imports["TensorFlow and Keras"])
    print(
        f"\n{given.slots} slots\n\n| daemon | first fit, s | second fit, s | first / (import + second) | MB a worker |\n|---|---|---|---|---|"
    )
    for kind, found in seen.items():
        first, second = ([each[name] for each in found] for name in ("first", "second"))
        ratio = statistics.median(first) / (least + statistics.median(second))
        memory = statistics.median(each["memory"] for each in found)
        print(f"| {kind} | {_spread(first)} | {_spread(second)} | {ratio:.2f} | {memory:.0f} |")


def _spread(values: list[float]) -> str:
    return f"{statistics.median(values):.1f} ({min(values):.1f}, {max(values):.1f})"


if __name__ == "__main__":
    main()
