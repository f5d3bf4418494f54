"""Compare the package versions of executors with the driver's, and say what to do where they differ."""

from __future__ import annotations

import platform
import re
import sys
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, packages_distributions, version

from elephas_like.core.errors import ElephasError

_PACKAGES = ("elephas-like", "keras")


def versions() -> dict[str, str]:
    """Return the versions of the packages on which driver and executors must agree; "none" for a missing package."""
    found = {}
    for package in _PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "none"
    return found


def check_versions(driver: Mapping[str, str]) -> None:
    """Raise ElephasError if package versions differ from the driver's.

    elephas-like must be equal; other packages must have the same minor version.

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
    found = re.search(r"ModuleNotFoundError: No module named '([\w.]+)'", message)
    if found is None:
        return None
    module = found.group(1).split(".")[0]
    packages = packages_distributions().get(module, [])
    known = (
        f"{packages[0]} {version(packages[0])} is installed on the driver and" if packages else f"The module {module!r}"
    )
    return (
        f"{known} is missing on the executors. Install it for the Python that executors run (PYSPARK_PYTHON) on every "
        "node, or ship the environment with spark.archives."
    )


def _minor(text: str) -> list[str]:
    return text.split(".")[:2]
