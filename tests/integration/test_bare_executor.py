"""Executors whose Python lacks what the driver has."""

from __future__ import annotations

import re
import venv
from pathlib import Path

from scripts import Script


def test_a_package_that_executors_lack_is_named_with_the_drivers_version(tmp_path: Path) -> None:
    venv.create(tmp_path / "bare", with_pip=False)
    python = {"BARE_PYTHON": str(tmp_path / "bare" / "bin" / "python")}
    with Script("run_bare_executor.py", "bare", scratch=tmp_path, environment=python, plain=True) as script:
        for engine in ("server", "jobs"):
            answer = script.answer()
            assert answer["engine"] == engine
            assert answer["type"] == "ElephasError"
            # Which package is missed first is Python's affair; all of them are.
            assert re.match(
                r"\S+ \d+\.\S+ is installed on the driver and is missing on the executors", answer["message"]
            )
            assert "PYSPARK_PYTHON" in answer["message"]
            assert "\tat " not in answer["message"]
        assert script.ended() == 0
