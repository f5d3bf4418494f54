"""Where a search goes next: the space, and hyperopt's algorithms over it, on the driver, which knows every trial."""

from __future__ import annotations

import functools
import hashlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np

from elephas_like.core.checks import did_you_mean
from elephas_like.core.described import without_addresses
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


@dataclass(frozen=True)
class Parameter:
    """A parameter of a space. kind: as in `KINDS`; a `uniformint` is a `quniform`.

    bounds: (0, number of options) of choice and pchoice, (low, high) of others, exclusive of high for randint; of the
    logarithm where the kind says so, and (mean, deviation) of normal ones. step: of the kinds with a q.
    """

    label: str
    kind: str
    bounds: tuple[float, float]
    step: float | None = None


def _no_value(params: object) -> float:
    """The function of a hyperopt domain, which is never called. By name, so that searches' results can be pickled."""
    return 0.0


class Space:
    """A hyperopt space, or a plain dict of `("uniform", 0, 1)`-like entries, made into hyperopt's.

    In a dict an entry is a node of hyperopt's (`hp.uniform("x", 0, 1)`), a tuple of a kind and its arguments
    (`("loguniform", -9, -2)`), a list of options, another such dict, or a constant. An option may be such a tuple or dict, too:
    parameters in it have its number in their labels (`optimizer.0.rate`), and are drawn where it is chosen.

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
        if not _has_parameters(self.expression):
            raise ValueError(
                "the space has no parameters, only constants: write {'units': [32, 64]}, {'rate': ('loguniform', -9, -2)} or "
                "hyperopt's own hp.choice(...), hp.loguniform(...)."
            )
        switches = {node.pos_args[0] for node in pyll.dfs(self.expression) if node.name == "switch"}
        drawn = [node for node in pyll.dfs(self.expression) if node.name == "hyperopt_param"]
        self._parameters = {one.pos_args[0].obj: _parameter(one, one in switches) for one in drawn}
        self._places = {label: path for label, path in _paths(self.expression, ()) if label == ".".join(map(str, path))}
        try:
            self.domain = hyperopt.base.Domain(_no_value, self.expression)
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

    def values(self, point: Point, params: Any) -> dict[str, Any]:
        """The value of each parameter: what the function got in its place if that is called like it, else what was drawn.

        Args:
            params: what the function got for the point.
        """
        return {label: _value_at(self._places.get(label), params, drawn) for label, drawn in point.items()}

    @property
    def parameters(self) -> list[Parameter]:
        """All parameters, sorted by label, conditional ones included."""
        return [self._parameters[label] for label in sorted(self._parameters)]

    def walk(self, choose: Callable[[Parameter], int | float]) -> Point:
        """A point of values that are chosen from the root on: parameters of options that are not chosen are left out."""
        point: dict[str, int | float] = {}

        def visit(found: Any) -> None:
            if found.name == "hyperopt_param":
                label = found.pos_args[0].obj
                if label not in point:
                    point[label] = choose(self._parameters[label])
            elif found.name == "switch":
                visit(found.pos_args[0])
                visit(found.pos_args[1 + int(point[found.pos_args[0].pos_args[0].obj])])
            else:
                for inner in found.inputs():
                    visit(inner)

        visit(self.expression)
        return point

    def point_of(self, params: object) -> Point:
        """The point at which the user's function gets these parameters: the inverse of `at`.

        Constants may be left out.

        Raises:
            ValueError: the parameters are not in the space.
        """
        point = _place(self.expression, params)
        if point is None:
            raise ValueError(
                f"the point {params!r} is not in the space: give every parameter a value that the space has, in the form "
                f"that your function gets them, for example {self.at(self.drawn(0))!r}."
            )
        return point

    def described(self) -> str:
        """The space as text, the same in every process."""
        literals = [one for one in pyll.dfs(self.expression) if isinstance(one, pyll.Literal)]
        told = {one: pyll.Literal(_told(one.obj)) for one in literals}
        return without_addresses(str(pyll.clone(self.expression, told)))


def _told(constant: Any) -> Any:
    """A constant of a space, or text in its place where its own text does not tell it from others, or differs from process to process."""
    if isinstance(constant, np.ndarray):
        digest = hashlib.sha256(constant.dumps() if constant.dtype.hasobject else constant.tobytes()).hexdigest()
        return f"array of {constant.dtype}, shape {constant.shape}, {digest[:16]}"
    if isinstance(constant, set | frozenset):
        return f"{{{', '.join(sorted(map(repr, constant)))}}}"
    if hasattr(constant, "get_config") and not isinstance(constant, type):
        with suppress(Exception):  # a class of the user's without one
            return f"{type(constant).__name__}({_nameless(constant.get_config())})"
    return constant


def _nameless(config: Any) -> Any:
    """A configuration of Keras' without names, which are numbered through a process."""
    if isinstance(config, dict):
        return {name: _nameless(value) for name, value in config.items() if name != "name"}
    return [_nameless(each) for each in config] if isinstance(config, list | tuple) else config


def _parameter(found: Any, chooses: bool) -> Parameter:
    """What a node of hyperopt's draws from."""
    label, drawn = found.pos_args[0].obj, found.pos_args[1]
    if drawn.name == "categorical":
        return Parameter(label, "pchoice", (0, len(drawn.inputs()[0].inputs())))
    values = [float(argument.obj) for argument in drawn.pos_args]
    named = {name: float(argument.obj) for name, argument in drawn.named_args}
    first, second = (name for name in _BOUNDS.get(drawn.name, ("low", "high")))
    given = dict(zip((first, second, "q"), values, strict=False)) | named
    if drawn.name == "randint" and second not in given:
        given = {first: 0.0, second: values[0]}
    kind = "choice" if chooses and drawn.name == "randint" else drawn.name
    return Parameter(label, kind, (given[first], given[second]), given.get("q"))


_BOUNDS = dict.fromkeys(("normal", "qnormal", "lognormal", "qlognormal"), ("mu", "sigma"))


def _place(found: Any, value: Any) -> dict[str, int | float] | None:
    """The labels' values at which a node gives a value; None where it never does."""
    if isinstance(found, pyll.Literal):
        # A function gets Python's own numbers, and a table of earlier trials has NumPy's.
        known, value = (one.item() if isinstance(one, np.generic) else one for one in (found.obj, value))
        return {} if type(known) is type(value) and known == value else None
    if found.name == "hyperopt_param":
        if isinstance(value, bool) or not isinstance(value, int | float | np.number):
            return None
        return {found.pos_args[0].obj: _plain(value)} if _holds(_parameter(found, False), float(value)) else None
    if found.name == "switch":
        chosen = found.pos_args[0].pos_args[0].obj
        places = ((number, _place(option, value)) for number, option in enumerate(found.pos_args[1:]))
        return next(({chosen: number, **place} for number, place in places if place is not None), None)
    if found.name in ("int", "float"):
        return _place(found.pos_args[0], value)
    if found.name == "dict" and isinstance(value, Mapping):
        inner = dict(found.named_args)
        if set(value) - set(inner):
            return None
        if any(name not in value and _has_parameters(one) for name, one in inner.items()):
            return None
        return _joined([(one, value[name]) for name, one in inner.items() if name in value])
    if found.name == "pos_args" and isinstance(value, tuple | list) and len(value) == len(found.pos_args):
        return _joined(list(zip(found.pos_args, value, strict=True)))
    return None


def _paths(found: Any, path: tuple[Any, ...]) -> Iterator[tuple[str, tuple[Any, ...]]]:
    """Yield (label, path) of each parameter in a node. A path has keys of dicts, and options' numbers, which are integers."""
    if found.name == "dict":
        for name, one in found.named_args:
            yield from _paths(one, (*path, name))
    elif found.name == "switch":
        yield from _paths(found.pos_args[0], path)
        for number, option in enumerate(found.pos_args[1:]):
            yield from _paths(option, (*path, number))
    else:
        for one in pyll.dfs(found):
            if one.name == "hyperopt_param":
                yield one.pos_args[0].obj, path


def _value_at(path: Sequence[Any] | None, params: Any, drawn: int | float) -> Any:
    """What lies at a path of what the function got; what was drawn if it is a dict, or if there is no path."""
    if path is None:
        return drawn
    value = params
    for name in path:
        if isinstance(name, str):  # else the number of an option, which is in its place
            value = value[name]
    return drawn if isinstance(value, dict) else value


def _has_parameters(found: Any) -> bool:
    return any(one.name == "hyperopt_param" for one in pyll.dfs(found))


def _joined(pairs: Sequence[tuple[Any, Any]]) -> dict[str, int | float] | None:
    """The places of several nodes, unless one has none or two want different values of one label."""
    point: dict[str, int | float] = {}
    for found, value in pairs:
        place = _place(found, value)
        if place is None or any(point.get(label, one) != one for label, one in place.items()):
            return None
        point |= place
    return point


def _holds(parameter: Parameter, value: float) -> bool:
    """Whether a parameter may have a value."""
    low, high = parameter.bounds
    kind, slack = parameter.kind, 1e-9
    if kind == "randint":
        return value == int(value) and low <= value < high
    if kind.endswith("loguniform"):
        low, high = math.exp(low), math.exp(high)
        slack *= high
    if kind.endswith("normal"):
        low, high = (0.0 if "log" in kind else -math.inf), math.inf
    if parameter.step:
        if abs(value / parameter.step - round(value / parameter.step)) > 1e-6:
            return False
        low, high = (round(end / parameter.step) * parameter.step if math.isfinite(end) else end for end in (low, high))
    return low - slack <= value <= high + slack


def seed_of(seed: int, number: int) -> int:
    """The seed of a trial, which depends on nothing else."""
    return int(np.random.SeedSequence([seed, number]).generate_state(1)[0] % (2**31 - 1))


def described(algo: Callable[..., Any]) -> str:
    """An algorithm as text, the same in every process: a function's name, and what a partial gives it."""
    if isinstance(algo, functools.partial):
        given = [*map(repr, algo.args), *(f"{name}={algo.keywords[name]!r}" for name in sorted(algo.keywords))]
        return without_addresses(f"partial({', '.join([described(algo.func), *given])})")
    return without_addresses(f"{algo.__module__}.{getattr(algo, '__qualname__', algo)}")


def _entries(space: Mapping[Any, Any], prefix: str) -> dict[str, Any]:
    """The dict with every entry as hyperopt takes it."""
    return {name: _entry(f"{prefix}{name}", value) for name, value in space.items()}


def _entry(label: str, value: Any) -> Any:
    if isinstance(value, dict):
        return _entries(value, f"{label}.")
    if isinstance(value, tuple) and value and isinstance(value[0], str):
        return node(label, value[0], _arguments(label, *value))
    if isinstance(value, list) and not any(isinstance(item, pyll.Apply) for item in value):
        return node(label, "choice", _arguments(label, "choice", value))
    if isinstance(value, tuple | set) or (hasattr(value, "rvs") and not isinstance(value, pyll.Apply)):
        raise ValueError(
            f"parameter {label!r}: expected hyperopt's hp.*, a list of options, a tuple of a kind and its arguments such as "
            f"('uniform', 0, 1), or a constant; got {type(value).__name__}. Kinds: {', '.join(KINDS)}."
        )
    return value


def _arguments(label: str, kind: str, *arguments: Any) -> tuple[Any, ...]:
    """The arguments of a parameter, the options of a choice as hyperopt takes them."""
    if kind not in ("choice", "pchoice") or len(arguments) != 1 or not isinstance(arguments[0], list | tuple):
        return arguments
    if kind == "choice":
        return ([_option(f"{label}.{number}", one) for number, one in enumerate(arguments[0])],)
    if not all(isinstance(pair, list | tuple) and len(pair) == 2 for pair in arguments[0]):
        return arguments
    return ([(share, _option(f"{label}.{number}", one)) for number, (share, one) in enumerate(arguments[0])],)


def _option(label: str, value: Any) -> Any:
    """An option with the parameters in it, which are drawn where it is chosen. Tuples and sets of no kind are constants."""
    if isinstance(value, dict):
        return {name: _inside(f"{label}.{name}", one) for name, one in value.items()}
    named = isinstance(value, tuple) and value and isinstance(value[0], str) and value[0] in KINDS
    return _entry(label, value) if named else value


def _inside(label: str, value: Any) -> Any:
    """What the dict of an option holds: a list is a choice there, and a constant where it is the option."""
    return _entry(label, value) if isinstance(value, list) else _option(label, value)


_ROUNDING = 0.02
"""How far from 1 the sum of probabilities may be: that of three times 0.33 is taken."""


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
        if kind == "pchoice":
            _check_shares(arguments)
        made = KINDS[kind](label, *arguments, **(named or {}))
        with np.errstate(all="ignore"):
            drawn = pyll.stochastic.sample(made, np.random.default_rng(0), print_node_on_error=False)
        if isinstance(drawn, float) and not math.isfinite(drawn):
            raise ValueError(f"it draws {drawn}")
    except Exception as error:  # hyperopt asserts, and raises bare exceptions
        raise ValueError(
            f"parameter {label!r}: {kind}{tuple(arguments)} is not one: {error or type(error).__name__}"
        ) from error
    return made


def _check_shares(arguments: Sequence[Any]) -> None:
    """Raise ValueError if probabilities of options do not add up to 1: hyperopt would give what is missing to the last one."""
    total = math.fsum(float(share) for share, _ in arguments[0])
    if abs(total - 1) > _ROUNDING:
        raise ValueError(f"the probabilities add up to {total:.6g}, expected 1")


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
        first: points to try before any other.

    Raises:
        ValueError: the name is unknown. TypeError: neither a name nor a function.
    """

    def __init__(self, space: Space, algo: str | Callable[..., Any], seed: int, first: Sequence[Point] = ()) -> None:
        if isinstance(algo, str):
            if algo not in ALGORITHMS:
                names = ", ".join(map(repr, [*ALGORITHMS, "optuna"]))
                raise ValueError(
                    f"algo must be one of {names}, a sampler of Optuna's, or a function such as hyperopt.tpe.suggest; got {algo!r}."
                    f"{did_you_mean(algo, ALGORITHMS)}"
                )
            algo = ALGORITHMS[algo]
        if not callable(algo):
            raise TypeError(
                f"algo must be a name, a sampler of Optuna's, or a function such as hyperopt.tpe.suggest; got {type(algo).__name__}."
            )
        self.space = space
        self.trials = Trials()
        self._algo, self._seed, self._first = algo, seed, first
        self._documents: dict[int, dict[str, Any]] = {}

    @property
    def constraints(self) -> Mapping[int, Sequence[float]]:
        """None: hyperopt has no constraints."""
        return {}

    def suggest(self, number: int) -> dict[str, int | float] | None:
        """The point of trial `number`; None where the algorithm has no more."""
        if number < len(self._first):
            self._insert(self._document(number, self._first[number]))
            return dict(self._first[number])
        documents = self._algo([number], self.space.domain, self.trials, seed_of(self._seed, number))
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
        self._insert(self._document(result.number, point))
        self.tell(result)

    def _document(self, number: int, point: Point) -> dict[str, Any]:
        """A new trial of hyperopt's at a point."""
        labels = self.space.domain.params
        misc = {
            "tid": number,
            "cmd": self.space.domain.cmd,
            "workdir": None,
            "idxs": {label: [number] if label in point else [] for label in labels},
            "vals": {label: [point[label]] if label in point else [] for label in labels},
        }
        (document,) = self.trials.new_trial_docs([number], [None], [{"status": hyperopt.STATUS_NEW}], [misc])
        made: dict[str, Any] = document
        return made

    def _insert(self, document: dict[str, Any]) -> None:
        self.trials.insert_trial_docs([document])
        self.trials.refresh()
        self._documents[document["tid"]] = next(d for d in self.trials.trials if d["tid"] == document["tid"])
