"""A script: fits on an application that begins without executors, and gets them while tasks wait (dynamic allocation)."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

os.environ |= {"TF_NUM_INTRAOP_THREADS": "1", "TF_NUM_INTEROP_THREADS": "1", "TF_CPP_MIN_LOG_LEVEL": "3"}
os.environ |= {"CUDA_VISIBLE_DEVICES": "-1", "KERAS_BACKEND": "tensorflow"}

import pyspark
from pyspark import SparkConf, SparkContext
from small import line, points

from elephas_like import SparkModel
from elephas_like.spark.slots import slots


def main(most: str) -> None:
    os.environ["SPARK_HOME"] = str(Path(pyspark.__file__).parent)
    conf = SparkConf().set("spark.ui.enabled", "false").set("spark.driver.host", "127.0.0.1")
    conf = conf.set("spark.local.dir", os.environ["TMPDIR"]).set("spark.executor.cores", "1")
    conf = conf.set("spark.dynamicAllocation.enabled", "true")
    conf = conf.set("spark.dynamicAllocation.shuffleTracking.enabled", "true")
    conf = conf.set("spark.dynamicAllocation.maxExecutors", most)
    context = SparkContext("local-cluster[2,1,1024]", "autoscaling", conf=conf)
    context.setLogLevel("ERROR")
    answer = {"asked": slots(context, wanted=2), "default": slots(context)}
    rows = context.parallelize(points(40), 20)
    for workers in (2, None):
        history = SparkModel(line(), workers, seed=7).fit(rows, epochs=2, verbose=0)
        answer[f"trained by {workers}"] = [len(record.workers) for record in history.rounds][:1]
    print(json.dumps(answer), flush=True)
    context.stop()


if __name__ == "__main__":
    main(sys.argv[1])
