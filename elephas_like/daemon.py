"""Spark's Python daemon that has imported Keras before it forks its workers: each of them has TensorFlow at once.

    SparkSession.builder.config("spark.python.daemon.module", "elephas_like.daemon")

Set it before the session starts, where elephas_like is installed on all executors: without it the daemon does not start, and no Python
task runs. docs/deploy.md says what it saves, and its limits.
"""

from __future__ import annotations

import gc

from elephas_like.core.archives import prefer_directories, read_archives_once
from elephas_like.core.extras import require

if __name__ == "__main__":
    prefer_directories()  # before PySpark is imported
require("pyspark")

# Not in processes that a worker starts by multiprocessing: they import the program's main module, under another name.
if __name__ == "__main__":
    from pyspark.daemon import manager

    import elephas_like.model.spark_model  # noqa: F401  imports Keras, TensorFlow and all that a fit's worker needs

    read_archives_once()
    gc.collect()
    gc.freeze()  # the workers' garbage collectors leave these objects alone, so their memory stays shared
    manager()
