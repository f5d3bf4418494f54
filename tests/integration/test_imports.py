"""What an import costs: the front door alone loads neither TensorFlow, nor Keras, nor Spark."""

from __future__ import annotations

import subprocess
import sys


def test_importing_the_package_loads_no_tensorflow_keras_or_spark() -> None:
    code = (
        "import sys, elephas_like; dir(elephas_like); elephas_like.Mode, elephas_like.ElephasError, elephas_like.Frequency;"
        "print([name for name in ('tensorflow', 'keras', 'pyspark', 'flask', 'pandas', 'hyperopt', 'matplotlib') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_room_loads_its_own_library_only() -> None:
    for room, allowed in (
        ("exchange.server", {"flask"}),
        ("rows.shards", {"pyspark"}),
        ("trainer.worker", {"keras"}),
    ):
        code = (
            f"import sys, elephas_like.{room};"
            "print([name for name in ('keras', 'pyspark', 'flask') if name in sys.modules])"
        )
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        assert done.stdout.strip().splitlines()[-1] == str(sorted(allowed))
