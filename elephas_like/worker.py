"""Elephas' import path for workers."""

from elephas_like.compat.elephas import AsynchronousSparkWorker
from elephas_like.compat.spark_worker import SparkWorker

__all__ = ["AsynchronousSparkWorker", "SparkWorker"]
