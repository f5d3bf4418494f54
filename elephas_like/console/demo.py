"""A small fit on real rows: 1,797 images of handwritten digits, which scikit-learn's package ships."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from elephas_like.console.doctor import backend_problem, is_installed
from elephas_like.console.java import java_problem
from elephas_like.core.errors import MissingExtraError

TEST_ROWS = 360
PICTURES = (".png", ".svg", ".pdf", ".jpg", ".jpeg", ".webp", ".tif", ".tiff", ".eps", ".ps")


def demo(workers: int, epochs: int, engine: str, plot: str | None) -> int:
    """Train, evaluate, predict. Return 0, or 1 with a line on stderr if something is missing."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    wrong = _missing(engine, plot)
    if wrong:
        sys.stderr.write(f"{wrong}\n")
        return 1
    try:
        with _session(workers, engine):
            _train(workers, epochs, engine, plot)
    except MissingExtraError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


def _missing(engine: str, plot: str | None) -> str | None:
    if not is_installed("sklearn"):
        return "The demo's images come with scikit-learn. Run pip install scikit-learn."
    if plot and not is_installed("matplotlib"):
        return "--plot needs matplotlib. Run pip install 'elephas-like[plots]'."
    unwritable = _unwritable(Path(plot).expanduser()) if plot else None
    if unwritable:
        return unwritable
    backend = backend_problem()
    if backend:
        return backend
    java = None if engine == "in_process" or os.environ.get("SPARK_REMOTE") else java_problem()
    return None if java is None else f"{java}\nWithout Java: python -m elephas_like demo --engine in_process"


def _unwritable(picture: Path) -> str | None:
    """Say why a picture could not be written after the training; None if nothing is known against it."""
    if not picture.parent.is_dir():
        return f"--plot: there is no directory {picture.parent}. Make it first."
    if picture.suffix.lower() not in PICTURES:
        return f"--plot: expected a name that ends with one of {' '.join(PICTURES)}; got {picture.name!r}."
    return None


@contextmanager
def _session(workers: int, engine: str) -> Iterator[None]:
    """Have a Spark session on as many cores as workers, unless one is there or none is needed."""
    if engine == "in_process":
        yield
        return
    from elephas_like.core.extras import require

    require("pyspark")
    from pyspark.sql import SparkSession

    from elephas_like.spark.session import active_session

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    if active_session() is not None:
        yield
        return
    started = SparkSession.builder.master(f"local[{workers}]").appName("elephas_like demo").getOrCreate()
    with suppress(AttributeError):  # over Spark Connect there is no SparkContext
        started.sparkContext.setLogLevel("ERROR")
    try:
        yield
    finally:
        started.stop()


def _train(workers: int, epochs: int, engine: str, plot: str | None) -> None:
    from elephas_like.core.extras import keras_backend, require

    require(keras_backend())
    import keras
    import numpy as np
    from sklearn.datasets import load_digits

    from elephas_like.model.spark_model import SparkModel

    x, y = load_digits(return_X_y=True)
    mixed = np.random.default_rng(0).permutation(len(y))  # they are in the order of their writers
    x, y = (x[mixed] / 16).astype("float32"), y[mixed]
    keras.utils.set_random_seed(0)
    layers = [keras.Input((64,)), keras.layers.Dense(64, "relu"), keras.layers.Dense(10, "softmax")]
    model = keras.Sequential(layers)
    model.compile(keras.optimizers.Adam(0.003), "sparse_categorical_crossentropy", metrics=["accuracy"])
    sys.stdout.write(f"{len(x) - TEST_ROWS} images of digits to train on, {TEST_ROWS} to test; {workers} workers\n")
    spark_model = SparkModel(model, num_workers=workers, engine=engine, seed=0)
    history = spark_model.fit(
        x[:-TEST_ROWS], y[:-TEST_ROWS], epochs=epochs, global_batch_size=32, validation_split=0.1, verbose=2
    )
    _, accuracy = spark_model.evaluate(x[-TEST_ROWS:], y[-TEST_ROWS:])
    guesses = spark_model.predict(x[-10:]).argmax(axis=1)
    sys.stdout.write(f"test accuracy: {accuracy:.3f}\n")
    sys.stdout.write(f"predicted {' '.join(map(str, guesses))}\nlabels    {' '.join(map(str, y[-10:]))}\n")
    if plot:
        from elephas_like.model.plots import plot_history

        plot_history(history).savefig(Path(plot).expanduser())
        sys.stdout.write(f"picture: {plot}\n")
