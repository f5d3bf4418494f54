"""The backend that this process trains with, as Keras was told (`KERAS_BACKEND`, or its configuration file)."""

from __future__ import annotations

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
