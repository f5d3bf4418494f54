"""Imports of TensorFlow on Spark's workers, whose every line would appear in the driver's terminal or notebook."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

LEVEL = "TF_CPP_MIN_LOG_LEVEL"
_ERRORS_ONLY = "3"


def is_worker(environment: Mapping[str, str]) -> bool:
    """Return whether this is a Python process that Spark has started for its tasks."""
    return any(name.startswith("PYTHON_WORKER_FACTORY_") for name in environment)


@contextmanager
def quiet_import() -> Iterator[None]:
    """On a worker, have TensorFlow speak up for errors only, and drop what its libraries print while they are loaded.

    Some print before they read any setting. Nothing changes on the driver, or where the user has set TF_CPP_MIN_LOG_LEVEL lower. If
    the import fails, all that was printed is shown.
    """
    if not is_worker(os.environ) or os.environ.setdefault(LEVEL, _ERRORS_ONLY) != _ERRORS_ONLY:
        yield
        return
    try:
        kept = os.dup(2)
    except OSError:  # a process without standard error
        yield
        return
    with tempfile.TemporaryFile() as printed:
        sys.stderr.flush()
        os.dup2(printed.fileno(), 2)
        try:
            yield
        except BaseException:
            os.dup2(kept, 2)
            printed.seek(0)
            os.write(2, printed.read())
            raise
        finally:
            os.dup2(kept, 2)
            os.close(kept)
