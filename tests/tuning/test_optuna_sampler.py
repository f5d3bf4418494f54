"""Optuna's samplers by ask and tell, over spaces in hyperopt's terms."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable

import optuna
import pytest
from hyperopt import hp
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

from elephas_like.core.objective import Objective
from elephas_like.core.trials import TrialResult, TrialStatus
from elephas_like.tuning.optuna_sampler import OptunaSampler, distribution_of, importances, study_of
from elephas_like.tuning.space import Point, Sampler, Space

SPACE = {
    "units": [16, 32],
    "rate": ("loguniform", -9, -2),
    "depth": ("randint", 1, 4),
    "size": ("quniform", 8, 64, 8),
    "way": hp.choice("way", [{"kind": "sgd", "momentum": hp.uniform("momentum", 0, 1)}, {"kind": "adam"}]),
}
GOAL = Objective("loss")


def ended(sampler: OptunaSampler, number: int, point: Point, status: TrialStatus = TrialStatus.OK) -> TrialResult:
    """A trial whose loss is its rate, after twice that."""
    rate = float(sampler.space.at(point)["rate"])
    history = ({"loss": 2 * rate}, {"loss": rate})
    return TrialResult(number, status, history, best_epoch=1, loss=rate)


def run(algo: object, count: int, seed: int = 0, space: object = SPACE) -> tuple[OptunaSampler, list]:
    sampler = OptunaSampler(Space(space), algo, seed, GOAL)  # type: ignore[arg-type]
    told = []
    for number in range(count):
        point = sampler.suggest(number)
        told.append((ended(sampler, number, point, TrialStatus.PRUNED if number % 3 == 2 else TrialStatus.OK), point))
        sampler.tell(told[-1][0])
    return sampler, told


def test_distributions_are_those_of_the_space() -> None:
    made = {one.label: distribution_of(one) for one in Space(SPACE).parameters}
    assert made == {
        "units": CategoricalDistribution((0, 1)),
        "way": CategoricalDistribution((0, 1)),
        "rate": FloatDistribution(math.exp(-9), math.exp(-2), log=True),
        "depth": IntDistribution(1, 3),
        "size": FloatDistribution(8, 64, step=8),
        "momentum": FloatDistribution(0, 1),
    }
    (whole,) = Space({"x": ("qloguniform", 0, math.log(64), 1)}).parameters
    assert distribution_of(whole) == IntDistribution(1, 64, log=True)


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        (("normal", 0, 1), "Optuna has no distribution like normal. Write uniform"),
        (("qlognormal", 0, 1, 1), "no distribution like qlognormal"),
        (("pchoice", [(0.3, 1), (0.7, 2)]), "no distribution like pchoice. It weighs options"),
        (("qloguniform", 0, 5, 8), "no distribution like qloguniform. It has steps of 1"),
    ],
)
def test_what_optuna_cannot_draw_is_named(entry: tuple, said: str) -> None:
    with pytest.raises(ValueError, match=f"parameter 'x': Optuna has {said.removeprefix('Optuna has ')}"):
        OptunaSampler(Space({"x": entry}), "optuna", 0, GOAL)


def test_points_are_in_the_space_and_a_seed_repeats_them() -> None:
    sampler, told = run("optuna", 25)
    for _, point in told:
        params = sampler.space.at(point)
        assert sampler.space.point_of(params) == point
        assert ("momentum" in point) == (params["way"]["kind"] == "sgd")
    assert [point for _, point in told] == [point for _, point in run("optuna", 25)[1]]
    assert len({point["rate"] for _, point in told}) == 25
    assert told[0][1] != run("optuna", 1, seed=1)[1][0][1]


def test_optunas_tpe_learns_from_trials() -> None:
    learned = [float(result.loss or 0) for result, _ in run("optuna", 60)[1]]
    random = [float(result.loss or 0) for result, _ in run(optuna.samplers.RandomSampler(seed=0), 60)[1]]
    assert sum(learned[20:]) < 0.5 * sum(random[20:])


def test_recalled_trials_are_as_if_just_tried() -> None:
    _, told = run("optuna", 30)
    again = OptunaSampler(Space(SPACE), "optuna", 0, GOAL)
    for result, point in told[:29]:
        again.recall(result, point)
    assert again.suggest(29) == told[29][1]


def test_a_sampler_with_a_seed_of_its_own_tries_nothing_twice_when_it_goes_on() -> None:
    _, told = run(optuna.samplers.RandomSampler(seed=3), 2)
    again = OptunaSampler(Space(SPACE), optuna.samplers.RandomSampler(seed=3), 0, GOAL)
    assert OptunaSampler(Space(SPACE), optuna.samplers.RandomSampler(seed=3), 0, GOAL).suggest(0) == told[0][1]
    again.recall(*told[0])
    again.recall(*told[1])
    assert again.suggest(2)["rate"] not in [point["rate"] for _, point in told]


def test_what_a_plain_option_holds_is_asked_for_where_it_is_chosen() -> None:
    options = {"opt": [{"name": "sgd", "rate": ("loguniform", -9, -2)}, {"name": "adam", "rate": [0.1, 0.2]}]}
    sampler = OptunaSampler(Space(options), "optuna", 0, GOAL)
    points = [sampler.suggest(number) for number in range(20)]
    assert {tuple(point) for point in points} == {("opt", "opt.0.rate"), ("opt", "opt.1.rate")}
    study = study_of(sampler.space, GOAL, [(TrialResult(0, TrialStatus.OK, ({"loss": 1.0},), 0, 1.0), points[0])])
    assert study.trials[0].params == points[0]
    with pytest.raises(ValueError, match=r"parameter 'opt\.0\.x': Optuna has no distribution like normal"):
        OptunaSampler(Space({"opt": [{"x": ("normal", 0, 1)}, 1]}), "optuna", 0, GOAL)


EVERYTHING = {
    "units": [16, 32],
    "way": hp.choice("way", [{"kind": "sgd", "nesterov": hp.choice("nesterov", [False, True])}, {"kind": "adam"}]),
}
POINTS = [
    {"units": units, **way}
    for units in (0, 1)
    for way in ({"way": 0, "nesterov": 0}, {"way": 0, "nesterov": 1}, {"way": 1})
]


def grid() -> optuna.samplers.BaseSampler:
    return optuna.samplers.GridSampler({"units": [0, 1], "way": [0, 1], "nesterov": [0, 1]})


def brute() -> optuna.samplers.BaseSampler:
    return optuna.samplers.BruteForceSampler(seed=0)


@pytest.mark.filterwarnings("ignore::optuna.exceptions.ExperimentalWarning")
@pytest.mark.parametrize("algo", [grid, brute])
@pytest.mark.parametrize("slots", [1, 4])
@pytest.mark.parametrize("earlier", [0, 1, 4, 6])
def test_a_sampler_that_tries_everything_tries_it_once_and_ends(algo: Callable, slots: int, earlier: int) -> None:
    sampler = OptunaSampler(Space(EVERYTHING), algo(), 0, GOAL)
    for number, point in enumerate(POINTS[:earlier]):
        sampler.recall(TrialResult(number, TrialStatus.OK, ({"loss": 1.0},), 0, 1.0), point)
    tried, running, number = POINTS[:earlier], [], earlier
    while (point := sampler.suggest(number)) is not None:
        tried.append(point)
        running.append(number)
        number += 1
        if len(running) == slots:
            sampler.tell(TrialResult(running.pop(0), TrialStatus.OK, ({"loss": 1.0},), 0, 1.0))
    for left in running:
        sampler.tell(TrialResult(left, TrialStatus.OK, ({"loss": 1.0},), 0, 1.0))
    assert sorted(tried, key=str) == sorted(POINTS, key=str)


def test_first_points_come_first_and_count() -> None:
    space = Space(SPACE)
    first = [space.drawn(1), space.drawn(2)]
    sampler = OptunaSampler(space, "optuna", 0, GOAL, first)
    assert [sampler.suggest(0), sampler.suggest(1)] == first
    assert sampler.suggest(2) not in first


def test_failed_and_interrupted_trials_are_failures_and_hyperopts_trials_are_there_too() -> None:
    sampler = OptunaSampler(Space(SPACE), "optuna", 0, GOAL)
    points = [sampler.suggest(number) for number in range(3)]
    sampler.tell(TrialResult(0, TrialStatus.FAILED))
    sampler.tell(ended(sampler, 2, points[2]))
    sampler.tell(TrialResult(1, TrialStatus.INTERRUPTED))
    assert sampler.trials.losses() == [None, None, sampler.space.at(points[2])["rate"]]
    assert [trial.state.name for trial in sampler._study.trials] == ["FAIL", "FAIL", "COMPLETE"]


def test_the_parameter_that_decides_is_the_important_one() -> None:
    sampler, told = run(optuna.samplers.RandomSampler(seed=0), 60)
    study = study_of(sampler.space, GOAL, told)
    found = importances(study)
    assert next(iter(found)) == "rate"
    assert sum(found.values()) == pytest.approx(1)
    assert study.best_value == min(result.loss for result, _ in told if result.counts)
    assert study.trials[2].state.name == "PRUNED"
    with pytest.raises(ValueError, match="at least two finished trials; this search has 1"):
        importances(study_of(sampler.space, GOAL, told[:1]))


def test_a_study_has_the_objectives_own_values_and_takes_any_space() -> None:
    space = Space({"x": ("normal", 0, 1), "y": hp.pchoice("y", [(0.3, 1), (0.7, 2)])})
    goal = Objective("accuracy", maximize=True)
    told = [
        (TrialResult(n, TrialStatus.OK, ({"accuracy": 0.5 + n / 10},), 0, -0.5 - n / 10), space.drawn(n))
        for n in range(4)
    ]
    study = study_of(space, goal, told)
    assert study.best_value == pytest.approx(0.8)
    assert study.direction.name == "MAXIMIZE"
    assert set(importances(study)) == {"x", "y"}


@pytest.mark.parametrize(
    ("low", "high", "step"), [(0.3, 0.8, 0.1), (0.3, 0.5, 0.1), (0.6, 0.9, 0.1), (0.15, 0.5, 0.05), (0, 0.9, 0.3)]
)
def test_the_ends_of_steps_are_drawn_too(low: float, high: float, step: float) -> None:
    (parameter,) = Space({"x": ("quniform", low, high, step)}).parameters
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # Optuna's, that it lowers the end
        assert distribution_of(parameter) == FloatDistribution(low, high, step=step)


def test_ends_that_hyperopt_rounds_otherwise_are_in_optuna_s_study() -> None:
    sampler = Sampler(Space({"x": ("quniform", 0, 0.6, 0.1)}), "random", 0)
    told = []
    for number in range(40):
        point = sampler.suggest(number)
        assert point is not None
        told.append(
            (TrialResult(number, TrialStatus.OK, ({"loss": point["x"]},), best_epoch=0, loss=point["x"]), point)
        )
    assert max(point["x"] for _, point in told) > 0.6  # 6 * 0.1 in binary
    study = study_of(sampler.space, GOAL, told)
    assert importances(study) == {"x": 1.0}
    assert max(trial.params["x"] for trial in study.trials) == 0.6
