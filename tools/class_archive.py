"""Writes the classes that Spark's JVMs load into an archive, from which those of the tests start.

    python tools/class_archive.py .venv/spark.jsa

A driver starts with 5 s of CPU time in place of 8, and a cluster of two executors with 11 in place of 15. The archive is for one Java and one
Spark: another Java does without it. tests/conftest.py names it to every JVM that the tests start. Where Java makes none, the file is
empty.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

JOBS = """
from pyspark.sql import SparkSession

spark = SparkSession.builder.master("local-cluster[2,1,1024]").config("spark.ui.enabled", "false").getOrCreate()
spark.sparkContext.parallelize(range(8), 2).map(lambda number: number + 1).barrier().mapPartitions(list).collect()
spark.range(8).selectExpr("id", "id % 2 as kind").groupBy("kind").count().toPandas()
"""


def main() -> None:
    """Run a few jobs in a Spark whose driver writes the archive when it ends."""
    place = Path(sys.argv[1]).absolute()
    place.unlink(missing_ok=True)
    written = shlex.quote(f"-XX:ArchiveClassesAtExit={place}")
    environment = {
        **os.environ,
        "PYSPARK_PYTHON": sys.executable,
        # As tests/conftest.py sets them: an archive is for the settings that it was made with.
        "SPARK_SUBMIT_OPTS": f"-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xlog:disable {written}",
    }
    done = subprocess.run([sys.executable, "-c", JOBS], env=environment, capture_output=True, text=True)
    if done.returncode or not place.exists():
        print(f"no archive of Spark's classes: {done.stderr.strip().splitlines()[-1:]}. The tests start without.")
        place.touch()


if __name__ == "__main__":
    main()
