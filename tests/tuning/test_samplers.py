"""Which sampler an algorithm is."""

from __future__ import annotations

import hyperopt
import numpy as np
import optuna
import pytest

from elephas_like.core.objective import Objective
from elephas_like.tuning.optuna_sampler import OptunaSampler
from elephas_like.tuning.samplers import is_optunas, name_of, sampler_of
from elephas_like.tuning.space import Sampler, Space

SPACE = {"units": [16, 32]}


class Own(optuna.samplers.RandomSampler):
    """A user's."""


def test_names_and_samplers_of_optuna_are_told_from_hyperopts() -> None:
    for algo in ("optuna", optuna.samplers.TPESampler(), Own()):
        assert isinstance(sampler_of(Space(SPACE), algo, 0, Objective("loss")), OptunaSampler)
    for algo in ("tpe", hyperopt.rand.suggest):
        assert isinstance(sampler_of(Space(SPACE), algo, 0, Objective("loss")), Sampler)
    assert not is_optunas("optuna")


def test_an_algorithm_is_named_alike_in_every_process() -> None:
    assert name_of("tpe") == "tpe"
    assert name_of(hyperopt.tpe.suggest) == "hyperopt.tpe.suggest"
    assert name_of(Own()) == f"{__name__}.Own"


def test_first_points_are_checked() -> None:
    (first,) = [sampler_of(Space(SPACE), "tpe", 0, Objective("loss"), [{"units": 32}]).suggest(0)]
    assert first == {"units": 1}
    of_a_table = sampler_of(Space(SPACE), "tpe", 0, Objective("loss"), [{"units": np.int64(32)}])
    assert of_a_table.suggest(0) == {"units": 1}
    with pytest.raises(ValueError, match=r"\{'units': 33\} is not in the space"):
        sampler_of(Space(SPACE), "tpe", 0, Objective("loss"), [{"units": 33}])
    with pytest.raises(TypeError, match=r"first_points must be a list of parameters.*got dict"):
        sampler_of(Space(SPACE), "tpe", 0, Objective("loss"), {"units": 32})  # type: ignore[arg-type]
