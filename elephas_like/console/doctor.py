"""What a fit would find on this machine: one line for each thing, and the command that mends what is missing.

Every look imports what it needs by itself, and an import that fails is a finding.
"""

from __future__ import annotations

import importlib
import os
import platform
import shutil
import sys
import warnings
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from elephas_like.console.java import java_command, java_problem, java_version
from elephas_like.core.errors import MissingExtraError
from elephas_like.core.extras import BACKENDS, DEFAULT_BACKEND, another_backend, chosen_backend, require
from elephas_like.core.findings import CheckReport, Finding, Level, one_line
from elephas_like.core.version import __version__

OPTIONAL = {
    "sklearn": "scikit-learn",
    "hyperopt": "elephas-like[search]",
    "optuna": "elephas-like[optuna]",
    "matplotlib": "elephas-like[plots]",
    "mlflow": "elephas-like[mlflow]",
    "opentelemetry": "elephas-like[metrics]",
}
"""What pip installs for a module which only some features need: never the backend, of which the user has one already."""
_OF_DATA = ("driver", "rows", "first row", "model")
"""Findings of the preflight check that are about a model and its rows; the doctor has none of the user's."""


def doctor(master: str | None, *, session: bool) -> int:
    """Print what is there and what is missing. Return 0 if a fit on Spark can run, else 1.

    Args:
        master: of the session that is started; None takes Spark's own default.
        session: whether to start one, to look at slots and executors.
    """
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    java = list(java_findings())
    spark = list(spark_findings())
    training = list(keras_findings())
    report = _shown([*python_findings(), *java, *spark, *training, *extra_findings()])
    in_process = all(finding.level is not Level.PROBLEM for finding in (*spark, *training))
    if report.ok and session and not os.environ.get("SPARK_REMOTE"):
        report = CheckReport((*report.findings, *_shown(list(session_findings(master))).findings))
    problems = report.of(Level.PROBLEM)
    on_spark = "ready" if report.ok else f"not ready: {', '.join(finding.name for finding in problems)}"
    sys.stdout.write(f"\ntraining on Spark: {on_spark}\n")
    if not report.ok and in_process:
        sys.stdout.write("training in this process, without Spark: ready, with SparkModel(..., engine='in_process')\n")
    return 0 if report.ok else 1


def _shown(findings: list[Finding]) -> CheckReport:
    for finding in findings:
        sys.stdout.write(f"{finding}\n")
    sys.stdout.flush()
    return CheckReport(tuple(findings))


def python_findings() -> Iterator[Finding]:
    """Yield this Python, and whether executors would run the same one."""
    text = f"{__version__}, on Python {platform.python_version()} ({sys.executable})"
    yield Finding("elephas_like", Level.OK, text)
    asked = os.environ.get("PYSPARK_PYTHON")
    runs = shutil.which(asked or "python3")
    mend = "Before the SparkSession starts: export PYSPARK_PYTHON=$(command -v python)"
    if asked and runs is None:
        yield Finding("executors", Level.PROBLEM, f"PYSPARK_PYTHON is {asked!r}, and there is no such program. {mend}")
    elif runs is None or os.path.abspath(runs) != os.path.abspath(sys.executable):
        if runs is not None and os.path.dirname(os.path.abspath(runs)) == os.path.dirname(sys.executable):
            return  # python3 and python of one environment
        text = f"they would run {runs or 'python3, which is not there'}; this command runs {sys.executable}. {mend}"
        yield Finding("executors", Level.NOTE, text)


def java_findings() -> Iterator[Finding]:
    """Yield the Java that Spark would start."""
    if os.environ.get("SPARK_REMOTE"):
        text = "not needed here: SPARK_REMOTE is set, and Spark runs elsewhere"
        yield Finding("java", Level.OK, text)
        return
    wrong = java_problem()
    if wrong is not None:
        yield Finding("java", Level.PROBLEM, wrong)
        return
    command = java_command()
    assert command is not None
    yield Finding("java", Level.OK, f"{java_version(command)} ({command})")


def spark_findings() -> Iterator[Finding]:
    """Yield whether pyspark can be imported, and from where."""
    found = _required("spark", "pyspark")
    if found is not None:
        yield found
        return
    pyspark = importlib.import_module("pyspark")
    yield Finding("spark", Level.OK, f"pyspark {pyspark.__version__} ({Path(pyspark.__path__[0])})")


def keras_findings() -> Iterator[Finding]:
    """Yield Keras and its backend, and whether a model can be compiled and handed to SparkModel."""
    backend = chosen_backend()
    if backend in BACKENDS:
        found = _required(backend, backend)
        if found is not None:
            yield found
            return
    try:
        keras = importlib.import_module("keras")
    except Exception as error:
        is_missing = isinstance(error, ModuleNotFoundError) and error.name == "keras"
        wrong = None if is_missing else backend_problem()
        text = wrong or f"{type(error).__name__}: {error}. Run pip install 'keras>=3.8'"
        yield Finding("keras", Level.PROBLEM, one_line(text))
        return
    text = f"{keras.__version__} on {backend} {_version(backend)}"
    if not is_installed("pyspark"):  # SparkModel cannot be imported without it
        yield Finding("keras", Level.OK, text)
        return
    try:
        small_model()
    except Exception as error:  # another backend, or packages that do not work together
        yield Finding("keras", Level.PROBLEM, one_line(f"{text}: {error}"))
    else:
        yield Finding("keras", Level.OK, text)


def backend_problem() -> str | None:
    """Return what is said of a backend that workers cannot train with; None where there is nothing to say."""
    backend = chosen_backend()
    return None if backend in BACKENDS else another_backend(backend, DEFAULT_BACKEND)


def extra_findings() -> Iterator[Finding]:
    """Yield which packages are missing that only some features need."""
    missing = [(module, package) for module, package in OPTIONAL.items() if not is_installed(module)]
    if missing:
        packages = " ".join(f"'{package}'" if "[" in package else package for _, package in missing)
        names = ", ".join(module for module, _ in missing)
        text = f"not installed: {names}. If you want what they are for: pip install {packages}"
        yield Finding("extras", Level.NOTE, text)


def session_findings(master: str | None) -> Iterator[Finding]:
    """Start a Spark session and yield what the preflight check of a small model says of it: slots, executors, settings."""
    from pyspark.sql import SparkSession

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder: Any = SparkSession.builder.appName("elephas_like doctor")
    try:
        with warnings.catch_warnings():  # JAX warns of the fork that starts Java, which is harmless
            warnings.filterwarnings("ignore", "os.fork", RuntimeWarning)
            started = (builder.master(master) if master else builder).getOrCreate()
    except Exception as error:
        where = f" at {master}" if master else ""
        text = f"it did not start{where}: {error}. Its log is above; look at the master, at SPARK_HOME and JAVA_HOME."
        yield Finding("session", Level.PROBLEM, one_line(text))
        return
    try:
        import numpy as np

        started.sparkContext.setLogLevel("ERROR")
        report = small_model().check(np.zeros((8, 2)), np.zeros((8, 1)), verbose=0)
        yield from (finding for finding in report.findings if finding.name not in _OF_DATA)
    finally:
        started.stop()


def small_model() -> Any:
    """Return a SparkModel of one layer.

    Raises:
        ValueError, ElephasError: its Keras has a backend that workers cannot train with.
    """
    import keras

    from elephas_like.model.spark_model import SparkModel

    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    return SparkModel(model)


def is_installed(module: str) -> bool:
    """Return whether a module of the top level could be imported, without importing it."""
    try:
        return find_spec(module) is not None
    except (ImportError, ValueError):
        return False


def _required(name: str, module: str) -> Finding | None:
    """Return a finding if a module is missing, too old, or cannot be imported."""
    try:
        require(module)
    except MissingExtraError as error:
        return Finding(name, Level.PROBLEM, one_line(error))
    except Exception as error:  # such as a shared library that is missing
        text = f"{module} is installed and cannot be imported: {type(error).__name__}: {error}"
        return Finding(name, Level.PROBLEM, one_line(text))
    return None


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""
