"""The environment that docs/deploy.md ships to executors, on real processes of a standalone cluster."""

from __future__ import annotations

from pathlib import Path

import pytest
from packing import DRIVERS_OWN, layered
from scripts import Script
from standalone import standalone

pytestmark = pytest.mark.slow


def test_executors_train_with_the_packages_of_an_archive(tmp_path: Path) -> None:
    venv_pack = pytest.importorskip("venv_pack", reason="the extra dev has it")
    archive = "environment.tar.gz"
    venv_pack.pack(prefix=str(layered(tmp_path)), output=str(tmp_path / archive))
    with standalone(tmp_path, without=DRIVERS_OWN) as url:
        with Script("run_packed.py", archive, url, scratch=tmp_path, plain=True) as script:
            script.answer()
            executors = script.answer()["executors"]
            assert len({executor["folder"] for executor in executors}) == 2
            for executor in executors:
                assert executor["prefix"] == executor["folder"] + "/environment"
                assert executor["elephas_like"].startswith(executor["folder"])
                assert "pyspark.zip" in executor["pyspark"]  # the cluster's own
            script.answer()
            fits = {answer["engine"]: answer["weights"] for answer in (script.answer() for _ in range(3))}
            assert list(fits) == ["jobs", "server", "gang"]
            assert len(set(fits.values())) == 1
            assert script.answer() == {"predicted": 200}
            assert script.ended() == 0
