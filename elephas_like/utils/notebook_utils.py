"""Elephas' import path for whether this is a notebook."""

from elephas_like.compat.elephas import is_running_in_notebook

__all__ = ["is_running_in_notebook"]
