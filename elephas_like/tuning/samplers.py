"""Which sampler a search asks for points: hyperopt's or Optuna's. Optuna is imported only where it is asked for."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from elephas_like.core.objective import Objective
from elephas_like.core.trials import TrialResult
from elephas_like.tuning.space import Point, Sampler, Space, Trials, described


class PointSource(Protocol):
    """Suggests points, and is told what came of them."""

    @property
    def space(self) -> Space:
        """Where the points are."""
        ...

    @property
    def trials(self) -> Trials:
        """What was tried, as hyperopt's Trials."""
        ...

    @property
    def constraints(self) -> Mapping[int, Sequence[float]]:
        """What constraints of the algorithm's say of trials; a number above 0 is one that is not met."""
        ...

    def suggest(self, number: int) -> dict[str, int | float] | None:
        """The point of trial `number`; None where there are no more."""
        ...

    def tell(self, result: TrialResult) -> None:
        """Notes a trial that has ended."""
        ...

    def recall(self, result: TrialResult, point: Point) -> None:
        """Notes a trial of an earlier session."""
        ...


def is_feasible(source: PointSource, number: int) -> bool:
    """Whether a trial meets the constraints of the algorithm, which most have none of."""
    return all(told <= 0 for told in source.constraints.get(number, ()))


def sampler_of(
    space: Space, algo: Any, seed: int, objective: Objective, first: Sequence[object] | None = None
) -> PointSource:
    """The sampler of an algorithm.

    Args:
        algo: "tpe", "random", "anneal", "optuna", a sampler of Optuna's, or a function as `hyperopt.tpe.suggest`.
        first: parameters to try before any others, as the user's function gets them.

    Raises:
        ValueError: an unknown name; a point that is not in the space; a parameter that Optuna has no distribution for.
        TypeError: `first` is no list. MissingExtraError: Optuna is asked for and not installed.
    """
    if first is not None and not isinstance(first, list | tuple):
        raise TypeError(
            f"first_points must be a list of parameters, each as your function gets them; got {type(first).__name__}."
        )
    points = [space.point_of(params) for params in first or ()]
    if algo == "optuna" or is_optunas(algo):
        from elephas_like.tuning.optuna_sampler import OptunaSampler

        return OptunaSampler(space, algo, seed, objective, points)
    if objective.more:
        raise ValueError(
            "several objectives need algo='optuna' or a sampler of Optuna's: hyperopt looks for one best loss."
        )
    return Sampler(space, algo, seed, points)


def is_optunas(algo: object) -> bool:
    """Whether an algorithm is a sampler of Optuna's, or derived from one; Optuna is not imported for the question."""
    return any(base.__module__.startswith("optuna.samplers") for base in type(algo).__mro__)


def name_of(algo: str | Callable[..., Any]) -> str:
    """An algorithm as text, the same in every process."""
    if isinstance(algo, str):
        return algo
    return f"{type(algo).__module__}.{type(algo).__qualname__}" if is_optunas(algo) else described(algo)
