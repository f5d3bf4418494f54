"""Optuna's samplers over the same spaces, by ask and tell, and what Optuna says of a search that is over.

A space is walked from its root: each parameter that is reached is asked of Optuna, a choice before what hangs on its options. So
conditional parameters are asked for where they count.
"""

from __future__ import annotations

import functools
import math
import warnings
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any

from elephas_like.core.extras import require
from elephas_like.core.objective import Objective
from elephas_like.core.trials import TrialResult, TrialStatus
from elephas_like.tuning.space import Parameter, Point, Sampler, Space, Trials, seed_of

require("optuna")

import optuna  # noqa: E402
from optuna.distributions import (  # noqa: E402
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)
from optuna.trial import TrialState  # noqa: E402

_NUMBER = "trial"
"""The attribute of an Optuna trial that has the number of ours."""

_CONSTRAINTS = "constraints"
"""The attribute, one of Optuna's own, that has what the sampler's `constraints_func` says of a trial."""

_EXHAUSTIVE = (optuna.samplers.GridSampler, optuna.samplers.BruteForceSampler)
"""Samplers that try each point once. What they know of running and recalled trials does not suffice for that."""


def distribution_of(parameter: Parameter) -> BaseDistribution:
    """Optuna's distribution for a parameter of a space.

    Ends of `quniform` are as likely as the values between them; hyperopt draws them half as often.

    Raises:
        ValueError: Optuna has none.
    """
    label, kind, (low, high) = parameter.label, parameter.kind, parameter.bounds
    if kind == "choice":
        return CategoricalDistribution(range(int(high)))
    if kind == "randint":
        return IntDistribution(int(low), int(high) - 1)
    if kind == "uniform":
        return FloatDistribution(low, high)
    if kind == "loguniform":
        return FloatDistribution(math.exp(low), math.exp(high), log=True)
    if kind == "quniform" and parameter.step:
        # Optuna lowers an end that is no whole number of steps away from the other, in decimal numbers: 0.8 is, 0.8000000000000000444 is not.
        low, high = (float(Decimal(repr(parameter.step)) * round(end / parameter.step)) for end in (low, high))
        return FloatDistribution(low, high, step=parameter.step)
    if kind == "qloguniform" and parameter.step == 1 and round(math.exp(low)) >= 1:
        return IntDistribution(round(math.exp(low)), round(math.exp(high)), log=True)
    instead = {
        "pchoice": "It weighs options by what it learns: write a list, or use algo='tpe'.",
        "qloguniform": "It has steps of 1 from 1 on; else write loguniform and round in your function, or use algo='tpe'.",
    }.get(kind, "Write uniform, loguniform or quniform, or use algo='tpe'.")
    raise ValueError(f"parameter {label!r}: Optuna has no distribution like {kind}. {instead}")


class OptunaSampler:
    """A sampler of Optuna's at work, for minimizing (`tuning.space.Sampler` is hyperopt's).

    Pruned trials are told with their losses by epoch, which Optuna's TPE learns from in its own way.

    Args:
        algo: "optuna", which is a TPESampler whose seed for trial n depends on (seed, n) only; or a sampler of Optuna's, which
            goes on from its own state, and is seeded anew where a search is resumed.
        first: points to try before any other.

    Raises:
        ValueError: a parameter that Optuna has no distribution for.
    """

    def __init__(
        self,
        space: Space,
        algo: str | optuna.samplers.BaseSampler,
        seed: int,
        objective: Objective,
        first: Sequence[Point] = (),
    ) -> None:
        self.space = space
        self._seed, self._objective, self._first = seed, objective, first
        self._distributions = {parameter.label: distribution_of(parameter) for parameter in space.parameters}
        self._own = None if isinstance(algo, str) else algo
        self._study = _new_study(self._own, ["minimize"] * len(objective.all))
        self._study.stop = self._stop  # Optuna's own works within `optimize` only
        self._over = False
        self._asked: dict[int, optuna.Trial] = {}
        self._told: list[tuple[TrialResult, Point]] = []
        self._points: dict[int, Point] = {}
        self._constraints: dict[int, Sequence[float]] = {}

    @property
    def constraints(self) -> Mapping[int, Sequence[float]]:
        """What the sampler's `constraints_func` says of trials: a number above 0 is a constraint that is not met."""
        return self._constraints

    @property
    def trials(self) -> Trials:
        """The trials that have ended as hyperopt's Trials."""
        sampler = Sampler(self.space, "random", self._seed)
        for result, point in sorted(self._told, key=lambda told: told[0].number):
            sampler.recall(result, point)
        return sampler.trials

    def suggest(self, number: int) -> dict[str, int | float] | None:
        """The point of trial `number`; None where the sampler has tried everything."""
        if self._own is None:
            self._study.sampler = optuna.samplers.TPESampler(seed=seed_of(self._seed, number))
        if number < len(self._first):
            first = self._first[number]
            self._study.enqueue_trial({label: _within(self._distributions[label], first[label]) for label in first})
        while not self._over:
            trial = self._study.ask()
            trial.set_user_attr(_NUMBER, number)
            point = self.space.walk(functools.partial(self._ask, trial))
            if not self._is_repeated(point):
                self._asked[number], self._points[number] = trial, point
                return dict(point)
            self._study.tell(trial, state=TrialState.FAIL)
        return None

    def tell(self, result: TrialResult) -> None:
        """Notes a trial that has ended."""
        trial = self._asked.pop(result.number)
        self._told.append((result, self._points[result.number]))
        state, values = _state_of(self._objective, result), None
        if state is TrialState.COMPLETE:
            values = _values(self._objective, result)
        if state is not TrialState.FAIL and not self._objective.more:
            for epoch, loss in _finite(self._objective, result).items():
                trial.report(loss, epoch)
        for name, value in _attributes(result).items():  # for a `constraints_func`
            trial.set_user_attr(name, value)
        told = self._study.tell(trial, values, state=state)
        self._constraints[result.number] = told.system_attrs.get(_CONSTRAINTS) or ()

    def recall(self, result: TrialResult, point: Point) -> None:
        """Notes a trial of an earlier session."""
        if not self._told and self._own is not None:
            self._own.reseed_rng()  # its own seed would give the points of the first session again
        self._told.append((result, point))
        trial = _frozen(self._objective, result, point, self._distributions)
        says = getattr(
            self._own, "_constraints_func", None
        )  # Optuna calls it for trials that are told, not for those that are added
        if says is not None and trial.state is not TrialState.FAIL:
            self._constraints[result.number] = tuple(says(trial))
            trial = _frozen(
                self._objective, result, point, self._distributions, constraints=self._constraints[result.number]
            )
        self._study.add_trial(trial)

    def _stop(self) -> None:
        """Note that the sampler has tried everything."""
        self._over = True

    def _is_repeated(self, point: Point) -> bool:
        """Whether a sampler that tries everything once suggests a point again: of an earlier session, or of a running trial."""
        if not isinstance(self._own, _EXHAUSTIVE):
            return False
        return point in [*self._points.values(), *(told for _, told in self._told)]

    def _ask(self, trial: optuna.Trial, parameter: Parameter) -> int | float:
        label, asked = parameter.label, self._distributions[parameter.label]
        if isinstance(asked, CategoricalDistribution):
            return int(trial.suggest_categorical(label, asked.choices))
        if isinstance(asked, IntDistribution):
            return int(trial.suggest_int(label, asked.low, asked.high, log=asked.log))
        assert isinstance(asked, FloatDistribution)
        return float(trial.suggest_float(label, asked.low, asked.high, step=asked.step, log=asked.log))


def study_of(
    space: Space,
    objective: Objective,
    trials: Sequence[tuple[TrialResult, Point]],
    constraints: Mapping[int, Sequence[float]] | None = None,
) -> optuna.Study:
    """A search that is over as a study of Optuna's, whichever algorithm it had. Its values are those of the objective.

    constraints: what a sampler's `constraints_func` says of trials.

    A parameter that Optuna has no distribution for is given one that is even between the values that were tried.
    """
    distributions: dict[str, BaseDistribution] = {}
    for parameter in space.parameters:
        try:
            distributions[parameter.label] = distribution_of(parameter)
        except ValueError:
            seen = [point[parameter.label] for _, point in trials if parameter.label in point]
            if parameter.kind == "pchoice":
                distributions[parameter.label] = CategoricalDistribution(range(int(parameter.bounds[1])))
            elif seen:
                distributions[parameter.label] = FloatDistribution(float(min(seen)), float(max(seen)))
    study = _new_study(None, ["maximize" if one.maximize else "minimize" for one in objective.all])
    for result, point in trials:
        told = (constraints or {}).get(result.number, ())
        study.add_trial(_frozen(objective, result, point, distributions, as_loss=False, constraints=told))
    return study


def importances(study: optuna.Study) -> dict[str, float]:
    """How much of the differences between trials is owed to each parameter, the most important one first; the sum is 1.

    By PED-ANOVA (Watanabe, Bansal and Hutter, IJCAI 2023), as Optuna has it.

    Raises:
        ValueError: fewer than two trials have finished.
    """
    finished = len(study.get_trials(deepcopy=False, states=[TrialState.COMPLETE]))
    if finished < 2:
        raise ValueError(f"importance needs at least two finished trials; this search has {finished}.")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)  # until Optuna 5, whose default it is
        evaluator = optuna.importance.PedAnovaImportanceEvaluator()
    return optuna.importance.get_param_importances(study, evaluator=evaluator)


def _new_study(sampler: optuna.samplers.BaseSampler | None, directions: Sequence[str]) -> optuna.Study:
    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(max(before, optuna.logging.WARNING))  # nobody asked for a line on the console
    try:
        return optuna.create_study(sampler=sampler, directions=list(directions))
    finally:
        optuna.logging.set_verbosity(before)


def _values(objective: Objective, result: TrialResult) -> list[float]:
    """The losses of all objectives at the trial's best epoch."""
    assert result.loss is not None
    assert result.best_epoch is not None
    return [result.loss, *(one.loss(result.history[result.best_epoch]) for one in objective.more)]


def _state_of(objective: Objective, result: TrialResult) -> TrialState:
    if result.loss is None or result.status in (TrialStatus.FAILED, TrialStatus.INTERRUPTED):
        return TrialState.FAIL
    if result.status is TrialStatus.PRUNED:
        return TrialState.PRUNED
    # An objective that is not among the logs has no value to learn from.
    return TrialState.COMPLETE if all(map(math.isfinite, _values(objective, result))) else TrialState.FAIL


def _finite(objective: Objective, result: TrialResult) -> dict[int, float]:
    losses = enumerate(objective.losses(result.history))
    return {epoch: loss for epoch, loss in losses if math.isfinite(loss)}


def _within(distribution: BaseDistribution, value: int | float) -> int | float:
    """A value that a distribution contains: hyperopt multiplies steps in binary, and may end beside the end by a rounding."""
    if isinstance(distribution, FloatDistribution) and distribution.step is not None:
        return min(max(value, distribution.low), distribution.high)
    return value


def _frozen(
    objective: Objective,
    result: TrialResult,
    point: Point,
    distributions: Mapping[str, BaseDistribution],
    *,
    as_loss: bool = True,
    constraints: Sequence[float] = (),
) -> optuna.trial.FrozenTrial:
    """A trial that has ended, for a study."""
    state = _state_of(objective, result)
    losses = {} if state is TrialState.FAIL or objective.more else _finite(objective, result)
    values: list[float] | None = None
    if state is TrialState.COMPLETE:
        values = _values(objective, result)
    elif state is TrialState.PRUNED and losses:
        values = [losses[max(losses)]]  # as Study.tell does
    if values is not None and not as_loss:
        values = [one.value(loss) for one, loss in zip(objective.all, values, strict=False)]
    turned: Any = float if as_loss else objective.value
    return optuna.trial.create_trial(
        state=state,
        params={label: _within(distributions[label], value) for label, value in point.items()},
        distributions={label: distributions[label] for label in point},
        values=values,
        intermediate_values={epoch: turned(loss) for epoch, loss in losses.items()},
        user_attrs={**_attributes(result), _NUMBER: result.number},
        system_attrs={_CONSTRAINTS: list(constraints)} if constraints else {},
    )


def _attributes(result: TrialResult) -> dict[str, Any]:
    """What is known of a trial beside its value: its metrics at the best epoch, and what its function returned."""
    metrics = {} if result.best_epoch is None else result.history[result.best_epoch]
    return {**metrics, **result.notes}
