"""Spark's Python daemon, with Keras and TensorFlow imported before it forks: a new Python worker has them at once.

conftest.py has the sessions and scripts of the tests start it. Clusters and a bare Python get Spark's own.
"""

from __future__ import annotations

import keras  # noqa: F401
import tensorflow  # noqa: F401
from pyspark.daemon import manager

import elephas_like.spark_model  # noqa: F401

if __name__ == "__main__":
    manager()
