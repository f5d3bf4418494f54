"""A script: a fit whose executors run a Python without elephas_like and Keras; says the error and how long Spark tried."""

from __future__ import annotations

import os
import sys

os.environ |= {"PYSPARK_PYTHON": os.environ["BARE_PYTHON"], "PYSPARK_DRIVER_PYTHON": sys.executable}

import keras
from session import say, started

from elephas_like import SparkModel


def main() -> None:
    context = started("local[2]", "bare executor")
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    rdd = context.parallelize([([1.0, 2.0], 3.0)] * 4, 2)
    for engine in ("server", "jobs"):
        try:
            SparkModel(model, 2, engine=engine).fit(rdd, verbose=0)
        except Exception as error:
            say({"engine": engine, "type": type(error).__name__, "message": str(error)})
    context.stop()


if __name__ == "__main__":
    main()
