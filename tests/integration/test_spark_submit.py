"""An example, submitted to a standalone cluster of real processes as a user would."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from scripts import OURS, QUIET
from standalone import standalone

EXAMPLE = Path(__file__).parent.parent.parent / "examples" / "mnist_synchronous.py"


@pytest.mark.slow
def test_an_example_runs_by_spark_submit_on_a_master(tmp_path: Path) -> None:
    import pyspark

    inherited = {name: value for name, value in os.environ.items() if name != OURS}
    environment = inherited | QUIET | {"PYSPARK_PYTHON": sys.executable, "EPOCHS": "4", "TMPDIR": str(tmp_path)}
    with standalone(tmp_path) as url:
        submit = [str(Path(pyspark.__file__).parent / "bin" / "spark-submit"), "--master", url]
        submit += ["--conf", "spark.driver.host=127.0.0.1", "--conf", "spark.driver.bindAddress=127.0.0.1"]
        done = subprocess.run(
            [*submit, str(EXAMPLE), str(tmp_path / "model.keras")],
            env=environment,
            capture_output=True,
            text=True,
            timeout=420,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-3000:]
        accuracy = float(done.stdout.split("test accuracy: ")[1].split()[0])
        assert accuracy > 0.9
        assert (tmp_path / "model.keras").stat().st_size > 10_000
        # Its tasks ran in the cluster's executors, not in the driver: each worker has a folder for the application.
        assert list(tmp_path.glob("work-*/app-*/*/stderr"))
