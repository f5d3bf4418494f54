"""Where a search goes next: the space, and hyperopt's algorithms over it, on the driver, which knows every trial."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from elephas_like.core.checks import did_you_mean
from elephas_like.core.extras import require
from elephas_like.core.trials import TrialResult, TrialStatus

require("hyperopt")

import hyperopt  # noqa: E402
from hyperopt import Trials as Trials  # noqa: E402
from hyperopt import anneal, hp, pyll, rand, tpe  # noqa: E402
from hyperopt.exceptions import DuplicateLabel  # noqa: E402

KINDS: dict[str, Callable[..., Any]] = {
    "choice": hp.choice,
    "pchoice": hp.pchoice,
    "randint": hp.randint,
    "uniform": hp.uniform,
    "quniform": hp.quniform,
    "uniformint": hp.uniformint,
    "loguniform": hp.loguniform,
    "qloguniform": hp.qloguniform,
    "normal": hp.normal,
    "qnormal": hp.qnormal,
    "lognormal": hp.lognormal,
    "qlognormal": hp.qlognormal,
}
ALGORITHMS: dict[str, Callable[..., Any]] = {"tpe": tpe.suggest, "random": rand.suggest, "anneal": anneal.suggest}

Point = Mapping[str, int | float]
"""A trial's place in the space, by label: for a choice the number of the option."""


class Space:
    """A hyperopt space, or a plain dict of `("uniform", 0, 1)`-like entries, made into hyperopt's.

    In a dict an entry is a node of hyperopt's (`hp.uniform("x", 0, 1)`), a tuple of a kind and its arguments
    (`("loguniform", -9, -2)`), a list of options, another such dict, or a constant.

    Raises:
        ValueError: an empty space, an unknown kind of parameter, or two parameters of one label.
        TypeError: neither a dict nor hyperopt's.
    """

    def __init__(self, space: object) -> None:
        if not isinstance(space, dict | list | tuple | pyll.Apply):
            raise TypeError(
                "space must be a dict of parameters, as {'units': [32, 64], 'rate': ('loguniform', -9, -2)}, or hyperopt's; "
                f"got {type(space).__name__}."
            )
        if not isinstance(space, pyll.Apply) and not space:
            raise ValueError("the space is empty: give at least one parameter, as {'units': [32, 64]}.")
        self.expression = pyll.as_apply(_entries(space, "") if isinstance(space, dict) else space)
        if not any(node.name == "hyperopt_param" for node in pyll.dfs(self.expression)):
            raise ValueError(
                "the space has no parameters, only constants: write {'units': [32, 64]}, {'rate': ('loguniform', -9, -2)} or "
                "hyperopt's own hp.choice(...), hp.loguniform(...)."
            )
        try:
            self.domain = hyperopt.base.Domain(lambda params: 0.0, self.expression)
        except DuplicateLabel as error:
            raise ValueError(
                f"two parameters of the space have the label {error.args[0]!r}; labels must differ."
            ) from error

    @property
    def labels(self) -> list[str]:
        """The labels of all parameters, sorted."""
        return sorted(self.domain.params)

    def drawn(self, seed: int) -> Point:
        """A random point."""
        (document,) = rand.suggest([0], self.domain, Trials(), seed)
        return {label: values[0] for label, values in document["misc"]["vals"].items() if len(values)}

    def at(self, point: Point) -> Any:
        """What the user's function gets for a point, in Python's own numbers."""
        return _plain(hyperopt.space_eval(self.expression, dict(point)))

    def described(self) -> str:
        """The space as text, the same in every process."""
        return _without_addresses(str(self.expression))


def described(algo: Callable[..., Any]) -> str:
    """An algorithm as text, the same in every process: a function's name, and what a partial gives it."""
    if isinstance(algo, functools.partial):
        given = [*map(repr, algo.args), *(f"{name}={algo.keywords[name]!r}" for name in sorted(algo.keywords))]
        return _without_addresses(f"partial({', '.join([described(algo.func), *given])})")
    return _without_addresses(f"{algo.__module__}.{getattr(algo, '__qualname__', algo)}")


def _without_addresses(text: str) -> str:
    return re.sub(r" at 0x[0-9a-f]+", "", text)


def _entries(space: Mapping[Any, Any], prefix: str) -> dict[str, Any]:
    """The dict with every entry as hyperopt takes it."""
    return {name: _entry(f"{prefix}{name}", value) for name, value in space.items()}


def _entry(label: str, value: Any) -> Any:
    if isinstance(value, dict):
        return _entries(value, f"{label}.")
    if isinstance(value, tuple) and value and isinstance(value[0], str):
        return node(label, value[0], value[1:])
    if isinstance(value, list) and not any(isinstance(item, pyll.Apply) for item in value):
        return node(label, "choice", (value,))
    if isinstance(value, tuple | set) or (hasattr(value, "rvs") and not isinstance(value, pyll.Apply)):
        raise ValueError(
            f"parameter {label!r}: expected hyperopt's hp.*, a list of options, a tuple of a kind and its arguments such as "
            f"('uniform', 0, 1), or a constant; got {type(value).__name__}. Kinds: {', '.join(KINDS)}."
        )
    return value


def node(label: str, kind: str, arguments: Sequence[Any], named: Mapping[str, Any] | None = None) -> Any:
    """One parameter of hyperopt's.

    Raises:
        ValueError: the kind is unknown, or its arguments are not what hyperopt takes.
    """
    if kind not in KINDS:
        raise ValueError(
            f"parameter {label!r}: unknown kind {kind!r}.{did_you_mean(kind, KINDS)} Kinds: {', '.join(KINDS)}; a list is a choice."
        )
    if kind == "choice" and (len(arguments) != 1 or not len(arguments[0])):
        raise ValueError(f"parameter {label!r}: choice takes one list of at least one option; got {list(arguments)}.")
    try:
        made = KINDS[kind](label, *arguments, **(named or {}))
        pyll.stochastic.sample(made, np.random.default_rng(0))
    except Exception as error:  # hyperopt asserts, and raises bare exceptions
        raise ValueError(
            f"parameter {label!r}: {kind}{tuple(arguments)} is not one: {error or type(error).__name__}"
        ) from error
    return made


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _plain(item) for name, item in value.items()}
    if isinstance(value, tuple | list):
        return type(value)(_plain(item) for item in value) if type(value) in (tuple, list) else value
    if isinstance(value, np.generic):
        return value.item()
    return value


class Sampler:
    """An algorithm of hyperopt's at work: it suggests points, and is told what came of them.

    The seed of trial n depends on (seed, n) only, so that a random search that is resumed is the one it would have been.

    Args:
        algo: "tpe", "random", "anneal", or a function as `hyperopt.tpe.suggest`.

    Raises:
        ValueError: the name is unknown. TypeError: neither a name nor a function.
    """

    def __init__(self, space: Space, algo: str | Callable[..., Any], seed: int) -> None:
        if isinstance(algo, str):
            if algo not in ALGORITHMS:
                names = ", ".join(map(repr, ALGORITHMS))
                raise ValueError(
                    f"algo must be one of {names}, or a function such as hyperopt.tpe.suggest; got {algo!r}."
                    f"{did_you_mean(algo, ALGORITHMS)}"
                )
            algo = ALGORITHMS[algo]
        if not callable(algo):
            raise TypeError(
                f"algo must be a name or a function such as hyperopt.tpe.suggest; got {type(algo).__name__}."
            )
        self.space = space
        self.trials = Trials()
        self._algo, self._seed = algo, seed
        self._documents: dict[int, dict[str, Any]] = {}

    def suggest(self, number: int) -> dict[str, int | float] | None:
        """The point of trial `number`; None where the algorithm has no more."""
        seed = int(np.random.SeedSequence([self._seed, number]).generate_state(1)[0] % (2**31 - 1))
        documents = self._algo([number], self.space.domain, self.trials, seed)
        if not documents:
            return None
        self._insert(documents[0])
        values = documents[0]["misc"]["vals"]
        return {label: _plain(found[0]) for label, found in values.items() if len(found)}

    def tell(self, result: TrialResult, more: Mapping[str, object] | None = None) -> None:
        """Notes a trial that has ended; `more` goes into hyperopt's result beside loss and status."""
        document = self._documents[result.number]
        document["state"] = hyperopt.JOB_STATE_DONE
        failed = result.loss is None or result.status in (TrialStatus.FAILED, TrialStatus.INTERRUPTED)
        found: dict[str, object] = {"status": hyperopt.STATUS_FAIL if failed else hyperopt.STATUS_OK}
        if not failed:
            found["loss"] = result.loss
        document["result"] = {**result.notes, **found, **(more or {})}
        self.trials.refresh()

    def recall(self, result: TrialResult, point: Point) -> None:
        """Notes a trial of an earlier session."""
        labels = self.space.domain.params
        misc = {
            "tid": result.number,
            "cmd": self.space.domain.cmd,
            "workdir": None,
            "idxs": {label: [result.number] if label in point else [] for label in labels},
            "vals": {label: [point[label]] if label in point else [] for label in labels},
        }
        (document,) = self.trials.new_trial_docs([result.number], [None], [{"status": hyperopt.STATUS_NEW}], [misc])
        self._insert(document)
        self.tell(result)

    def _insert(self, document: dict[str, Any]) -> None:
        self.trials.insert_trial_docs([document])
        self.trials.refresh()
        self._documents[document["tid"]] = next(d for d in self.trials.trials if d["tid"] == document["tid"])
