"""Ensembles: members trained in parallel, models that vote, members chosen greedily, soups."""

from __future__ import annotations

import inspect
import logging
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from typing import Any

import cloudpickle
import keras
import numpy as np
from pyspark import RDD, Broadcast, SparkContext

from elephas_like.core import checks
from elephas_like.core.errors import ElephasError, Failure
from elephas_like.core.types import EngineName, FitConfig, ShardRef
from elephas_like.core.voting import Selection, member_seeds
from elephas_like.ensembles.members import MemberFit, MemberResult, fit_member
from elephas_like.ensembles.soups import GreedySoup, greedy_soup, recalibrate_batch_norm, uniform_soup
from elephas_like.ensembles.voting_model import GreedySelection, VotingModel, greedy_selection, voting_of
from elephas_like.model.sharding import shard
from elephas_like.model.sources import Source, column_choice
from elephas_like.model.spark_model import SparkModel
from elephas_like.rows.frames import Choice
from elephas_like.rows.replicas import Replica, replicated, replicated_rdd, rows_dataset
from elephas_like.rows.shards import SpoolOptions, dealt, new_dataset, references, sweep
from elephas_like.rows.spool import remove, spool
from elephas_like.spark.parallel import Calls, PartitionJobs
from elephas_like.spark.session import active_context
from elephas_like.spark.slots import slots, task_cpus
from elephas_like.spark.versions import versions
from elephas_like.spark.waits import destroy
from elephas_like.trainer.bars import Bar
from elephas_like.trainer.callbacks import check_callbacks
from elephas_like.trainer.code import pickle_by_value
from elephas_like.trainer.compile_arguments import check_model, repair_compile
from elephas_like.trainer.copies import reinitialized
from elephas_like.trainer.recipe import in_turn
from elephas_like.trainer.request import as_tuple, class_weights, validation_share
from elephas_like.trainer.seeds import seeded
from elephas_like.trainer.spec import Carry, ModelSpec
from elephas_like.trainer.state import Variables

__all__ = [
    "GreedySelection",
    "GreedySoup",
    "Selection",
    "VotingModel",
    "greedy_selection",
    "greedy_soup",
    "recalibrate_batch_norm",
    "train_ensemble",
    "uniform_soup",
]

log = logging.getLogger(__name__)
Outcome = tuple[int, MemberResult | BaseException]


def train_ensemble(
    build_or_model: Callable[..., keras.Model] | keras.Model,
    data: Any,
    num_members: int,
    *,
    bagging: bool | str = True,
    seed: int | None = None,
    workers_per_member: int = 1,
    epochs: int = 1,
    batch_size: int = 32,
    voting: str = "auto",
    validation_split: float = 0.0,
    validation_data: Any = None,
    callbacks: Sequence[keras.callbacks.Callback] | keras.callbacks.Callback | None = None,
    class_weight: Mapping[int, float] | None = None,
    shuffle: bool = True,
    max_failures: int = 0,
    engine: str = "auto",
    custom_objects: Mapping[str, object] | None = None,
    verbose: int | str = "auto",
    weights: Sequence[float] | None = None,
    features_col: Choice | None = None,
    label_col: Choice | None = None,
    sample_weight_col: str | None = None,
    column_shapes: Mapping[str, Sequence[int]] | None = None,
    column_dtypes: Mapping[str, str] | None = None,
) -> VotingModel:
    """Trains the members of an ensemble in parallel, each with weights and rows of its own, and returns them as one.

    Members begin with different weights: a function that builds a model is called once per member, on the driver, under the
    member's seed, which it is given if it takes an argument. A model is copied, and its trainable weights are drawn anew
    (pretrained weights that are to be kept: pass a function, or freeze them).

    Args:
        build_or_model: a function that returns a compiled model, or a compiled model, which is left as it is.
        data: `(x, y)` or `(x, y, sample_weight)` arrays, an array alone for models without targets, an RDD of rows as for
            `SparkModel.fit`, a DataFrame, or a ShardedDataset. Rows are shipped once per executor, not per member.
        num_members: members.
        bagging: which rows a member sees: True, as many as there are, drawn with replacement (Breiman 1996); False, all of
            them; "partition", those of one partition, as dist-keras' EnsembleTrainer does.
        seed: of initial weights, rows, shuffling and dropout; None draws one from NumPy's global generator.
        workers_per_member: 1, a member is trained by one Spark task; k, by a SparkModel on k slots, for rows that no
            executor holds. Rows are then drawn shard by shard.
        epochs, batch_size, class_weight, shuffle: as for `SparkModel.fit`.
        voting: of the VotingModel: "hard", "soft", "mean", or "auto": "soft" for a crossentropy, "mean" for regression.
        validation_split: share of the rows that no member trains on, the same ones for all of them, and that is scored.
        validation_data: `(x, y)` or `(x, y, sample_weight)` arrays, an RDD of such rows, or with a DataFrame as data one with
            its columns; all of it is scored by each member after each epoch.
        callbacks: Keras callbacks; each member has copies of its own, called where it is trained: on the executor, or with
            several workers on the driver.
        max_failures: members that may fail; the ensemble is the others, and `failures` says which and why.
        engine: "auto" (Spark where the data is in Spark or a session is active) or "in_process" (no Spark, one member after
            the other); with several workers per member any engine of SparkModel.
        custom_objects: as for SparkModel.
        verbose: 0 silent, 1 or "auto" a bar of the members, 2 a line per member.
        weights: of the VotingModel, one number per member; those of members that failed are left out.
        features_col, label_col, sample_weight_col, column_shapes, column_dtypes: of a DataFrame, as for `SparkModel.fit`.

    Returns:
        A VotingModel with the members in order, and in `histories` each one's loss and metrics by epoch.

    Raises:
        ValueError, TypeError: arguments that make no sense, before anything starts.
        WorkerError: what a member failed with, once the others have stopped.
    """
    count = checks.positive_int("num_members", num_members)
    workers = checks.positive_int("workers_per_member", workers_per_member)
    allowed = checks.positive_int("max_failures", max_failures, least=0)
    rows_of_member = checks.bagging("bagging", bagging)
    kind = checks.choice("engine", engine, EngineName)
    if workers == 1 and kind in (EngineName.SERVER, EngineName.JOBS):
        raise ValueError(f"engine={kind.value!r} is for workers_per_member > 1; members of one worker take 'auto'.")
    if workers > 1 and rows_of_member == "partition":
        raise ValueError("bagging='partition' gives each member one partition, which one worker trains.")
    split = validation_share(validation_split, has_validation_data=validation_data is not None)
    own = as_tuple(callbacks)
    check_callbacks(own)
    shown = checks.verbosity(verbose)
    epochs, rows = checks.positive_int("epochs", epochs), checks.positive_int("batch_size", batch_size)
    drawn = int(np.random.randint(2**31 - 1)) if seed is None else checks.positive_int("seed", seed, least=0)
    columns = column_choice(
        data,
        features_col=features_col,
        label_col=label_col,
        sample_weight_col=sample_weight_col,
        column_shapes=column_shapes,
        column_dtypes=column_dtypes,
    )
    source = None if columns is not None else _source(data)
    seeds = member_seeds(drawn, count)
    with in_turn:
        models = [_built(build_or_model, each) for each in seeds]
    ensemble = VotingModel(
        models, voting_of(models[0]) if voting == "auto" else voting, weights, custom_objects=custom_objects
    )
    if columns is not None:  # how columns are read follows from the models
        source = Source.of_frame(data, columns, models[0])
    assert source is not None
    held = None if validation_data is None else Source.validation(validation_data, columns, models[0])
    if rows_of_member == "partition":
        _check_partitions(source, count)
    context = None if kind is EngineName.IN_PROCESS else source.context or active_context(kind)
    source = source.for_model(models[0])
    held = None if held is None else held.for_model(models[0])
    for model in models:
        source.build(model, rows)
    configs = [
        FitConfig(
            batch_size=rows,
            epochs=epochs,
            shuffle=bool(shuffle),
            seed=each,
            split_seed=drawn,
            bootstrap=each if rows_of_member is True else None,
            validation_split=split,
            class_weight=class_weights(class_weight),
        )
        for each in seeds
    ]
    if workers > 1:
        outcomes = _by_several_workers(
            models, configs, source, held, workers, kind, context, own, custom_objects=ensemble.custom_objects
        )
    else:
        task = _Tasks(models, configs, own, ensemble.custom_objects, source, held, rows_of_member == "partition")
        outcomes = _in_process(task) if context is None else _on_spark(task, context)
    results, failures = _taken(outcomes, models, allowed, shown)
    kept = sorted(results)
    shares = [ensemble.weights[number] for number in kept]
    if not any(shares):
        log.warning("all members with a weight above 0 failed; the others are weighted equally")
    trained = VotingModel(
        [models[number] for number in kept],
        ensemble.voting.value,
        shares if any(shares) else None,
        custom_objects=custom_objects,
    )
    trained.histories = [results[number].history for number in kept]
    trained.failures = sorted(failures.items())
    return trained


def _taken(
    outcomes: Iterator[Outcome], models: Sequence[keras.Model], allowed: int, verbose: int
) -> tuple[dict[int, MemberResult], dict[int, BaseException]]:
    """The results and the failures by member; each result is written into its model as it comes.

    Raises:
        BaseException: the first failure, where there are more than `allowed`, or no member is left.
    """
    results: dict[int, MemberResult] = {}
    failures: dict[int, BaseException] = {}
    first: BaseException | None = None
    with (
        closing(outcomes),  # type: ignore[type-var]  # generators can be closed: what still runs is cancelled
        Bar(total=len(models), unit=" members", disable=verbose != 1) as bar,
    ):
        for number, outcome in outcomes:
            if isinstance(outcome, BaseException):
                outcome.add_note(f"It is member {number} of the ensemble that failed.")
                failures[number] = outcome
                first = first or outcome
                if len(failures) > allowed:
                    raise outcome
                log.warning("member %d failed, and is left out: %s", number, outcome)
                continue
            results[number] = outcome
            Variables(models[number]).write(outcome.state)
            bar.update()
            if verbose == 2:
                last = " - ".join(f"{k}: {v[-1]:.4f}" for k, v in outcome.history.items() if np.ndim(v[-1]) == 0)
                Bar.write(f"Member {number + 1}/{len(models)} - {outcome.seconds:.1f}s - {last}")
    if not results:
        assert first is not None
        raise first
    return results, failures


@dataclass(frozen=True)
class _Tasks:
    """All that members of one worker each are trained from."""

    models: Sequence[keras.Model]
    configs: Sequence[FitConfig]
    callbacks: Sequence[keras.callbacks.Callback]
    custom_objects: Mapping[str, object]
    source: Source
    held: Source | None
    by_partition: bool

    @property
    def count(self) -> int:
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

    def fits(self, cores: int | None) -> list[MemberFit]:
        """What each member is told."""
        pickled = pickle_by_value(list(self.callbacks)) if self.callbacks else b""
        return [
            MemberFit(number, Variables(model).read(), config, pickled, cores)
            for number, (model, config) in enumerate(zip(self.models, self.configs, strict=True))
        ]

    def options(self, expect_target: bool) -> SpoolOptions:
        return SpoolOptions(new_dataset(), keras.config.floatx(), expect_target, versions())


def _in_process(tasks: _Tasks) -> Iterator[Outcome]:
    """The members one after the other, in this process; their rows are written down once."""
    specs, keys = tasks.specs()
    with tempfile.TemporaryDirectory(prefix="elephas_like-") as folder:
        floatx = keras.config.floatx()

        def written(source: Source, name: str, parts: int) -> list[ShardRef]:
            target = source.has_target
            return [
                spool(rows, dataset=name, worker=index, base=folder, floatx=floatx, expect_target=target)
                for index, rows in enumerate(source.data(parts).partitions())
            ]

        shards = written(tasks.source, "training", tasks.count if tasks.by_partition else 1)
        held = written(tasks.held, "validation", 1)[0] if tasks.held is not None else None
        for fit, key in zip(tasks.fits(None), keys, strict=True):
            try:
                yield fit.member, fit_member(fit, specs[key], shards[fit.member if tasks.by_partition else 0], held)
            except Exception as error:  # the caller counts failures
                yield fit.member, error


def _on_spark(tasks: _Tasks, context: SparkContext) -> Iterator[Outcome]:
    """The members as Spark jobs of one task each, as many at a time as there are slots."""
    options = tasks.options(tasks.source.has_target)
    group = f"elephas_like-{options.dataset}"
    at_once = max(1, slots(context))
    datasets = [options.dataset, rows_dataset(options)]
    specs, keys = tasks.specs()
    with ExitStack() as stack:
        stack.callback(lambda: sweep(context, group, at_once, datasets))
        shipped = {key: stack.enter_context(_broadcast(context, spec)) for key, spec in specs.items()}
        held: Replica | None = None
        if tasks.held is not None:
            held_options = tasks.options(tasks.held.has_target)
            datasets += [held_options.dataset, rows_dataset(held_options)]
            held = stack.enter_context(_replica(tasks.held, context, held_options, at_once, group))
        rows: Replica | None = None
        if tasks.by_partition:
            base = _references(tasks, context, options)
        else:
            rows = stack.enter_context(_replica(tasks.source, context, options, at_once, group))
            base = context.parallelize(range(tasks.count), tasks.count)
        keep = tasks.source.dataset is not None
        jobs = []
        for fit, key in zip(tasks.fits(task_cpus(context)), keys, strict=True):
            told = stack.enter_context(_broadcast(context, fit))
            jobs.append((base.mapPartitionsWithIndex(_member_task(told, shipped[key], rows, held, keep)), fit.member))
        titles = [f"elephas_like: member {number + 1} of {tasks.count}" for number in range(tasks.count)]
        running = stack.enter_context(PartitionJobs(context, jobs, at_once=at_once, group=group, descriptions=titles))
        for number, found in running.results():
            if isinstance(found, BaseException):
                yield number, found
                continue
            (result,) = found
            if isinstance(result, Failure):
                yield number, result.error()
            else:
                assert isinstance(result, MemberResult)
                yield number, result


def _replica(source: Source, context: SparkContext, options: SpoolOptions, at_once: int, group: str) -> Any:
    """All rows on every executor, as a context manager."""
    if source.columns is not None:
        return replicated(context, dealt(source.columns, 1), options)
    if source.dataset is not None:
        dataset = source.dataset
        refs = dataset.references(replace(options, dataset=dataset.dataset))
        return replicated_rdd(
            dataset.source, options, at_once=at_once, group=group, sharded=refs, forget=dataset.forget
        )
    assert source.rdd is not None
    return replicated_rdd(source.rdd, options, at_once=at_once, group=group)


def _references(tasks: _Tasks, context: SparkContext, options: SpoolOptions) -> RDD:
    """One shard per member, written by the task that trains it."""
    if tasks.source.dataset is not None:
        return tasks.source.dataset.references(replace(options, dataset=tasks.source.dataset.dataset))
    return references(tasks.source.data(tasks.count).distributed(context), options)


def _member_task(
    told: Broadcast[MemberFit], spec: Broadcast[ModelSpec], rows: Replica | None, held: Replica | None, keep: bool
) -> Callable[[int, Iterator[object]], Iterator[MemberResult | Failure]]:
    def train(index: int, given: Iterator[object]) -> Iterator[MemberResult | Failure]:
        (element,) = given  # read to the end: Spark does not reuse a process that leaves input behind
        try:
            if isinstance(element, Failure):
                yield element
                return
            shard = rows.ref() if rows is not None else element
            assert isinstance(shard, ShardRef)
            yield fit_member(told.value, spec.value, shard, None if held is None else held.ref())
        except Exception as error:  # reported as a value: the driver raises it
            yield Failure.of(index, error)
        finally:
            if isinstance(element, ShardRef) and not keep:
                remove(element)

    return train


@contextmanager
def _broadcast(context: SparkContext, value: Any) -> Iterator[Broadcast[Any]]:
    shipped = context.broadcast(value)
    try:
        yield shipped
    finally:
        destroy(context, shipped)


def _by_several_workers(
    models: Sequence[keras.Model],
    configs: Sequence[FitConfig],
    source: Source,
    held: Source | None,
    workers: int,
    engine: EngineName,
    context: SparkContext | None,
    callbacks: Sequence[keras.callbacks.Callback],
    *,
    custom_objects: Mapping[str, object],
) -> Iterator[Outcome]:
    """The members as fits of a SparkModel each, as many at a time as slots allow."""
    at_once = 1 if context is None or engine is EngineName.JOBS else max(1, slots(context) // workers)
    stopping = threading.Event()
    pickled = pickle_by_value(list(callbacks)) if callbacks else b""
    validation = None if held is None else held.columns or held.data(workers).rdd
    given: tuple[Any, ...] = source.columns or (source.dataset,)
    with ExitStack() as stack:
        if source.dataset is None and (context is not None or source.rdd is not None):
            rows = source.data(workers)
            given = (rows.rdd,)
            if context is not None:
                given = (stack.enter_context(shard(rows.distributed(context), workers)),)

        def fit(number: int) -> MemberResult:
            config = configs[number]
            fitted = _MemberModel(models[number], workers, custom_objects, config, engine)
            own = cloudpickle.loads(pickled) if pickled else []  # our own bytes
            x, y, sample_weight = (*given, None, None)[:3]
            history = fitted.fit(
                x,
                y,
                sample_weight=sample_weight,
                epochs=config.epochs,
                validation_split=config.validation_split,
                validation_data=validation,
                callbacks=[*own, _StopWhen(stopping)],
                class_weight=config.class_weight,
                shuffle=config.shuffle,
                verbose=0,
            )
            if stopping.is_set():
                raise ElephasError("the ensemble's training ended before this member was done.")
            return MemberResult(number, Variables(models[number]).read(), history.history, sum(history.epoch_seconds))

        def call(number: int) -> Callable[[], MemberResult]:
            return lambda: fit(number)

        if context is None:
            for number in range(len(models)):
                try:
                    yield number, fit(number)
                except Exception as error:  # the caller counts failures
                    yield number, error
            return
        calls = [call(number) for number in range(len(models))]
        running = stack.enter_context(Calls(calls, at_once=at_once, name="members", stop=stopping.set))
        yield from running.results()


class _MemberModel(SparkModel):
    """A SparkModel whose rows are drawn as a member's config says."""

    def __init__(
        self,
        model: keras.Model,
        workers: int,
        custom_objects: Mapping[str, object],
        config: FitConfig,
        engine: EngineName,
    ) -> None:
        super().__init__(model, workers, custom_objects, config.batch_size, engine=engine.value, seed=config.seed)
        self._bootstrap = config.bootstrap
        self._held_out_by = config.split_seed

    def _next_seed(self) -> int:
        seed = super()._next_seed()
        self._split_seed = self._held_out_by
        return seed


class _StopWhen(keras.callbacks.Callback):
    """Ends a fit at the end of an epoch, once an event is set."""

    def __init__(self, event: threading.Event) -> None:
        super().__init__()
        self._event = event

    def on_epoch_end(self, epoch: int, logs: Mapping[str, float] | None = None) -> None:
        if self._event.is_set():
            self.model.stop_training = True


def _check_partitions(source: Source, members: int) -> None:
    """Nothing, if there is a partition for each member; where there are more, neighbours are put together.

    Raises:
        ValueError: there are fewer, or shards for another number of members.
    """
    if source.dataset is not None and source.dataset.num_workers != members:
        raise ValueError(f"the data is sharded for {source.dataset.num_workers} members, and num_members is {members}.")
    found = members if source.rdd is None else source.rdd.getNumPartitions()
    if found < members:
        raise ValueError(
            f"bagging='partition' gives each member a partition of its own: num_members is {members}, and the data has "
            f"{found}. Call repartition({members}) on it first, or take fewer members, or bagging=True."
        )


def _source(data: Any) -> Source:
    if isinstance(data, tuple | list) and len(data) in (2, 3):
        return Source.of(data[0], data[1], data[2] if len(data) == 3 else None)
    return Source.of(data, None, None)


def _built(build_or_model: Callable[..., keras.Model] | keras.Model, seed: int) -> keras.Model:
    """One member's compiled model, with weights by `seed`."""
    if isinstance(build_or_model, keras.Model):
        check_model(build_or_model)
        repair_compile(build_or_model)
        return reinitialized(build_or_model, seed)
    if not callable(build_or_model):
        raise TypeError(
            "build_or_model must be a function that returns a compiled model, or a compiled model; got "
            f"{type(build_or_model).__name__}."
        )
    with seeded(seed):
        model = build_or_model(*_seed_argument(build_or_model, seed))
    check_model(model)
    repair_compile(model)
    return model


def _seed_argument(build: Callable[..., object], seed: int) -> tuple[int, ...]:
    """The seed, for a function whose first parameter is called so or has no default."""
    try:
        parameters = list(inspect.signature(build).parameters.values())
    except (TypeError, ValueError):
        return ()
    first = next((p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)), None)
    return (seed,) if first is not None and (first.name == "seed" or first.default is first.empty) else ()
