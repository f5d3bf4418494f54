"""One contestant of bench.py: a fit or a prediction of one workload, in a process of its own, told to bench.py as one line of JSON.

Every contestant runs twice in its process, and the second run counts: tracing and imports are in the first, as in a session at
work. Elephas runs this file with the Python of its own environment, so nothing but NumPy and Keras is imported at the top.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

EPOCHS = {"mlp": 5, "mlp-adam": 5, "wide": 1, "cnn": 1, "lstm": 2, "tabular": 2, "parquet": 2}
BATCH = {"mlp": 32, "mlp-adam": 32, "wide": 32, "cnn": 64, "lstm": 32, "tabular": 256, "parquet": 256}
STEPS_PER_EXECUTION = 50
COUNTED = 2
"""Runs of each process; the last one counts."""


def compiled(workload: str, seed: int) -> Any:
    """The workload's model."""
    import keras

    keras.utils.set_random_seed(seed)
    layers = keras.layers
    inner = {
        "mlp": [keras.Input((784,)), layers.Dense(128, "relu"), layers.Dense(128, "relu")],
        "wide": [keras.Input((784,)), layers.Dense(2048, "relu"), layers.Dense(2048, "relu")],
        "cnn": [
            keras.Input((28, 28, 1)),
            layers.Conv2D(32, 3, activation="relu"),
            layers.MaxPooling2D(),
            layers.Conv2D(64, 3, activation="relu"),
            layers.MaxPooling2D(),
            layers.Flatten(),
        ],
        "lstm": [keras.Input((28, 28)), layers.LSTM(64)],
        "tabular": [keras.Input((28,)), layers.Dense(64, "relu"), layers.Dense(32, "relu")],
    }
    inner["parquet"] = inner["tabular"]
    outputs = 2 if workload in ("tabular", "parquet") else 10
    model = keras.Sequential([*inner[workload.removesuffix("-adam")], layers.Dense(outputs, "softmax")])
    optimizer = keras.optimizers.SGD(0.01) if workload in ("mlp", "wide") else keras.optimizers.Adam(0.001)
    model.compile(optimizer, "sparse_categorical_crossentropy", metrics=["accuracy"])
    return model


def load(path: str) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Rows to train on, and those held out."""
    with np.load(path) as arrays:
        return arrays["x"], arrays["y"], arrays["x_test"], arrays["y_test"]


def files(data: str) -> str:
    """The directory of Parquet files that has a table's rows."""
    return str(Path(data).with_suffix(""))


def columns(x: np.ndarray) -> list[str]:
    """What a table's columns of features are called."""
    return [f"f{index}" for index in range(x.shape[1])]


def cpu_seconds() -> float:
    """CPU time of this process and all below it: the JVM, Spark's Python workers, and what they have ended."""
    children: dict[int, list[int]] = {}
    times: dict[int, float] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:  # it has ended since
                continue
            children.setdefault(int(fields[1]), []).append(int(entry.name))
            times[int(entry.name)] = sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
    total, waiting = 0.0, [os.getpid()]
    while waiting:
        process = waiting.pop()
        total += times.get(process, 0.0)
        waiting += children.get(process, [])
    return total


class Clock:
    """Wall and CPU seconds of a `with` block."""

    def __enter__(self) -> Clock:
        self._cpu, self._began = cpu_seconds(), time.perf_counter()
        return self

    def __exit__(self, *error: object) -> None:
        self.seconds = time.perf_counter() - self._began
        self.cpu = cpu_seconds() - self._cpu


def session() -> Any:
    """Spark on both cores, quiet."""
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master("local[2]").config("spark.driver.memory", "3g")
    quiet = builder.config("spark.ui.enabled", "false").config("spark.ui.showConsoleProgress", "false")
    spark = quiet.config("spark.driver.host", "127.0.0.1").getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    return spark


def spark_rows(x: np.ndarray, y: np.ndarray, data: str, source: str) -> tuple[Any, dict[str, object]]:
    """Rows in Spark, and the arguments that a fit takes with them: a cached RDD of pairs or DataFrame, or a path of Parquet files."""
    spark = session()
    if source == "rdd":
        rows = spark.sparkContext.parallelize(list(zip(x, y, strict=True)), 2).cache()
        rows.count()
        return rows, {}
    rows = files(data)
    if source == "frame":
        rows = spark.read.parquet(rows).repartition(2).cache()
        rows.count()
    return rows, {"features_col": columns(x), "label_col": "label"}


def handed_over(rows: Any) -> Callable[[], int]:
    """Return a function that has two Spark tasks count rows: an RDD's pairs, a DataFrame's Arrow batches, or a path's files, which PyArrow reads."""

    def count(pairs: Iterable[object]) -> Iterator[int]:
        yield sum(1 for _ in pairs)

    def count_batches(batches: Iterable[Any]) -> Iterator[Any]:
        import pyarrow as pa

        yield pa.RecordBatch.from_pydict({"rows": [sum(batch.num_rows for batch in batches)]})

    def count_files(paths: Iterable[str]) -> Iterator[int]:
        import pyarrow.parquet as pq

        yield sum(pq.read_table(path).num_rows for path in paths)

    if isinstance(rows, str):
        paths = session().sparkContext.parallelize([str(file) for file in sorted(Path(rows).iterdir())], 2)
        return lambda: paths.mapPartitions(count_files).sum()
    if hasattr(rows, "mapInArrow"):
        counted = rows.mapInArrow(count_batches, "rows long")
        return lambda: sum(row.rows for row in counted.collect())
    return lambda: rows.mapPartitions(count).sum()


def rows_alone(workload: str, data: str, source: str) -> dict[str, float]:
    """Spark hands over the rows, and nobody trains."""
    x, y, _, _ = load(data)
    call = handed_over(spark_rows(x, y, data, source)[0])
    for _ in range(COUNTED):
        with Clock() as clock:
            assert call() == len(x)
    return told(clock, float("nan"), float("nan"), len(x) * EPOCHS[workload])


def fit_keras(workload: str, data: str, tuned: bool) -> dict[str, float]:
    """Plain Keras; tuned: several steps a call, and all cores as before. Parquet files are read by pandas, which counts."""
    x, y, x_test, y_test = load(data)
    for seed in range(COUNTED):
        model = compiled(workload, seed)
        if tuned:
            model.steps_per_execution = STEPS_PER_EXECUTION
        with Clock() as clock:
            if workload == "parquet":
                x, y = _read(files(data), columns(x))
            model.fit(x, y, epochs=EPOCHS[workload], batch_size=BATCH[workload], verbose=0)
    return told(clock, clock.seconds, model.evaluate(x_test, y_test, verbose=0)[1], len(x) * EPOCHS[workload])


def fit_ours(workload: str, data: str, source: str, **options: object) -> dict[str, float]:
    """A SparkModel of two workers; source: "rdd" of pairs, "frame" or "path", the last two of columns."""
    from elephas_like import SparkModel

    x, y, x_test, y_test = load(data)
    rows, named = spark_rows(x, y, data, source)
    for seed in range(COUNTED):
        model = compiled(workload, seed)
        spark_model = SparkModel(model, 2, batch_size=BATCH[workload], seed=seed, **options)
        with Clock() as clock:
            history = spark_model.fit(rows, epochs=EPOCHS[workload], verbose=0, **named)
    accuracy = model.evaluate(x_test, y_test, verbose=0)[1]
    return told(clock, sum(history.epoch_seconds), accuracy, len(x) * EPOCHS[workload])


def fit_elephas(workload: str, data: str, mode: str, frequency: str) -> dict[str, float]:
    """Elephas as its README has it: a warm session, both cores, defaults elsewhere."""
    from elephas.spark_model import SparkModel
    from elephas.utils.rdd_utils import to_simple_rdd

    x, y, x_test, y_test = load(data)
    rows = to_simple_rdd(session().sparkContext, x, y).repartition(2).cache()
    rows.count()
    for seed in range(COUNTED):
        model = compiled(workload, seed)
        spark_model = SparkModel(model, mode=mode, frequency=frequency, num_workers=2)
        with Clock() as clock:
            spark_model.fit(rows, epochs=EPOCHS[workload], batch_size=BATCH[workload], verbose=0, validation_split=0.0)
    accuracy = spark_model.master_network.evaluate(x_test, y_test, verbose=0)[1]
    return told(clock, clock.seconds, accuracy, len(x) * EPOCHS[workload])


def fit_limit(workload: str, data: str) -> dict[str, float]:
    """No Spark and no exchange: on each core a process of one thread, half of the rows, Keras' train_step in one compiled loop."""
    import multiprocessing

    rows = len(load(data)[0])
    context = multiprocessing.get_context("spawn")
    with context.Pool(2) as pool:
        parts = [(workload, data, part) for part in range(2)]
        pool.starmap(_loop, parts, 1)
        with Clock() as clock:
            seconds = max(pool.starmap(_loop, parts, 1))
    return told(clock, seconds, float("nan"), rows * EPOCHS[workload]) | {"seconds": seconds}


_LOOPS: dict[str, Any] = {}


def _loop(workload: str, data: str, part: int) -> float:
    """Seconds of all epochs in one process, the compiled loop kept from call to call."""
    import tensorflow as tf

    if workload not in _LOOPS:
        tf.config.threading.set_intra_op_parallelism_threads(1)
        tf.config.threading.set_inter_op_parallelism_threads(1)
        x, y, _, _ = load(data)
        model, batch = compiled(workload, part), BATCH[workload]
        rows, labels = tf.constant(x[part::2]), tf.constant(y[part::2])
        model.build(rows.shape) if not model.built else None
        model.optimizer.build(model.trainable_variables)
        model.train_step((rows[:batch], labels[:batch]))  # metrics make their variables

        @tf.function
        def epoch(order: Any) -> None:
            for step in tf.range(len(rows) // batch):
                places = order[step * batch : (step + 1) * batch]
                model.train_step((tf.gather(rows, places), tf.gather(labels, places)))

        _LOOPS[workload] = epoch, len(rows)
    epoch, count = _LOOPS[workload]
    began = time.perf_counter()
    for _ in range(EPOCHS[workload]):
        epoch(tf.random.shuffle(tf.range(count)))
    return time.perf_counter() - began


def predict(data: str, source: str) -> dict[str, float]:
    """Predictions of the MLP for all rows, by Keras (2 cores), by us or by Elephas."""
    x, _, _, _ = load(data)
    model = compiled("mlp", 0)
    call = _predictor(model, x, source)
    for _ in range(COUNTED):
        with Clock() as clock:
            found = call()
    assert np.shape(found) == (len(x), 10)
    return told(clock, clock.seconds, float("nan"), len(x))


def _predictor(model: Any, x: np.ndarray, source: str) -> Any:
    if source == "keras":
        return lambda: model.predict(x, verbose=0)
    spark = session()
    if source == "elephas rdd":
        from elephas.spark_model import SparkModel

        rows = spark.sparkContext.parallelize(list(x), 2).cache()
        rows.count()
        return lambda: SparkModel(model, num_workers=2).predict(rows)
    from elephas_like import SparkModel

    spark_model = SparkModel(model, 2)
    if source == "arrays":
        return lambda: spark_model.predict(x)
    if source == "rdd":
        rows = spark.sparkContext.parallelize(list(x), 2).cache()
    else:
        rows = spark.createDataFrame([(row.tolist(),) for row in x], "features array<float>").repartition(2).cache()
    rows.count()
    return lambda: spark_model.predict(rows)


def _read(folder: str, names: list[str]) -> tuple[np.ndarray, np.ndarray]:
    import pandas as pd

    table = pd.read_parquet(folder)
    return table[names].to_numpy(), table["label"].to_numpy()


def told(clock: Clock, training: float, accuracy: float, rows: int) -> dict[str, float]:
    """What bench.py is told of a run."""
    return {"seconds": clock.seconds, "cpu": clock.cpu, "training": training, "accuracy": accuracy, "rows": rows}


KINDS = {
    "keras": fit_keras,
    "ours": fit_ours,
    "elephas": fit_elephas,
    "limit": fit_limit,
    "rows": rows_alone,
    "predict": predict,
}


if __name__ == "__main__":
    asked = json.loads(sys.argv[1])
    print(json.dumps(KINDS[asked.pop("kind")](**asked)))
