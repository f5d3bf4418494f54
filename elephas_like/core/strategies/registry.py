"""Strategies by name, and the valid combinations of mode, strategy, frequency and engine."""

from __future__ import annotations

from elephas_like.core.checks import did_you_mean
from elephas_like.core.schedules import Schedule
from elephas_like.core.strategies.algebra import Mean, Strategy
from elephas_like.core.strategies.asynchronous import (
    ADAG,
    DelayedNesterov,
    DownPour,
    DownPourAdagrad,
    DynSGD,
    FedAsync,
    FedBuff,
    HeLoCo,
    MomentumLookAhead,
    StalenessAware,
)
from elephas_like.core.strategies.codecs import Codec
from elephas_like.core.strategies.elastic import AEASGD, EAMSGD, EASGD
from elephas_like.core.strategies.robust import RDA, Median, MedianAverage, Radial, TrimmedAverage, TrimmedMean
from elephas_like.core.strategies.synchronous import (
    BMUF,
    Average,
    DiLoCo,
    FedAdagrad,
    FedAdam,
    FedAvgM,
    FedYogi,
    Nesterov,
    NesterovBMUF,
    OneShot,
    SlowMo,
)
from elephas_like.core.types import EngineName, Frequency, Mode

STRATEGIES: dict[str, type[Strategy]] = {
    kind.name: kind
    for kind in (
        *(Average, OneShot, Nesterov, DiLoCo, SlowMo, BMUF, NesterovBMUF, FedAvgM, FedAdam, FedYogi, FedAdagrad),
        *(RDA, MedianAverage, TrimmedAverage, EASGD),
        *(MomentumLookAhead, HeLoCo, DelayedNesterov, FedBuff, FedAsync, DynSGD, StalenessAware),
        *(AEASGD, EAMSGD, ADAG, DownPourAdagrad, DownPour),
    )
}

ENGINES: dict[Mode, frozenset[EngineName]] = {
    Mode.SYNCHRONOUS: frozenset({EngineName.SERVER, EngineName.JOBS, EngineName.GANG, EngineName.IN_PROCESS}),
    Mode.ASYNCHRONOUS: frozenset({EngineName.SERVER, EngineName.GANG, EngineName.IN_PROCESS}),
    Mode.HOGWILD: frozenset({EngineName.SERVER, EngineName.GANG, EngineName.IN_PROCESS}),
}

AnyFrequency = Frequency | int | Schedule
"""Types of the argument `frequency=`."""


def resolve(strategy: Strategy | str | None, mode: Mode, num_workers: int, *, outer_step: bool = True) -> Strategy:
    """Return the strategy of a name; None gives the default of the mode.

    Args:
        outer_step: whether the default of several synchronous workers takes an outer step with momentum, or a plain average.

    Raises:
        ValueError: an unknown name; the message has the nearest one, or lists those that are known.
        TypeError: an object that is no Strategy, such as a tf.distribute one.
    """
    if strategy is None:
        if mode is Mode.SYNCHRONOUS:
            return Nesterov() if num_workers > 1 and outer_step else Average()
        return MomentumLookAhead() if mode is Mode.ASYNCHRONOUS and num_workers > 1 else DownPour()
    if isinstance(strategy, str):
        if strategy not in STRATEGIES:
            near = did_you_mean(strategy, STRATEGIES)
            known = (
                "" if near else f" It must be one of {', '.join(map(repr, sorted(STRATEGIES)))}, or a Strategy object."
            )
            raise ValueError(f"no strategy is called {strategy!r}.{near}{known}")
        return STRATEGIES[strategy]()
    if type(strategy).__module__.startswith("tensorflow"):
        raise TypeError(
            f"strategy={type(strategy).__name__} is a tf.distribute strategy, which decides how one process uses its "
            "devices. Here `strategy` decides how the weights of Spark workers are averaged: give a name such as "
            "'nesterov', or None for the default."
        )
    if not isinstance(strategy, Strategy):
        raise TypeError(f"strategy must be a name or a Strategy object; got {type(strategy).__name__}.")
    return strategy


def admits(strategy: type[Strategy] | Strategy, frequency: AnyFrequency) -> bool:
    """Return whether a strategy accepts a frequency."""
    if strategy.frequencies is not None:
        return isinstance(frequency, Frequency) and frequency in strategy.frequencies
    return frequency is not Frequency.FIT or (Mode.SYNCHRONOUS in strategy.modes and not strategy.remembers)


def engines(strategy: type[Strategy] | Strategy, mode: Mode, codec: Codec | None = None) -> frozenset[EngineName]:
    """Return the engines that a strategy runs on.

    Engine "jobs" may run a round in any process, so workers must keep nothing.
    """
    remembers = strategy.remembers or (codec is not None and codec.error_feedback)
    return ENGINES[mode] - {EngineName.JOBS} if remembers else ENGINES[mode]


def default_frequency(strategy: Strategy, frequency: AnyFrequency) -> AnyFrequency:
    """Return the frequency, with "auto" replaced where the strategy accepts only one (`one_shot`: "fit")."""
    if frequency is Frequency.AUTO and strategy.frequencies is not None:
        return next(iter(strategy.frequencies))
    return frequency


def check_combination(
    mode: Mode, strategy: Strategy, frequency: AnyFrequency, engine: EngineName, codec: Codec | None = None
) -> None:
    """Raise ValueError if mode, strategy, frequency, engine and codec do not go together.

    Raises:
        ValueError: with every conflict, and the valid combinations.
    """
    # Collect all conflicts first, so that the message names every one.
    problems = []
    if mode not in strategy.modes:
        problems.append(f"strategy {strategy.name!r} is for mode {_either(strategy.modes)}")
    if not admits(strategy, frequency):
        only = _either(strategy.frequencies) if strategy.frequencies else "any frequency but 'fit'"
        problems.append(f"strategy {strategy.name!r} needs frequency {only}")
    elif frequency is Frequency.FIT and mode is not Mode.SYNCHRONOUS:
        problems.append("frequency 'fit' is for mode 'synchronous'")
    elif isinstance(frequency, Schedule) and mode is not Mode.SYNCHRONOUS:
        problems.append("a schedule as frequency is for mode 'synchronous'")
    # Engine "jobs" may run a round in a fresh process: nothing that workers keep survives there.
    if engine is not EngineName.AUTO and engine not in ENGINES[mode]:
        problems.append(f"engine {engine.value!r} is not for mode {mode.value!r}")
    elif engine is EngineName.JOBS and strategy.remembers:
        problems.append(
            f"strategy {strategy.name!r} needs workers that keep their own weights between rounds, which engine 'jobs' "
            "has not"
        )
    elif engine is EngineName.JOBS and codec is not None and codec.error_feedback:
        problems.append(
            f"codec {codec.name!r} needs workers that keep what their messages lost, which engine 'jobs' has not"
        )
    if codec is not None and not strategy.deltas:
        problems.append(f"strategy {strategy.name!r} sends weights, which codec {codec.name!r} would round off")
    # Of one update, what divides by the weights, or takes the median, leaves nothing of its weight.
    alone = mode is not Mode.SYNCHRONOUS and strategy.by_staleness and strategy.quorum(2) == 1
    if alone and isinstance(strategy.innermost, Mean | Median | TrimmedMean | Radial):
        problems.append(
            f"strategy {strategy.name!r} weighs each update by its staleness as it comes, which reduce={strategy.reduce!r} would undo: leave "
            "it out, or use Clipped(norm)"
        )
    if problems:
        packed = "" if codec is None else f", codec={codec.name!r}"
        raise ValueError(
            f"mode={mode.value!r}, strategy={strategy.name!r}, frequency={_text(frequency)}, engine={engine.value!r}"
            f"{packed} do not go together: {'; '.join(problems)}. {_ways_out(mode, strategy)}"
        )


def _ways_out(mode: Mode, strategy: Strategy) -> str:
    """Return the combinations that have the strategy, and the strategies of the mode where it is none of them."""
    others = ""
    if mode not in strategy.modes:
        names = ", ".join(repr(name) for name, kind in STRATEGIES.items() if mode in kind.modes)
        others = f"\nStrategies for mode {mode.value!r}: {names}."
    lines = combinations_table(strategy.name)
    return f"Valid combinations with {strategy.name!r}:\n{lines}{others}" if lines else others.strip()


def combinations_table(strategy: str | None = None) -> str:
    """Return the valid combinations, one line each, as docs/architecture.md and error messages show them.

    Args:
        strategy: whose lines are wanted; None takes those of all.
    """
    lines = []
    for mode in Mode:
        for kind in STRATEGIES.values():
            if mode not in kind.modes or strategy not in (None, kind.name):
                continue
            if kind.frequencies is not None:
                frequencies = ", ".join(sorted(kind.frequencies))
            else:
                once = mode is Mode.SYNCHRONOUS and admits(kind, Frequency.FIT)
                names = [name.value for name in Frequency if name is not Frequency.FIT or once]
                frequencies = ", ".join([*names, "steps", *(["schedule"] if mode is Mode.SYNCHRONOUS else [])])
            found = engines(kind, mode)
            runs = ", ".join(engine.value for engine in EngineName if engine in found)
            lines.append(f"  mode {mode.value} | strategy {kind.name} | frequency {frequencies} | engine {runs}")
    return "\n".join(lines)


def _either(values: frozenset[Mode] | frozenset[Frequency]) -> str:
    return " or ".join(repr(value.value) for value in sorted(values))


def _text(frequency: AnyFrequency) -> str:
    return repr(frequency.value) if isinstance(frequency, Frequency) else str(frequency)
