"""Compare the versions of Spark, driver and executors, and say what to do where they differ."""

from __future__ import annotations

import platform
import re
import sys
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, packages_distributions, version

import pyspark

from elephas_like.core.errors import ElephasError
from elephas_like.core.extras import BACKENDS, keras_backend
from elephas_like.core.version import __version__

_PACKAGES = ("elephas-like", "keras", "pyspark")


def versions() -> dict[str, str]:
    """Return the versions of the packages on which driver and executors must agree; "none" for a missing package."""
    return {package: _version(package) for package in _PACKAGES}


def installed() -> dict[str, str]:
    """Return the versions of Python and of the packages that a fit computes with; "none" for a missing package."""
    found = {package: _version(package) for package in ("elephas-like", "keras", keras_backend(), "numpy", "pyspark")}
    if found.get("tensorflow") == "none":
        found["tensorflow"] = _version("tensorflow-cpu")
    return {"python": platform.python_version(), **found}


def minor_differences(one: Mapping[str, str], other: Mapping[str, str]) -> list[str]:
    """Return the packages of which two processes have versions that differ by more than a patch release."""
    return [package for package, held in one.items() if _minor(held) != _minor(other.get(package, held))]


def check_spark(spark: str) -> None:
    """Raise ElephasError if this driver's pyspark is of another minor version than its Spark.

    Args:
        spark: the version of the Spark that a SparkContext runs on, in the JVM.
    """
    here = pyspark.__version__
    if _minor(spark) != _minor(here):
        raise ElephasError(
            f"Spark is {spark} and the driver's pyspark {here} ({pyspark.__path__[0]}): they must have the same minor "
            f"version. Install pyspark=={'.'.join(_minor(spark))}.*, or point SPARK_HOME to a Spark {'.'.join(_minor(here))}."
        )


def check_connect(here: str) -> None:
    """Raise ElephasError if sessions of Spark Connect of this pyspark cannot be used here.

    Before 4.0 their DataFrames are of another type than those of classic sessions, and pip's Spark has no Connect server to try.

    Args:
        here: the version of pyspark.
    """
    if int(here.split(".")[0]) < 4:
        raise ElephasError(
            f"over Spark Connect elephas_like needs Spark 4.0 or later, and this pyspark is {here}: use a classic session "
            "(SparkSession.builder.master(...)), or a later Spark."
        )


def check_versions(driver: Mapping[str, str]) -> None:
    """Raise ElephasError if package versions differ from the driver's.

    elephas-like must be equal; Keras and pyspark must have the same minor version.

    Args:
        driver: the result of `versions()` on the driver.

    Raises:
        ElephasError: naming the package, both versions and the host.
    """
    for package, here in versions().items():
        there = driver.get(package, here)
        if _minor(here) != _minor(there) or (package == "elephas-like" and here != there):
            raise ElephasError(
                f"{package} is {there} on the driver and {here} on executor host {platform.node()}, whose "
                f"Python is {sys.executable}. Point PYSPARK_PYTHON to the right one before Spark starts, install the same "
                f"version there (pip install {package}=={there}), or ship the environment with spark.archives."
            )


def missing_package(message: str) -> str | None:
    """Return advice if a Spark error is about a package that is missing on the executors, else None."""
    found = re.search(r"(?:ModuleNotFound|MissingExtra)Error: No module named '([\w.]+)'", message)
    if found is None:
        return None
    module = found.group(1).split(".")[0]
    if module in BACKENDS and module != keras_backend():
        return (
            f"the driver's Keras runs on {keras_backend()!r}, the executors' on {module!r}, which they do not have: set "
            f"KERAS_BACKEND={keras_backend()} there, too (spark.executorEnv.KERAS_BACKEND)."
        )
    packages = packages_distributions().get(module, [])
    known = (
        f"{packages[0]} {version(packages[0])} is installed on the driver and" if packages else f"The module {module!r}"
    )
    return (
        f"{known} is missing on the executors. Install it for the Python that executors run (PYSPARK_PYTHON) on every "
        "node, or ship the environment with spark.archives."
    )


def _version(package: str) -> str:
    if (
        package == "pyspark"
    ):  # a platform's own is on the path without metadata, perhaps beside one that pip has installed
        return pyspark.__version__
    if package == "elephas-like":  # which may have come by --py-files, without metadata
        return __version__
    try:
        return version(package) or "none"  # metadata may be there without a version
    except PackageNotFoundError:
        return "none"


def _minor(text: str) -> list[str]:
    return text.split(".")[:2]
