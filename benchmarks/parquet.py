"""Parquet files as data: bytes per second to batches and to shards, and a table's whole fit against Keras and pandas.

    python benchmarks/parquet.py [--rounds 5]

Bytes: 400,000 rows of 1 kB (250 float32 and a label), read by two processes, each its part, from the page cache; once as one list
column, once as 250 columns. Rates count what the arrays hold. Fits: 300,000 rows of 28 columns in four files, an MLP of 64 and 32
units, Adam, batch 256, two epochs. Keras' time includes `pandas.read_parquet`; ours is everything between the path, or
`spark.read.parquet(path)`, and the trained model, in a session at work. Contestants alternate, each in a process of its own that
fits twice, and the second fit counts. It prints the tables of docs/performance.md; medians, and (lowest, highest).
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

KILOBYTE_ROWS, TABLE_ROWS, WIDTH = 400_000, 300_000, 28
NAMES = [f"f{index}" for index in range(WIDTH)]
EPOCHS, BATCH = 2, 256


def write_kilobytes(folder: Path) -> None:
    """Rows of 1 kB, as a list column and as columns of numbers."""
    values = np.random.default_rng(0).standard_normal((KILOBYTE_ROWS, 250), np.float32)
    labels = pa.array(np.arange(KILOBYTE_ROWS) % 10)
    ends = pa.array(np.arange(KILOBYTE_ROWS + 1, dtype=np.int32) * 250)
    one = pa.table({"x": pa.ListArray.from_arrays(ends, pa.array(values.reshape(-1))), "label": labels})
    pq.write_table(one, folder / "list.parquet", row_group_size=2**15)
    many = pa.table({**{f"f{i}": values[:, i].copy() for i in range(250)}, "label": labels})
    pq.write_table(many, folder / "columns.parquet", row_group_size=2**15)


def write_table(folder: Path) -> None:
    """A table whose label follows from its columns."""
    random = np.random.default_rng(0)
    x = random.standard_normal((TABLE_ROWS, WIDTH), np.float32)
    y = (x @ random.standard_normal(WIDTH) + 0.5 * np.sin(3 * x[:, 0]) * x[:, 1] > 0).astype(np.int64)
    for number in range(4):
        mine = slice(number * TABLE_ROWS // 4, (number + 1) * TABLE_ROWS // 4)
        columns = {name: x[mine, i].copy() for i, name in enumerate(NAMES)}
        pq.write_table(pa.table({**columns, "label": y[mine]}), folder / f"part-{number}.parquet")


def read(path: str, features: object, worker: int, to_shards: bool) -> int:
    """The bytes that one worker of two reads."""
    from elephas_like.core.types import Slot
    from elephas_like.rows.frame_plan import ColumnChoice, plan
    from elephas_like.rows.parquet_files import parquet_table
    from elephas_like.rows.parquet_listing import ParquetFiles
    from elephas_like.rows.parquet_read import read_part
    from elephas_like.rows.spool import spool

    found = parquet_table(ParquetFiles(path))
    chosen = ColumnChoice(features, "label")
    made = plan(found.schema, chosen, Slot("x", (250,)), Slot("y"), floatx="float32", classes=None)
    part = found.dealt(2)[worker]
    blocks = read_part(made, part)
    if to_shards:
        with tempfile.TemporaryDirectory() as place:
            spool(blocks, dataset="d", worker=worker, base=place, floatx="float32", expect_target=True)
    else:
        for _ in blocks:
            pass
    return part.rows * 1000


def rates(folder: Path, rounds: int) -> None:
    """Print bytes per second of two processes."""
    print("| 1 kB rows | to batches, GB/s | to shards on disk, GB/s |\n|---|---|---|")
    features = {"list": "x", "columns": [f"f{i}" for i in range(250)]}
    seen: dict[tuple[str, bool], list[float]] = {(name, shards): [] for name in features for shards in (False, True)}
    with ProcessPoolExecutor(2) as pool:
        for number in range(rounds + 1):
            for (name, shards), found in seen.items():
                began = time.perf_counter()
                tasks = [
                    pool.submit(read, str(folder / f"{name}.parquet"), features[name], w, shards) for w in range(2)
                ]
                total = sum(task.result() for task in tasks)
                if number:  # the first round imports
                    found.append(total / (time.perf_counter() - began) / 1e9)
    for name in features:
        print(f"| {name} | {_spread(seen[name, False])} | {_spread(seen[name, True])} |", flush=True)


def fit(kind: str, folder: str) -> dict[str, float]:
    """Seconds and accuracy of the second fit in this process."""
    import keras

    layers = keras.layers
    for seed in range(2):
        keras.utils.set_random_seed(seed)
        model = keras.Sequential(
            [
                keras.Input((WIDTH,)),
                layers.Dense(64, "relu"),
                layers.Dense(32, "relu"),
                layers.Dense(1, "sigmoid"),
            ]
        )
        model.compile(keras.optimizers.Adam(1e-3), "binary_crossentropy", metrics=["accuracy"])
        if kind == "keras":
            import pandas as pd

            began = time.perf_counter()
            table = pd.read_parquet(folder)
            history = model.fit(table[NAMES].to_numpy(), table["label"].to_numpy(), BATCH, EPOCHS, verbose=0)
            seconds = training = time.perf_counter() - began
        else:
            from pyspark.sql import SparkSession

            from elephas_like import SparkModel

            builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
            spark = builder.config("spark.ui.showConsoleProgress", "false").getOrCreate()
            spark.sparkContext.setLogLevel("OFF")
            source, mode = kind.split()
            spark_model = SparkModel(model, 2, mode=mode, batch_size=BATCH, seed=seed)
            began = time.perf_counter()
            data = folder if source == "path" else spark.read.parquet(folder)
            history = spark_model.fit(data, epochs=EPOCHS, features_col=NAMES, verbose=0)
            seconds = time.perf_counter() - began
            training = sum(history.epoch_seconds)
    return {"seconds": seconds, "training": training, "accuracy": history.history["accuracy"][-1]}


def fits(folder: Path, rounds: int) -> None:
    """Print whole fits beside Keras'."""
    kinds = ["keras", "path synchronous", "frame synchronous", "path asynchronous"]
    seen: dict[str, list[dict[str, float]]] = {kind: [] for kind in kinds}
    environment = os.environ | {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1"}
    environment["PYSPARK_PYTHON"] = sys.executable
    for _ in range(rounds):
        for kind in kinds:
            command = [sys.executable, __file__, "--fit", kind, str(folder)]
            done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
            seen[kind].append(json.loads(done.stdout.splitlines()[-1]))
    rows = TABLE_ROWS * EPOCHS
    print("| whole fit | samples/s | x Keras | training alone, x Keras | accuracy |\n|---|---|---|---|---|")
    base = statistics.median(each["seconds"] for each in seen["keras"])
    for kind in kinds:
        speeds = [rows / each["seconds"] for each in seen[kind]]
        alone = base / statistics.median(each["training"] for each in seen[kind])
        accuracy = statistics.median(each["accuracy"] for each in seen[kind])
        times = statistics.median(speeds) * base / rows
        print(f"| {kind} | {_spread(speeds, ',.0f')} | {times:.2f} | {alone:.2f} | {accuracy:.1%} |", flush=True)


def _spread(values: list[float], form: str = ".2f") -> str:
    return f"{statistics.median(values):{form}} ({min(values):{form}}, {max(values):{form}})"


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", choices=["rates", "fits"])
    parser.add_argument("--fit", nargs=2, metavar=("KIND", "FOLDER"), help="one contestant, in this process")
    given = parser.parse_args()
    if given.fit:
        print(json.dumps(fit(*given.fit)))
        return
    with tempfile.TemporaryDirectory() as place:
        kilobytes, table = Path(place, "kilobytes"), Path(place, "table")
        kilobytes.mkdir()
        table.mkdir()
        if given.only != "fits":
            write_kilobytes(kilobytes)
            rates(kilobytes, given.rounds)
            print()
        if given.only != "rates":
            write_table(table)
            fits(table, given.rounds)


if __name__ == "__main__":
    main()
