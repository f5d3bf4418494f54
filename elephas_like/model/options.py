"""Options: the arguments of SparkModel's constructor, checked, in one table of names, types, defaults and checks.

What else names them is tested against the table: the constructor's typed signatures, and SparkModel's attributes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from enum import StrEnum
from typing import Annotated, Any, Literal, get_type_hints

import keras
from pyspark import SparkContext

from elephas_like.core import checks
from elephas_like.core.quorum import Quorum
from elephas_like.core.schedules import Schedule
from elephas_like.core.strategies import Codec, Strategy
from elephas_like.core.strategies.algebra import Context, WeightedMean
from elephas_like.core.strategies.codecs import TopK, resolve_codec
from elephas_like.core.strategies.registry import AnyFrequency, check_combination, default_frequency, engines, resolve
from elephas_like.core.types import EngineName, Frequency, Mode, OnNaN, OptimizerState, RateScale, Resources
from elephas_like.spark.encryption import check_disks, wants_tls
from elephas_like.spark.session import Conf
from elephas_like.trainer.momentum import gathers_speed
from elephas_like.trainer.request import check_control_variates, check_optimizer_state

Check = Callable[[str, Any], Any]
"""Returns the value of a named option as it is kept, or raises ValueError or TypeError."""


def _as_given(_: str, value: Any) -> Any:
    return value


def _or_none(check: Check) -> Check:
    return lambda name, value: None if value is None else check(name, value)


def _whole(least: int = 1) -> Check:
    return lambda name, value: checks.positive_int(name, value, least)


def _member_of(kind: type[StrEnum]) -> Check:
    return lambda name, value: checks.choice(name, value, kind)


def _frequency(_: str, value: Any) -> AnyFrequency:
    return value if isinstance(value, Schedule) else checks.frequency(value)


def _codec(name: str, value: Any) -> Codec | None:
    return resolve_codec(value, name)


def _text(_: str, value: Any) -> str:
    return str(value)


def _names(_: str, value: Any) -> dict[str, object]:
    if value is not None and not isinstance(value, Mapping):
        raise TypeError(f"custom_objects must be a dict of classes and functions by name; got {type(value).__name__}.")
    return dict(value or {})


def _transport(name: str, value: Any) -> str:
    if value not in ("http", "socket"):
        raise ValueError(f"{name} must be one of 'http', 'socket'; got {value!r}.")
    return str(value)


@dataclass(frozen=True)
class Options:
    """The constructor's arguments but for the model; `SparkModel` says what they mean. Made by `checked`."""

    num_workers: Annotated[int | None, _or_none(_whole())] = None
    batch_size: Annotated[int, _whole()] = 32
    mode: Annotated[Mode, _member_of(Mode)] = Mode.SYNCHRONOUS
    frequency: Annotated[Frequency | int | Schedule, _frequency] = Frequency.AUTO
    strategy: Annotated[Strategy | str | None, _as_given] = None
    codec: Annotated[Codec | None, _codec] = None
    state_codec: Annotated[Codec | None, _codec] = None
    max_staleness: Annotated[int | None, _or_none(_whole(least=0))] = None
    quorum: Annotated[int | float | None, _or_none(checks.quorum)] = None
    quorum_grace: Annotated[float, checks.from_zero] = 0.1
    parameter_server_mode: Annotated[Literal["http", "socket"], _transport] = "http"
    host: Annotated[str | None, _or_none(_text)] = None
    port: Annotated[int | str, checks.port] = 0
    engine: Annotated[EngineName, _member_of(EngineName)] = EngineName.AUTO
    optimizer_state: Annotated[OptimizerState, _member_of(OptimizerState)] = OptimizerState.AVERAGE
    optimizer_state_every: Annotated[int, _whole()] = 1
    control_variates: Annotated[bool, checks.flag] = False
    on_nan: Annotated[OnNaN, _member_of(OnNaN)] = OnNaN.RAISE
    fused_optimizer: Annotated[bool, checks.flag] = False
    scale_learning_rate: Annotated[RateScale | None, _or_none(_member_of(RateScale))] = None
    seed: Annotated[int | None, _or_none(_whole(least=0))] = None
    tls: Annotated[bool | tuple[str, str] | None, _or_none(checks.tls)] = None
    allow_plain_text: Annotated[bool, checks.flag] = False
    resources: Annotated[Resources | None, _or_none(_member_of(Resources))] = None
    epochs_per_job: Annotated[int | None, _or_none(_whole())] = None
    join_timeout: Annotated[float, checks.positive_seconds] = 60.0
    round_timeout: Annotated[float, checks.positive_seconds] = 600.0
    custom_objects: Annotated[dict[str, object], _names] = field(default_factory=dict)

    @classmethod
    def checked(cls, **given: Any) -> Options:
        """The options, defaults where nothing is given.

        Raises:
            ValueError, TypeError: a value that makes no sense, alone or beside the mode.
        """
        hints = get_type_hints(cls, include_extras=True)
        options = cls(**{name: hints[name].__metadata__[0](name, value) for name, value in given.items()})
        if options.max_staleness is not None and options.mode is Mode.SYNCHRONOUS:
            raise ValueError(
                "max_staleness is for mode 'asynchronous' or 'hogwild': workers that wait for each other are never "
                "stale. Leave it out, or choose another mode."
            )
        if options.scale_learning_rate is not None and options.mode is not Mode.SYNCHRONOUS:
            raise ValueError(
                "scale_learning_rate is for mode 'synchronous', whose workers' batches make one large batch together. Leave it "
                "out, or choose that mode."
            )
        if options.state_codec is not None and options.mode is not Mode.SYNCHRONOUS:
            raise ValueError(
                "state_codec is for mode 'synchronous', where all workers start a round from the same weights. Leave it out, or choose "
                "that mode; codec= compresses the updates of every mode."
            )
        if options.optimizer_state_every > 1 and options.mode is not Mode.SYNCHRONOUS:
            raise ValueError(
                "optimizer_state_every counts the rounds of mode 'synchronous', which end for all workers at once. Leave it out, or choose "
                "that mode."
            )
        if options.optimizer_state_every > 1 and options.optimizer_state is not OptimizerState.AVERAGE:
            raise ValueError(
                f"optimizer_state_every={options.optimizer_state_every} says how often slots are averaged, and "
                f"optimizer_state={options.optimizer_state.value!r} never averages them. Leave one of the two out."
            )
        if options.control_variates and options.mode is not Mode.SYNCHRONOUS:
            raise ValueError(
                "control_variates compare a worker's last round with that of all workers, and are for mode 'synchronous'. Leave them out, or "
                "choose that mode."
            )
        if options.quorum is not None and options.mode is not Mode.SYNCHRONOUS:
            raise ValueError(
                "quorum is for mode 'synchronous': workers of the other modes never wait for each other. Leave it out, or "
                "choose that mode."
            )
        return options

    @classmethod
    def from_arguments(cls, model: Any, args: Sequence[Any], named: Mapping[str, Any]) -> tuple[Any, Options]:
        """The constructor's arguments taken apart: (model, options).

        Raises:
            TypeError: too many positional arguments, one that was given by name too, or an unknown one, with the nearest name.
            ValueError, TypeError: as `checked`; an optimizer, which Elephas' constructors took.
        """
        model, given = _by_name(model, args, named)
        for name in ("optimizer", "elephas_optimizer"):
            if given.pop(name, None) is not None:
                raise ValueError(f"{name}= is no more: what happens to updates on the driver is said by strategy=.")
        for name in given:
            if name in _OF_FIT:
                raise TypeError(f"{name}= is an argument of fit, not of SparkModel.")
            if name not in NAMES:
                raise TypeError(f"SparkModel has no argument {name!r}.{checks.did_you_mean(name, NAMES)}")
        return model, cls.checked(**given)

    def config(self) -> dict[str, Any]:
        """The options by name, enumerations as their plain text; without `custom_objects`, which no file can hold."""
        values = {name: getattr(self, name) for name in NAMES if name != "custom_objects"}
        return {name: value.value if isinstance(value, StrEnum) else value for name, value in values.items()}

    def changed(self) -> dict[str, Any]:
        """The options that are not as they are by default, enumerations as their plain text."""
        usual = Options().config()
        return {name: value for name, value in self.config().items() if value != usual[name]}

    def resolved(
        self, model: keras.Model, num_workers: int, engine: EngineName | None = None
    ) -> tuple[Strategy, Frequency | int | Schedule]:
        """The strategy and the frequency of a fit with so many workers, defaults made concrete.

        Args:
            engine: that will train; None takes the one that was asked for.

        Raises:
            ValueError: mode, strategy, frequency, codec, engine and the model's optimizer do not go together.
        """
        known = engine is not None or self.num_workers is not None
        engine = engine or self.engine
        strategy = resolve(self.strategy, self.mode, num_workers, outer_step=not gathers_speed(model))
        frequency = default_frequency(strategy, self.frequency)
        check_combination(self.mode, strategy, frequency, engine, self.codec)
        check_optimizer_state(model, self.optimizer_state, self.optimizer_state_every)
        if self.control_variates:
            check_control_variates(model)
            _check_averages(strategy)
            if isinstance(self.codec, TopK):
                raise ValueError(
                    "control_variates tell each worker the mean step of all workers, of which codec 'top_k' leaves most numbers out. Use "
                    "'int8', 'int4' or 'one_bit'."
                )
        if engine is EngineName.JOBS and (self.keeps_slots or self.control_variates):
            every = self.optimizer_state_every
            kept = f"optimizer_state_every={every}" if every > 1 else f"optimizer_state={self.optimizer_state.value!r}"
            kept = kept if self.keeps_slots else "control_variates"
            raise ValueError(
                f"{kept} needs engine='server', 'gang' or 'in_process': a round's task of the jobs engine may run in any process."
            )
        if self.quorum is not None:
            self._check_quorum(strategy, engine, num_workers if known else None)
        if engine is EngineName.GANG and isinstance(self.tls, tuple):
            raise ValueError(
                "engine='gang' runs the server on an executor, which has no files of the driver's: use tls=True, which makes a "
                "certificate for each job."
            )
        return strategy, frequency

    def _check_quorum(self, strategy: Strategy, engine: EngineName, num_workers: int | None) -> None:
        if num_workers is not None:
            Quorum.of(self.quorum or 1, self.quorum_grace, num_workers)
        if engine in (EngineName.JOBS, EngineName.GANG):
            raise ValueError(
                "quorum needs engine='server' or 'in_process': a Spark job, which is a round of the jobs engine and some epochs "
                "of the gang engine, ends when all its tasks have ended."
            )
        if not strategy.deltas or strategy.remembers:
            raise ValueError(
                f"quorum adds updates to a later round, which those of strategy {strategy.name!r} are not made for; use one "
                "that sends deltas, such as 'nesterov' or 'average'."
            )

    def beside(self) -> Options:
        """The options of a second server while the first one listens: a range of ports has room for both, one port has none."""
        return self if len(checks.ports(self.port)) > 1 else replace(self, port=0)

    def check_encryption(self, conf: Conf) -> None:
        """Do nothing if a fit leaves nothing in plain text that Spark encrypts.

        Raises:
            PlainTextError: rows on the executors' disks, or what travels to the server; neither is allowed.
        """
        if self.engine is not EngineName.IN_PROCESS:
            check_disks(conf, allow_plain_text=self.allow_plain_text)
            if self.engine is not EngineName.JOBS:
                wants_tls(conf, self.tls, allow_plain_text=self.allow_plain_text)

    def runs_as_jobs(self) -> bool:
        """Whether a job per round could train: workers wait for each other, and keep nothing between rounds."""
        strategy = resolve(self.strategy, self.mode, 2)
        private = self.keeps_slots or self.control_variates
        return EngineName.JOBS in engines(strategy, self.mode, self.codec) and not private and self.quorum is None

    @property
    def keeps_slots(self) -> bool:
        """Whether workers keep optimizer slots of their own from round to round."""
        return self.optimizer_state is OptimizerState.PER_WORKER or self.optimizer_state_every > 1

    def workers_remember(self, strategy: Strategy) -> bool:
        """Whether workers keep something of their own between rounds: weights, slots, a mean step, or what a codec lost."""
        lossy = self.codec is not None and self.codec.error_feedback
        return strategy.remembers or lossy or self.keeps_slots or self.control_variates


def _check_averages(strategy: Strategy) -> None:
    """Raise ValueError unless a strategy goes where the mean of all workers' steps leads: control variates are told that mean."""
    if not strategy.deltas or strategy.remembers or type(strategy.reduction(Context(0, 2))) is not WeightedMean:
        raise ValueError(
            f"control_variates need a strategy that takes the mean of the workers' steps, such as 'nesterov' or 'average'; got "
            f"{strategy.name!r}{'' if strategy.reduce is None else f' with reduce={strategy.reduce!r}'}."
        )


NAMES = tuple(each.name for each in fields(Options))
"""The options' names."""

_OF_FIT = ("epochs", "verbose", "validation_split", "validation_data", "callbacks", "class_weight", "shuffle")
_ORDER = ("num_workers", "custom_objects", "batch_size")
_ELEPHAS_ORDER = ("mode", "frequency", "parameter_server_mode", *_ORDER, "port")
_SPARK_CONTEXT_ORDER = ("optimizer", "mode", "frequency", "num_workers")


def _by_name(model: Any, args: Sequence[Any], named: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
    """The model, and the other arguments by name, whichever of three positional orders they came in.

    After a SparkContext the order is that of Elephas 0.x, before a text Elephas' later one, and else today's.
    """
    given = dict(named)
    order: tuple[str, ...] = _ELEPHAS_ORDER if args and isinstance(args[0], str) else _ORDER
    if isinstance(model, SparkContext):
        by_name = given.pop("master_network", None)
        model, *args = args or [by_name]
        order = _SPARK_CONTEXT_ORDER
    if len(args) > len(order):
        raise TypeError(f"SparkModel takes {len(order)} positional arguments after the model {order}; got {len(args)}.")
    for name, value in zip(order, args, strict=False):
        if name in given:
            raise TypeError(f"SparkModel got {name} twice, by position and by name.")
        given[name] = value
    return model, given
