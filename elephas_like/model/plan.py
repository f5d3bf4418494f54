"""From what a fit is asked for to what it will do: `Fit`, and the `FitPlan` that follows once all workers have joined."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Sequence
from dataclasses import dataclass

from elephas_like.core import rounds
from elephas_like.core.center import unconstrained
from elephas_like.core.columns import difference, example_batch
from elephas_like.core.errors import DataError, ElephasError, ElephasWarning
from elephas_like.core.fault_plan import FaultPlan
from elephas_like.core.loop import FitPlan
from elephas_like.core.progress import FitProgress
from elephas_like.core.row_checks import NO_VALIDATION_ROWS
from elephas_like.core.schedules import Schedule
from elephas_like.core.strategies import Average, DownPour, OneShot, Strategy
from elephas_like.core.strategies.synchronous import OneWorker
from elephas_like.core.types import FitConfig, Frequency, Joined, Mode, OnNaN, OptimizerState
from elephas_like.model.checkpoints import Checkpoints
from elephas_like.model.options import Options
from elephas_like.rows.shards import SpoolOptions
from elephas_like.trainer.callbacks import DriverHooks
from elephas_like.trainer.constraints import WeightConstraints
from elephas_like.trainer.factories import TrainerFactory
from elephas_like.trainer.learning_rate import LearningRates
from elephas_like.trainer.own_optimizers import accumulations
from elephas_like.trainer.request import FitRequest

log = logging.getLogger(__name__)

MANY_WORKERS, FEW_STEPS = 8, 200
"""On digits, eight workers that take 120 steps each end 4.6 points below one process; on MNIST-5k with 320 steps, 1.5."""


@dataclass(frozen=True)
class Fit:
    """All that one fit needs but its rows.

    options, request: the arguments of SparkModel and of its `fit`.
    strategy, frequency: the options', defaults made concrete.
    config: what workers are told; `factory` makes them, with the strategy as so many workers need it.
    hooks: the driver's callbacks. progress: the state of the last finished round.
    spool: how training rows are written to disk. Validation rows have a target if training rows do.
    checkpoints: where the progress is saved, if it is.
    faults: what a test injects, if anything.
    has_validation_data: whether there are rows that were given for validation.
    """

    options: Options
    request: FitRequest
    strategy: Strategy
    frequency: Frequency | int | Schedule
    config: FitConfig
    factory: TrainerFactory
    hooks: DriverHooks
    progress: FitProgress
    spool: SpoolOptions
    checkpoints: Checkpoints | None = None
    faults: FaultPlan | None = None
    has_validation_data: bool = False


@dataclass(frozen=True)
class RoundCounts:
    """Exchanges in an epoch: of synchronous workers, and of each worker that goes on alone.

    The finest counts are what "auto" may come to while the workers' updates drift apart.
    """

    rounds: int
    finest: int
    of_workers: tuple[int, ...]
    finest_of_workers: tuple[int, ...]


def plan_of(fit: Fit, joined: Sequence[Joined]) -> FitPlan:
    """The plan of a fit, once all workers have said how many rows they have.

    Raises:
        ElephasError, DataError, ValueError: as `check_joined`.
    """
    variables, config = fit.hooks.variables, fit.config
    layout = variables.layout
    check_joined(joined, layout.hash, config.validation_split, has_validation_data=fit.has_validation_data)
    rows = sum(worker.rows for worker in joined)
    worker_steps = [rounds.steps(worker.rows, config.batch_size_of(worker.worker)) for worker in joined]
    _check_accumulation(fit, worker_steps)
    accumulation = max(worker.accumulation for worker in joined)
    signature = next((worker.signature for worker in joined if worker.signature), None)
    fit.hooks.planned(rows, max(worker_steps), example_batch(signature, config.batch_size) if signature else None)
    history = fit.hooks.history
    fit.hooks.monitor.recall(fit.progress.rounds, rows, history.epoch, history.history)
    _note_few_steps(fit, config.epochs * max(worker_steps), len(joined))
    # Workers that keep weights or slots of their own to the end: their updates resemble their last ones whatever their rows, and no
    # drift says whether rounds must be short.
    private = fit.strategy.remembers or config.optimizer_state is OptimizerState.PER_WORKER
    counts = schedule_of(fit.options.mode, fit.frequency, worker_steps, accumulation, private=private)
    if config.slots_every > counts.rounds * config.epochs:  # no average comes in so few
        counts = schedule_of(fit.options.mode, fit.frequency, worker_steps, accumulation, private=True)
    training = sum(worker.rows > 0 for worker in joined)
    _note_workers_without_rows(fit, training, len(joined))
    # One worker's weights, taken over as they are, obey the constraints, some of which (MinMaxNorm with a rate) must not be applied twice.
    packs = fit.options.codec is not None or fit.options.state_codec is not None
    taken_over = fit.factory.strategy in (OneWorker(), Average(), OneShot(), DownPour())
    alone = training == 1 and taken_over and not packs
    return FitPlan(
        layout=layout,
        mode=fit.options.mode,
        strategy=fit.factory.strategy,
        frequency=fit.frequency,
        rounds_per_epoch=counts.rounds,
        finest_rounds=counts.finest,
        worker_rounds=counts.of_workers,
        worker_finest=counts.finest_of_workers,
        num_workers=training,
        rows=rows,
        initial_epoch=config.initial_epoch,
        epochs=config.epochs,
        validates=any(worker.validation_rows for worker in joined),
        validation_freq=fit.request.validation_freq,
        max_staleness=fit.options.max_staleness,
        on_nan=OnNaN.DROP if fit.hooks.terminates_on_nan else fit.options.on_nan,
        codec=fit.options.codec,
        state_codec=fit.options.state_codec,
        epoch_steps=max(worker_steps),
        accumulation=accumulation,
        learning_rate=LearningRates(fit.hooks.model, fit.hooks.rate_factor, variables),
        waits_for_all=fit.options.quorum is None,
        workers_remember=fit.options.workers_remember(fit.strategy),
        constrain=unconstrained if alone else WeightConstraints(fit.hooks.model, variables),
        keeps_slots=config.keeps_slots,
        slots_every=config.slots_every,
        largest=joined[worker_steps.index(max(worker_steps))].worker,
        may_drop_all=fit.hooks.terminates_on_nan,
        control_variates=config.control_variates,
    )


def _check_accumulation(fit: Fit, worker_steps: Sequence[int]) -> None:
    """Raise if an optimizer accumulates gradients for longer than its slots, where they are, are kept. Warn if some of them are lost.

    Args:
        worker_steps: batches of each worker in an epoch.

    Raises:
        ValueError: it would never step.
    """
    if fit.config.optimizer_state is not OptimizerState.RESET:
        return
    accumulated = accumulations(fit.hooks.model)
    slowest, epochs = max(accumulated, default=1), fit.config.epochs - fit.config.initial_epoch
    kept = max(worker_steps) * (epochs if fit.frequency is Frequency.FIT else 1)
    if slowest > kept > 0:
        raise ValueError(
            f"gradient_accumulation_steps={slowest} with optimizer_state='reset': a worker has at most {kept} batches between two resets, "
            "which would never make a step. Use optimizer_state='average', or accumulate fewer batches."
        )
    # Rounds end where a step is whole, but for the last one of an epoch. What the fit ends with is lost in Keras, too.
    lost, count = max((steps % each, each) for steps in worker_steps for each in [1, *accumulated])
    if lost and epochs > 1 and fit.frequency is not Frequency.FIT:
        log.warning(
            "gradient_accumulation_steps=%d with optimizer_state='reset': the last of a worker's batches in each epoch (%d of up to %d) make no "
            "whole step, and their gradients are lost. optimizer_state='average' carries them on to the next epoch.",
            *(count, lost, max(worker_steps)),
        )


def _note_workers_without_rows(fit: Fit, training: int, num_workers: int) -> None:
    """Warn of workers that have no rows where their number was counted in before it was known."""
    counted = {
        "scale_learning_rate": fit.options.scale_learning_rate,
        "global_batch_size": fit.request.global_batch_size,
    }
    name = next((name for name, value in counted.items() if value is not None), None)
    if name is not None and training < num_workers:
        warnings.warn(
            f"{num_workers - training} of {num_workers} workers have no rows, and {name} has counted all {num_workers}: train with "
            f"num_workers={training}, or repartition the data.",
            ElephasWarning,
            stacklevel=2,
        )


def _note_few_steps(fit: Fit, steps: int, num_workers: int) -> None:
    """Say so where many workers take few steps each, for that costs accuracy (docs/convergence.md, budget A)."""
    large = fit.options.mode is Mode.SYNCHRONOUS and fit.request.global_batch_size is None
    if large and fit.options.scale_learning_rate is None and num_workers >= MANY_WORKERS and steps < FEW_STEPS:
        log.warning(
            "each of %d workers takes %d steps in this fit, where one process would take about %d: global_batch_size=%d keeps their "
            "number, and scale_learning_rate='sqrt' makes them longer (docs/convergence.md).",
            *(num_workers, steps, num_workers * steps, fit.config.batch_size),
        )


def check_joined(
    joined: Sequence[Joined], layout_hash: str, validation_split: float, *, has_validation_data: bool = False
) -> None:
    """Nothing, if the workers that have joined can train together.

    Args:
        layout_hash: of the driver's model.
        validation_split: share of each worker's rows that was to be held out.
        has_validation_data: whether rows to validate on were given.

    Raises:
        ElephasError: a worker whose model is not the driver's.
        DataError: workers whose rows differ in shape or kind.
        ValueError: no rows to train on, or none to validate on where some were held out or given.
    """
    for worker in joined:
        if worker.layout_hash != layout_hash:
            raise ElephasError(
                f"worker {worker.worker} built another model than the driver's: layouts {worker.layout_hash} and "
                f"{layout_hash} differ. Does the model's code depend on the machine it runs on?"
            )
    with_rows = [worker for worker in joined if worker.signature]
    for worker in with_rows[1:]:
        differ = difference(with_rows[0].signature, worker.signature)
        if differ:
            raise DataError(
                f"the rows of workers {with_rows[0].worker} and {worker.worker} differ: {differ}. All rows of an RDD must "
                "have one shape."
            )
    if not any(worker.rows for worker in joined):
        raise ValueError("there are no rows to train on: every partition is empty (or all held out for validation).")
    if any(worker.validation_rows for worker in joined):
        return
    if has_validation_data:
        raise ValueError(NO_VALIDATION_ROWS)
    if validation_split:
        raise ValueError(
            f"validation_split={validation_split} leaves no validation rows: the largest shard has "
            f"{max(worker.rows for worker in joined)} rows. Use fewer workers, or give validation_data."
        )


def schedule_of(
    mode: Mode, frequency: Frequency | int | Schedule, worker_steps: Sequence[int], accumulation: int, *, private: bool
) -> RoundCounts:
    """How often workers exchange in an epoch.

    Args:
        worker_steps: batches of each worker in an epoch.
        accumulation: batches to a step of the optimizer; rounds end where one does.
        private: whether workers keep weights or slots of their own. Their rounds are the finest from the first on.
    """
    if isinstance(frequency, Schedule):  # it is asked for each round when that begins
        ones = (1,) * len(worker_steps)
        return RoundCounts(1, 1, ones, ones)
    auto = rounds.auto_rounds(mode, worker_steps)
    epoch_rounds = rounds.rounds_per_epoch(worker_steps, frequency, accumulation, auto)
    of_workers = rounds.rounds_of_workers(worker_steps, epoch_rounds)
    finest = rounds.finest(worker_steps, epoch_rounds, frequency, accumulation)
    finest_of_workers = tuple(
        rounds.finest([steps], own, frequency, accumulation)
        for steps, own in zip(worker_steps, of_workers, strict=True)
    )
    if private:
        return RoundCounts(finest, finest, finest_of_workers, finest_of_workers)
    return RoundCounts(epoch_rounds, finest, of_workers, finest_of_workers)
