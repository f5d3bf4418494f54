"""Compiled programs in files, for the other Python processes of a Spark executor, and for those that come later.

Spark ends Python processes that were idle for a minute, and new ones compiled everything anew: 1.2 s of a small MLP's first round.
"""

from __future__ import annotations

import os
import sys

from elephas_like.core.extras import require

require("jax")

import jax  # noqa: E402

MIN_SECONDS = 0.1
"""Compiling that takes less is done again. JAX's own default of a second leaves out most programs of small models."""


def share_programs() -> None:
    """Let JAX keep compiled programs in this executor's local directory, which Spark deletes with the executor.

    Do nothing in processes that are not Spark's Python workers, or where the user has named a directory.
    """
    directory = _directory()
    if directory is not None and jax.config.jax_compilation_cache_dir is None:
        jax.config.update("jax_compilation_cache_dir", directory)
        jax.config.update("jax_persistent_cache_min_compile_time_secs", MIN_SECONDS)


def _directory() -> str | None:
    """Return a directory that only this user can write, because JAX runs what it finds there; None without one."""
    place = os.environ.get("SPARK_LOCAL_DIRS", "").split(",")[0].strip()
    if not place or "pyspark.worker" not in sys.modules:
        return None
    directory = os.path.join(place, "elephas_like_jax")  # not "elephas_like-...", which are a fit's, and go with it
    try:
        os.makedirs(directory, mode=0o700, exist_ok=True)
        found = os.stat(directory)
    except OSError:
        return None
    mine = not hasattr(os, "getuid") or (found.st_uid == os.getuid() and not found.st_mode & 0o022)
    return directory if mine else None
