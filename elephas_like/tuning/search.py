"""Distributed hyper-parameter search: arguments are checked, rows and slots prepared, trials run."""

from __future__ import annotations

import os
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from inspect import signature
from pathlib import Path
from typing import Any, NamedTuple

import keras
import numpy as np
from pyspark import SparkContext
from pyspark.sql import SparkSession

from elephas_like.core import checks
from elephas_like.core.described import without_addresses
from elephas_like.core.errors import ElephasError, ElephasWarning
from elephas_like.core.objective import Objective, objective_of
from elephas_like.core.pruning import NumberedRule, Rule, rule_of
from elephas_like.core.types import EngineName, FitConfig, ShardRef
from elephas_like.exchange.tls import Identity
from elephas_like.exchange.trial_reports import Judge
from elephas_like.model.given_rows import Given
from elephas_like.model.launch import server_identity
from elephas_like.model.prepared import as_read, given_to_prepare, reader
from elephas_like.model.source import Source
from elephas_like.model.sources import validation_source
from elephas_like.model.training_page import PageRequest, page_request, training_page
from elephas_like.rows.frame_plan import Choice
from elephas_like.spark.encryption import check_disks
from elephas_like.spark.session import conf_of, context_for, remote_session, settings_of
from elephas_like.spark.settings import largest_result
from elephas_like.spark.slots import task_cpus
from elephas_like.trainer.archive import is_rebuilt
from elephas_like.trainer.callback_checks import check_copied_callbacks, class_of, is_of_the_user, shipped_callbacks
from elephas_like.trainer.code import pickle_by_value
from elephas_like.trainer.copies import with_own_variables
from elephas_like.trainer.keras_settings import KerasSettings
from elephas_like.trainer.request import as_tuple, limited_epochs, validation_share
from elephas_like.trainer.seeds import seeded
from elephas_like.trainer.tensors import check_backend
from elephas_like.tuning.first_model import check_labels_of_space, check_objective, first_model
from elephas_like.tuning.function_search import FunctionRequest, search_function
from elephas_like.tuning.keras_options import with_own_objects
from elephas_like.tuning.log import Kept, identity_of, kept_of
from elephas_like.tuning.result import SearchResult
from elephas_like.tuning.runner import Limits, PruningMonitor, Search, WatchedTrials, limits_of, search_monitor
from elephas_like.tuning.samplers import PointSource, name_of, sampler_of
from elephas_like.tuning.search_rows import SearchRows, search_source
from elephas_like.tuning.space import Space
from elephas_like.tuning.trial import KerasTrial, checked, restore
from elephas_like.tuning.trial_runs import (
    TrialRuns,
    as_fits,
    count_parallel,
    opened,
    possible_pruning,
)
from elephas_like.tuning.wide_trial import WideTrial


def search(
    build: Callable[..., Any],
    space: Any,
    data: Any = None,
    y: Any = None,
    *,
    max_evals: int,
    algo: Any = "tpe",
    first_points: Sequence[Any] | None = None,
    objective: str | Sequence[str] | None = None,
    direction: str | Sequence[str] = "auto",
    parallelism: int | None = None,
    epochs: int | None = None,
    batch_size: int | Callable[[Any], int] = 32,
    validation_split: float = 0.0,
    validation_data: Any = None,
    pruning: str | Rule | NumberedRule | None = "auto",
    seed: int | None = None,
    checkpoint_dir: str | os.PathLike[str] | None = None,
    resume: str = "never",
    timeout: float | None = None,
    max_failures: int | None = None,
    callbacks: Sequence[keras.callbacks.Callback] | None = None,
    keep_models: int = 10,
    trial_workers: int | None = None,
    tls: bool | tuple[str, str] | None = None,
    allow_plain_text: bool = False,
    fused_optimizer: bool = False,
    verbose: int | str = "auto",
    monitor: bool | int | str = False,
    features_col: Choice | None = None,
    label_col: Choice | None = None,
    sample_weight_col: str | None = None,
    column_shapes: Mapping[str, Sequence[int]] | None = None,
    column_dtypes: Mapping[str, str] | None = None,
) -> SearchResult:
    """Tries points of a space on Spark's slots, one trial a slot, and returns the trials and the best models.

    A trial's value is that of its best epoch, and its model has that epoch's state. Without an active Spark session trials
    run one by one in this process.

    Args:
        build: makes a compiled Keras model from one point of the space; without `data` any function of a point, which
            returns a number or hyperopt's dict (docs/tuning.md). It travels to the executors by value.
        space: hyperopt's (`{"rate": hp.loguniform("rate", -9, -2)}`), or a plain dict of `("loguniform", -9, -2)`-like
            tuples, lists of options (which may hold such tuples and dicts), nested dicts and constants; both may be mixed.
        data: `(x, y)` or `(x, y, sample_weight)` arrays, an RDD of such rows, a DataFrame, the path of Parquet files, or a
            ShardedDataset. Unless
            `trial_workers` is given it goes through the driver, once, and to each executor's disk, once.
        y: labels of arrays, for `x, y` in place of `(x, y)`.
        max_evals: trials.
        algo: hyperopt's "tpe", "random", "anneal", or a function as `hyperopt.tpe.suggest`; "optuna", or a sampler of Optuna's.
            It knows every trial that has ended.
        first_points: parameters to try before any others, each as `build` gets them.
        objective: a metric of the logs, such as "val_accuracy"; None is "val_loss", and "loss" for functions. Metric objects without a name are called as in a fresh
            process, in every trial: `AUC()` is "val_auc", and a second one "val_auc_1". A list of several: Optuna looks for
            the best compromises, `pareto_front`; the first one decides which epoch and which model is the best.
        direction: "min", "max", or "auto": read off the objective's name. Of several objectives a list, or one for all.
        parallelism: trials at a time. None: as many as there are slots.
        epochs: of every trial, at most; None is 10. For functions: how often a whole trial reports, where that is known.
        batch_size: rows a batch, or a function that takes it from the parameters.
        validation_split: share of the rows, drawn at random by seed, that all trials are scored on.
        validation_data: `(x, y)` or `(x, y, sample_weight)` arrays, an RDD of such rows, or with a DataFrame as data one with
            its columns.
        pruning: "auto" is "median", and None for several objectives and over Spark Connect, where running trials cannot report. "median" stops trials that are worse than the median (`MedianRule`); "asha" and "hyperband" stop more, and
            the best trial more often (`ASHA`, `Hyperband`); a function of (losses so far, losses of the other trials), all
            lower-is-better, that says whether to stop; None lets all trials finish.
        seed: of points, initial weights, shuffling and validation rows. With one, a random search repeats exactly, and
            any search does with parallelism=1; which trials are pruned depends on how far the others have come by then.
        checkpoint_dir: a directory of the driver's for the trials (JSON lines) and the best models (`.keras`).
        resume: "never", or "auto": go on with the search that is in `checkpoint_dir`, if there is one. Other arguments are
            refused, and so is other data, but for `trial_workers`, whose data the driver does not see.
        timeout: seconds after which no trial begins; those that run end with their epoch (over Spark Connect, with their last one).
        max_failures: failed trials that are tolerated. None: any number, as long as one succeeds.
        callbacks: Keras callbacks; each trial gets copies, which see its own model and, if they ask for it, its batches.
        keep_models: the number of trained models that are kept, for `best_models` and `best_ensemble`.
        trial_workers: trains each trial with a SparkModel on so many workers; as many trials run at a time as fit in the slots.
        tls: of what running trials report, and of fits of several workers, as for SparkModel.
        allow_plain_text, fused_optimizer: as for SparkModel.
        verbose: 0 silent, 1 or "auto" a progress bar, 2 a line per trial.
        monitor: True serves a page on the driver that shows the trials while they run, and prints its URL; or its port, as for
            `SparkModel.fit`.
        features_col, label_col, sample_weight_col, column_shapes, column_dtypes: of a DataFrame, as for `SparkModel.fit`. They
            are read as a first model's inputs and outputs want them, so models of all points must take the same rows.

    Raises:
        ValueError, TypeError: arguments that make no sense, before anything runs; an objective that is not among the
            metrics: the message lists them.
        PlainTextError: Spark's settings encrypt what the search would leave in plain text.
        WorkerError: the first trial's error, where all trials failed or more than `max_failures`.
        ElephasError: the SparkContext was stopped; what `checkpoint_dir` holds is gone on with by resume="auto". Or another search,
            of this process or another one, is at that of `checkpoint_dir`.
    """
    if data is None:
        return search_function(FunctionRequest.checked(locals(), signature(search)))
    # Every argument that can be judged alone is checked before a model is built.
    kept = kept_of(checkpoint_dir, resume, seed)
    goal = _objective(objective, direction, bool(validation_split) or validation_data is not None)
    length = limited_epochs("epochs", 10 if epochs is None else epochs)
    remote = remote_session(data)
    asked = _Request(
        build=_function(build),
        # Before any model is built: Keras cannot unpickle an optimizer that was, and all models may be compiled with one.
        shipped=b"" if trial_workers is not None else pickle_by_value([build]),
        sampler=sampler_of(Space(space), algo, kept.seed, goal, first_points),
        algo=name_of(algo),
        first_points=first_points,
        kept=kept,
        limits=limits_of(max_evals, timeout, max_failures),
        epochs=length,
        batch_size=batch_size if callable(batch_size) else checks.positive_int("batch_size", batch_size),
        keep_models=checks.positive_int("keep_models", keep_models),
        workers=None if trial_workers is None else checks.positive_int("trial_workers", trial_workers),
        tls=None if tls is None else checks.tls("tls", tls),
        allow_plain_text=checks.flag("allow_plain_text", allow_plain_text),
        fused_optimizer=checks.flag("fused_optimizer", fused_optimizer),
        parallelism=None if parallelism is None else checks.positive_int("parallelism", parallelism),
        validation_split=validation_share(validation_split, has_validation_data=validation_data is not None),
        rule=rule_of(possible_pruning(pruning, remote), length, len(goal.all)),
        objective=goal,
        callbacks=_callbacks(callbacks),
        verbose=checks.verbosity(verbose),
        page=page_request(monitor, tls, allow_plain_text, verbose),
        remote=remote,
    )
    given = Given.of(
        data,
        y,
        features_col=features_col,
        label_col=label_col,
        sample_weight_col=sample_weight_col,
        column_shapes=column_shapes,
        column_dtypes=column_dtypes,
    )
    with kept.alone():
        return _searched(asked, _prepared(asked, given, validation_data))


class _Callbacks(NamedTuple):
    """A cloudpickle of Keras callbacks, or nothing, and whether they may add logs of their own to the metrics."""

    pickled: bytes
    may_add_logs: bool


@dataclass(frozen=True)
class _Request:
    """The arguments of a search, checked.

    shipped: a cloudpickle of [build]; empty where it stays in this process. algo: its name. workers: of each trial; None is a task
    of Spark's. remote: the session whose tasks run the trials, if it is Spark Connect's.
    """

    build: Callable[[Any], keras.Model]
    shipped: bytes
    sampler: PointSource
    algo: str
    first_points: Sequence[Any] | None
    kept: Kept
    limits: Limits
    epochs: int
    batch_size: int | Callable[[Any], int]
    keep_models: int
    workers: int | None
    tls: bool | tuple[str, str] | None
    allow_plain_text: bool
    fused_optimizer: bool
    parallelism: int | None
    validation_split: float
    rule: Rule | NumberedRule | None
    objective: Objective
    callbacks: _Callbacks
    verbose: int
    page: PageRequest
    remote: SparkSession | None

    def __post_init__(self) -> None:
        """Checks arguments against each other."""
        if self.remote is not None and self.workers is not None:
            raise ValueError(f"trial_workers={self.workers} needs a classic session; over Spark Connect leave it out.")

    @property
    def reports(self) -> bool:
        """Whether anyone wants to know of the epochs of trials that run."""
        return self.rule is not None or self.limits.timeout is not None

    def identity_on(self, context: SparkContext | None) -> Identity | None:
        """The certificate of the server that trials report to, once it is certain that nothing stays in plain text.

        Raises:
            PlainTextError: Spark's settings encrypt what the search would leave in plain text.
        """
        if context is None:
            return None
        check_disks(settings_of(context), allow_plain_text=self.allow_plain_text)
        if self.workers is None and not self.reports:
            return None
        return server_identity(context, self.tls, allow_plain_text=self.allow_plain_text)

    def size_of(self, params: Any) -> int:
        """The batch size of a trial. Whole floats are what `quniform` draws.

        Raises:
            ValueError: the user's function gives no batch size.
        """
        if not callable(self.batch_size):
            return self.batch_size
        size: object = self.batch_size(params)
        whole = int(size) if isinstance(size, float | np.floating) and float(size).is_integer() else size
        return checks.positive_int("batch_size", whole)

    def identity(self, shards: Sequence[ShardRef]) -> dict[str, object]:
        """What makes it the same search when it is resumed."""
        return {
            "space": self.sampler.space.described(),
            "algo": self.algo,
            "first_points": None if not self.first_points else without_addresses(list(self.first_points)),
            "seed": self.kept.seed,
            **identity_of(self.objective),
            "epochs": self.epochs,
            "batch_size": None if callable(self.batch_size) else self.batch_size,
            "validation_split": self.validation_split,
            "trial_workers": self.workers,
            "data": [[ref.rows, ref.checksum] for ref in shards],
        }


@dataclass(frozen=True)
class _Prepared:
    """The rows of a search, and where its trials run.

    held: validation rows that were given apart; validation_data: the same as a SparkModel takes them.
    model: of a first point; None where none could be built.
    identity: of the server that trials report to; None is plain text, or nobody to report to.
    """

    source: Source
    held: Source | None
    validation_data: Any
    model: keras.Model | None
    context: SparkContext | None
    parallelism: int
    identity: Identity | None


def _prepared(asked: _Request, given: Given, validation_data: Any) -> _Prepared:
    check_backend()
    space, seed = asked.sampler.space, asked.kept.seed
    columns, model = given.columns, None
    # A first model says how the columns of a DataFrame are read.
    if columns is not None or given.frame is not None:
        model = first_model(asked.build, space, seed, needed=columns is not None)
    if model is not None:
        given = given_to_prepare(given, model)
        columns = given.columns
    read_as = None if model is None else reader(model)
    validation_data = given.validation(validation_data, read_as)
    source = search_source(given.pair, columns, read_as)
    held = None if validation_data is None else validation_source(validation_data, columns, read_as)
    context = context_for(source.context or (None if held is None else held.context), EngineName.AUTO)
    own = asked.identity_on(context)
    parallelism = count_parallel(context, asked.parallelism, asked.workers or 1, remote=asked.remote)
    model = model or first_model(asked.build, space, seed, needed=False)
    if held is not None and asked.workers is not None:
        validation_data = held.as_arguments(asked.workers)
    if model is not None and asked.workers is not None and reader(model) is None:
        raise ElephasError(
            f"the model {model.name!r} prepares its rows, and several workers of a trial share rows that are written already: leave "
            "trial_workers out, or give build models without a preprocessor, and rows that it has prepared."
        )
    if model is not None:
        source, held = as_read(source, model), None if held is None else as_read(held, model)
    return _Prepared(source, held, validation_data, model, context, parallelism, own)


def _searched(asked: _Request, given: _Prepared) -> SearchResult:
    """Writes the rows down, runs the trials, and returns what came of them."""
    goal, kept, limits, settings = asked.objective, asked.kept, asked.limits, KerasSettings.current()
    with SearchRows(given.source, given.held, spooled=asked.workers is None) as rows:
        rows.open()
        if given.model is not None:
            check_labels_of_space(asked.build, asked.sampler.space, kept.seed, given.model, rows.shards)
        if given.model is not None and not asked.callbacks.may_add_logs:
            for one in goal.all:
                check_objective(one, given.model, rows.sample, given.source, kept.seed)
        store, earlier = kept.begin(asked.identity(rows.shards), asked.keep_models)
        deadline = None if limits.timeout is None else time.monotonic() + limits.timeout
        monitor = PruningMonitor(goal, asked.rule, asked.epochs, deadline)
        page = search_monitor(goal, limits.max_evals, algorithm=asked.algo, parallel=given.parallelism)
        running = Search(asked.sampler, goal, monitor, limits, store, kept.log, asked.size_of, asked.verbose, page)
        running.recall(earlier)
        shown = training_page(asked.page, page, given.context, asked.remote)
        with shown, _opened(asked, given, rows, WatchedTrials(monitor, page, goal)) as slots:
            running.run(slots)
    source = given.source if rows.sample is None else None  # the rows were never here
    restorer = _Restorer(asked.build, rows.sample, source, kept.seed, settings)
    return SearchResult(running.records, goal, asked.epochs, store, restorer, asked.sampler, running.interrupted)


@contextmanager
def _opened(asked: _Request, given: _Prepared, rows: SearchRows, judge: Judge) -> Iterator[TrialRuns]:
    """Slots for the trials: of one task each, or fits of several workers on rows that all of them share."""
    context, seed, split = given.context, asked.kept.seed, asked.validation_split
    if asked.workers is None:
        conf = conf_of(asked.remote) if asked.remote is not None else context and settings_of(context)
        trial = KerasTrial(
            build=asked.shipped,
            objective=asked.objective,
            epochs=asked.epochs,
            config=FitConfig(seed=seed, split_seed=seed, validation_split=split, fused_optimizer=asked.fused_optimizer),
            callbacks=asked.callbacks.pickled,
            cores=None if conf is None else task_cpus(conf),
            largest_result=0 if conf is None else largest_result(conf),
        )
        with opened(
            context,
            trial,
            rows.shards,
            judge,
            parallelism=given.parallelism,
            reports=asked.reports,
            name=rows.name,
            identity=given.identity,
            allow_plain_text=asked.allow_plain_text,
            remote=asked.remote,
        ) as slots:
            yield slots
        return
    with rows.sharded(context, asked.workers) as dataset:
        wide = WideTrial(
            build=asked.build,
            workers=asked.workers,
            data=dataset,
            objective=asked.objective,
            epochs=asked.epochs,
            seed=seed,
            validation_split=split,
            validation_data=given.validation_data,
            callbacks=asked.callbacks.pickled,
            tls=asked.tls,
            allow_plain_text=asked.allow_plain_text,
            fused_optimizer=asked.fused_optimizer,
        )
        yield as_fits(dataset.source.context, wide, judge, given.parallelism)


def _function(build: object) -> Callable[[Any], keras.Model]:
    if not callable(build):
        raise TypeError(
            f"build must be a function from parameters to a compiled keras.Model; got {type(build).__name__}."
        )
    return build


def _objective(name: object, direction: object, validates: bool) -> Objective:
    goal = objective_of("val_loss" if name is None else name, direction)
    named = next((one.name for one in goal.all if one.name.startswith("val_")), None)
    if named is not None and not validates:
        raise ValueError(
            f"objective={named!r} needs rows to validate on: give validation_split=0.2, or validation_data."
        )
    return goal


def _callbacks(callbacks: Any) -> _Callbacks:
    given = list(as_tuple(callbacks))
    for callback in given:
        if not isinstance(callback, keras.callbacks.Callback):
            raise TypeError(f"callbacks must be keras.callbacks.Callback objects; got {class_of(callback)}.")
    check_copied_callbacks(given, "trial")
    # Keras' own callbacks add the learning rate to the logs at most.
    may_add_logs = any(map(is_of_the_user, given))
    return _Callbacks(shipped_callbacks(given), may_add_logs)


@dataclass
class _Restorer:
    """Makes the model of a trial from its parameters and its file.

    source: the rows, where the search has no sample of them. made: models so far, with which the next one shares nothing.
    """

    build: Callable[[Any], keras.Model]
    sample: tuple[object, ...] | None
    source: Source | None
    seed: int
    settings: KerasSettings
    made: list[keras.Model] = field(default_factory=list)

    def __call__(self, number: int, params: Any, content: bytes, suffix: str) -> keras.Model:
        """Return the model of the trial of this number: `build` draws what it drew there, which need not be weights."""
        with self.settings.applied(), seeded(self.seed, number):
            beside = checked(self.build(with_own_objects(params)))
        with (
            self.settings.applied(),
            seeded(self.seed, number),
            tempfile.TemporaryDirectory(prefix="elephas_like-") as folder,
        ):
            path = Path(folder) / f"model{suffix}"
            path.write_bytes(content)
            # Nothing is shared: one trial may have trained what another froze, and what two models of one function share is the function's.
            built = checked(self.build(with_own_objects(params)))
            (model,) = with_own_variables([built], share_frozen=False, besides=[*self.made, beside])
            self.made.append(model)
            if self.source is not None:
                self.source.for_model(model).build(model)
            restore(model, path, self.sample)
            if suffix == ".keras":
                _warn_of_another(number, content, model)
            return model


def _warn_of_another(number: int, content: bytes, model: keras.Model) -> None:
    """Warn if the model in a trial's file is another one than `build` makes now, into which its weights were read."""
    with suppress(ElephasError):  # Keras cannot save what it makes now
        if is_rebuilt(content, model):
            return
    warnings.warn(
        f"build(params) makes another model now than trial {number} has trained: it has changed since, and the trained weights are in layers "
        "that may compute something else. Go on with the function that trained them, or search anew.",
        ElephasWarning,
        stacklevel=4,
    )
