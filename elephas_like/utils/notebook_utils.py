"""Elephas' import path for the test whether this process is a notebook."""

from elephas_like.compat.elephas import is_running_in_notebook

__all__ = ["is_running_in_notebook"]
