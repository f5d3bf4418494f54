"""A script: trains the table's models with Keras and over real Spark, and prints how far they are apart, a line each.

The table is run as this script's own code: its classes and functions are `__main__`'s, which no executor can import.
Usage: run_on_spark.py ENGINE NAME ...
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

os.environ |= {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1", "KERAS_BACKEND": "tensorflow"}
HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from pyspark.sql import SparkSession  # noqa: E402

from conformance.compare import by_keras, by_spark_model, difference  # noqa: E402

TABLE: dict = {}
TABLE_FILE = HERE / "models.py"
exec(compile(TABLE_FILE.read_text(), str(TABLE_FILE), "exec"))


def main(engine: str, names: list[str]) -> None:
    spark = (
        SparkSession.builder.master("local[1]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .getOrCreate()
    )
    for name in names:
        try:
            apart = difference(by_keras(TABLE[name]), by_spark_model(TABLE[name], spark.sparkContext, engine))
        except Exception as error:  # one model's failure is not the others'
            apart = f"{type(error).__name__}: {error}"
        print(json.dumps({"name": name, "apart": apart}), flush=True)
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
