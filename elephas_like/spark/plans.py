"""DataFrames: names of columns in expressions, and what Spark does when it is only asked how it would compute one."""

from __future__ import annotations

from pyspark.sql import DataFrame, SparkSession

from elephas_like.spark.session import is_on, is_remote


def quoted(name: str) -> str:
    """Return a column's name as Spark's expressions take it, whatever characters it has."""
    return f"`{name.replace('`', '``')}`"


def reads_names_as_patterns(session: SparkSession) -> bool:
    """Return whether quoted names of columns in SQL may be regular expressions. True over Spark Connect, which is not asked for it."""
    return is_remote(session) or is_on(session.conf, "spark.sql.parser.quotedRegexColumnNames")


def runs_when_planned(df: DataFrame) -> bool:
    """Return whether Spark computes a part of a DataFrame when its RDD is asked for, before any job of ours.

    Adaptive execution runs the shuffles of a plan to know its partitions, and runs them again for another DataFrame that is made of
    this one. What is cached is there already. A limit at the end of a plan becomes a shuffle under a function of ours.

    Spark has no public name for a plan: `explain` prints it.
    """
    level = df.storageLevel
    if level.useMemory or level.useDisk:
        return False
    plan = df._jdf.queryExecution().executedPlan().toString()
    return "AdaptiveSparkPlan" in plan or "CollectLimit" in plan
