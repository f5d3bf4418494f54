"""Whether the Python that Spark runs its tasks with can run ours, asked before a job where the answer is on this machine."""

from __future__ import annotations

import json
import logging
import os
import shutil
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, packages_distributions, version
from typing import Any

from pyspark import SparkContext

from elephas_like.core.errors import ElephasError
from elephas_like.core.extras import keras_backend

log = logging.getLogger(__name__)

SET_IT = 'os.environ["PYSPARK_PYTHON"] = sys.executable'
"""The line that a user writes before the SparkSession is started."""
_PROBE = (
    "import importlib.util, json, sys; "
    "print(json.dumps([sys.version_info[:2], [m for m in sys.argv[1:] if importlib.util.find_spec(m) is None]]))"
)
_SECONDS = 60
_asked: dict[str, str] = {}
"""What was found of each interpreter: "" for nothing wrong."""


def check_interpreter(context: SparkContext, *, local: bool) -> None:
    """Do nothing if the tasks' Python has what ours need, as far as that can be seen from here.

    Args:
        local: whether tasks run on this machine, in the driver's own JVM. Elsewhere nothing can be asked.

    Raises:
        ElephasError: there is no such program, it is of another version, or it lacks packages; with the line that mends it.
    """
    python = str(context.pythonExec)
    if not local or is_ours(python):
        return
    if python not in _asked:
        _asked[python] = problem(python, ships_packages=_ships_packages(context))
    if _asked[python]:
        raise ElephasError(
            f"{_asked[python]} Before the SparkSession starts: import os, sys; {SET_IT}. Or point PYSPARK_PYTHON to an "
            "environment that has the same packages."
        )


def is_ours(python: str) -> bool:
    """Return whether a program is this interpreter. A virtual environment's is a link to another one, in a folder of its own."""
    found = shutil.which(python)
    here = sys.executable or ""
    if found is None or os.path.realpath(found) != os.path.realpath(here):
        return False
    return os.path.dirname(os.path.abspath(found)) == os.path.dirname(os.path.abspath(here))


def _ships_packages(context: SparkContext) -> bool:
    """Return whether Spark gives its tasks packages of their own, which an interpreter alone does not show."""
    conf = context.getConf()
    names = ("spark.submit.pyFiles", "spark.archives", "spark.files", "spark.yarn.dist.archives")
    return any(conf.get(name, "") for name in names) or bool(getattr(context, "_python_includes", None))


def problem(python: str, *, ships_packages: bool) -> str:
    """Return what is wrong with a program that is to run tasks on this machine; "" if nothing is known to be.

    Args:
        ships_packages: whether Spark gives tasks packages that the program itself has not.
    """
    found = shutil.which(python)
    if found is None:
        how = (
            "PYSPARK_PYTHON is"
            if os.environ.get("PYSPARK_PYTHON")
            else "PYSPARK_PYTHON is not set: Spark's executors run"
        )
        return f"{how} {python!r}, and there is no such program."
    try:
        # Spark brings pyspark itself.
        done = subprocess.run(
            [found, "-c", _PROBE, "elephas_like", "keras", keras_backend(), "numpy"],
            capture_output=True,
            timeout=_SECONDS,
            check=True,
        )
        (major, minor), missing = json.loads(done.stdout.decode().strip().splitlines()[-1])
    except PermissionError:
        return f"PYSPARK_PYTHON is {python!r}, which this user may not run."
    except (OSError, subprocess.SubprocessError, ValueError, IndexError) as error:
        log.debug("could not ask %s what it has: %s", found, error)  # Spark tries it next, and has its own words
        return ""
    where = f"The executors' Python is {found}"
    if (major, minor) != sys.version_info[:2]:
        here = ".".join(map(str, sys.version_info[:2]))
        return f"{where}, version {major}.{minor}, and the driver's {sys.executable} is {here}: they must be equal."
    if missing and not ships_packages:
        held = ", ".join(map(_held, missing))
        return f"{held} {'is' if len(missing) == 1 else 'are'} installed on the driver and missing on the executors. {where}."
    return ""


def _held(module: str) -> str:
    """Return the package of a module that the driver has, with its version."""
    packages: Any = packages_distributions().get(module) or [module]
    try:
        return f"{packages[0]} {version(packages[0])}"
    except PackageNotFoundError:
        return str(packages[0])
