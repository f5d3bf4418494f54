"""Ensembles: members trained in parallel, each with weights and rows of its own."""

from __future__ import annotations

import inspect
import logging
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
from pyspark import SparkContext
from pyspark.sql import SparkSession

from elephas_like.core import checks
from elephas_like.core.errors import ElephasError
from elephas_like.core.runs_monitor import RunsMonitor
from elephas_like.core.types import EngineName, FitConfig
from elephas_like.core.voting import member_seeds
from elephas_like.ensembles.member_models import check_votes, voting_of
from elephas_like.ensembles.member_page import members_monitor, show_failure, show_member
from elephas_like.ensembles.member_runs import Members, outcomes
from elephas_like.ensembles.members import MemberResult
from elephas_like.ensembles.prepared_members import check_prepared_alike
from elephas_like.ensembles.voting_model import VotingModel
from elephas_like.exchange.protocol import Sizes
from elephas_like.model.array_checks import check_label_arrays
from elephas_like.model.given_rows import Given
from elephas_like.model.prepared import given_to_prepare, prepared, reader
from elephas_like.model.source import Source
from elephas_like.model.sources import column_source, source_of, validation_source
from elephas_like.model.training_page import PageRequest, page_request, training_page
from elephas_like.rows.frame_plan import Choice
from elephas_like.spark.parallel import Outcome, cancelled_by_caller
from elephas_like.spark.session import conf_of, context_for, remote_session, settings_of, warn_if_stopped
from elephas_like.spark.settings import check_result_size, largest_result
from elephas_like.trainer.bars import Bar
from elephas_like.trainer.callback_checks import check_callbacks, check_copied_callbacks, shipped_callbacks
from elephas_like.trainer.compile_arguments import check_model, check_rows_are_kept, repair_compile
from elephas_like.trainer.copies import give_own_optimizer, reinitialized, with_own_variables
from elephas_like.trainer.preparing import preparer_of
from elephas_like.trainer.recipe import keras_lock
from elephas_like.trainer.request import as_tuple, check_one_weight, class_weights, limited_epochs, validation_share
from elephas_like.trainer.seeds import seeded
from elephas_like.trainer.state import Variables

log = logging.getLogger(__name__)


def train_ensemble(
    build_or_model: Callable[..., keras.Model] | keras.Model,
    data: Any,
    num_members: int,
    *,
    y: Any = None,
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
    tls: bool | tuple[str, str] | None = None,
    allow_plain_text: bool = False,
    fused_optimizer: bool = False,
    custom_objects: Mapping[str, object] | None = None,
    verbose: int | str = "auto",
    monitor: bool | int | str = False,
    weights: Sequence[float] | None = None,
    features_col: Choice | None = None,
    label_col: Choice | None = None,
    sample_weight_col: str | None = None,
    column_shapes: Mapping[str, Sequence[int]] | None = None,
    column_dtypes: Mapping[str, str] | None = None,
    handle_invalid: str | None = None,
) -> VotingModel:
    """Trains the members of an ensemble in parallel, each with weights and rows of its own, and returns them as one.

    Members begin with different weights: a function that builds a model is called once per member, on the driver, under the
    member's seed, which it is given if it takes an argument; where models share layers that are trained, each gets its own copy of them. A model is copied, and its trainable weights are drawn anew
    (pretrained weights that are to be kept: pass a function, or freeze them).

    Args:
        build_or_model: a function that returns a compiled model, or a compiled model, which is left as it is.
        data: `(x, y)` or `(x, y, sample_weight)` arrays, an array alone for models without targets, an RDD of rows as for
            `SparkModel.fit`, a DataFrame, the path of Parquet files, or a ShardedDataset. Rows are shipped once per executor, not per member.
            Models of keras-hub take rows as their own fit does, such as text; their preprocessors must do the same.
        num_members: members.
        y: labels of arrays, for `x, y` in place of `(x, y)`.
        bagging: which rows a member sees: True, as many as there are, drawn with replacement (Breiman 1996); False, all of
            them; "partition", those of one partition, as dist-keras' EnsembleTrainer does.
        seed: of initial weights, rows, shuffling and dropout; None draws one from NumPy's global generator.
        workers_per_member: 1, a member is trained by one Spark task; k, by a SparkModel on k slots, for rows that no
            executor holds. Rows are then drawn shard by shard.
        epochs, batch_size, class_weight, shuffle: as for `SparkModel.fit`.
        voting: of the VotingModel: "hard", "soft", "mean", or "auto": "soft" for a crossentropy, "mean" for regression and for several labels a row.
        validation_split: share of the rows that no member trains on, the same ones for all of them, and that is scored.
        validation_data: `(x, y)` or `(x, y, sample_weight)` arrays, an RDD of such rows, or with a DataFrame as data one with
            its columns; all of it is scored by each member after each epoch.
        callbacks: Keras callbacks; each member has copies of its own, called where it is trained: on the executor, or with
            several workers on the driver.
        max_failures: members that may fail; the ensemble is the others, and `failures` says which and why.
        engine: "auto" (Spark where the data is in Spark or a session is active) or "in_process" (no Spark, one member after
            the other); with several workers per member any engine of SparkModel.
        tls: of several workers per member, as for SparkModel.
        allow_plain_text: as for SparkModel; the VotingModel has it too.
        fused_optimizer: as for SparkModel.
        custom_objects: as for SparkModel.
        verbose: 0 silent, 1 or "auto" a bar of the members, 2 a line per member.
        monitor: True serves a page on the driver that shows each member when it is trained, and prints its URL; or its port, as for
            `SparkModel.fit`.
        weights: of the VotingModel, one number per member; those of members that failed are left out.
        features_col, label_col, sample_weight_col, column_shapes, column_dtypes, handle_invalid: of a DataFrame, as for
            `SparkModel.fit`.

    Returns:
        A VotingModel with the members in order, and in `histories` each one's loss and metrics by epoch.

    Raises:
        ValueError, TypeError: arguments that make no sense, before anything starts.
        ElephasError: models of keras-hub whose preprocessors make different rows, or with several workers a member.
        PlainTextError: Spark's settings encrypt what the training would leave in plain text.
        WorkerError: what a member failed with, once the others have stopped.
    """
    # Every argument that can be judged alone is checked before a model is built.
    asked = _Request(
        members=checks.positive_int("num_members", num_members),
        workers=checks.positive_int("workers_per_member", workers_per_member),
        max_failures=checks.positive_int("max_failures", max_failures, least=0),
        bagging=checks.bagging("bagging", bagging),
        engine=checks.choice("engine", engine, EngineName),
        tls=None if tls is None else checks.tls("tls", tls),
        allow_plain_text=checks.flag("allow_plain_text", allow_plain_text),
        fused_optimizer=checks.flag("fused_optimizer", fused_optimizer),
        validation_split=validation_share(validation_split, has_validation_data=validation_data is not None),
        callbacks=_pickled(callbacks),
        verbose=checks.verbosity(verbose),
        epochs=limited_epochs("epochs", epochs),
        batch_size=checks.positive_int("batch_size", batch_size),
        seed=int(np.random.randint(2**31 - 1)) if seed is None else checks.positive_int("seed", seed, least=0),
        shuffle=checks.flag("shuffle", shuffle),
        class_weight=class_weights(class_weight),
        voting=voting,
        weights=weights,
        custom_objects=custom_objects,
        page=page_request(monitor, tls, allow_plain_text, verbose),
    )
    remote = asked.remote_session(data)
    given = Given.of(
        data,
        y,
        features_col=features_col,
        label_col=label_col,
        sample_weight_col=sample_weight_col,
        column_shapes=column_shapes,
        column_dtypes=column_dtypes,
        handle_invalid=handle_invalid,
    )
    weighted = given.sample_weight is not None or sample_weight_col is not None
    check_one_weight(asked.class_weight, has_sample_weight=weighted)
    ensemble, members, context = _prepared(asked, build_or_model, given, validation_data)
    conf = conf_of(remote) if remote is not None else context and settings_of(context)
    if conf and asked.workers == 1:
        largest = max(Sizes.of(Variables(model).layout).state() for model in ensemble.models)
        check_result_size("a member with its optimizer's state", largest, largest_result(conf))
    if context is None and remote is None and asked.engine is EngineName.AUTO:
        warn_if_stopped(
            "members are trained one by one", "Start a new session to train them on Spark, or say engine='in_process'."
        )
    validates = bool(asked.validation_split) or members.held is not None
    page = members_monitor(asked.members, _described(asked, ensemble), validates=validates)
    with training_page(asked.page, page, context, remote):
        found = outcomes(members, asked.workers, asked.engine, context, remote)
        results, failures = _collected(found, ensemble.models, asked, page)
    return _voting(ensemble, results, failures)


@dataclass(frozen=True)
class _Request:
    """What an ensemble is trained with, checked. callbacks: a cloudpickle, or nothing."""

    members: int
    workers: int
    max_failures: int
    bagging: bool | str
    engine: EngineName
    tls: bool | tuple[str, str] | None
    allow_plain_text: bool
    fused_optimizer: bool
    validation_split: float
    callbacks: bytes
    verbose: int
    epochs: int
    batch_size: int
    seed: int
    shuffle: bool
    class_weight: dict[int, float] | None
    voting: str
    weights: Sequence[float] | None
    custom_objects: Mapping[str, object] | None
    page: PageRequest

    def __post_init__(self) -> None:
        """Checks arguments against each other."""
        if self.workers == 1 and self.engine in (EngineName.SERVER, EngineName.JOBS):
            raise ValueError(
                f"engine={self.engine.value!r} is for workers_per_member > 1; members of one worker take 'auto'."
            )
        if self.workers > 1 and self.bagging == "partition":
            raise ValueError("bagging='partition' gives each member one partition, which one worker trains.")

    def remote_session(self, data: object) -> SparkSession | None:
        """Return the session of Spark Connect whose tasks train the members; None where a classic one does, or this process.

        Raises:
            ValueError: what is asked for needs a classic session.
        """
        session = None if self.engine is EngineName.IN_PROCESS else remote_session(data)
        if session is not None and (self.workers > 1 or self.bagging == "partition"):
            asked = f"workers_per_member={self.workers}" if self.workers > 1 else "bagging='partition'"
            raise ValueError(f"{asked} needs a classic session; over Spark Connect leave it out.")
        return session

    def config(self, seed: int) -> FitConfig:
        """How the member of a seed is trained."""
        return FitConfig(
            batch_size=self.batch_size,
            epochs=self.epochs,
            shuffle=self.shuffle,
            seed=seed,
            split_seed=self.seed,
            bootstrap=seed if self.bagging is True else None,
            validation_split=self.validation_split,
            class_weight=self.class_weight,
            fused_optimizer=self.fused_optimizer,
        )


def _pickled(callbacks: Any) -> bytes:
    own = as_tuple(callbacks)
    check_callbacks(own)
    check_copied_callbacks(own, "member")
    return shipped_callbacks(own)


def _prepared(
    asked: _Request,
    build_or_model: Callable[..., keras.Model] | keras.Model,
    given: Given,
    validation_data: Any,
) -> tuple[VotingModel, Members, SparkContext | None]:
    """The ensemble before its training, what its members are trained from, and where: None is this process."""
    columns = given.columns
    source = None if columns is not None else _source(given.pair)
    seeds = member_seeds(asked.seed, asked.members)
    with keras_lock:
        built = [_built(build_or_model, seed) for seed in seeds]
        models = with_own_variables(built)
        # What the first one shares with others is the function's own, and stays as it is.
        if not isinstance(build_or_model, keras.Model):
            models[:1] = with_own_variables(built[:1], besides=built[1:] or [_built(build_or_model, seeds[0])])
    kind = voting_of(models[0]) if asked.voting == "auto" else asked.voting
    allowed = asked.allow_plain_text
    ensemble = VotingModel(models, kind, asked.weights, custom_objects=asked.custom_objects, allow_plain_text=allowed)
    check_votes(models[0], ensemble.voting)
    # How rows are read, and what prepares them, follows from the models.
    first = models[0]
    if not isinstance(build_or_model, keras.Model):  # the others are copies of one
        check_prepared_alike(models)
    if asked.workers > 1 and preparer_of(first) is not None:
        raise ElephasError(
            f"the model {first.name!r} prepares its rows, and members of several workers share rows that are written already: leave "
            "workers_per_member out, or give models without a preprocessor, and rows that it has prepared."
        )
    given = given_to_prepare(given, first)
    columns, read_as = given.columns, reader(first)
    if columns is not None:
        source = column_source(given.x, columns, read_as)
    elif given.frame is not None:
        source = _source(given.pair)
    assert source is not None
    validation_data = given.validation(validation_data, read_as)
    held = None if validation_data is None else validation_source(validation_data, columns, read_as)
    if asked.bagging == "partition":
        _check_partitions(source, asked.members)
    context = None
    if asked.engine is not EngineName.IN_PROCESS:
        context = context_for(source.context, asked.engine)
    source = prepared(source, first, asked.seed).for_model(first)
    held = None if held is None else prepared(held, first, asked.seed).for_model(first)
    check_label_arrays(first, source, held)
    for model in models:
        give_own_optimizer(model)
        source.build(model, asked.batch_size)
    configs = [asked.config(seed) for seed in seeds]
    by_partition = asked.bagging == "partition"
    options = {
        "engine": asked.engine.value,
        "tls": asked.tls,
        "allow_plain_text": allowed,
        "fused_optimizer": asked.fused_optimizer,
    }
    members = Members(models, configs, asked.callbacks, ensemble.custom_objects, source, held, by_partition, options)
    return ensemble, members, context


def _described(asked: _Request, ensemble: VotingModel) -> dict[str, object]:
    """What is said of the ensemble on its page."""
    names = ("members", "workers", "bagging", "epochs", "batch_size")
    return {"model": ensemble.models[0].name, **{name: getattr(asked, name) for name in names}}


def _voting(
    ensemble: VotingModel, results: Mapping[int, MemberResult], failures: Mapping[int, BaseException]
) -> VotingModel:
    """The ensemble of the members that were trained; it has their histories."""
    kept = sorted(results)
    shares = [ensemble.weights[number] for number in kept]
    if not any(shares):
        log.warning("all members with a weight above 0 failed; the others are weighted equally")
    trained = VotingModel(
        [ensemble.models[number] for number in kept],
        ensemble.voting.value,
        shares if any(shares) else None,
        custom_objects=ensemble.custom_objects,
        allow_plain_text=ensemble.allow_plain_text,
    )
    trained.histories = [results[number].history for number in kept]
    trained.failures = sorted(failures.items())
    return trained


def _collected(
    found: Iterator[Outcome[MemberResult]], models: Sequence[keras.Model], asked: _Request, page: RunsMonitor
) -> tuple[dict[int, MemberResult], dict[int, BaseException]]:
    """The results and the failures by member; each result is written into its model as it comes.

    Raises:
        BaseException: a failure, where there are more than `max_failures`, no member is left, or the caller has cancelled the jobs.
    """
    results: dict[int, MemberResult] = {}
    failures: dict[int, BaseException] = {}
    with (
        closing(found),  # type: ignore[type-var]  # generators can be closed: what still runs is cancelled
        Bar(total=len(models), unit=" members", disable=asked.verbose != 1 or sys.stderr is None) as bar,
    ):
        for number, outcome in found:
            if isinstance(outcome, BaseException):
                outcome.add_note(f"It is member {number} of the ensemble that failed.")
                failures[number] = outcome
                show_failure(page, number, outcome)
                if len(failures) > asked.max_failures or cancelled_by_caller(str(outcome)):
                    raise outcome
                log.warning("member %d failed, and is left out: %s", number, outcome)
                continue
            results[number] = outcome
            Variables(models[number]).write(outcome.state)
            show_member(page, number, outcome.history, outcome.seconds)
            bar.update()
            if asked.verbose == 2:
                last = " - ".join(f"{k}: {v[-1]:.4f}" for k, v in outcome.history.items() if np.ndim(v[-1]) == 0)
                Bar.write(f"Member {number + 1}/{len(models)} - {outcome.seconds:.1f}s - {last}")
    if not results:
        raise next(iter(failures.values()))
    return results, failures


def _check_partitions(source: Source, members: int) -> None:
    """Nothing, if there is a partition for each member; where there are more, neighbours are put together.

    Raises:
        ValueError: there are fewer, or shards for another number of members.
    """
    if source.num_workers not in (None, members):
        raise ValueError(f"the data is sharded for {source.num_workers} members, and num_members is {members}.")
    found = source.partitions
    if found is not None and found < members:
        raise ValueError(
            f"bagging='partition' gives each member a partition of its own: num_members is {members}, and the data has "
            f"{found}. Call repartition({members}) on it first, or take fewer members, or bagging=True."
        )


def _source(data: Any) -> Source:
    return source_of(*data) if isinstance(data, tuple | list) and len(data) in (2, 3) else source_of(data)


def _built(build_or_model: Callable[..., keras.Model] | keras.Model, seed: int) -> keras.Model:
    """One member's compiled model, with weights by `seed`."""
    if isinstance(build_or_model, keras.Model):
        check_model(build_or_model)
        check_rows_are_kept(build_or_model, prepared=True)
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
    check_rows_are_kept(model, prepared=True)
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
