"""How a fit flows: an engine is chosen, all is prepared, workers train, and the model ends with the trained state."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

import keras
from pyspark import SparkContext
from pyspark.sql import SparkSession

from elephas_like.core.described import without_addresses
from elephas_like.core.errors import ElephasError, ElephasWarning, NonFiniteError
from elephas_like.core.extras import BACKENDS
from elephas_like.core.layout import Layout
from elephas_like.core.progress import FitProgress
from elephas_like.core.schedules import Schedule
from elephas_like.core.strategies import Median, Strategy, TrimmedMean
from elephas_like.core.strategies.synchronous import of_one_worker
from elephas_like.core.types import (
    EngineName,
    Frequency,
    Mode,
    OnNaN,
    OptimizerState,
    Role,
    TrainState,
    seldom_changed,
)
from elephas_like.exchange.protocol import Sizes
from elephas_like.model.array_checks import check_label_arrays, raise_named
from elephas_like.model.checkpoints import Checkpoints, Found
from elephas_like.model.engine_choice import chosen_engine, chosen_remotely
from elephas_like.model.interrupts import Interrupts
from elephas_like.model.launch import run, run_over_gangs
from elephas_like.model.options import Options
from elephas_like.model.plan import Fit
from elephas_like.model.source import Source
from elephas_like.model.sources import Arrays
from elephas_like.model.training_page import PageRequest, training_page
from elephas_like.rows.shards import SpoolOptions
from elephas_like.spark.session import (
    active_remote,
    conf_of,
    context_for,
    is_remote,
    settings_of,
    started_context,
    warn_if_stopped,
)
from elephas_like.spark.slots import task_cpus
from elephas_like.spark.waits import raise_hidden_interrupt
from elephas_like.trainer.bars import Bar
from elephas_like.trainer.callback_checks import shipped_callbacks
from elephas_like.trainer.callback_states import logs_are_kept
from elephas_like.trainer.callbacks import DriverHooks
from elephas_like.trainer.compile_arguments import compiled_as
from elephas_like.trainer.factories import TrainerFactory
from elephas_like.trainer.label_rules import label_rules
from elephas_like.trainer.learning_rate import scaled_schedules
from elephas_like.trainer.own_optimizers import check_knows_weights
from elephas_like.trainer.request import FitRequest, FitSeeds
from elephas_like.trainer.spec import Carry, ModelSpec
from elephas_like.trainer.state import variables_in_words

log = logging.getLogger(__name__)


def train(
    model: keras.Model,
    options: Options,
    request: FitRequest,
    source: Source,
    validation: Source | None,
    draw_seeds: Callable[[], FitSeeds],
) -> keras.callbacks.History:
    """One fit from its checked arguments to its History. The model ends with the state of the last finished round.

    Args:
        source, validation: rows to train on and rows to score.
        draw_seeds: the seeds of this fit; called once the engine is chosen.
    """
    source = source.for_model(model)
    validation = None if validation is None else validation.for_model(model)
    check_label_arrays(model, source, validation)
    # Choose. The slots that an engine holds are free again after the last round.
    session = source.session or active_remote()
    remote = session is not None and is_remote(session)
    context = None if remote else context_for(source.context, options.engine)
    checkpoints = Checkpoints.of(request, context or started_context())
    found = None if checkpoints is None else checkpoints.found(request.resume)
    if options.scale_learning_rate is not None and request.global_batch_size is not None:
        raise ValueError(
            "global_batch_size keeps the batch that the learning rate was chosen for, whatever the number of workers: leave "
            "scale_learning_rate out, or give batch_size."
        )
    asked = workers_asked(options.num_workers, source)
    if asked is None and found is not None:
        asked = found.num_workers
    options.resolved(model, asked or 2)  # raises before slots are waited for
    if session is not None and remote:
        options.check_encryption(conf_of(session))
    elif context is not None:
        options.check_encryption(settings_of(context))
    steady = bool(request.worker_callbacks)
    spool = source.spool_options(allow_plain_text=options.allow_plain_text)
    partitions = asked
    if asked is None and not remote:
        in_process = options.engine is EngineName.IN_PROCESS
        partitions = source.partitions if in_process else source.partitions_to_write(spool)
    choosing = (
        chosen_remotely(options, session, asked)
        if session is not None and remote
        else chosen_engine(options, context, asked, partitions, steady=steady)
    )
    with choosing as (engine, num_workers):
        if engine is EngineName.IN_PROCESS and options.engine is EngineName.AUTO and not remote:
            warn_if_stopped("this fit trains", "Start a new session for a fit on Spark, or say engine='in_process'.")
        if request.verbose and engine is not EngineName.IN_PROCESS:
            _announce(num_workers, "" if context is None else str(context.applicationId))
        # Prepare.
        cores = None if engine is EngineName.IN_PROCESS else _task_cpus(session, context)
        if validation is not None or request.validation_split:
            _check_swaps(request, options.mode, engine)
        fit = _prepared(
            model, options, request, source, engine, num_workers, cores, draw_seeds, checkpoints, found, spool
        )
        fit = replace(fit, has_validation_data=validation is not None)
        _describe(fit, engine, num_workers)
        check_label_arrays(model, source, validation)  # now that the model is built, its outputs are known
        # Train.
        page = PageRequest(
            request.monitor, options.host, options.tls, options.allow_plain_text, verbose=request.verbose
        )
        with training_page(page, fit.hooks.monitor, context, session if remote else None):
            _trained(fit, engine, source, validation, context, session, num_workers)
    fit.hooks.train_end(fit.progress.state)
    if checkpoints is not None:
        checkpoints.end()
    return fit.hooks.history


def _trained(
    fit: Fit,
    engine: EngineName,
    source: Source,
    validation: Source | None,
    context: SparkContext | None,
    session: SparkSession | None,
    num_workers: int,
) -> None:
    """Train on the engine. Whatever happens, the model has the state of the last finished round, and History its rounds."""
    try:
        with Interrupts() as interrupts:
            fit.hooks.check_interrupt = interrupts.check
            if engine is EngineName.GANG:
                run_over_gangs(fit, session or SparkSession(context), source, validation, num_workers)
            else:
                held_out = None if validation is None else validation.data(num_workers)
                run(fit, engine, source.data(num_workers, fit.spool), held_out, context)
    except BaseException as error:
        fit.hooks.close()
        fit.hooks.variables.write(fit.progress.state)  # the last finished round's: what Ctrl-C leaves
        raise_hidden_interrupt(error)
        if isinstance(error, NonFiniteError):
            raise_named(error, source)
        raise
    finally:
        fit.hooks.history.rounds = fit.progress.rounds


_announced: set[str] = set()
"""Applications whose user was told what takes the first seconds."""


def _announce(num_workers: int, application: str) -> None:
    if application not in _announced:
        _announced.add(application)
        backend = BACKENDS[keras.config.backend()]
        Bar.write(
            f"Starting {num_workers} workers. Each imports {backend} first, which takes some seconds once a session."
        )


def _describe(fit: Fit, engine: EngineName, num_workers: int) -> None:
    """Say on the training page what is trained."""
    frequency = fit.frequency.value if isinstance(fit.frequency, Frequency) else without_addresses(fit.frequency)
    fit.hooks.monitor.describe(
        engine,
        alone=fit.options.mode is not Mode.SYNCHRONOUS,
        first_epoch=fit.config.initial_epoch,
        epochs=fit.config.epochs,
        model=fit.hooks.model.name,
        workers=num_workers,
        mode=fit.options.mode.value,
        strategy=type(fit.strategy).__name__,
        frequency=frequency,
        batch=fit.config.batch_size,
    )


def _task_cpus(session: SparkSession | None, context: SparkContext | None) -> int | None:
    if context is not None:
        return task_cpus(settings_of(context))
    return None if session is None else task_cpus(conf_of(session))


def _check_swaps(request: FitRequest, mode: Mode, engine: EngineName) -> None:
    """Raise ValueError if SwapEMAWeights could not put the averages in place of the weights when these are validated."""
    swaps = any(isinstance(callback, keras.callbacks.SwapEMAWeights) for callback in request.callbacks)
    if swaps and (mode is not Mode.SYNCHRONOUS or engine is EngineName.GANG):
        raise ValueError(
            "SwapEMAWeights puts the averages in place of the weights while validation rows are evaluated, which is between two rounds that "
            "the driver makes: use mode='synchronous' with engine='server' or 'jobs', or leave the validation rows out."
        )


def _check_gang(options: Options, request: FitRequest) -> None:
    """Raise ValueError if callbacks or checkpoints would see another training than they are made for."""
    wants_epochs = "callbacks" if request.callbacks else "checkpoint_dir" if request.checkpoint_dir else None
    if wants_epochs is None:
        return
    if options.mode is not Mode.SYNCHRONOUS:
        raise ValueError(
            f"{wants_epochs} needs mode='synchronous' with engine='gang', which is what runs over Spark Connect: workers that go on "
            "alone train all epochs in one job. Or use engine='server' on a classic session."
        )
    if (options.epochs_per_job or 1) > 1:
        raise ValueError(
            f"{wants_epochs} needs every epoch, and epochs_per_job={options.epochs_per_job} trains several before they are seen; "
            "leave epochs_per_job out."
        )


def workers_asked(num_workers: int | None, source: Source) -> int | None:
    """Workers that are certain before capacity is known: those that the data is cut for, or the constructor's.

    Raises:
        ValueError: both are given, and differ.
    """
    asked = num_workers if source.num_workers is None else source.num_workers
    if num_workers not in (None, asked):
        raise ValueError(f"the data is sharded for {asked} workers, and num_workers is {num_workers}.")
    return asked


def _prepared(
    model: keras.Model,
    options: Options,
    request: FitRequest,
    source: Source,
    engine: EngineName,
    num_workers: int,
    cores: int | None,
    draw_seeds: Callable[[], FitSeeds],
    checkpoints: Checkpoints | None,
    found: Found | None,
    spool: SpoolOptions,
) -> Fit:
    """All that a fit needs but its rows. The model is built, and training has begun for the callbacks."""
    if request.worker_callbacks and engine in (EngineName.JOBS, EngineName.GANG):
        raise ValueError(
            "worker_callbacks need engine='server' or 'in_process': a round of jobs, and some epochs of gangs, may run in any "
            "process."
        )
    if engine is EngineName.GANG:
        _check_gang(options, request)
    drawn = draw_seeds()
    seeds = drawn if found is None else found.seeds
    config = request.config(
        num_workers,
        options.batch_size,
        seeds=seeds,
        optimizer_state=options.optimizer_state,
        optimizer_state_every=options.optimizer_state_every,
        control_variates=options.control_variates,
        in_rounds=options.mode is Mode.SYNCHRONOUS,
    )
    source.build(model, config.batch_size)
    check_knows_weights(model)
    # By the optimizer, whose parts are all known now.
    strategy, frequency = options.resolved(model, num_workers, engine)
    factor = 1.0 if options.scale_learning_rate is None else options.scale_learning_rate.factor(num_workers)
    hooks = DriverHooks(
        model,
        request.callbacks,
        request.epochs,
        request.verbose,
        rate_factor=factor,
        keeps_slots=config.keeps_slots,
        validation_freq=request.validation_freq,
    )
    described = _described(options, request, strategy, frequency, drawn, num_workers)
    if checkpoints is not None:
        described |= compiled_as(model)
    progress, begin = _begun(hooks, request.initial_epoch, seeds, described, checkpoints, found)
    if engine is not EngineName.IN_PROCESS:
        layout = hooks.variables.layout
        hooks.sizes = exchanged_bytes(layout, options, engine, control_variates=config.control_variates)
    _note_no_effect(options, engine, hooks.variables.layout, frequency)
    _note_means(options, strategy, hooks.variables.layout)
    remember = options.workers_remember(strategy)
    if found is not None and remember and progress.rounds and progress.memories is None:
        _warn_of_old_checkpoint(options, strategy, found.place)
    # Workers that others do not wait for may be ahead of the driver when an epoch ends.
    ahead = options.mode is not Mode.SYNCHRONOUS or options.quorum is not None
    config = replace(
        config,
        initial_epoch=begin,
        keeps_before=remember and ahead and (checkpoints is not None or options.keeps_slots),
        fused_optimizer=options.fused_optimizer,
        names_nan=options.on_nan is OnNaN.RAISE and not hooks.terminates_on_nan and not isinstance(source, Arrays),
    )
    with scaled_schedules(model, factor):  # the workers'
        spec = ModelSpec.from_model(model, Carry.NOTHING)
    # One worker's weights are taken over as they are, where nothing packs what travels, and nobody asks for the mean step.
    whole = num_workers == 1 and not (options.codec or options.state_codec or config.control_variates)
    factory = TrainerFactory(
        spec=spec,
        config=config,
        strategy=of_one_worker(strategy) if whole else strategy,
        layout_hash=hooks.variables.layout.hash,
        callbacks=shipped_callbacks(request.worker_callbacks),
        cores=cores,
        codec=options.codec,
        state_codec=options.state_codec,
        labels=label_rules(model),
    )
    return Fit(options, request, strategy, frequency, config, factory, hooks, progress, spool, checkpoints)


def _warn_of_old_checkpoint(options: Options, strategy: Strategy, place: str) -> None:
    """Warn of a checkpoint without what workers remember."""
    warnings.warn(
        f"{type(strategy).__name__} with codec={options.codec!r} and optimizer_state={options.optimizer_state.value!r} "
        f"has workers remember something between rounds, which {place} does not have: an earlier version of "
        "elephas_like wrote it. They begin anew, as workers do whose executor was killed.",
        ElephasWarning,
        stacklevel=5,
    )


def _note_no_effect(
    options: Options, engine: EngineName, layout: Layout, frequency: Frequency | int | Schedule
) -> None:
    """Say so where options change nothing in this fit."""
    _note_no_steps(options, engine, frequency)
    _note_no_slots(options, layout, frequency)
    if options.control_variates and frequency is Frequency.FIT:
        log.warning("control_variates change nothing here: frequency='fit' has one round. Leave them out.")


def _note_means(options: Options, strategy: Strategy, layout: Layout) -> None:
    """Say so where a strategy is to withstand wrong updates, and what else comes with them is averaged."""
    if not isinstance(strategy.innermost, Median | TrimmedMean):
        return
    averaged = options.optimizer_state is OptimizerState.AVERAGE and layout.size(Role.SLOT)
    what = [*(["the optimizer's slots"] if averaged else ()), *(["statistics"] if layout.size(Role.STATISTIC) else ())]
    if what:
        log.warning(
            "%r withstands wrong weights of some workers; %s are still averaged over all of them, and one worker's may spoil them.%s",
            strategy.name,
            " and ".join(what),
            " optimizer_state='per_worker' leaves slots where they are." if averaged else "",
        )


def _note_no_steps(options: Options, engine: EngineName, frequency: Frequency | int | Schedule) -> None:
    """Say so where steps between states are to be packed, and none travels."""
    why = ""
    if engine is EngineName.JOBS:
        why = "engine 'jobs' sends states whole"
    elif frequency is Frequency.FIT:
        why = "frequency='fit' has one round, which begins whole"
    if options.state_codec is not None and why:
        log.warning("state_codec=%r saves nothing here: %s. Leave it out.", options.state_codec.name, why)


def _note_no_slots(options: Options, layout: Layout, frequency: Frequency | int | Schedule) -> None:
    """Say so where slots are to be averaged less often, and there are none, or one round."""
    why = ""
    if not layout.size(Role.SLOT):
        why = "the optimizer has no slots"
    elif frequency is Frequency.FIT:
        why = "frequency='fit' has one round"
    if options.optimizer_state_every > 1 and why:
        log.warning(
            "optimizer_state_every=%d saves nothing here: %s. Leave it out.", options.optimizer_state_every, why
        )


def exchanged_bytes(
    layout: Layout, options: Options, engine: EngineName, *, control_variates: bool = False
) -> dict[str, int]:
    """Return the bytes that one worker sends and receives in a round, for callbacks. What seldom changes counts for nothing.

    Of slots that are averaged every so many rounds, each round has its share.
    """
    every = options.optimizer_state_every
    seldom = seldom_changed(options.optimizer_state, every)
    sizes = Sizes.of(layout, options.codec, state_codec=options.state_codec, control_variates=control_variates)
    slots = (sizes.state() - sizes.state(Role.SLOT)) // every if every > 1 else 0
    sent = sizes.state(Role.FROZEN) if engine is EngineName.JOBS else sizes.order(*seldom) + slots
    return {"update_bytes": sizes.update(*seldom) + slots, "state_bytes": sent}


def _begun(
    hooks: DriverHooks,
    initial_epoch: int,
    seeds: FitSeeds,
    described: dict[str, object],
    checkpoints: Checkpoints | None,
    found: Found | None,
) -> tuple[FitProgress, int]:
    """(where the fit begins, its first epoch): as it is asked for, or as a checkpoint says. `on_train_begin` is called."""
    kept, own, variables = None, hooks.variables.read(), hooks.variables
    try:
        if found is not None:
            # Callbacks see its state in on_train_begin. What they change there is dropped: they had changed it when the fit began.
            with suppress(ElephasError):  # its layout may be the one after on_train_begin, which freezes layers
                kept = found.progress(own)
                variables.write(kept.state)
        with logs_are_kept(hooks.callbacks, () if found is None else found.callback_names()):
            state, begin = hooks.train_begin(initial_epoch)
        if found is not None and (kept is None or hooks.variables.layout is not variables.layout):
            kept = found.progress(hooks.variables.read())
            hooks.variables.write(kept.state)
        begin = begin if found is None else found.initial_epoch
        if checkpoints is not None:
            described |= {"variables": variables_in_words(hooks.model, hooks.variables)}
            rates = state.learning_rate.tolist() if found is None else found.learning_rate
            checkpoints.begin(described, seeds, begin, hooks, found, rates)
    except BaseException:
        if found is not None:  # it is another fit's: the model is as it was, so that resume=False begins with that
            variables.write(own)
        raise
    if found is not None and kept is not None:
        _note_other_rate(found, own, kept.state, hooks.rate_factor)
    return kept or FitProgress(state), begin


def _note_other_rate(found: Found, own: TrainState, kept: TrainState, factor: float) -> None:
    """Say in the log if a fit that goes on trains with another learning rate than its model had.

    The checkpoint's fit may have begun with the model's rate, and its callbacks changed it: then there is nothing to say.
    States have the rate times `factor`.
    """
    here, there = (state.learning_rate.tolist() for state in (own, kept))
    differ = [rates for rates in zip(here, there, strict=False) if rates[0] != rates[1]]
    if differ and found.learning_rate not in (None, here):
        log.warning(
            "the fit goes on with the learning rate of %s, %g. The model's own, %g, does not count: to train with that, begin anew with "
            "resume=False, or set it in a callback.",
            *(found.place, differ[0][1] / factor, differ[0][0] / factor),
        )


def _described(
    options: Options,
    request: FitRequest,
    strategy: Strategy,
    frequency: Frequency | int | Schedule,
    drawn: FitSeeds,
    num_workers: int,
) -> dict[str, object]:
    """What a checkpoint must have been written for, to go on from: what decides how a fit trains."""
    return {
        "strategy": without_addresses(strategy),
        "frequency": without_addresses(frequency),
        "codec": without_addresses(options.codec),
        "state_codec": without_addresses(options.state_codec),
        **{
            name: str(getattr(options, name))
            for name in ("mode", "optimizer_state", "optimizer_state_every", "max_staleness", "quorum", "on_nan")
        },
        "control_variates": options.control_variates,
        "batch_size": request.batch_size or options.batch_size,
        **{name: getattr(request, name) for name in ("global_batch_size", "validation_split", "shuffle")},
        "class_weight": repr(request.class_weight),
        # A checkpoint's learning rate is that of its number of workers.
        "scale_learning_rate": options.scale_learning_rate and f"{options.scale_learning_rate}, {num_workers} workers",
        # Not the seed of this fit, which counts those before it: a notebook's cell that is run again is the same fit.
        "seed": None if options.seed is None else [drawn.split, drawn.bootstrap],
    }
