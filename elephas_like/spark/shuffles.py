"""Files of shuffles, deleted as soon as they have been read."""

from __future__ import annotations

from pyspark import RDD, SparkContext

from elephas_like.spark.waits import cleanup


def delete_shuffles(context: SparkContext, rdd: RDD) -> None:
    """Have executors delete the files of all shuffles that an RDD was computed through, up to what is persisted. Waits for nobody.

    Spark deletes them itself once its driver collects garbage, for which a fit of many rounds may fill the disks before. PySpark has
    no name for it; Spark's own is public.
    """
    with cleanup(context, "delete the files of a shuffle"):
        rdd._jrdd.rdd().cleanShuffleDependencies(False)
