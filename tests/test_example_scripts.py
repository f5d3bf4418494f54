"""The examples run as a user would run them, on fewer epochs."""

from __future__ import annotations

import ast
import os
import re
import runpy
import sys
import tomllib
from pathlib import Path

import pytest
from forked import run

EXAMPLES = Path(__file__).parent.parent / "examples"
LINES = 66
IMPORTED = {
    "scikit-learn": "sklearn",
    "elephas-like": "elephas_like",
    "mlflow-skinny": "mlflow",
    "keras-hub": "keras_hub",
}
"""Names of modules that are not those of their packages."""


def check(printed: str, said: str, least: float | None, most: float | None) -> None:
    assert said in printed
    if least is not None:
        (number,) = re.findall(rf"^{re.escape(said)}([\d.]+)", printed, re.MULTILINE)
        assert least <= float(number) <= most


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "said", "least", "most"),
    [
        ("mnist_synchronous.py", "test accuracy: ", 0.9, 1),
        ("mlflow_tracking.py", "nested runs: 4", None, None),
    ],
)
def test_an_example_says_what_it_should_as_a_script(
    name: str, said: str, least: float | None, most: float | None, tmp_path: Path
) -> None:
    environment = os.environ | {"EPOCHS": "4", "PYSPARK_PYTHON": sys.executable}
    done = run([EXAMPLES / name, tmp_path / "model.keras"], folder=tmp_path, environment=environment)
    assert done.returncode == 0, done.stderr[-3000:]
    check(done.stdout, said, least, most)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "said", "least", "most"),
    [
        ("mnist_asynchronous.py", "test accuracy: ", 0.8, 1),
        ("search.py", "test accuracy: ", 0.9, 1),
        ("images.py", "test accuracy: ", 0.8, 1),
        ("ensemble.py", "test accuracy of the ensemble: ", 0.9, 1),
        ("keras_hub_text.py", "test accuracy: ", 0.6, 1),
        ("multi_input.py", "topics: [0 1 0 1]", None, None),
        ("regression.py", "on all rows, as an RDD: {'loss': ", 0, 0.99),
        ("spark_ml_pipeline.py", "test accuracy: ", 0.8, 1),
        ("ensemble_pipeline.py", "test accuracy: ", 0.9, 1),
        ("dataframe_udf.py", "mean squared error: ", 0, 0.99),
        ("mllib.py", "accuracy: ", 0.9, 1),
        ("hadoop_files.py", "served as predicted: True", None, None),
        ("tfrecord.py", "rows written: ", 1797, 1797),
    ],
)
def test_an_example_says_what_it_should_in_a_session_that_is_there(
    spark, monkeypatch: pytest.MonkeyPatch, capsys, tmp_path: Path, name: str, said: str, least: float, most: float
) -> None:
    """In the session of the tests, which saves a JVM and three imports of TensorFlow for each."""
    if name == "keras_hub_text.py":
        pytest.importorskip("hub_models")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(EXAMPLES)
    monkeypatch.setenv("EPOCHS", "4")
    monkeypatch.setattr(sys, "argv", [name, str(tmp_path / "model.keras")])
    monkeypatch.setattr(type(spark), "stop", lambda _: None)
    runpy.run_path(str(EXAMPLES / name), run_name="__main__")
    check(capsys.readouterr().out, said, least, most)


@pytest.mark.parametrize("example", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.name)
def test_examples_are_short(example: Path) -> None:
    assert example.name == "demo.py" or len(example.read_text().splitlines()) < LINES


def modules_of(source: str) -> set[str]:
    """The packages that a program imports, by the names of their modules."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found.add(node.module.split(".")[0])
    return found


def extras_of(name: str) -> set[str]:
    """The packages that an extra of ours installs, and those that we always need."""
    project = tomllib.loads((EXAMPLES.parent / "pyproject.toml").read_text())["project"]
    found, todo = set(), [*project["dependencies"], f"elephas-like[{name}]"]
    while todo:
        package, _, extras = re.match(r"([\w-]+)(\[([\w,-]+)\])?", todo.pop()).groups()
        if package == "elephas-like":
            todo += [each for extra in extras.split(",") for each in project["optional-dependencies"][extra]]
        found.add(IMPORTED.get(package, package))
    return found


@pytest.mark.parametrize("example", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.name)
def test_an_example_names_an_extra_that_brings_all_that_it_imports(example: Path) -> None:
    source = example.read_text()
    (extra,) = re.findall(r"^# pip install 'elephas-like\[([\w-]+)\]'$", source, re.M)
    own = {path.stem for path in EXAMPLES.glob("*.py")}
    assert modules_of(source) - set(sys.stdlib_module_names) - own <= extras_of(extra)
