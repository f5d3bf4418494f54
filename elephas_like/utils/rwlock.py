"""Elephas' import path for its lock."""

from elephas_like.compat.rwlock import RWLock

__all__ = ["RWLock"]
