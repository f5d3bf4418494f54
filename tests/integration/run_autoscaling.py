"""A script: fits on an application that begins without executors, and gets them while tasks wait (dynamic allocation)."""

from __future__ import annotations

import os
import sys

os.environ |= {"TF_NUM_INTRAOP_THREADS": "1", "TF_NUM_INTEROP_THREADS": "1"}

from session import say, started
from small import line, points

from elephas_like import SparkModel
from elephas_like.spark.slots import slots


def main(most: str) -> None:
    settings = {
        "spark.executor.cores": "1",
        "spark.dynamicAllocation.enabled": "true",
        "spark.dynamicAllocation.shuffleTracking.enabled": "true",
        "spark.dynamicAllocation.maxExecutors": most,
    }
    context = started("local-cluster[2,1,1024]", "autoscaling", settings, log_level="ERROR")
    answer = {"asked": slots(context, wanted=2), "default": slots(context)}
    rows = context.parallelize(points(40), 20)
    for workers in (2, None):
        history = SparkModel(line(), workers, seed=7).fit(rows, epochs=2, verbose=0)
        answer[f"trained by {workers}"] = [len(record.workers) for record in history.rounds][:1]
    say(answer)
    context.stop()


if __name__ == "__main__":
    main(sys.argv[1])
