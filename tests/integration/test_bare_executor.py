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
            assert re.match(
                r"(elephas-like \S+, )?keras(-nightly)? \d.* are installed on the driver and missing on the executors",
                answer["message"],
            )
            assert 'os.environ["PYSPARK_PYTHON"] = sys.executable' in answer["message"]
            assert "\n" not in answer["message"]
        assert script.ended() == 0
