"""Pins for `make test-lowest` come from pyproject.toml, and the floors that the code checks are the same ones."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from types import ModuleType

import pytest
from tool_modules import loaded

from elephas_like.core.extras import EXTRAS

ROOT = Path(__file__).parent.parent
PROJECT = {
    "name": "mine",
    "dependencies": ["Plain>=1.2", "capped>=2.0,<3"],
    "optional-dependencies": {
        "big": ["large[sql]>=3.5.0", "capped<4"],
        "other": ["unseen>=9"],
        "dev": ["mine[big]", "tool >= 8 "],
    },
}


@pytest.fixture(scope="module")
def lowest() -> ModuleType:
    return loaded("lowest")


def test_floors_become_pins_through_the_extras_that_an_extra_includes(lowest) -> None:
    assert lowest.pins(PROJECT, "dev") == ["capped==2.0", "large==3.5.0", "plain==1.2", "tool==8"]
    assert lowest.pins(PROJECT, "other") == ["capped==2.0", "plain==1.2", "unseen==9"]


@pytest.mark.parametrize(
    ("entry", "message"),
    [("free", "no lowest version is stated for free"), ("Plain>=1.3", "plain has two floors, 1.2 and 1.3")],
)
def test_a_dependency_without_one_floor_is_named(lowest, entry: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        lowest.pins(PROJECT | {"dependencies": ["Plain>=1.2", "capped>=2.0,<3", entry]}, "dev")


def test_every_dependency_of_this_project_has_a_floor_and_the_code_checks_the_same_ones(lowest) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert "numpy" in {pin.split("==")[0] for pin in lowest.pins(project, "dev")}
    for module, extra in EXTRAS.items():
        entries = project["optional-dependencies"][extra.name]
        (floor,) = re.findall(rf"{module}(?:\[\w+\])?>=([\d.]+)", " ".join(entries))
        assert extra.floor.removesuffix(".0") == floor.removesuffix(".0")
        names = [one.name for one in EXTRAS.values() if one.name not in ("jax", "torch")]  # in the place of TensorFlow
        assert f"elephas-like[{','.join([*names, 'plots'])}]" in str(project["optional-dependencies"]["all"])
