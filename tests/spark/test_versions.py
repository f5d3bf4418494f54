"""Driver and executors must have the same packages, or say which differ."""

from __future__ import annotations

import platform
import sys
from importlib.metadata import PackageNotFoundError

import pyspark
import pytest

from elephas_like.core.errors import ElephasError
from elephas_like.core.extras import keras_backend
from elephas_like.spark.versions import (
    check_connect,
    check_spark,
    check_versions,
    installed,
    minor_differences,
    missing_package,
    versions,
)


def test_a_library_that_came_as_files_has_its_version(monkeypatch: pytest.MonkeyPatch) -> None:
    """`--py-files` brings no metadata."""

    def none(name: str) -> str:
        raise PackageNotFoundError(name)

    here = versions()["elephas-like"]
    monkeypatch.setattr("elephas_like.spark.versions.version", none)
    assert versions()["elephas-like"] == here


def test_a_process_agrees_with_itself() -> None:
    assert set(versions()) == {"elephas-like", "keras", "pyspark"}
    check_versions(versions())


@pytest.mark.parametrize(
    ("package", "there"), [("keras", "2.15.0"), ("elephas-like", "99.0"), ("keras", "none"), ("pyspark", "3.4.4")]
)
def test_both_versions_the_host_and_its_python_are_named(package: str, there: str) -> None:
    here = versions()[package]
    with pytest.raises(ElephasError) as caught:
        check_versions(versions() | {package: there})
    for part in (package, there, here, platform.node(), sys.executable, "PYSPARK_PYTHON"):
        assert part in str(caught.value)


def test_another_patch_release_of_keras_is_the_same() -> None:
    major, minor, *_ = versions()["keras"].split(".")
    check_versions(versions() | {"keras": f"{major}.{minor}.99"})


def test_spark_and_pyspark_are_of_one_minor_version() -> None:
    major, minor, *_ = pyspark.__version__.split(".")
    for same in (pyspark.__version__, f"{major}.{minor}.99", f"{major}.{minor}.0-vendor-1"):
        check_spark(same)
    other = f"{major}.{int(minor) + 1}.0"
    with pytest.raises(
        ElephasError, match=f"^Spark is {other} and the driver's pyspark {pyspark.__version__} "
    ) as caught:
        check_spark(other)
    assert f"Install pyspark=={major}.{int(minor) + 1}.*, or point SPARK_HOME to a Spark {major}.{minor}" in str(
        caught.value
    )


def test_spark_connect_needs_spark_4() -> None:
    check_connect("4.0.0")
    with pytest.raises(
        ElephasError, match=r"needs Spark 4.0 or later, and this pyspark is 3.5.7: use a classic session"
    ):
        check_connect("3.5.7")


def test_a_missing_package_is_read_off_sparks_error() -> None:
    said = missing_package(
        "... File serializers.py ...\nModuleNotFoundError: No module named 'elephas_like.trainer'\n at org..."
    )
    assert said is not None
    assert (
        f"elephas-like {versions()['elephas-like']} is installed on the driver and is missing on the executors" in said
    )
    assert (
        missing_package("elephas_like.core.errors.MissingExtraError: No module named 'elephas_like', which ...") == said
    )
    other = missing_package("ModuleNotFoundError: No module named 'not_here.etree'")
    assert other is not None
    assert other.startswith("The module 'not_here' is missing on the executors")
    assert missing_package("java.lang.OutOfMemoryError") is None


def test_a_missing_backend_that_the_driver_does_not_use_is_another_backend() -> None:
    mine, other = ("jax", "tensorflow") if keras_backend() == "jax" else ("tensorflow", "jax")
    said = missing_package(f"elephas_like.core.errors.MissingExtraError: No module named '{other}', which ...")
    assert said is not None
    assert said.startswith(f"the driver's Keras runs on '{mine}', the executors' on '{other}'")
    assert f"KERAS_BACKEND={mine}" in said


def test_the_versions_that_a_report_lists() -> None:
    found = installed()
    assert found["python"] == platform.python_version()
    assert found["keras"] == versions()["keras"]
    assert "none" not in found.values()


def test_packages_that_differ_by_more_than_a_patch_release() -> None:
    driver = {"python": "3.11.7", "numpy": "2.1.0", "keras": "3.8.0"}
    assert minor_differences(driver, {"python": "3.11.9", "numpy": "2.0.0"}) == ["numpy"]
