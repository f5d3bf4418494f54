"""Promise 2: the four engines give the same synchronous fit, to the last bit of weights and of optimizer variables."""

from __future__ import annotations

from pathlib import Path

import pytest
from scripts import Script

FITS = ("cnn", "sorted", "set weights", "kept by workers")


@pytest.mark.long
def test_four_engines_give_the_same_bits(tmp_path: Path) -> None:
    found: dict[str, dict[str, dict]] = {}
    engines = ("in_process", "server", "jobs", "gang")
    with Script("run_engine.py", *engines, scratch=tmp_path) as script:
        for engine in engines:
            found[engine] = {name: script.answer() for name in FITS if (engine, name) != ("jobs", "kept by workers")}
            assert {answer.pop("engine") for answer in found[engine].values()} == {engine}
        assert script.ended() == 0
    for model in FITS:
        expected = found["in_process"][model]
        assert expected["model"] == model
        assert found["server"][model] == expected
        assert found["jobs"].get(model, expected) == expected
        assert found["gang"][model] == expected
        assert sum(expected["samples"]) == 2 * 450
    # 15 steps an epoch: three rounds to begin with, and shorter ones where workers drift apart
    assert {of for _, of in found["in_process"]["cnn"]["schedule"]} == {3}
    assert max(of for _, of in found["in_process"]["sorted"]["schedule"]) > 3
