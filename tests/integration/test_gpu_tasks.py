"""Two GPUs, as far as Spark and CUDA's variable know, of an executor or of local mode: each worker process has a card of its own."""

from __future__ import annotations

from pathlib import Path

import pytest
from scripts import Script


@pytest.mark.slow
@pytest.mark.parametrize("how", ["given", "asked", "local"])
def test_each_worker_has_a_card_of_its_own(tmp_path: Path, how: str) -> None:
    engines = ("server", "gang") if how == "local" else ("server", "jobs", "gang", "server")
    seen = {"CUDA_VISIBLE_DEVICES": "0,1"} if how == "local" else None
    with Script("run_gpus.py", how, *engines, scratch=tmp_path, environment=seen) as script:
        mine: dict[str, str] = {}
        for engine in engines:
            answer = script.answer()
            assert (answer["engine"], answer["workers"]) == (engine, 2)
            assert sorted(answer["cards"].values()) == ["0 true", "1 true"], answer
            for process, card in answer["cards"].items():
                assert mine.setdefault(process, card) == card
        answer = script.answer()
        assert set(answer["cards"].values()) <= {"0 true", "1 true"}
        assert answer["cards"]
        for _ in range(5):
            assert sorted(script.answer()["shown"]) == ["0", "1"]
        assert script.ended() == 0
