"""A script: a fit whose executors run a Python without elephas_like and Keras; says the error and how long Spark tried."""

from __future__ import annotations

import json
import os
import sys

os.environ |= {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1", "KERAS_BACKEND": "tensorflow"}
os.environ |= {"PYSPARK_PYTHON": os.environ["BARE_PYTHON"], "PYSPARK_DRIVER_PYTHON": sys.executable}

import keras
from pyspark import SparkConf, SparkContext

from elephas_like import SparkModel


def main() -> None:
    conf = SparkConf().set("spark.ui.enabled", "false").set("spark.local.dir", os.environ["TMPDIR"])
    context = SparkContext("local[2]", "bare executor", conf=conf)
    context.setLogLevel("OFF")
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    rdd = context.parallelize([([1.0, 2.0], 3.0)] * 4, 2)
    for engine in ("server", "jobs"):
        try:
            SparkModel(model, 2, engine=engine).fit(rdd, verbose=0)
        except Exception as error:
            print(json.dumps({"engine": engine, "type": type(error).__name__, "message": str(error)}), flush=True)
    context.stop()


if __name__ == "__main__":
    main()
