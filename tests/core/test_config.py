"""Strategies, parts, codecs and schedules as plain data."""

from __future__ import annotations

import json
from dataclasses import dataclass

import pytest

from elephas_like.core.schedules import FixedSteps, PostLocal
from elephas_like.core.strategies import (
    CODECS,
    STRATEGIES,
    Average,
    Clipped,
    Median,
    Nesterov,
    Radial,
    Strategy,
    TopK,
    TrimmedMean,
)
from elephas_like.core.strategies.config import from_config, to_config


@pytest.mark.parametrize(
    "value",
    [
        *(kind() for kind in STRATEGIES.values()),
        *(kind() for kind in CODECS.values()),
        Nesterov(learning_rate=0.5, momentum=0.25, reduce=Clipped(2.0, then=Radial())),
        Average(reduce=TrimmedMean(0.1)),
        Average(reduce=Median()),
        TopK(share=0.5),
        FixedSteps(7),
        PostLocal(16),
    ],
    ids=repr,
)
def test_it_goes_through_json(value: object) -> None:
    assert from_config(json.loads(json.dumps(to_config(value)))) == value


def test_it_is_a_class_and_its_fields() -> None:
    expected = {"class": "Nesterov", "learning_rate": 0.5, "momentum": 0.25, "stretch": True, "reduce": None}
    assert to_config(Nesterov(0.5, 0.25)) == expected


def test_names_and_other_values_stay_what_they_are() -> None:
    for value in ("nesterov", None, 3, {"a": 1}):
        assert from_config(to_config(value)) == value


def test_a_strategy_of_the_users_own_has_no_name_to_save() -> None:
    class Mine(Strategy):
        name = "average"

    @dataclass(frozen=True)
    class Nesterov(Strategy):
        """Of the same name as one of ours."""

    with pytest.raises(ValueError, match=r"Mine is no class of elephas_like\.strategies"):
        to_config(Mine())
    with pytest.raises(ValueError, match="Nesterov is no class"):
        to_config(Nesterov())
