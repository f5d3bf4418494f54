"""Elephas' import path for labels of token sequences."""

from elephas_like.compat.labels import pad_labels

__all__ = ["pad_labels"]
