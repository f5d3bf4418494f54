"""The backend that this process trains with, as Keras was told (`KERAS_BACKEND`, or its configuration file)."""

from __future__ import annotations

import gc
import sys

from elephas_like.core.archives import read_archives_once
from elephas_like.core.extras import keras_backend
from elephas_like.trainer.backends.protocol import Backend


def _chosen(name: str) -> Backend:
    """Return the module of a backend; the others are not imported, and need not be installed."""
    if name == "jax":
        from elephas_like.trainer.backends import jax

        return jax
    if name == "torch":
        from elephas_like.trainer.backends import torch

        return torch
    from elephas_like.trainer.backends import tensorflow

    return tensorflow


BACKEND = _chosen(keras_backend())

if "pyspark.worker" in sys.modules:  # a Python process of Spark's, which is used for many tasks
    # Spark collects garbage after each of them, and looks at 450,000 objects that a backend and Keras keep for good: 0.25 s. Before each of
    # them Spark up to 4.1 has Python look for modules that are new.
    gc.freeze()
    read_archives_once()
