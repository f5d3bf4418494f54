"""The demo of the README: train on MNIST with two workers on local Spark, and compare with one Keras process."""
# pip install 'elephas-like[demo]'

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import matplotlib
from mnist_data import load
from pyspark.sql import SparkSession

from elephas_like import SparkModel

matplotlib.use("Agg")
from matplotlib import pyplot

EPOCHS = 20
OUT = Path("out/mnist_training.png")


def model() -> keras.Model:
    keras.utils.set_random_seed(7)
    layers = keras.layers
    mlp = keras.Sequential(
        [
            keras.Input((784,)),
            layers.Dense(128, activation="relu"),
            layers.Dropout(0.2),
            layers.Dense(128, activation="relu"),
            layers.Dense(10, activation="softmax"),
        ]
    )
    mlp.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
    return mlp


def main() -> None:
    x, y, x_test, y_test = load()
    print(f"MNIST: {len(x)} training images, {len(x_test)} held out; {EPOCHS} epochs, global batch 32\n")

    alone = model()
    alone.fit(x[:64], y[:64], verbose=0)  # warm up: tracing is not part of the comparison
    alone = model()
    started = time.perf_counter()
    single = alone.fit(x, y, epochs=EPOCHS, batch_size=32, validation_data=(x_test, y_test), verbose=0)
    single_rate = EPOCHS * len(x) / (time.perf_counter() - started)

    builder = SparkSession.builder.master("local[2]").config("spark.ui.showConsoleProgress", "false")
    # Workers are forked from a process that has imported TensorFlow: the first fit begins seconds sooner.
    spark = builder.config("spark.python.daemon.module", "elephas_like.daemon").getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    rows = spark.sparkContext.parallelize(list(zip(x, y, strict=True)), 2).cache()
    SparkModel(model(), num_workers=2).fit(rows, verbose=0)  # warm up: executors import TensorFlow once
    together = model()
    spark_model = SparkModel(together, num_workers=2, seed=7)
    started = time.perf_counter()
    history = spark_model.fit(rows, epochs=EPOCHS, global_batch_size=32, validation_data=(x_test, y_test), verbose=2)
    rate = EPOCHS * len(x) / (time.perf_counter() - started)

    accuracy, single_accuracy = (100 * fitted.evaluate(x_test, y_test, verbose=0)[1] for fitted in (together, alone))
    print(f"\n{'':22}{'accuracy':>10}{'samples/s':>12}")
    print(f"{'Keras, one process':22}{single_accuracy:9.1f}%{single_rate:12,.0f}")
    print(f"{'Spark, two workers':22}{accuracy:9.1f}%{rate:12,.0f}   ({rate / single_rate:.1f} x)")

    OUT.parent.mkdir(exist_ok=True)
    figure, axes = pyplot.subplots(1, 2, figsize=(10, 4), constrained_layout=True)
    for axis, name in zip(axes, ("loss", "accuracy"), strict=True):
        for label, fitted in (("Keras, one process", single), ("elephas_like, two workers", history)):
            (line,) = axis.plot(range(1, EPOCHS + 1), fitted.history[f"val_{name}"], label=f"{label}, held out")
            axis.plot(
                range(1, EPOCHS + 1), fitted.history[name], "--", color=line.get_color(), label=f"{label}, training"
            )
        axis.set(xlabel="epoch", ylabel=name)
        axis.grid(alpha=0.3)
    axes[0].legend(fontsize=8)
    figure.savefig(OUT, dpi=120)
    print(f"\ntraining curve: {OUT}")
    spark.stop()


if __name__ == "__main__":
    main()
