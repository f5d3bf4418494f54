"""The demo: on Spark, without it, and where its images are missing."""

from __future__ import annotations

from pathlib import Path

import pytest
from bare import command

from elephas_like.console.demo import demo


def test_without_spark_it_trains_on_real_rows(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    assert demo(2, 6, "in_process", str(tmp_path / "fit.png")) == 0
    said = capsys.readouterr().out
    assert float(said.split("test accuracy: ")[1].split()[0]) > 0.93
    assert (tmp_path / "fit.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("plot", "says"), [("missing/fit.png", "there is no directory"), ("fit.xyz", "expected a name that ends with")]
)
def test_a_picture_that_could_not_be_written_is_refused_before_it_trains(
    tmp_path: Path, capsys: pytest.CaptureFixture, plot: str, says: str
) -> None:
    assert demo(2, 6, "in_process", str(tmp_path / plot)) == 1
    said = capsys.readouterr()
    assert (said.out, says in said.err) == ("", True)


def test_without_its_images_it_names_their_package() -> None:
    done = command("demo", without=("sklearn",))
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "The demo's images come with scikit-learn. Run pip install scikit-learn.\n"


def test_without_java_it_says_how_to_run_without_spark() -> None:
    done = command("demo", without=("tensorflow",), environment={"PATH": "/nowhere", "JAVA_HOME": None})
    assert done.returncode == 1
    assert done.stderr.endswith("Without Java: python -m elephas_like demo --engine in_process\n")


def test_without_spark_and_tensorflow_it_names_their_extras() -> None:
    for module, extra in (("pyspark", "spark"), ("tensorflow", "tensorflow")):
        engine = "auto" if module == "pyspark" else "in_process"
        done = command("demo", "--engine", engine, without=(module,))
        assert done.returncode == 1
        assert f"pip install 'elephas-like[{extra}]'" in done.stderr
        assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_on_spark() -> None:
    done = command("demo", environment={"PYSPARK_PYTHON": None})
    assert done.returncode == 0, done.stderr[-2000:]
    assert float(done.stdout.split("test accuracy: ")[1].split()[0]) > 0.93
