"""A fit in asynchronous mode: workers exchange with a shared state, and the driver sees epochs end."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import replace

from elephas_like.core.async_progress import AsyncProgress, AsyncSchedule
from elephas_like.core.center import HogwildCenter, LockedCenter
from elephas_like.core.drift import DriftMonitor
from elephas_like.core.errors import ElephasWarning
from elephas_like.core.loop import FitPlan, Hooks, check_applied
from elephas_like.core.merging import with_mean_slots
from elephas_like.core.progress import FitProgress, NotSaved, Saving
from elephas_like.core.types import EpochRecord, Floats, Mode, Role, TrainState
from elephas_like.core.workers import AsyncWorkers


def fit_asynchronously(
    workers: AsyncWorkers,
    plan: FitPlan,
    hooks: Hooks,
    progress: FitProgress,
    loss_of: Callable[[Floats], float | None],
    saving: Saving | None = None,
) -> TrainState:
    """Train until the workers together have seen `epochs` times the rows, and return the state at that moment.

    Workers go on while an epoch is evaluated and callbacks run. What callbacks change, such as the learning rate, reaches a
    worker with its next exchange.

    Args:
        progress: where to begin; updated after each epoch.
        saving: where the progress is saved after epochs' callbacks; not at the end.
    """
    begin = plan.initial_epoch if progress.epoch < 0 else progress.epoch
    if plan.end <= begin:
        return progress.state
    state = hooks.epoch_begin(begin, progress.state)
    progress.state, progress.epoch = state, begin
    if hooks.stopped():
        return state
    kind, monitor = HogwildCenter if plan.mode is Mode.HOGWILD else LockedCenter, DriftMonitor()
    center = kind(
        state,
        plan.layout,
        plan.strategy,
        plan.num_workers,
        plan.on_nan,
        codec=plan.codec,
        budget=plan.budget,
        max_staleness=plan.max_staleness,
        monitor=monitor,
        learning_rate=plan.learning_rate,
        constrain=plan.constrain,
    )
    if progress.center:
        center.restore(progress.center, [worker for worker, rounds in enumerate(plan.worker_rounds) if rounds])
    schedule = AsyncSchedule(plan.worker_rounds, begin, plan.worker_finest, monitor)
    counts = AsyncProgress(
        plan.rows, plan.end, schedule, first_round=len(progress.rounds), keeps_center=saving is not None
    )
    saving = saving or NotSaved()

    def recalls(epoch: int) -> bool:
        if epoch + 1 >= plan.end:
            return plan.keeps_slots
        return plan.workers_remember and saving.due(False)

    workers.begin(center, counts, plan.validates_after, recalls, progress.memories or {})
    del state  # no state of an earlier moment is kept: it may be large
    try:
        hooks.order_given()
        last = _through_epochs(workers, plan, hooks, progress, loss_of, saving)
    except BaseException:  # Ctrl-C among them: the exchanges of the epoch that was under way are not lost
        progress.state = center.snapshot().but(learning_rate=progress.state.learning_rate)
        raise
    came = sum(bool(worker.samples) and not worker.dropped for one in progress.rounds for worker in one.workers)
    if came and not center.version:
        warnings.warn(
            f"strategy {plan.strategy.name!r} has not stepped once: {came} updates have come, and it waits for "
            f"{plan.strategy.quorum(plan.num_workers)}. The model has the weights that it had before the fit. Take a smaller buffer, more "
            "epochs, or a frequency with more exchanges.",
            ElephasWarning,
            stacklevel=2,
        )
    if plan.keeps_slots and last is not None and last.epoch + 1 < plan.end:
        # Workers were to be asked for their slots at the last epoch, and a callback has ended the training before.
        progress.state = with_mean_slots(progress.state, workers.memories(last).items(), progress.rounds)
    return progress.state


def _through_epochs(
    workers: AsyncWorkers,
    plan: FitPlan,
    hooks: Hooks,
    progress: FitProgress,
    loss_of: Callable[[Floats], float | None],
    saving: Saving,
) -> EpochRecord | None:
    """Run the callbacks of each finished epoch, and pass on what they change. Return the epoch after which one of them ended the training."""
    state = progress.state
    while (record := workers.next_epoch()) is not None:
        # A snapshot taken before the last change arrived has the old learning rate; the driver's is the one that counts.
        record = replace(record, state=record.state.but(learning_rate=state.learning_rate))
        progress.rounds.extend(record.rounds)
        if plan.keeps_slots and record.epoch + 1 >= plan.end:
            state = with_mean_slots(record.state, (record.memories or {}).items(), progress.rounds)
            record = replace(record, state=state, memories=None)
        metrics = record.metrics
        for finished in record.rounds[:-1]:
            hooks.round_end(finished, metrics)
        if record.rounds:
            hooks.round_end(replace(record.rounds[-1], loss=loss_of(metrics)), metrics)
        if not plan.may_drop_all and not hooks.stopped():
            check_applied(record.epoch, record.rounds)
        state = hooks.epoch_end(record)
        progress.state, progress.center, progress.memories = state, record.center, record.memories
        progress.end_epoch(record.epoch)
        if hooks.stopped():
            break
        if record.epoch + 1 < plan.end:
            # Workers were asked what they remember when the epoch ended, if a checkpoint was due then.
            due = record.memories is not None if plan.workers_remember else saving.due(False)
            saving.save(progress, due)
            progress.memories = None
            state = progress.state = hooks.epoch_begin(record.epoch + 1, state)
            if any(state.part(role) is not record.state.part(role) for role in Role):
                workers.replace(record.state, state)
            if hooks.stopped():
                break
    return record
