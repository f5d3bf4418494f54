"""The examples run as a user would run them, on fewer epochs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"
LINES = 60


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("mnist_synchronous.py", "test accuracy: 0.9"),
        ("mnist_asynchronous.py", "test accuracy: 0.8"),
        ("ensemble.py", "test accuracy of the ensemble: 0.9"),
        ("multi_input.py", "topics: [0 1 0 1]"),
        ("regression.py", "on all rows, as an RDD: {'loss': 0."),
        ("search.py", "test accuracy: 0.9"),
        ("spark_ml_pipeline.py", "test accuracy: 0.8"),
        ("ensemble_pipeline.py", "test accuracy: 0.9"),
        ("dataframe_udf.py", "mean squared error: 0."),
        ("mllib.py", "accuracy: 0.9"),
        ("hadoop_files.py", "served as predicted: True"),
        ("tfrecord.py", "rows written: 1797"),
        ("images.py", "test accuracy: 0.8"),
    ],
)
def test_an_example_says_what_it_should(name: str, said: str, tmp_path: Path) -> None:
    environment = os.environ | {"EPOCHS": "4", "PYSPARK_PYTHON": sys.executable}
    arguments = [sys.executable, str(EXAMPLES / name), str(tmp_path / "model.keras")]
    done = subprocess.run(arguments, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    accuracy = [line for line in done.stdout.splitlines() if line.startswith("test accuracy")]
    assert said in done.stdout or float(accuracy[0].split()[-1]) >= float(said.split()[-1])


@pytest.mark.parametrize("example", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.name)
def test_examples_are_short(example: Path) -> None:
    assert example.name == "demo.py" or len(example.read_text().splitlines()) < LINES
