"""Elephas' import path for version numbers."""

from elephas_like.compat.elephas import get_minor_version

__all__ = ["get_minor_version"]
