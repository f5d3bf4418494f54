"""Where members of an ensemble are trained: in this process, as tasks of either kind of session, or as fits of several workers each."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import cloudpickle
import keras
from pyspark import Broadcast, SparkContext
from pyspark.sql import SparkSession

from elephas_like.core.errors import ElephasError
from elephas_like.core.trials import Report
from elephas_like.core.types import EngineName, FitConfig, ShardRef
from elephas_like.engine.remote_runs import RemoteRuns
from elephas_like.engine.runs import TaskRuns, shipped
from elephas_like.ensembles.members import MemberFit, MemberResult, fit_member
from elephas_like.model.source import Source
from elephas_like.model.spark_model import SparkModel
from elephas_like.rows.data import Data
from elephas_like.rows.replicas import replicated_data, rows_dataset
from elephas_like.rows.shards import SpoolOptions, new_dataset, sweep
from elephas_like.rows.spool import spool
from elephas_like.spark.gang import default_parallelism
from elephas_like.spark.parallel import Outcome, Runs, RunsInTurn
from elephas_like.spark.session import conf_of, settings_of
from elephas_like.spark.slots import slots, task_cpus
from elephas_like.trainer.label_rules import label_rules
from elephas_like.trainer.spec import Carry, ModelSpec
from elephas_like.trainer.state import Variables

Opened = tuple[RunsInTurn[MemberResult], Callable[[int], MemberResult]]
"""(runs, what trains one member)."""


@dataclass(frozen=True)
class Members:
    """What members are trained from.

    callbacks: a cloudpickle of Keras callbacks, or nothing.
    held: rows that each member is scored on.
    by_partition: whether each member has a partition of its own.
    options: of the SparkModels that train members on several workers; `allow_plain_text` counts for one worker too.
    """

    models: Sequence[keras.Model]
    configs: Sequence[FitConfig]
    callbacks: bytes
    custom_objects: Mapping[str, object]
    source: Source
    held: Source | None
    by_partition: bool
    options: Mapping[str, Any]

    @property
    def count(self) -> int:
        """Members."""
        return len(self.models)

    def specs(self) -> tuple[dict[str, ModelSpec], list[str]]:
        """The specs by key, and each member's key: members of one architecture share one."""
        found: dict[str, ModelSpec] = {}
        keys = []
        for model in self.models:
            spec = ModelSpec.from_model(model, Carry.NOTHING)
            found.setdefault(spec.key, spec)
            keys.append(spec.key)
        return found, keys

    def written(self, source: Source) -> SpoolOptions:
        """How rows are written on executors."""
        return source.spool_options(allow_plain_text=self.options["allow_plain_text"])

    def fit(self, number: int, cores: int | None) -> MemberFit:
        """What one member is told."""
        model = self.models[number]
        labels = label_rules(model)
        return MemberFit(number, Variables(model).read(), self.configs[number], self.callbacks, cores, labels)


def outcomes(
    members: Members, workers: int, engine: EngineName, context: SparkContext | None, remote: SparkSession | None
) -> Iterator[Outcome[MemberResult]]:
    """(number of the member, its result or its error), as they come; closing the generator stops those that run.

    Args:
        context, remote: where members are trained: on a classic session, or over Spark Connect, or in this process.
    """
    opened: AbstractContextManager[Opened]
    if workers > 1:
        opened = _as_fits(members, workers, engine, context)
    elif remote is not None:
        opened = _as_remote_tasks(members, remote)
    else:
        opened = _in_process(members) if context is None else _as_tasks(members, context)
    with opened as (runs, fit), runs:
        yield from runs.outcomes([partial(fit, number) for number in range(members.count)])


@contextmanager
def _in_process(members: Members) -> Iterator[Opened]:
    """The members one after the other, in this process; their rows are written down once."""
    specs, keys = members.specs()
    with _written_here(members) as (shards, validation):

        def fit(number: int) -> MemberResult:
            rows = shards[number if members.by_partition else 0]
            return fit_member(members.fit(number, None), specs[keys[number]], rows, validation)

        yield RunsInTurn(), fit


@contextmanager
def _written_here(members: Members) -> Iterator[tuple[list[ShardRef], ShardRef | None]]:
    """(the shard of all rows, or with `by_partition` one for each member; that of the rows they are scored on), on this disk."""
    with tempfile.TemporaryDirectory(prefix="elephas_like-") as folder:
        floatx = keras.config.floatx()

        def written(source: Source, parts: Iterable[Iterable[object]]) -> list[ShardRef]:
            name, target, prepare = new_dataset(), source.has_target, source.prepare
            return [
                spool(
                    rows, dataset=name, worker=index, base=folder, floatx=floatx, expect_target=target, prepare=prepare
                )
                for index, rows in enumerate(parts)
            ]

        source, held = members.source, members.held
        parts = source.data(members.count).partitions() if members.by_partition else [source.rows()]
        yield written(source, parts), None if held is None else written(held, [held.rows()])[0]


@contextmanager
def _as_remote_tasks(members: Members, session: SparkSession) -> Iterator[Opened]:
    """The members as jobs of one task each over Spark Connect; their rows go through this process, as on a classic session."""
    specs, keys = members.specs()
    with _written_here(members) as (shards, held):
        runs = RemoteRuns(
            session,
            _FitMember(specs),
            shards if held is None else [*shards, held],
            at_once=min(members.count, default_parallelism(session)),
            name="ensemble",
            allow_plain_text=members.options["allow_plain_text"],
        )

        def fit(number: int) -> MemberResult:
            told = members.fit(number, task_cpus(conf_of(session)))
            title = f"elephas_like: member {number + 1} of {members.count}"
            result: MemberResult = runs.result(number, _MemberOrder(told, keys[number]), title)
            return result

        yield runs, fit


@dataclass(frozen=True)
class _MemberOrder:
    """A member to train: its fit, which may be on its way, and the key of its spec."""

    fit: Broadcast[MemberFit] | MemberFit
    spec: str

    @property
    def told(self) -> MemberFit:
        """The fit."""
        return self.fit if isinstance(self.fit, MemberFit) else self.fit.value


@dataclass(frozen=True)
class _FitMember:
    """Trains a member on an executor."""

    specs: Mapping[str, ModelSpec]

    def __call__(self, order: _MemberOrder, shards: Sequence[ShardRef], report: Report) -> MemberResult:
        return fit_member(order.told, self.specs[order.spec], *shards)


def _at_once(context: SparkContext, members: int, workers: int = 1) -> int:
    """Return how many members can be trained at the same time; an application may grow for them."""
    return min(members, max(1, slots(context, wanted=members * workers) // workers))


@contextmanager
def _as_tasks(members: Members, context: SparkContext) -> Iterator[Opened]:
    """The members as Spark jobs of one task each, as many at a time as there are slots."""
    at_once, options = _at_once(context, members.count), members.written(members.source)
    tag = f"elephas_like-{options.dataset}"
    datasets = [options.dataset, rows_dataset(options)]
    specs, keys = members.specs()
    with ExitStack() as stack:
        stack.callback(lambda: sweep(context, tag, max(at_once, slots(context)), datasets))

        def everywhere(data: Data, written: SpoolOptions) -> Callable[[], ShardRef]:
            return stack.enter_context(replicated_data(context, data, written, at_once=at_once, tag=tag)).ref

        # The rows go to each executor once, or are written by the task that trains on them.
        shards, own = [], None
        data = members.source.data(members.count if members.by_partition else None, options)
        if members.by_partition:
            own = data.references(context, options, stack)
        else:
            shards.append(everywhere(data, options))
        if members.held is not None:
            held = members.written(members.held)
            datasets += [held.dataset, rows_dataset(held)]
            shards.append(everywhere(members.held.data(), held))
        runs = TaskRuns(
            context,
            _FitMember(specs),
            shards,
            at_once=at_once,
            tag=tag,
            own=own,
            keep=data.kept,
            patience=float("inf"),
        )

        def fit(number: int) -> MemberResult:
            with shipped(context, members.fit(number, task_cpus(settings_of(context)))) as told:
                title = f"elephas_like: member {number + 1} of {members.count}"
                result: MemberResult = data.rewriting(
                    lambda: runs.result(number, _MemberOrder(told, keys[number]), title)
                )
                return result

        yield runs, fit


@contextmanager
def _as_fits(members: Members, workers: int, engine: EngineName, context: SparkContext | None) -> Iterator[Opened]:
    """The members as fits of a SparkModel each, as many at a time as slots allow."""
    source, held = members.source, members.held
    validation = None if held is None else held.as_arguments(workers)
    with ExitStack() as stack:
        if context is None:
            given = source.as_arguments(workers)
        else:
            given = (stack.enter_context(source.sharded(context, workers)),)
        runs: RunsInTurn[MemberResult] = RunsInTurn()
        if context is not None:
            at_once = 1 if engine is EngineName.JOBS else _at_once(context, members.count, workers)
            runs = Runs(context, at_once=at_once, name="elephas_like-members")
        x, y, sample_weight = (*given, None, None)[:3]

        def fit(number: int) -> MemberResult:
            model, config = members.models[number], members.configs[number]
            own = cloudpickle.loads(members.callbacks) if members.callbacks else []  # our own bytes
            history = _MemberModel(model, workers, members.custom_objects, config, members.options).fit(
                x,
                y,
                sample_weight=sample_weight,
                epochs=config.epochs,
                validation_split=config.validation_split,
                validation_data=validation,
                callbacks=[*own, _StopWhen(lambda: runs.cancelled)],
                class_weight=config.class_weight,
                shuffle=config.shuffle,
                verbose=0,
            )
            if runs.cancelled:
                raise ElephasError("the ensemble's training ended before this member was done.")
            return MemberResult(number, Variables(model).read(), history.history, sum(history.epoch_seconds))

        yield runs, fit


class _MemberModel(SparkModel):
    """A SparkModel whose rows are drawn as a member's config says."""

    def __init__(
        self,
        model: keras.Model,
        workers: int,
        custom_objects: Mapping[str, object],
        config: FitConfig,
        options: Mapping[str, Any],
    ) -> None:
        super().__init__(model, workers, custom_objects, config.batch_size, seed=config.seed, **options)
        self._bootstrap = config.bootstrap
        self._held_out_by = config.split_seed

    def _next_seed(self) -> int:
        seed = super()._next_seed()
        self._split_seed = self._held_out_by
        return seed


class _StopWhen(keras.callbacks.Callback):
    """Ends a fit at the end of an epoch, once `cancelled()`."""

    def __init__(self, cancelled: Callable[[], bool]) -> None:
        super().__init__()
        self._cancelled = cancelled

    def on_epoch_end(self, epoch: int, logs: Mapping[str, float] | None = None) -> None:
        if self._cancelled():
            self.model.stop_training = True
