"""The SparkContext of this process, where one was started."""

from __future__ import annotations

import os

from pyspark import SparkConf, SparkContext

from elephas_like.core.types import EngineName
from elephas_like.spark.versions import check_spark
from elephas_like.spark.waits import stopped


def started_context() -> SparkContext | None:
    """The SparkContext of this process, if one was started: the public getOrCreate would start one."""
    return SparkContext._active_spark_context


def is_local(context: SparkContext) -> bool:
    """Return whether tasks run in the driver's JVM, and so on its machine (`local`, `local[n]`, not `local-cluster`)."""
    return context.master == "local" or context.master.startswith("local[")


def is_on(conf: SparkConf, name: str) -> bool:
    """Return whether a setting of Spark is true; False if it is not set."""
    return (conf.get(name, "false") or "").lower() == "true"


def active_context(engine: EngineName) -> SparkContext | None:
    """The SparkContext that is active, for an engine that would use one.

    Raises:
        TypeError: a Spark Connect session. ValueError: an engine that needs Spark, and none is active.
    """
    if engine is EngineName.IN_PROCESS:
        return None
    if os.environ.get("SPARK_REMOTE"):
        raise TypeError("Spark Connect is not supported yet; use a classic session, or engine='in_process'.")
    context = started_context()
    if context is None and engine is not EngineName.AUTO:
        raise ValueError(f"engine={engine.value!r} needs a SparkContext; start a SparkSession first.")
    return context


def context_of(data: SparkContext | None, engine: EngineName) -> SparkContext | None:
    """The SparkContext of a fit: that of its data, else the active one, for an engine that would use one.

    Args:
        data: the context of the data; None if it is not in Spark.
        engine: the engine that was asked for.

    Raises:
        ElephasError: pyspark and Spark are of different versions.
        TypeError: a Spark Connect session. ValueError: an engine that needs Spark, and none is active.
    """
    context = data or active_context(engine)
    if context is not None and not stopped(
        context
    ):  # one that was stopped has its own error, when its slots are counted
        check_spark(context.version)
    return context
