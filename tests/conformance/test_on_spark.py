"""The same table over real Spark, with classes and functions that no executor can import."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest
from forked import run

from conformance.compare import by_keras, by_spark_model, difference
from conformance.models import TABLE

MODELS = Path(__file__).with_name("models.py")
SCRIPT = Path(__file__).with_name("run_on_spark.py")
QUICK = ("subclassed_with_arguments", "two_losses_of_one_name", "loss_that_closes_over_a_kernel", "two_optimizers")


def apart(*arguments: str, folder: Path) -> dict[str, str]:
    """What the script says of each entry."""
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable}
    done = run([SCRIPT, *arguments], environment=environment | {"TMPDIR": str(folder)}, timeout=900)
    assert done.returncode == 0, done.stderr[-3000:]
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    return {line["name"]: line["apart"] for line in lines}


@pytest.fixture(scope="module")
def of_main() -> dict:
    """The table as a script's own code: its classes and functions say that they are `__main__`'s, and are not there."""
    names: dict = {"__name__": "__main__"}
    exec(compile(MODELS.read_text(), str(MODELS), "exec"), names)
    return names["TABLE"]


@pytest.mark.filterwarnings("default::UserWarning")  # as in a script: Keras warns of what it tries and does not need
@pytest.mark.parametrize("name", QUICK)
def test_classes_and_closures_of_a_script_train_over_spark_as_in_keras(sc, of_main: dict, name: str) -> None:
    make = of_main[name]
    assert make.__module__ == "__main__"
    assert difference(by_keras(make), by_spark_model(make, sc, "jobs")) == ""


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("part", [0, 1])
def test_the_whole_table_trains_over_spark_as_in_keras(part: int, tmp_path: Path) -> None:
    names = list(TABLE)[part::2]
    assert apart("server", *names, folder=tmp_path) == dict.fromkeys(names, "")
